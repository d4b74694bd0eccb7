//! The process's metrics, gathered for `/metrics`.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::exit::Failure;

/// Buckets of times in seconds: from a look at memory to the longest task that is still a request.
const SECONDS: [f64; 16] =
    [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0];
/// Buckets of batch sizes, up to the largest batch.
const TASKS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];
/// How often histograms are brought up to date when nobody asks, so that they do not pile up.
const UPKEEP: Duration = Duration::from_secs(5);

/// Starts gathering. Must be called inside a runtime, once in a process.
pub(super) fn start() -> Result<PrometheusHandle, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::other("cannot gather metrics", error);
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_tasks".to_owned()), &TASKS))
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_turn_sessions".to_owned()), &TASKS))
        .map_err(|error| failed(&error))?
        .install_recorder()
        .map_err(|error| failed(&error))?;
    let upkeep = recorder.clone();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(UPKEEP);
        loop {
            ticks.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(recorder)
}
