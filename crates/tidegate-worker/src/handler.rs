//! The code that runs a task: executors take and return JSON text, handlers take and return types.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::Reason;

use crate::context::Context;
use crate::stop::Stop;

/// What a run of an [`Executor`] is.
pub type RunFuture<'a> = Pin<Box<dyn Future<Output = Result<String, HandlerError>> + Send + 'a>>;

/// Runs tasks of a kind: JSON text in, JSON text out.
///
/// The future is dropped when the task must stop and a grace is over, so it must hold nothing that a drop leaves
/// broken. It must not block its thread: a run that does cannot be stopped, and keeps its slot until it returns.
pub trait Executor: Send + Sync + 'static {
    /// Runs one attempt. `payload` is JSON text, as the caller sent it, byte for byte.
    fn execute(&self, ctx: Context, payload: String) -> RunFuture<'_>;
}

/// Runs tasks of a kind, with typed input and output. See [`Executor`] for what it may and may not do.
pub trait Handler: Send + Sync + 'static {
    /// The payload. What does not parse as this ends the task FAILED, with the error type `bad_input`.
    type Input: DeserializeOwned + Send;
    /// The result.
    type Output: Serialize + Send;

    /// Runs one attempt.
    fn run(&self, ctx: Context, input: Self::Input) -> impl Future<Output = Result<Self::Output, HandlerError>> + Send;
}

/// The executor that a handler is.
pub fn typed<H: Handler>(handler: H) -> Arc<dyn Executor> {
    Arc::new(Typed { handler, _types: PhantomData::<fn(H::Input) -> H::Output> })
}

struct Typed<H: Handler> {
    handler: H,
    _types: PhantomData<fn(H::Input) -> H::Output>,
}

impl<H: Handler> Executor for Typed<H> {
    fn execute(&self, ctx: Context, payload: String) -> RunFuture<'_> {
        Box::pin(async move {
            let input = serde_json::from_str(&payload)
                .map_err(|error| HandlerError::permanent("bad_input", error.to_string()))?;
            drop(payload);
            let output = self.handler.run(ctx, input).await?;
            serde_json::to_string(&output).map_err(|error| {
                HandlerError::permanent("output_rejected", error.to_string()).because(Reason::OutputRejected)
            })
        })
    }
}

/// How a handler says that it did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct HandlerError {
    pub(crate) kind: String,
    pub(crate) message: String,
    pub(crate) next: Next,
    pub(crate) reason: Option<Reason>,
}

/// What should happen after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    End,
    Retry { after: Option<Duration> },
    Snooze { after: Duration },
}

impl HandlerError {
    fn new(kind: impl Into<String>, message: impl Into<String>, next: Next) -> Self {
        Self { kind: kind.into(), message: message.into(), next, reason: None }
    }

    /// Another try would fail in the same way. `kind` is a short name of the sort of error, `message` for people.
    pub fn permanent(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(kind, message, Next::End)
    }

    /// Another try may succeed.
    pub fn transient(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(kind, message, Next::Retry { after: None })
    }

    /// Another try may succeed, but not before `after` has passed.
    pub fn transient_after(kind: impl Into<String>, message: impl Into<String>, after: Duration) -> Self {
        Self::new(kind, message, Next::Retry { after: Some(after) })
    }

    /// Not a failure: run it again after `after`. It uses up no attempt.
    pub fn snooze(after: Duration) -> Self {
        Self::new("snoozed", "run again later", Next::Snooze { after })
    }

    /// With the reason that the task's status should carry, where that says more than that it failed for good.
    pub fn because(self, reason: Reason) -> Self {
        Self { reason: Some(reason), ..self }
    }

    /// A short name of the sort of error.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// What happened, for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether another try may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self.next, Next::Retry { .. })
    }

    /// How long to wait before another try, at least.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.next {
            Next::Retry { after } => after,
            Next::End | Next::Snooze { .. } => None,
        }
    }
}

/// A handler that stops because it was told to may return why; the runtime knows better than to call that a failure.
impl From<Stop> for HandlerError {
    fn from(stop: Stop) -> Self {
        Self::transient("stopped", stop.to_string())
    }
}
