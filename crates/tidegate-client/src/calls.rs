//! The calls.

use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder};
use serde::Serialize;
use tidegate_core::TaskId;
use tidegate_wire::{BatchAnswer, CancelRequest, CancellationRequest, MAX_BATCH, SubmitRequest, header};

use crate::{
    Answer, AttemptList, BatchItem, Cancelled, Client, Error, Explanation, NewTask, Pressure, Task, TaskList, TaskQuery,
};

#[derive(Serialize)]
struct BatchBody<'a> {
    tasks: Vec<&'a SubmitRequest>,
}

impl Client {
    /// Submits a task. The answer is the task as it stands, at its end where [`NewTask::wait`] was said and that was
    /// soon enough.
    ///
    /// # Errors
    /// [`Error::Refused`] where admission said no; see [`Error`] for the others.
    pub async fn submit(&self, task: &NewTask) -> Result<Answer<Task>, Error> {
        let mut request = self.request(Method::POST, &["v1", "tasks"]).json(&task.body);
        if let Some(key) = &task.idempotency_key {
            request = with_header(request, header::IDEMPOTENCY_KEY, key)?;
        }
        if let Some(budget) = &task.budget {
            let budget = serde_json::to_string(budget).map_err(|error| Error::Invalid(error.to_string()))?;
            request = with_header(request, header::X_BUDGET, &budget)?;
        }
        if let Some(traceparent) = &task.traceparent {
            request = with_header(request, header::TRACEPARENT, traceparent)?;
        }
        let wait = task.wait.unwrap_or_default();
        if !wait.is_zero() {
            request = with_header(request, header::PREFER, &format!("wait={}", wait.as_secs().max(1)))?;
        }
        self.send(request, wait).await
    }

    /// Submits up to 1,000 tasks in one request. Each is decided alone; the answers are in the same order.
    ///
    /// # Errors
    /// [`Error::Invalid`] where there are too many, or one needs a header of its own (an idempotency key, a wait, a
    /// budget, a trace).
    pub async fn submit_batch(&self, tasks: &[NewTask]) -> Result<Answer<Vec<BatchItem>>, Error> {
        if tasks.len() > MAX_BATCH {
            return Err(Error::Invalid(format!("a batch holds at most {MAX_BATCH} tasks, not {}", tasks.len())));
        }
        if let Some(at) = tasks.iter().position(NewTask::needs_headers) {
            let what = "an idempotency key, a wait, a budget or a trace, which a batch cannot carry";
            return Err(Error::Invalid(format!("task {at} of the batch has {what}")));
        }
        let body = BatchBody { tasks: tasks.iter().map(|task| &task.body).collect() };
        let request = self.request(Method::POST, &["v1", "tasks", "batch"]).json(&body);
        let answer = self.send::<BatchAnswer<'static>>(request, Duration::ZERO).await?;
        if answer.results.len() != tasks.len() {
            let excerpt = format!("{} answers to {} tasks", answer.results.len(), tasks.len());
            return Err(Error::Unexpected { status: 200, excerpt });
        }
        Ok(answer.map(|batch| batch.results))
    }

    /// A task as it stands.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 404 where there is no such task.
    pub async fn get(&self, id: TaskId) -> Result<Answer<Task>, Error> {
        self.send(self.request(Method::GET, &["v1", "tasks", &id.to_string()]), Duration::ZERO).await
    }

    /// A task at its end, or as it stands after `wait` (the server's own bound is 60 s).
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_wait(&self, id: TaskId, wait: Duration) -> Result<Answer<Task>, Error> {
        let request = self.request(Method::GET, &["v1", "tasks", &id.to_string()]);
        let request = with_query(request, &[("wait_ms".to_owned(), wait.as_millis().to_string())])?;
        self.send(request, wait).await
    }

    /// The runs of a task.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn attempts(&self, id: TaskId) -> Result<Answer<AttemptList>, Error> {
        self.send(self.request(Method::GET, &["v1", "tasks", &id.to_string(), "attempts"]), Duration::ZERO).await
    }

    /// Why a task stands where it stands: what it waits for, or what it does or did.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn explain(&self, id: TaskId) -> Result<Answer<Explanation>, Error> {
        self.send(self.request(Method::GET, &["v1", "tasks", &id.to_string(), "explain"]), Duration::ZERO).await
    }

    /// A page of tasks, newest first.
    ///
    /// # Errors
    /// [`Error::Problem`] where the query has a value that it cannot have.
    pub async fn list(&self, query: &TaskQuery) -> Result<Answer<TaskList>, Error> {
        let request = with_query(self.request(Method::GET, &["v1", "tasks"]), &query.pairs())?;
        self.send(request, Duration::ZERO).await
    }

    /// Cancels a task. One that waits is CANCELLED at once; one that runs is asked to stop (`cancel.requested_at`).
    ///
    /// # Errors
    /// [`Error::Problem`] with status 409 where it had ended otherwise.
    pub async fn cancel(&self, id: TaskId, reason: Option<&str>) -> Result<Answer<Task>, Error> {
        let body = CancelRequest { reason: reason.map(Into::into) };
        let request = self.request(Method::POST, &["v1", "tasks", &id.to_string(), "cancel"]).json(&body);
        self.send(request, Duration::ZERO).await
    }

    /// Cancels all tasks with a cancellation token, and the tasks that they started; refuses later ones for a day. It
    /// can be repeated.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] where it took too long: the server goes on with it.
    pub async fn cancel_token(&self, token: &str) -> Result<Answer<Cancelled>, Error> {
        self.cancel_group(CancellationRequest { token: Some(token.into()), workflow_id: None }).await
    }

    /// Cancels all tasks of a workflow, and the tasks that they started. It can be repeated.
    ///
    /// # Errors
    /// As [`Client::cancel_token`].
    pub async fn cancel_workflow(&self, id: &str) -> Result<Answer<Cancelled>, Error> {
        self.cancel_group(CancellationRequest { token: None, workflow_id: Some(id.into()) }).await
    }

    async fn cancel_group(&self, body: CancellationRequest<'_>) -> Result<Answer<Cancelled>, Error> {
        self.send(self.request(Method::POST, &["v1", "cancellations"]).json(&body), Duration::ZERO).await
    }

    /// How full the system is.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn pressure(&self) -> Result<Answer<Pressure>, Error> {
        self.send(self.request(Method::GET, &["v1", "pressure"]), Duration::ZERO).await
    }
}

fn with_header(request: RequestBuilder, name: &'static str, value: &str) -> Result<RequestBuilder, Error> {
    let value = HeaderValue::try_from(value)
        .map_err(|_| Error::Invalid(format!("{name} holds a character that no header can carry")))?;
    Ok(request.header(HeaderName::from_static(name), value))
}

/// Adds query parameters; the `query` feature of reqwest would bring a crate for no more than this.
pub(crate) fn with_query(request: RequestBuilder, pairs: &[(String, String)]) -> Result<RequestBuilder, Error> {
    let (client, request) = request.build_split();
    let mut request = request.map_err(|error| Error::Invalid(error.without_url().to_string()))?;
    if !pairs.is_empty() {
        request.url_mut().query_pairs_mut().extend_pairs(pairs);
    }
    Ok(RequestBuilder::from_parts(client, request))
}
