//! What the routes ask of the store, as one port: the store itself, or a fake in tests.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::admission::Facts;
use tidegate_core::policy::Policy;
use tidegate_core::submission::Submission;
use tidegate_core::{Reason, TaskId, TenantId};
use tidegate_store::{
    Admission, AdmitError, Admitter, AttemptRecord, CancelOutcome, Canceller, Explained, Gauges, Group, GroupCancelled,
    Store, StoreError, TaskFilter, TaskPage, TaskRecord,
};

use crate::operations::Operations;

/// A future that a [`Backend`] returns. Dropping it never leaves anything half done.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What the routes need of the store.
pub trait Backend: Operations {
    /// What operators decided, as this process last read it. Costs nothing.
    fn policy(&self) -> Arc<Policy>;

    /// A new id for a task that arrives now.
    fn next_id(&self) -> TaskId;

    /// How full the queue is, 0 to 1, as last seen. Costs nothing.
    fn pressure(&self) -> f64;

    /// What the door last read, with the policy that it was read under; nothing where that is too long ago. Costs nothing.
    fn facts(&self) -> Option<(Arc<Policy>, Arc<Facts>)>;

    /// Decides on a submission that arrived then. A refusal is a decision, and recorded. After `at_most` the outcome is
    /// unknown.
    fn admit(
        &self,
        submission: Submission,
        arrived: Instant,
        at_most: Duration,
    ) -> BoxFuture<'_, Result<Admission, AdmitError>>;

    /// Remembers a submission that was refused before it came to the door. Returns whether its id will be readable.
    fn refuse(&self, submission: &Submission, reason: Reason, arrived: Instant) -> bool;

    /// The tenant's task, or recorded refusal.
    fn task<'a>(&'a self, tenant: &'a TenantId, id: TaskId) -> BoxFuture<'a, Result<Option<TaskRecord>, StoreError>>;

    /// A page of the tenant's tasks.
    fn tasks<'a>(&'a self, tenant: &'a TenantId, filter: &'a TaskFilter)
    -> BoxFuture<'a, Result<TaskPage, StoreError>>;

    /// The runs of the tenant's task, oldest first.
    fn attempts<'a>(
        &'a self,
        tenant: &'a TenantId,
        id: TaskId,
    ) -> BoxFuture<'a, Result<Option<Vec<AttemptRecord>>, StoreError>>;

    /// Why the tenant's task stands where it stands.
    fn explain<'a>(&'a self, tenant: &'a TenantId, id: TaskId) -> BoxFuture<'a, Result<Option<Explained>, StoreError>>;

    /// Waits until the task has ended, or the time is over. Returns whether it has ended.
    fn wait_for_end(&self, id: TaskId, at_most: Duration) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Cancels the tenant's task.
    fn cancel<'a>(
        &'a self,
        tenant: &'a TenantId,
        id: TaskId,
        detail: Option<String>,
    ) -> BoxFuture<'a, Result<CancelOutcome, StoreError>>;

    /// Cancels the tenant's tasks of a group. It is carried out even if the future is dropped.
    fn cancel_group<'a>(
        &'a self,
        tenant: &'a TenantId,
        group: Group,
    ) -> BoxFuture<'a, Result<GroupCancelled, StoreError>>;

    /// Whether the database answers.
    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Numbers for metrics and the status page.
    fn gauges(&self) -> BoxFuture<'_, Result<Gauges, StoreError>>;
}

/// The store itself, through the handles that the routes need.
#[derive(Clone)]
pub struct StoreBackend {
    /// Reads.
    pub store: Store,
    /// The door.
    pub admitter: Admitter,
    /// Cancels.
    pub canceller: Canceller,
}

impl Backend for StoreBackend {
    fn policy(&self) -> Arc<Policy> {
        self.store.policy()
    }

    fn next_id(&self) -> TaskId {
        self.store.next_id()
    }

    fn pressure(&self) -> f64 {
        self.admitter.pressure()
    }

    fn facts(&self) -> Option<(Arc<Policy>, Arc<Facts>)> {
        self.admitter.facts()
    }

    fn admit(
        &self,
        submission: Submission,
        arrived: Instant,
        at_most: Duration,
    ) -> BoxFuture<'_, Result<Admission, AdmitError>> {
        Box::pin(self.admitter.admit_within(submission, arrived, at_most))
    }

    fn refuse(&self, submission: &Submission, reason: Reason, arrived: Instant) -> bool {
        self.admitter.refuse(submission, reason, arrived)
    }

    fn task<'a>(&'a self, tenant: &'a TenantId, id: TaskId) -> BoxFuture<'a, Result<Option<TaskRecord>, StoreError>> {
        Box::pin(self.store.task(tenant, id))
    }

    fn tasks<'a>(
        &'a self,
        tenant: &'a TenantId,
        filter: &'a TaskFilter,
    ) -> BoxFuture<'a, Result<TaskPage, StoreError>> {
        Box::pin(self.store.tasks(tenant, filter))
    }

    fn attempts<'a>(
        &'a self,
        tenant: &'a TenantId,
        id: TaskId,
    ) -> BoxFuture<'a, Result<Option<Vec<AttemptRecord>>, StoreError>> {
        Box::pin(self.store.attempts(tenant, id))
    }

    fn explain<'a>(&'a self, tenant: &'a TenantId, id: TaskId) -> BoxFuture<'a, Result<Option<Explained>, StoreError>> {
        Box::pin(self.store.explain(tenant, id))
    }

    fn wait_for_end(&self, id: TaskId, at_most: Duration) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(self.store.wait_for_end(id, at_most))
    }

    fn cancel<'a>(
        &'a self,
        tenant: &'a TenantId,
        id: TaskId,
        detail: Option<String>,
    ) -> BoxFuture<'a, Result<CancelOutcome, StoreError>> {
        Box::pin(self.canceller.cancel(tenant, id, detail))
    }

    fn cancel_group<'a>(
        &'a self,
        tenant: &'a TenantId,
        group: Group,
    ) -> BoxFuture<'a, Result<GroupCancelled, StoreError>> {
        Box::pin(self.canceller.cancel_group(tenant, group))
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.store.ping())
    }

    fn gauges(&self) -> BoxFuture<'_, Result<Gauges, StoreError>> {
        Box::pin(self.store.gauges())
    }
}
