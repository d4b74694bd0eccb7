//! Numbers of the whole system, read from the store at most once a second, however many look.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tidegate_store::{Gauges, StoreError};
use tokio::sync::Mutex;

use crate::metric::forget_peers;
use crate::settings::Shared;

/// How old the numbers may be.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The latest numbers, and when they were read.
#[derive(Debug, Default)]
pub(crate) struct GaugeCache(Mutex<Option<(Instant, Gauges)>>);

/// The numbers, at most a second old. Of several callers one asks the store and the others wait for it.
pub(crate) async fn read(app: &Shared) -> Result<Gauges, StoreError> {
    let mut latest = app.gauges.0.lock().await;
    if let Some((_, gauges)) = latest.as_ref().filter(|(at, _)| at.elapsed() < MAX_AGE) {
        return Ok(gauges.clone());
    }
    let asked = tokio::time::timeout(app.settings.read_timeout, app.backend.gauges()).await;
    let gauges = asked.unwrap_or(Err(StoreError::Unavailable(None)))?;
    if let Some((_, before)) = latest.as_ref() {
        let known: HashSet<&str> = gauges.peers.iter().map(|peer| peer.name.as_str()).collect();
        let names = before.peers.iter().map(|peer| peer.name.as_str());
        forget_peers(names.filter(|name| !known.contains(name)));
    }
    *latest = Some((Instant::now(), gauges.clone()));
    Ok(gauges)
}
