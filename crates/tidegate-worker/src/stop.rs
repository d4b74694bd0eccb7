//! Why a run should stop, and how it hears of it.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio_util::sync::CancellationToken;

/// Why a handler should stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// Somebody asked for the task to be cancelled.
    #[error("the task was cancelled")]
    Cancelled,
    /// The time of the task, or of this attempt, is over.
    #[error("the time is over")]
    Late,
    /// The lease was lost: another worker may run the task by now, and nothing that this run says will be heard.
    #[error("the lease was lost")]
    Lost,
    /// The worker is shutting down and the grace is over: the task will be handed back.
    #[error("the worker is shutting down")]
    ShuttingDown,
}

/// Like [`Stop`], with the two time limits apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cause {
    Cancelled = 1,
    Deadline = 2,
    AttemptTimeout = 3,
    ShuttingDown = 4,
    Lost = 5,
}

impl Cause {
    fn from_code(code: u8) -> Option<Self> {
        [Self::Cancelled, Self::Deadline, Self::AttemptTimeout, Self::ShuttingDown, Self::Lost]
            .into_iter()
            .find(|cause| *cause as u8 == code)
    }
}

impl From<Cause> for Stop {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Cancelled => Self::Cancelled,
            Cause::Deadline | Cause::AttemptTimeout => Self::Late,
            Cause::ShuttingDown => Self::ShuttingDown,
            Cause::Lost => Self::Lost,
        }
    }
}

/// The one place where a run is told to stop. The first cause counts, but a lost lease overrules all others.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    cause: AtomicU8,
    stopped: CancellationToken,
    lost: CancellationToken,
}

impl Signal {
    pub(crate) fn stop(&self, cause: Cause) {
        if cause == Cause::Lost {
            self.cause.store(cause as u8, Ordering::SeqCst);
            self.lost.cancel();
        } else {
            // A later cause changes nothing.
            let _ = self.cause.compare_exchange(0, cause as u8, Ordering::SeqCst, Ordering::SeqCst);
        }
        self.stopped.cancel();
    }

    pub(crate) fn cause(&self) -> Option<Cause> {
        Cause::from_code(self.cause.load(Ordering::SeqCst))
    }

    /// Completes when told to stop, for whatever cause.
    pub(crate) async fn stopped(&self) {
        self.stopped.cancelled().await;
    }

    /// Completes when the lease is lost.
    pub(crate) async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// For the handler: cancelled with the signal, and harmless if cancelled by its holder.
    pub(crate) fn token(&self) -> CancellationToken {
        self.stopped.child_token()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_counts_but_a_lost_lease_overrules_it() {
        let signal = Signal::default();
        assert_eq!(signal.cause(), None);
        signal.stop(Cause::Cancelled);
        signal.stop(Cause::Deadline);
        assert_eq!(signal.cause(), Some(Cause::Cancelled));
        signal.stop(Cause::Lost);
        signal.stop(Cause::Deadline);
        assert_eq!(signal.cause(), Some(Cause::Lost));
    }

    #[test]
    fn a_handler_cannot_stop_itself_through_its_token() {
        let signal = Signal::default();
        signal.token().cancel();
        assert!(!signal.token().is_cancelled() && signal.cause().is_none());
        signal.stop(Cause::Deadline);
        assert!(signal.token().is_cancelled());
    }
}
