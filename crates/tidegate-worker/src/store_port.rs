//! The port over the real store.

use std::time::Duration;

use tidegate_core::{Fence, PeerName, TaskId};
use tidegate_store::{
    Beat, Heart, PermitAnswer, PermitCall, Report, Session, SessionId, SessionSpec, Store, StoreError, Turn, WorkBell,
};
use tokio::sync::{Mutex, watch};
use tokio::time::{sleep, timeout};

use crate::port::{HeartPort, PortError, Progress, SessionPort, WorkPort};

/// A cell's database, for one worker.
pub struct StorePort {
    store: Store,
    work: Mutex<WorkBell>,
    cancels: Mutex<watch::Receiver<u64>>,
    permits: Mutex<watch::Receiver<u64>>,
}

impl StorePort {
    /// The port of one worker. Two workers of a process need one each: a bell tells one waiter.
    pub fn new(store: Store) -> Self {
        let (work, cancels) = (Mutex::new(store.work_bell()), Mutex::new(store.cancel_bell()));
        let permits = Mutex::new(store.permit_bell());
        Self { store, work, cancels, permits }
    }
}

impl WorkPort for StorePort {
    type Session = Session;

    async fn open_session(&self, spec: SessionSpec) -> Result<Session, PortError> {
        Ok(self.store.open_session(spec).await?)
    }

    async fn wait_for_work(&self, max: Duration) {
        self.work.lock().await.wait(max).await;
    }

    async fn wait_for_cancel(&self, max: Duration) -> bool {
        let mut bell = self.cancels.lock().await;
        match timeout(max, bell.changed()).await {
            Ok(Ok(())) => true,
            Err(_) => false,
            // The bell is gone with the store; do not ask again at once.
            Ok(Err(_)) => {
                sleep(max).await;
                false
            }
        }
    }

    async fn wait_for_permit(&self, max: Duration) {
        let mut bell = self.permits.lock().await;
        if let Ok(Err(_)) = timeout(max, bell.changed()).await {
            sleep(max).await;
        }
    }
}

impl SessionPort for Session {
    type Heart = Heart;

    async fn permits(&self, released: &[PermitCall], asked: &[PermitCall]) -> Result<Vec<PermitAnswer>, PortError> {
        Ok(self.permits(released, asked).await?)
    }

    async fn permit_room(&self, peers: &[PeerName]) -> Result<bool, PortError> {
        Ok(self.permit_room(peers).await?)
    }

    fn id(&self) -> SessionId {
        self.id()
    }

    fn heart(&self) -> Heart {
        self.heart()
    }

    async fn turn(&self, reports: &[Report], want: usize) -> Result<Turn, PortError> {
        Ok(self.turn(reports, want).await?)
    }

    async fn turn_gathering(
        &self,
        reports: &mut Vec<Report>,
        want: usize,
        late: &(dyn Fn() -> Vec<Report> + Sync),
    ) -> Result<Turn, PortError> {
        Ok(self.turn_gathering(reports, want, late).await?)
    }

    async fn close(&self) -> Result<(), PortError> {
        Ok(self.close().await?)
    }
}

impl HeartPort for Heart {
    async fn beat(&mut self, held: &[(TaskId, Fence)]) -> Result<Beat, PortError> {
        Ok(Heart::beat(self, held).await?)
    }

    async fn report_progress(&mut self, said: &[Progress]) -> Result<(), PortError> {
        let said: Vec<_> = said.iter().map(|progress| (progress.id, progress.fence, progress.text.as_ref())).collect();
        Ok(Heart::report_progress(self, &said).await?)
    }
}

impl From<StoreError> for PortError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::SessionLost => Self::SessionLost,
            StoreError::OutcomeUnknown(_) => Self::OutcomeUnknown(error.into()),
            StoreError::Data(_) => Self::Refused(error.into()),
            // The last two want an operator, who may well cure them while this goes on trying.
            StoreError::Unavailable(_) | StoreError::Busy(_) | StoreError::Schema(_) | StoreError::BadUrl(_) => {
                Self::Unavailable(error.into())
            }
        }
    }
}
