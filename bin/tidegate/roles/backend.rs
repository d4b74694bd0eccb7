//! The store, as the API asks for it.

use std::error::Error as _;
use std::time::{Duration, Instant};

use tidegate_api::{AdmitError, Backend, BoxFuture, StoreError};
use tidegate_core::submission::Submission;
use tidegate_core::{Reason, TaskId, TenantId};
use tidegate_store::{
    Admission, Admitter, AttemptRecord, CancelOutcome, Canceller, Gauges, Store, TaskFilter, TaskPage, TaskRecord,
};

/// The store with its door and its desk for cancels.
pub(super) struct StoreBackend {
    pub(super) store: Store,
    pub(super) door: Admitter,
    pub(super) canceller: Canceller,
}

impl Backend for StoreBackend {
    fn next_id(&self) -> TaskId {
        self.store.next_id()
    }

    fn pressure(&self) -> f64 {
        self.door.pressure()
    }

    fn admit(&self, submission: Submission, arrived: Instant) -> BoxFuture<'_, Result<Admission, AdmitError>> {
        Box::pin(async move { self.door.admit(submission, arrived).await.map_err(not_admitted) })
    }

    fn refuse(&self, submission: Submission, reason: Reason, arrived: Instant) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(self.door.refuse(&submission, reason, arrived)))
    }

    fn task<'a>(&'a self, tenant: &'a TenantId, id: TaskId) -> BoxFuture<'a, Result<Option<TaskRecord>, StoreError>> {
        Box::pin(async move { self.store.task(tenant, id).await.map_err(broken) })
    }

    fn tasks<'a>(
        &'a self,
        tenant: &'a TenantId,
        filter: &'a TaskFilter,
    ) -> BoxFuture<'a, Result<TaskPage, StoreError>> {
        Box::pin(async move { self.store.tasks(tenant, filter).await.map_err(broken) })
    }

    fn attempts<'a>(
        &'a self,
        tenant: &'a TenantId,
        id: TaskId,
    ) -> BoxFuture<'a, Result<Option<Vec<AttemptRecord>>, StoreError>> {
        Box::pin(async move { self.store.attempts(tenant, id).await.map_err(broken) })
    }

    fn wait_for_end(&self, id: TaskId, at_most: Duration) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move { self.store.wait_for_end(id, at_most).await.map_err(broken) })
    }

    fn cancel<'a>(
        &'a self,
        tenant: &'a TenantId,
        id: TaskId,
        detail: Option<String>,
    ) -> BoxFuture<'a, Result<CancelOutcome, StoreError>> {
        Box::pin(async move { self.canceller.cancel(tenant, id, detail).await.map_err(broken) })
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { self.store.ping().await.map_err(broken) })
    }

    fn gauges(&self) -> BoxFuture<'_, Result<Gauges, StoreError>> {
        Box::pin(async move { self.store.gauges().await.map_err(broken) })
    }
}

fn not_admitted(error: tidegate_store::AdmitError) -> AdmitError {
    use tidegate_store::AdmitError as Theirs;
    match error {
        Theirs::Unavailable => AdmitError::Unavailable,
        Theirs::OutcomeUnknown(id) => AdmitError::OutcomeUnknown(id),
        Theirs::Overloaded => AdmitError::Overloaded,
        Theirs::KeyInFlight => AdmitError::KeyInFlight,
        Theirs::Draining => AdmitError::Draining,
        Theirs::Invalid => AdmitError::Invalid,
    }
}

fn broken(error: tidegate_store::StoreError) -> StoreError {
    use tidegate_store::StoreError as Theirs;
    match error {
        // Busy was tried several times by the store already.
        Theirs::Unavailable(_) | Theirs::Busy(_) => StoreError::Unavailable,
        Theirs::OutcomeUnknown(_) => StoreError::OutcomeUnknown,
        other => StoreError::Broken(match other.source() {
            Some(cause) => format!("{other}: {cause}"),
            None => other.to_string(),
        }),
    }
}
