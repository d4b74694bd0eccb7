//! The worker's metrics, each in one place.

use std::time::Duration;

use tidegate_core::Kind;

/// A run ended. The kinds are those of the registry, a closed set.
pub(crate) fn run(kind: &Kind, outcome: &'static str, took: Duration) {
    let kind = kind.as_str().to_owned();
    metrics::histogram!("tidegate_run_seconds", "kind" => kind, "outcome" => outcome).record(took.as_secs_f64());
}

/// The slots there are, and those that a handler is in.
pub(crate) fn slots(all: usize, busy: usize) {
    metrics::gauge!("tidegate_slots").set(all as f64);
    metrics::gauge!("tidegate_slots_busy").set(busy as f64);
}

/// A heartbeat was answered (`ok`), was not (`failed`), or found the session lost (`lost`).
pub(crate) fn heartbeat(outcome: &'static str) {
    metrics::counter!("tidegate_heartbeats_total", "outcome" => outcome).increment(1);
}

/// Leases ended before their runs did.
pub(crate) fn leases_lost(count: usize) {
    metrics::counter!("tidegate_leases_lost_total").increment(count as u64);
}
