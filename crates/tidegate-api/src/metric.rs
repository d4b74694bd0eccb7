//! The metrics of this crate, by name. Labels come from closed sets.

use std::sync::OnceLock;

use http::{Method, StatusCode};
use metrics::{Counter, Histogram};
use tidegate_store::Gauges;

use crate::routes::SUBMIT;
use crate::settings::Shared;

const REQUESTS: &str = "tidegate_http_requests_total";
const REQUEST_SECONDS: &str = "tidegate_http_request_seconds";
const INGEST_BYTES: &str = "tidegate_http_ingest_bytes";
const CONNECTIONS: &str = "tidegate_http_connections";
const EVICTED: &str = "tidegate_http_connections_evicted_total";
const PRESSURE: &str = "tidegate_pressure_ratio";
const TASKS: &str = "tidegate_queue_tasks";
const TASK_BYTES: &str = "tidegate_queue_bytes";
const OLDEST: &str = "tidegate_queue_oldest_seconds";
const SESSIONS: &str = "tidegate_sessions";
const SLOTS: &str = "tidegate_session_slots";
const LEASES: &str = "tidegate_leases";
const PEER_IN_FLIGHT: &str = "tidegate_peer_in_flight";
const PEER_MAX_IN_FLIGHT: &str = "tidegate_peer_max_in_flight";

/// Every metric of this crate: its name, and what it says.
pub const METRICS: &[(&str, &str)] = &[
    (REQUESTS, "Requests answered, by route pattern, method and status"),
    (REQUEST_SECONDS, "Time from a request's head to its answer, in seconds, by route pattern"),
    (INGEST_BYTES, "Bytes of request bodies held by this process"),
    (CONNECTIONS, "Connections open to this process"),
    (EVICTED, "Connections that had sent no request yet and made way for new ones"),
    (PRESSURE, "How full the queue is, 0 to 1, as this process last saw it"),
    (TASKS, "Tasks that have not ended, by class and state (queued, running, deferred)"),
    (TASK_BYTES, "Bytes of payload of tasks that have not ended"),
    (OLDEST, "Age of the oldest task, in seconds, by state (queued, due, running)"),
    (SESSIONS, "Live worker sessions"),
    (SLOTS, "Slots of the live worker sessions"),
    (LEASES, "Leases held"),
    (PEER_IN_FLIGHT, "Tasks and calls that use a peer, by configured peer"),
    (PEER_MAX_IN_FLIGHT, "How many may use a peer at once; +Inf where that is not limited"),
];

/// Tells the process's metrics recorder what each metric means. Call it once, after the recorder is installed.
pub fn describe_metrics() {
    for (name, meaning) in METRICS {
        match *name {
            REQUEST_SECONDS => metrics::describe_histogram!(*name, *meaning),
            name if name.ends_with("_total") => metrics::describe_counter!(name, *meaning),
            name => metrics::describe_gauge!(name, *meaning),
        }
    }
}

/// The metrics of the one answer that is counted most: a task was accepted. To find a metric by its labels costs more
/// than to count, so these are found once.
#[derive(Default)]
pub(crate) struct AcceptedMetrics(OnceLock<(Counter, Histogram)>);

impl AcceptedMetrics {
    fn count(&self, seconds: f64) {
        let (count, time) = self.0.get_or_init(|| {
            let labels = [("route", SUBMIT), ("method", "POST"), ("status", "202")];
            (metrics::counter!(REQUESTS, &labels), metrics::histogram!(REQUEST_SECONDS, "route" => SUBMIT))
        });
        count.increment(1);
        time.record(seconds);
    }
}

/// Counts one answer. `route` is the pattern of the route, never the path.
pub(crate) fn answered(app: &Shared, route: &'static str, method: &Method, status: StatusCode, seconds: f64) {
    if status == StatusCode::ACCEPTED && route == SUBMIT && *method == Method::POST {
        app.accepted.count(seconds);
        return;
    }
    metrics::histogram!(REQUEST_SECONDS, "route" => route).record(seconds);
    let method = method_label(method);
    metrics::counter!(REQUESTS, "route" => route, "method" => method, "status" => status_label(status)).increment(1);
}

/// Counts one answer to what was no request.
pub(crate) fn unreadable(status: StatusCode) {
    metrics::counter!(REQUESTS, "route" => "none", "method" => "other", "status" => status_label(status)).increment(1);
}

/// Counts a connection in or out.
pub(crate) fn connections(change: f64) {
    metrics::gauge!(CONNECTIONS).increment(change);
}

/// Counts a connection that made way.
pub(crate) fn evicted() {
    metrics::counter!(EVICTED).increment(1);
}

/// Sets the gauges of this process.
pub(crate) fn set_process_gauges(app: &Shared) {
    metrics::gauge!(INGEST_BYTES).set(app.ingest.used() as f64);
    metrics::gauge!(PRESSURE).set(app.backend.pressure());
}

/// Sets the gauges of the whole system.
pub(crate) fn set_system_gauges(gauges: &Gauges) {
    for (class, counts) in &gauges.classes {
        for (state, count) in [("queued", counts.queued), ("running", counts.running), ("deferred", counts.deferred)] {
            metrics::gauge!(TASKS, "class" => class.as_str(), "state" => state).set(count as f64);
        }
    }
    let ages =
        [("queued", gauges.oldest_queued_ms), ("due", gauges.oldest_due_ms), ("running", gauges.oldest_running_ms)];
    for (state, age_ms) in ages {
        metrics::gauge!(OLDEST, "state" => state).set(age_ms.unwrap_or(0) as f64 / 1_000.0);
    }
    metrics::gauge!(TASK_BYTES).set(gauges.bytes as f64);
    metrics::gauge!(SESSIONS).set(gauges.sessions as f64);
    metrics::gauge!(SLOTS).set(gauges.slots as f64);
    metrics::gauge!(LEASES).set(gauges.leases as f64);
    for peer in &gauges.peers {
        let most = peer.max_in_flight.map_or(f64::INFINITY, f64::from);
        set_peer(&peer.name, peer.in_flight as f64, most);
    }
}

/// Tells that nobody has configured these peers any more.
pub(crate) fn forget_peers<'a>(gone: impl Iterator<Item = &'a str>) {
    gone.for_each(|name| set_peer(name, 0.0, f64::INFINITY));
}

fn set_peer(name: &str, in_flight: f64, most: f64) {
    metrics::gauge!(PEER_IN_FLIGHT, "peer" => name.to_owned()).set(in_flight);
    metrics::gauge!(PEER_MAX_IN_FLIGHT, "peer" => name.to_owned()).set(most);
}

/// A method as a label: a caller can invent methods, and a label must not grow with them.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// A status as a label, without an allocation for each answer.
fn status_label(status: StatusCode) -> &'static str {
    match status.as_u16() {
        200 => "200",
        202 => "202",
        303 => "303",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        408 => "408",
        409 => "409",
        413 => "413",
        414 => "414",
        415 => "415",
        422 => "422",
        429 => "429",
        431 => "431",
        500 => "500",
        503 => "503",
        _ => "other",
    }
}
