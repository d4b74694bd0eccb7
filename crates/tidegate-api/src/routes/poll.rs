//! Reading a task, and waiting for its end.

use std::time::Duration;

use tidegate_core::{TaskId, TenantId};
use tidegate_store::{StoreError, TaskRecord};

use crate::settings::Shared;

/// Bounds a read: a caller hears within two seconds that the database is away.
pub(crate) async fn within<T>(
    app: &Shared,
    read: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(app.settings.read_timeout, read).await.unwrap_or(Err(StoreError::Unavailable(None)))
}

/// The tenant's task as it is now.
pub(crate) async fn read(app: &Shared, tenant: &TenantId, id: TaskId) -> Result<Option<TaskRecord>, StoreError> {
    within(app, app.backend.task(tenant, id)).await
}

/// The tenant's task once it has ended, or as it is when the time is over.
pub(crate) async fn read_ended(
    app: &Shared,
    tenant: &TenantId,
    id: TaskId,
    wait: Option<Duration>,
) -> Result<Option<TaskRecord>, StoreError> {
    // Read first: nobody waits for a task that is not theirs.
    let record = read(app, tenant, id).await?;
    match (&record, wait) {
        (Some(task), Some(wait)) if !task.status.is_final() => {
            wait_for_end(app, id, wait).await;
            read(app, tenant, id).await
        }
        _ => Ok(record),
    }
}

/// Waits until the task has ended, the time is over, or this server drains. Where too many wait already, or the
/// store cannot tell, it returns at once: the caller gets the task as it is and can ask again.
pub(crate) async fn wait_for_end(app: &Shared, id: TaskId, wait: Duration) {
    let Ok(_place) = app.long_polls.try_acquire() else { return };
    tokio::select! {
        ended = app.backend.wait_for_end(id, wait) => {
            if let Err(error) = ended {
                tracing::debug!(%error, task.id = %id, "waiting for a task's end failed");
            }
        }
        () = app.draining.cancelled() => {}
    }
}
