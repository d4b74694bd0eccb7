//! An HTTP server that misbehaves as told.

mod behaviour;

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Uri};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::poll::poll_until;
pub use behaviour::Behaviour;

/// The largest request body that is taken; our own payloads end far below.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// How many requests are remembered. One more is a test that forgot to stop.
const MAX_SEEN: usize = 100_000;

/// A server on the loopback address. Every path answers; what it does there is scripted with [`FakeTool::on`] and
/// otherwise an echo. It ends with this value.
#[derive(Debug)]
pub struct FakeTool {
    address: SocketAddr,
    desk: Arc<Desk>,
    task: JoinHandle<()>,
}

/// A request that arrived.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Its method.
    pub method: Method,
    /// Its path and query.
    pub uri: Uri,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// When it had arrived completely.
    pub at: Instant,
}

impl Seen {
    /// The text of a header; `None` if it is missing.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("a body that is not JSON: {error}"))
    }
}

/// What the handlers share with the test.
#[derive(Debug, Default)]
struct Desk {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    scripts: HashMap<String, VecDeque<Behaviour>>,
    seen: Vec<Seen>,
    in_flight: usize,
    max_in_flight: usize,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A test that panicked with the lock has failed already.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FakeTool {
    /// Starts one that echoes.
    ///
    /// # Panics
    /// If no port can be had.
    pub async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.unwrap_or_else(|error| panic!("a port for a fake tool: {error}"));
        let address = listener.local_addr().unwrap_or_else(|error| panic!("the address of a fake tool: {error}"));
        let desk = Arc::new(Desk::default());
        let router = Router::new().fallback(answer).with_state(Arc::clone(&desk));
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                panic!("the fake tool ended: {error}");
            }
        });
        FakeTool { address, desk, task }
    }

    /// The URL of a path on it.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says what happens at a path: one behaviour for each request, in order; the last one for all that follow.
    pub fn on(&self, path: &str, script: impl IntoIterator<Item = Behaviour>) {
        self.desk.lock().scripts.insert(path.to_owned(), script.into_iter().collect());
    }

    /// The requests that have arrived, in order.
    pub fn seen(&self) -> Vec<Seen> {
        self.desk.lock().seen.clone()
    }

    /// Waits until `count` requests have arrived and returns all there are.
    ///
    /// # Panics
    /// When the limit passes.
    pub async fn wait_for_requests(&self, count: usize, limit: Duration) -> Vec<Seen> {
        let what = format!("{count} requests to the fake tool");
        poll_until(limit, &what, async || Some(self.seen()).filter(|seen| seen.len() >= count)).await
    }

    /// How many requests are being worked on: arrived, and neither answered in full nor given up by the caller.
    pub fn in_flight(&self) -> usize {
        self.desk.lock().in_flight
    }

    /// The most there ever were at once.
    pub fn max_in_flight(&self) -> usize {
        self.desk.lock().max_in_flight
    }

    /// Begins to count the most at once anew, with those that are being worked on now.
    pub fn count_anew(&self) {
        let mut inner = self.desk.lock();
        inner.max_in_flight = inner.in_flight;
    }

    /// Waits until nothing is being worked on.
    ///
    /// # Panics
    /// When the limit passes.
    pub async fn wait_until_idle(&self, limit: Duration) {
        poll_until(limit, "an idle fake tool", async || (self.in_flight() == 0).then_some(())).await;
    }
}

impl Drop for FakeTool {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Counts a request as in flight for as long as it lives: in the handler, and then in the body of the answer.
#[derive(Debug)]
struct InFlight(Arc<Desk>);

impl InFlight {
    fn begin(desk: &Arc<Desk>) -> Self {
        let mut inner = desk.lock();
        inner.in_flight += 1;
        inner.max_in_flight = inner.max_in_flight.max(inner.in_flight);
        InFlight(Arc::clone(desk))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.lock().in_flight -= 1;
    }
}

async fn answer(State(desk): State<Arc<Desk>>, request: Request) -> Response {
    let in_flight = InFlight::begin(&desk);
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_BODY_BYTES).await else {
        return behaviour::plain(StatusCode::PAYLOAD_TOO_LARGE);
    };
    let behaviour = {
        let mut inner = desk.lock();
        assert!(inner.seen.len() < MAX_SEEN, "more than {MAX_SEEN} requests to a fake tool");
        inner.seen.push(Seen {
            method: parts.method,
            uri: parts.uri.clone(),
            headers: parts.headers,
            body: body.clone(),
            at: Instant::now(),
        });
        next(inner.scripts.get_mut(parts.uri.path()))
    };
    behaviour.perform(body, in_flight).await
}

fn next(script: Option<&mut VecDeque<Behaviour>>) -> Behaviour {
    let Some(script) = script else { return Behaviour::Echo };
    match script.len() {
        0 | 1 => script.front().cloned(),
        _ => script.pop_front(),
    }
    .unwrap_or(Behaviour::Echo)
}

#[cfg(test)]
mod tests;
