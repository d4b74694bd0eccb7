//! A submission, put together.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use tidegate_core::budget::Budget;
use tidegate_core::{Class, TaskId};
use tidegate_wire::{CostEstimate, SubmitRequest, Timestamp, WantedPriority};

use crate::Error;

/// A task to submit. Nothing is checked here that the server checks anyway.
#[derive(Debug, Clone)]
pub struct NewTask {
    pub(crate) body: SubmitRequest,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) wait: Option<Duration>,
    pub(crate) budget: Option<Budget>,
    pub(crate) traceparent: Option<String>,
}

impl NewTask {
    /// A task of a kind, with nothing else said.
    pub fn new(kind: impl Into<String>) -> Self {
        Self { body: SubmitRequest::new(kind), idempotency_key: None, wait: None, budget: None, traceparent: None }
    }

    /// The input: anything that can be JSON.
    ///
    /// # Errors
    /// [`Error::Invalid`] where it cannot.
    pub fn payload(mut self, payload: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        let payload = serde_json::value::to_raw_value(payload)
            .map_err(|error| Error::Invalid(format!("the payload cannot be JSON: {error}")))?;
        self.body.payload = Some(payload);
        Ok(self)
    }

    /// The input as JSON text, which is sent as it is: number for number and key for key.
    ///
    /// # Errors
    /// [`Error::Invalid`] where it is not JSON.
    pub fn payload_json(mut self, json: impl Into<String>) -> Result<Self, Error> {
        let payload = RawValue::from_string(json.into())
            .map_err(|error| Error::Invalid(format!("the payload is not JSON: {error}")))?;
        self.body.payload = Some(payload);
        Ok(self)
    }

    /// How much it matters: 0 to 100, higher first.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.body.priority = Some(WantedPriority::Number(priority));
        self
    }

    /// How much it matters, by the name of a class: its lowest priority.
    #[must_use]
    pub fn class(mut self, class: Class) -> Self {
        self.body.priority = Some(WantedPriority::Class(class));
        self
    }

    /// The time from arrival, or from its start where that is later, to its end.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.body.timeout_ms = Some(millis(timeout));
        self
    }

    /// When it must have ended.
    #[must_use]
    pub fn deadline(mut self, deadline: DateTime<Utc>) -> Self {
        self.body.deadline = Some(Timestamp::from_ms(deadline.timestamp_millis()));
        self
    }

    /// Starts it so much later.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.body.delay_ms = Some(millis(delay));
        self
    }

    /// Starts it at an instant.
    #[must_use]
    pub fn not_before(mut self, instant: DateTime<Utc>) -> Self {
        self.body.not_before = Some(Timestamp::from_ms(instant.timestamp_millis()));
        self
    }

    /// The least time left that makes a start useful.
    #[must_use]
    pub fn min_useful(mut self, time: Duration) -> Self {
        self.body.min_useful_ms = Some(millis(time));
        self
    }

    /// What it is thought to use: model tokens, and millionths of a dollar.
    #[must_use]
    pub fn cost(mut self, tokens: u64, usd_micros: u64) -> Self {
        self.body.cost = Some(CostEstimate { tokens, usd_micros });
        self
    }

    /// The downstream dependency that it calls.
    #[must_use]
    pub fn peer(mut self, peer: impl Into<String>) -> Self {
        self.body.peer = Some(peer.into());
        self
    }

    /// Failures before it ends FAILED.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u16) -> Self {
        self.body.max_attempts = Some(attempts);
        self
    }

    /// The longest one attempt may take.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.body.attempt_timeout_ms = Some(millis(timeout));
        self
    }

    /// The group of tasks that it can be cancelled with.
    #[must_use]
    pub fn cancellation_token(mut self, token: impl Into<String>) -> Self {
        self.body.cancellation_token = Some(token.into());
        self
    }

    /// The workflow it belongs to.
    #[must_use]
    pub fn workflow(mut self, id: impl Into<String>) -> Self {
        self.body.workflow_id = Some(id.into());
        self
    }

    /// The task that starts it.
    #[must_use]
    pub fn parent(mut self, id: TaskId) -> Self {
        self.body.parent_id = Some(id);
        self
    }

    /// A label.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.body.labels.get_or_insert_default().insert(name.into(), value.into());
        self
    }

    /// The same key with the same task again gives the task of the first time. Submitting is safe to repeat only
    /// with a key. Not in a batch.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Waits for its end before the answer comes, so long at most (the server's own bound is 60 s; whole seconds
    /// count). Not in a batch.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// The delegation budget that it is part of. Not in a batch.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// The W3C trace context that it is part of. Not in a batch.
    #[must_use]
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// Whether it needs headers, which one request has only once.
    pub(crate) fn needs_headers(&self) -> bool {
        self.idempotency_key.is_some() || self.wait.is_some() || self.budget.is_some() || self.traceparent.is_some()
    }
}

/// Whole milliseconds, rounded up: a time that was asked for must not become none.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
