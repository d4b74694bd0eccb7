//! Asking the API in process, as a caller on loopback.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tidegate_api::{AppState, Peer, Settings, router};
use tidegate_core::kind_policy::KindPolicy;
use tidegate_core::{Kind, PeerName, TaskId};
use tower::ServiceExt;

use crate::fake::Fake;

/// An API over a fake store.
pub(crate) struct Api {
    pub(crate) fake: Arc<Fake>,
    pub(crate) state: AppState,
    router: Router,
}

/// An answer, read whole.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

/// A request to be sent.
pub(crate) struct Ask<'a> {
    api: &'a Api,
    request: Request<Body>,
}

impl Api {
    /// With the default settings and limits.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// With settings of its own.
    pub(crate) fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings { kinds: kinds(), ..Settings::default() };
        change(&mut settings);
        let fake = Arc::new(Fake::new());
        let state = AppState::new(fake.clone(), settings, None);
        Self { fake, router: router(state.clone()), state }
    }

    /// The same store behind another state.
    pub(crate) fn over(self, state: AppState) -> Self {
        Self { fake: self.fake, router: router(state.clone()), state }
    }

    /// With a queue of so many places.
    pub(crate) fn with_room(max_queued: u32) -> Self {
        let api = Self::new();
        api.fake.room_for(max_queued);
        api
    }

    pub(crate) fn ask(&self, method: &str, uri: &str) -> Ask<'_> {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("host", "127.0.0.1:8080")
            .extension(Peer("127.0.0.1:50000".parse::<SocketAddr>().unwrap()))
            .body(Body::empty())
            .unwrap();
        Ask { api: self, request }
    }

    pub(crate) async fn get(&self, uri: &str) -> Answer {
        self.ask("GET", uri).send().await
    }

    pub(crate) async fn post(&self, uri: &str, body: impl Into<Body>) -> Answer {
        self.ask("POST", uri).json(body).send().await
    }

    pub(crate) async fn submit(&self, body: impl Into<Body>) -> Answer {
        self.post("/v1/tasks", body).await
    }
}

impl Ask<'_> {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        let name: http::HeaderName = name.parse().unwrap();
        let value = http::HeaderValue::from_bytes(value.as_bytes()).unwrap();
        self.request.headers_mut().append(name, value);
        self
    }

    pub(crate) fn without_header(mut self, name: &str) -> Self {
        self.request.headers_mut().remove(name);
        self
    }

    pub(crate) fn host(self, host: &str) -> Self {
        self.without_header("host").header("host", host)
    }

    pub(crate) fn at_peer(mut self, address: &str) -> Self {
        self.request.extensions_mut().insert(Peer(address.parse().unwrap()));
        self
    }

    pub(crate) fn at_no_peer(mut self) -> Self {
        self.request.extensions_mut().remove::<Peer>();
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Body>) -> Self {
        *self.request.body_mut() = body.into();
        self
    }

    pub(crate) fn json(self, body: impl Into<Body>) -> Self {
        self.header("content-type", "application/json").body(body)
    }

    pub(crate) async fn send(self) -> Answer {
        let response = self.api.router.clone().oneshot(self.request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Answer { status: parts.status, headers: parts.headers, text }
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The id of the task in the answer.
    pub(crate) fn id(&self) -> TaskId {
        let json = self.json();
        json.get("id").or(json.get("task_id")).and_then(Value::as_str).unwrap().parse().unwrap()
    }

    /// The status and the reason of a problem.
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.text);
        let json = self.json();
        assert_eq!(json["status"], self.status.as_u16());
        let reason = json["reason"].as_str().unwrap().to_owned();
        assert_eq!(json["type"], format!("/docs/errors/{reason}"));
        assert!(json["title"].as_str().is_some_and(|title| !title.is_empty()), "{json}");
        assert!(json["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{json}");
        (self.status.as_u16(), reason)
    }

    /// Asserts that it is a problem with that status and reason, and returns it.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, reason: &str) -> Value {
        assert_eq!(self.problem(), (status, reason.to_owned()), "{}", self.text);
        self.json()
    }

    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self
    }

    /// The answer, laid out for a snapshot, without what differs from run to run.
    pub(crate) fn stable(&self) -> String {
        let mut json = self.json();
        let items = json.get_mut("results").and_then(Value::as_array_mut);
        for item in items.into_iter().flatten() {
            still(item);
        }
        still(&mut json);
        serde_json::to_string_pretty(&json).unwrap()
    }
}

/// Replaces what differs from run to run.
fn still(json: &mut Value) {
    for (name, still) in [("admission_wait_ms", 0), ("remaining_ms", 0), ("retry_after_ms", 0)] {
        if let Some(value) = json.get_mut(name).filter(|value| value.is_number()) {
            *value = still.into();
        }
    }
}

/// A kind with a policy of its own.
fn kinds() -> HashMap<Kind, KindPolicy> {
    let policy = KindPolicy {
        peer: Some(PeerName::parse("hotels").unwrap()),
        min_useful_ms: 200,
        attempt_timeout_ms: Some(5_000),
        max_attempts: 7,
        fanout: 3,
        ..KindPolicy::default()
    };
    HashMap::from([(Kind::parse("hotels").unwrap(), policy)])
}
