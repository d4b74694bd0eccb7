//! What a handler knows of the run it is part of.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::budget::Budget;
use tidegate_core::submission::Cost;
use tidegate_core::{EpochMs, Fence, Kind, PeerName, TaskId, TenantId};
use tidegate_store::{Claimed, PermitCall};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::permit::{Permit, PermitError};
use crate::permit_desk::PermitDesk;
use crate::shift::Slot;
use crate::stop::{Cause, Stop};

/// The largest progress that is kept, in bytes of JSON: it is shown to people, and is written each time it changes.
const MAX_PROGRESS_BYTES: usize = 4_096;

/// A progress that was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ProgressError {
    /// It has no JSON form.
    #[error("the progress has no JSON form")]
    NotJson(#[from] serde_json::Error),
    /// Its JSON is too large.
    #[error("the progress takes more than {MAX_PROGRESS_BYTES} bytes")]
    TooLarge,
}

/// The run that a handler is part of. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    run: Arc<Run>,
}

/// The facts of one run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) claimed: Claimed,
    /// When the handler must have answered, and which limit that is.
    pub(crate) stop_at: Instant,
    pub(crate) stop_cause: Cause,
    pub(crate) max_result_bytes: usize,
    pub(crate) slot: Arc<Slot>,
    pub(crate) permits: Arc<PermitDesk>,
}

impl Context {
    pub(crate) fn new(run: Arc<Run>) -> Self {
        Self { run }
    }

    /// The task.
    pub fn task_id(&self) -> TaskId {
        self.run.claimed.id
    }

    /// Who pays.
    pub fn tenant(&self) -> &TenantId {
        &self.run.claimed.tenant
    }

    /// What sort of work.
    pub fn kind(&self) -> &Kind {
        &self.run.claimed.kind
    }

    /// The dependency it calls.
    pub fn peer(&self) -> Option<&PeerName> {
        self.run.claimed.peer.as_ref()
    }

    /// The number by which whoever is called can refuse a run that has lost its lease: a larger one has started since.
    pub fn fence(&self) -> Fence {
        self.run.claimed.fence
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.run.claimed.attempt
    }

    /// Most failures before the task ends FAILED.
    pub fn max_attempts(&self) -> u32 {
        self.run.claimed.max_attempts
    }

    /// The W3C trace context that the task came with.
    pub fn traceparent(&self) -> Option<&str> {
        self.run.claimed.traceparent.as_deref()
    }

    /// What the caller thought it would use.
    pub fn estimated(&self) -> Cost {
        self.run.claimed.estimated
    }

    /// When the handler must have answered: the end of the task or of this attempt, whichever is first, less the time
    /// it takes to hand in the answer.
    pub fn deadline(&self) -> Instant {
        self.run.stop_at
    }

    /// The time left until [`Context::deadline`].
    pub fn remaining(&self) -> Duration {
        self.run.stop_at.saturating_duration_since(Instant::now())
    }

    /// When the task must have ended, by the database's clock: for others, who cannot see ours.
    pub fn deadline_epoch_ms(&self) -> EpochMs {
        self.run.claimed.deadline_ms
    }

    /// What is left of the delegation budget.
    pub fn budget(&self) -> Budget {
        // Whole milliseconds: more digits would only be noise.
        let remaining_ms = self.remaining().as_millis();
        Budget {
            remaining_s: Some(remaining_ms as f64 / 1_000.0),
            depth: Some(self.run.claimed.depth),
            fanout: Some(self.run.claimed.fanout),
        }
    }

    /// The largest result that will be accepted, in bytes of JSON.
    pub fn max_result_bytes(&self) -> usize {
        self.run.max_result_bytes
    }

    /// A token that is cancelled when the run should stop.
    pub fn token(&self) -> CancellationToken {
        self.run.slot.signal.token()
    }

    /// Completes when the run should stop.
    pub async fn cancelled(&self) {
        self.run.slot.signal.stopped().await;
    }

    /// Fails once the run should stop, and says why. To be called between long steps, and before each call that
    /// leaves; it looks at the clock itself, so it works in a handler that never yields.
    pub fn checkpoint(&self) -> Result<(), Stop> {
        let signal = &self.run.slot.signal;
        if Instant::now() >= self.run.stop_at {
            signal.stop(self.run.stop_cause);
        }
        signal.cause().map_or(Ok(()), |cause| Err(cause.into()))
    }

    /// Takes a permit for one call of a peer other than the task's own: one of the peer's `max_in_flight` in the whole
    /// fleet, and one request of its `requests_per_minute`.
    ///
    /// Where the peer has no room it waits, for as long as the peer's `max_wait_ms` at most and not at all where that is
    /// not set, and is told [`PermitError::Busy`] then; at once where as many as the peer's `max_waiting` wait already.
    /// A task whose submission names a peer holds that one's permit for as long as it runs. While a task holds any
    /// permit it is Busy at once for every other: two tasks must never wait for each other's. It stops waiting when the
    /// run should stop. Dropping the future gives up.
    pub async fn permit(&self, peer: &PeerName) -> Result<Permit, PermitError> {
        self.checkpoint()?;
        let Claimed { id: task, fence, peer: own, .. } = &self.run.claimed;
        if own.is_some() {
            return Err(PermitError::Busy { retry_after: None });
        }
        let call = PermitCall { task: *task, fence: *fence, peer: peer.clone(), call: Uuid::now_v7() };
        let answered = self.run.permits.ask(call.clone())?;
        // From here on it is given back, or given up, whatever happens.
        let permit = Permit::new(self.run.permits.clone(), call);
        tokio::select! {
            biased;
            answered = answered => answered.unwrap_or(Err(PermitError::Lost)).map(|()| permit),
            () = async { tokio::select! { () = self.cancelled() => {}, () = sleep_until(self.run.stop_at) => {} } } => {
                Err(self.checkpoint().err().unwrap_or(Stop::Late).into())
            }
        }
    }

    /// Says how far it has come; the latest replaces what was said before. It travels after the next heartbeat.
    pub fn progress(&self, value: &impl Serialize) -> Result<(), ProgressError> {
        let text = serde_json::to_string(value)?;
        if text.len() > MAX_PROGRESS_BYTES {
            return Err(ProgressError::TooLarge);
        }
        self.run.slot.set_progress(text.into());
        Ok(())
    }

    /// Says what this run has used so far, in all; the latest replaces what was said before.
    pub fn record_usage(&self, used: Cost) {
        self.run.slot.set_usage(used);
    }
}
