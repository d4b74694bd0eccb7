//! The store, as the worker asks for it.

use std::time::Duration;

use tidegate_core::{Fence, TaskId};
use tidegate_store::{Beat, Heart, Report, Session, SessionId, SessionSpec, Store, StoreError, Turn, WorkBell};
use tidegate_worker::port::{HeartPort, Held, PortError, SessionPort, WorkPort};
use tokio::sync::{Mutex, watch};

/// The store with the bells that this worker listens to. A bell remembers what rang between two waits.
pub(super) struct StorePort {
    store: Store,
    work: Mutex<WorkBell>,
    cancels: Mutex<watch::Receiver<u64>>,
}

impl StorePort {
    /// Listens from now on.
    pub(super) fn new(store: Store) -> Self {
        let (work, cancels) = (Mutex::new(store.work_bell()), Mutex::new(store.cancel_bell()));
        Self { store, work, cancels }
    }
}

impl WorkPort for StorePort {
    type Session = StoreSession;

    async fn open_session(&self, spec: SessionSpec) -> Result<StoreSession, PortError> {
        self.store.open_session(spec).await.map(StoreSession).map_err(broken)
    }

    async fn wait_for_work(&self, max: Duration) {
        self.store.wait_for_work(&mut *self.work.lock().await, max).await;
    }

    async fn wait_for_cancel(&self, max: Duration) -> bool {
        matches!(tokio::time::timeout(max, self.cancels.lock().await.changed()).await, Ok(Ok(())))
    }
}

/// A session of the store.
pub(super) struct StoreSession(Session);

impl SessionPort for StoreSession {
    type Heart = StoreHeart;

    fn id(&self) -> SessionId {
        self.0.id()
    }

    fn heart(&self) -> StoreHeart {
        StoreHeart(self.0.heart())
    }

    async fn turn(&self, reports: &[Report], want: usize) -> Result<Turn, PortError> {
        self.0.turn(reports, want).await.map_err(broken)
    }

    async fn hand_back_unheld(&self, _: &[(TaskId, Fence)]) -> Result<(), PortError> {
        // The store's session keeps the books itself: its next turn brings what a broken one claimed.
        Ok(())
    }

    async fn drain(&self) -> Result<(), PortError> {
        self.0.drain().await.map_err(broken)
    }

    async fn close(&self) -> Result<(), PortError> {
        self.0.close().await.map_err(broken)
    }
}

/// The heartbeat of a session.
pub(super) struct StoreHeart(Heart);

impl HeartPort for StoreHeart {
    async fn beat(&mut self, held: &[Held]) -> Result<Beat, PortError> {
        let ids: Vec<_> = held.iter().map(|task| (task.id, task.fence)).collect();
        let beat = self.0.beat(&ids).await.map_err(broken)?;
        let said: Vec<_> =
            held.iter().filter_map(|task| Some((task.id, task.fence, task.progress.as_deref()?))).collect();
        if !said.is_empty()
            && let Err(error) = self.0.report_progress(&said).await
        {
            // The lease is what a heartbeat is about, and it was extended: progress is told again when it changes.
            tracing::debug!(%error, "progress could not be kept");
        }
        Ok(beat)
    }
}

fn broken(error: StoreError) -> PortError {
    match error {
        StoreError::SessionLost => PortError::SessionLost,
        StoreError::OutcomeUnknown(_) => PortError::OutcomeUnknown(error.into()),
        StoreError::Data(_) => PortError::Refused(error.into()),
        StoreError::Unavailable(_) | StoreError::Busy(_) | StoreError::Schema(_) | StoreError::BadUrl(_) => {
            PortError::Unavailable(error.into())
        }
    }
}
