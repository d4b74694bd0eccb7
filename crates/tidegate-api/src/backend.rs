//! What the routes ask of the store, as one port: the store itself, or a fake in tests.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use tidegate_core::submission::Submission;
use tidegate_core::{Reason, TaskId, TenantId};
use tidegate_store::{Admission, AttemptRecord, CancelOutcome, Gauges, TaskFilter, TaskPage, TaskRecord};

/// A future that a [`Backend`] returns. Dropping it never leaves anything half done.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database could not be reached, or did not answer in time. Nothing was changed.
    #[error("the database cannot be reached")]
    Unavailable,
    /// The connection broke during COMMIT.
    #[error("the connection broke while committing")]
    OutcomeUnknown,
    /// Anything else: a bug, or tables that are not ours.
    #[error("{0}")]
    Broken(String),
}

/// A submission that got no answer from the door.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// The database could not be reached. Nothing was accepted.
    #[error("the database cannot be reached: nothing was accepted")]
    Unavailable,
    /// The connection broke while committing: the task may or may not be there.
    #[error("the connection broke while committing: read task {0} to find out")]
    OutcomeUnknown(TaskId),
    /// More submissions are waiting for their decision than this process holds.
    #[error("too many submissions are waiting for their decision")]
    Overloaded,
    /// A submission with the same key is still being decided.
    #[error("a submission with the same key is still being decided")]
    KeyInFlight,
    /// This process is shutting down.
    #[error("this server is shutting down")]
    Draining,
    /// The database refused a value of this submission.
    #[error("the database refused a value")]
    Invalid,
}

/// What the routes need of the store.
pub trait Backend: Send + Sync + 'static {
    /// A new id for a task that arrives now.
    fn next_id(&self) -> TaskId;

    /// How full the queue is, 0 to 1, as last seen. Costs nothing.
    fn pressure(&self) -> f64;

    /// Decides on a submission that arrived then. A refusal is a decision, and recorded.
    fn admit(&self, submission: Submission, arrived: Instant) -> BoxFuture<'_, Result<Admission, AdmitError>>;

    /// Records a submission that was refused before it came to the door. Returns whether its id can be read.
    fn refuse(&self, submission: Submission, reason: Reason, arrived: Instant) -> BoxFuture<'_, bool>;

    /// The tenant's task, or recorded refusal.
    fn task<'a>(&'a self, tenant: &'a TenantId, id: TaskId) -> BoxFuture<'a, Result<Option<TaskRecord>, StoreError>>;

    /// A page of the tenant's tasks.
    fn tasks<'a>(
        &'a self,
        tenant: &'a TenantId,
        filter: &'a TaskFilter,
    ) -> BoxFuture<'a, Result<TaskPage, StoreError>>;

    /// The runs of the tenant's task, oldest first.
    fn attempts<'a>(
        &'a self,
        tenant: &'a TenantId,
        id: TaskId,
    ) -> BoxFuture<'a, Result<Option<Vec<AttemptRecord>>, StoreError>>;

    /// Waits until the task has ended, or the time is over. Returns whether it has ended.
    fn wait_for_end(&self, id: TaskId, at_most: Duration) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Cancels the tenant's task.
    fn cancel<'a>(
        &'a self,
        tenant: &'a TenantId,
        id: TaskId,
        detail: Option<String>,
    ) -> BoxFuture<'a, Result<CancelOutcome, StoreError>>;

    /// Whether the database answers.
    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Numbers for metrics and the status page.
    fn gauges(&self) -> BoxFuture<'_, Result<Gauges, StoreError>>;
}
