//! Permits of further peers that a handler calls beside its task's own.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{PeerName, Reason};
use tidegate_store::PermitCall;

use crate::handler::HandlerError;
use crate::permit_desk::PermitDesk;
use crate::stop::Stop;

/// Why a call got no permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PermitError {
    /// The peer has no room, and its waiting room is full, or the call has waited for as long as the peer's `max_wait_ms`
    /// says; or the task holds another permit. The call was not made, and nothing was held against anybody.
    #[error("the peer is busy")]
    Busy {
        /// How long to wait before another try, at least, where that is known.
        retry_after: Option<Duration>,
    },
    /// The lease was lost: whatever this run does now, nobody will hear of it.
    #[error("the lease was lost")]
    Lost,
    /// The run should stop: it was cancelled, its time is over, or the worker shuts down.
    #[error("no permit: {0}")]
    Cancelled(Stop),
    /// The store cannot be reached: nobody knows whether the peer has room.
    #[error("no permit: the store cannot be reached")]
    Unavailable,
}

impl From<Stop> for PermitError {
    fn from(stop: Stop) -> Self {
        if stop == Stop::Lost { Self::Lost } else { Self::Cancelled(stop) }
    }
}

/// What a handler says that gives up for want of a permit: a busy peer ends the task FAILED `bulkhead_full`; where a
/// later run may do better, return [`HandlerError::snooze`] instead. A store that cannot be reached is a transient
/// failure.
impl From<PermitError> for HandlerError {
    fn from(error: PermitError) -> Self {
        match error {
            PermitError::Busy { .. } => Self::permanent("peer_busy", error.to_string()).because(Reason::BulkheadFull),
            PermitError::Lost => Stop::Lost.into(),
            PermitError::Cancelled(stop) => stop.into(),
            PermitError::Unavailable => Self::transient("permit_unavailable", error.to_string()),
        }
    }
}

/// The right to one call of a peer: one of its `max_in_flight`, in the whole fleet.
///
/// It is given back when this is dropped: soon, in the background, tried again until the store has heard of it. The end
/// of the task's lease gives it back in any case.
#[derive(Debug)]
#[must_use = "a permit is given back when it is dropped"]
pub struct Permit {
    desk: Arc<PermitDesk>,
    call: PermitCall,
    released: bool,
}

impl Permit {
    pub(crate) fn new(desk: Arc<PermitDesk>, call: PermitCall) -> Self {
        Self { desk, call, released: false }
    }

    /// The peer that may be called.
    pub fn peer(&self) -> &PeerName {
        &self.call.peer
    }

    /// Gives it back, and returns when others can have it, or when the lease is over and has given it back. Dropping the
    /// future gives it back all the same.
    pub async fn release(mut self) {
        self.released = true;
        let heard = self.desk.release(&self.call);
        // An error means that the session is over, and its permits with it.
        let _ = heard.await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.released {
            drop(self.desk.release(&self.call));
        }
    }
}
