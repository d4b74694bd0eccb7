//! What the runtime needs of a store, so that it can be tested without one.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Fence, PeerName, TaskId};
use tidegate_store::{Beat, PermitAnswer, PermitCall, Report, SessionId, SessionSpec, Turn};

/// What can go wrong, one variant for each thing the runtime does about it.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The session's leases are not its own any more: stop everything, open a new one.
    #[error("the session was lost")]
    SessionLost,
    /// Nothing was changed; the same may work later.
    #[error("the store cannot be reached")]
    Unavailable(#[source] Source),
    /// Nobody knows whether it was done.
    #[error("the connection broke while committing")]
    OutcomeUnknown(#[source] Source),
    /// Nothing was changed, and the same will never work: a value was refused.
    #[error("the store refused a value")]
    Refused(#[source] Source),
}

/// What the store itself said.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Where sessions come from, and the doorbells.
pub trait WorkPort: Send + Sync + 'static {
    /// An open session.
    type Session: SessionPort;

    /// Registers one boot of a worker. Its lease starts before this is called, on the caller's clock.
    fn open_session(&self, spec: SessionSpec) -> impl Future<Output = Result<Self::Session, PortError>> + Send;

    /// Returns when something may be there to claim, and after `max` in any case. A ring since the last return is not
    /// missed.
    fn wait_for_work(&self, max: Duration) -> impl Future<Output = ()> + Send;

    /// Returns true when a cancel was asked of a running task, perhaps another worker's; false after `max`. A ring
    /// since the last return is not missed.
    fn wait_for_cancel(&self, max: Duration) -> impl Future<Output = bool> + Send;

    /// Returns when a peer may have room for a call, as far as this process knows, and after `max` in any case.
    fn wait_for_permit(&self, max: Duration) -> impl Future<Output = ()> + Send;
}

/// One session.
pub trait SessionPort: Send + Sync + 'static {
    /// Its heartbeat.
    type Heart: HeartPort;

    /// Its id, new at each boot.
    fn id(&self) -> SessionId;

    /// Its heartbeat: on a connection of its own, made on whichever runtime it first beats.
    fn heart(&self) -> Self::Heart;

    /// In one transaction settles the reports and then claims at most `want` tasks. Fewer than that come back only if
    /// nothing else can be claimed now. Settling is idempotent: a report whose lease is gone changes nothing. After a
    /// turn whose outcome is unknown the next one also brings what that one claimed, or its leases would be nobody's
    /// for as long as the session lives.
    fn turn(&self, reports: &[Report], want: usize) -> impl Future<Output = Result<Turn, PortError>> + Send;

    /// The same, and what ended before the turn could begin in earnest: it asks `late` for that, once at least if there
    /// is anything to do, and puts it behind the reports. If anything is wanted, as many tasks more are claimed.
    fn turn_gathering(
        &self,
        reports: &mut Vec<Report>,
        want: usize,
        late: &(dyn Fn() -> Vec<Report> + Sync),
    ) -> impl Future<Output = Result<Turn, PortError>> + Send {
        async move {
            let before = reports.len();
            reports.append(&mut late());
            let more = if want > 0 { reports.len() - before } else { 0 };
            self.turn(reports, want + more).await
        }
    }

    /// In one transaction gives back the permits of the `released` calls, or ends their waiting, and then answers those
    /// that ask, in order. Repeating either is nothing new.
    fn permits(
        &self,
        released: &[PermitCall],
        asked: &[PermitCall],
    ) -> impl Future<Output = Result<Vec<PermitAnswer>, PortError>> + Send;

    /// Whether one of these peers may have room: a look that changes nothing and locks nothing.
    fn permit_room(&self, peers: &[PeerName]) -> impl Future<Output = Result<bool, PortError>> + Send;

    /// Ends the session. It holds no lease any more.
    fn close(&self) -> impl Future<Output = Result<(), PortError>> + Send;
}

/// What a handler said of its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The task.
    pub id: TaskId,
    /// The fence it runs under.
    pub fence: Fence,
    /// How far it has come, as JSON text.
    pub text: Arc<str>,
}

/// The heartbeat of a session. Its futures may be dropped at any time.
pub trait HeartPort: Send + 'static {
    /// Extends the session's lease and brings back cancels and losses.
    fn beat(&mut self, held: &[(TaskId, Fence)]) -> impl Future<Output = Result<Beat, PortError>> + Send;

    /// Keeps what handlers said of their progress, where the lease is still the session's. Apart from the heartbeat,
    /// so that no lease hangs on it.
    fn report_progress(&mut self, said: &[Progress]) -> impl Future<Output = Result<(), PortError>> + Send;
}
