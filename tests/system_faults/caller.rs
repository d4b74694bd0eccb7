//! Whoever submits tasks over HTTP.

use std::time::{Duration, Instant};

use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tidegate_testkit::poll_until;

/// Longest that any answer is waited for. What must come sooner is checked by its test.
const LIMIT: Duration = Duration::from_secs(30);
/// How long one question for the end of a task lets the server wait.
const LONG_POLL_MS: u64 = 5_000;

/// A caller of one server.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    base: String,
    http: Client,
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
    /// How long it took.
    pub(crate) took: Duration,
}

impl Answer {
    /// Why the server said no.
    pub(crate) fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }
}

impl Caller {
    /// A caller of the server at `base`, an `http://` address.
    pub(crate) fn new(base: impl Into<String>) -> Self {
        // An error means that another test of this process was quicker, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = Client::builder().no_proxy().retry(reqwest::retry::never()).timeout(LIMIT).build().unwrap();
        Self { base: base.into(), http }
    }

    async fn send(&self, request: RequestBuilder) -> reqwest::Result<Answer> {
        let started = Instant::now();
        let response = request.send().await?;
        let status = response.status();
        let text = response.text().await?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(Answer { status, body, took: started.elapsed() })
    }

    pub(crate) async fn get(&self, path: &str) -> reqwest::Result<Answer> {
        self.send(self.http.get(format!("{}{path}", self.base))).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> reqwest::Result<Answer> {
        self.send(self.http.post(format!("{}{path}", self.base)).json(body)).await
    }

    /// Submits one task.
    pub(crate) async fn submit(&self, task: &Value) -> reqwest::Result<Answer> {
        self.post("/v1/tasks", task).await
    }

    /// Sends a body with headers beside those that every request has.
    pub(crate) async fn send_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> reqwest::Result<Answer> {
        let request = self.http.request(method, format!("{}{path}", self.base)).json(body);
        self.send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
    }

    /// Submits one task under an idempotency key.
    pub(crate) async fn submit_with_key(&self, task: &Value, key: &str) -> reqwest::Result<Answer> {
        self.send_with(Method::POST, "/v1/tasks", &[("idempotency-key", key)], task).await
    }

    /// Submits one task that must be let in, and returns its id.
    pub(crate) async fn add(&self, task: &Value) -> String {
        let answer = self.submit(task).await.unwrap();
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.body);
        id_of(&answer.body)
    }

    /// Submits many tasks, at most 1,000, that must all be let in, and returns their ids.
    pub(crate) async fn add_all(&self, tasks: impl IntoIterator<Item = Value>) -> Vec<String> {
        let tasks: Vec<Value> = tasks.into_iter().collect();
        let answer = self.post("/v1/tasks/batch", &json!({"tasks": tasks})).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let results = answer.body["results"].as_array().unwrap();
        results
            .iter()
            .map(|result| result["task_id"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned())
            .collect()
    }

    /// A task as it is now.
    pub(crate) async fn task(&self, id: &str) -> Value {
        let path = format!("/v1/tasks/{id}");
        poll_until(crate::fleet::LIMIT, &format!("task {id}"), async || {
            let answer = self.get(&path).await.unwrap();
            if answer.status == StatusCode::SERVICE_UNAVAILABLE {
                return None;
            }
            assert_eq!(answer.status, StatusCode::OK, "{id}: {}", answer.body);
            Some(answer.body)
        })
        .await
    }

    /// The runs of a task: number, fence and outcome of each.
    pub(crate) async fn runs(&self, id: &str) -> Vec<(u64, u64, String)> {
        let answer = self.get(&format!("/v1/tasks/{id}/attempts")).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK, "{id}: {}", answer.body);
        let run = |run: &Value| {
            let number = |field: &str| run[field].as_u64().unwrap_or_else(|| panic!("{field} in {run}"));
            (number("attempt"), number("fence"), run["outcome"].as_str().unwrap().to_owned())
        };
        answer.body["attempts"].as_array().unwrap_or_else(|| panic!("{}", answer.body)).iter().map(run).collect()
    }

    /// Waits until a task has ended, and returns it.
    pub(crate) async fn ended(&self, id: &str, limit: Duration) -> Value {
        let path = format!("/v1/tasks/{id}?wait_ms={LONG_POLL_MS}");
        poll_until(limit, &format!("the end of task {id}"), async || {
            let answer = self.get(&path).await.unwrap();
            if answer.status == StatusCode::SERVICE_UNAVAILABLE {
                // A connection that was broken shows in the read that meets it, said as what it is: ask again.
                return None;
            }
            assert_eq!(answer.status, StatusCode::OK, "{id}: {}", answer.body);
            (!answer.body["finished_at"].is_null()).then_some(answer.body)
        })
        .await
    }

    /// Asks for a task to be cancelled.
    pub(crate) async fn cancel(&self, id: &str) -> reqwest::Result<Answer> {
        self.post(&format!("/v1/tasks/{id}/cancel"), &json!({})).await
    }

    /// What the readiness probe says.
    pub(crate) async fn readiness(&self) -> StatusCode {
        self.get("/readyz").await.unwrap().status
    }
}

/// The id in a task, or in a refusal.
pub(crate) fn id_of(body: &Value) -> String {
    body["id"].as_str().or(body["task_id"].as_str()).unwrap_or_else(|| panic!("no id in {body}")).to_owned()
}

/// A task that sleeps.
pub(crate) fn sleep(ms: u64) -> Value {
    json!({"kind": "sleep", "payload": {"ms": ms}})
}
