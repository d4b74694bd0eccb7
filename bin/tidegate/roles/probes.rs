//! Probes and metrics of a role that serves no API.

use std::sync::Arc;

use tidegate_api::{Probes, serve_probes};
use tidegate_store::{Store, supervise};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::{assemble, metrics};
use crate::config::Listen;
use crate::exit::Failure;

/// A port that was taken before anything slow was done.
pub(super) struct ProbePort(TcpListener);

impl ProbePort {
    /// Takes the port, if one is wanted.
    pub(super) async fn bind(listen: Option<Listen>) -> Result<Option<Self>, Failure> {
        match listen {
            Some(listen) => Ok(Some(Self(assemble::bind(listen).await?))),
            None => Ok(None),
        }
    }

    /// Serves until `end`; ready until `draining`.
    pub(super) fn serve(
        self,
        store: &Store,
        draining: CancellationToken,
        end: CancellationToken,
    ) -> Result<(), Failure> {
        let address = assemble::address(&self.0)?;
        let store = store.clone();
        let ready = move || -> futures_util::future::BoxFuture<'static, bool> {
            let store = store.clone();
            Box::pin(async move { store.ping().await.is_ok() })
        };
        let probes = Probes { prometheus: metrics::start()?, ready: Arc::new(ready), draining };
        tracing::info!(url = %format!("http://{address}"), "serving metrics");
        let listener = Arc::new(Mutex::new(self.0));
        tokio::spawn(supervise("probes", end.clone(), move || {
            let (listener, probes, end) = (listener.clone(), probes.clone(), end.clone());
            async move {
                let listener = listener.lock().await;
                if let Err(error) = serve_probes(&listener, probes, end).await {
                    tracing::error!(%error, "metrics are not served any more");
                }
            }
        }));
        Ok(())
    }
}
