//! One run of one task: the handler, its limits, and what comes of it.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tidegate_store::{Claimed, Report};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::context::{Context, Run};
use crate::handler::HandlerError;
use crate::measure;
use crate::options::WorkerOptions;
use crate::permit_desk::PermitDesk;
use crate::registry::Entry;
use crate::report::{Ended, Outcome, failed, outcome, stopped};
use crate::shift::{Shift, Slot};
use crate::stop::Cause;

/// What a run sends when its handler has stopped and its slot is free.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The session that it ran under.
    pub(crate) shift: Arc<Shift>,
    /// What to tell the store; nothing if the lease was lost.
    pub(crate) report: Option<Report>,
}

/// How long a handler may take to stop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Graces {
    stop: Duration,
    cancel: Duration,
}

impl From<&WorkerOptions> for Graces {
    fn from(options: &WorkerOptions) -> Self {
        Self { stop: options.stop_grace, cancel: options.cancel_grace }
    }
}

/// A claimed task with all it needs to run.
pub(crate) struct Attempt {
    run: Arc<Run>,
    payload: String,
    entry: Entry,
    graces: Graces,
}

impl Attempt {
    /// For a task that a turn claimed which was sent at `sent`.
    pub(crate) fn new(
        mut claimed: Claimed,
        sent: Instant,
        entry: Entry,
        options: &WorkerOptions,
        permits: Arc<PermitDesk>,
    ) -> Self {
        let deadline = sent + claimed.remaining.saturating_sub(options.settle_reserve);
        let timeout = claimed.attempt_timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let (stop_at, stop_cause) = match timeout {
            Some(timeout) if timeout < deadline => (timeout, Cause::AttemptTimeout),
            _ => (deadline, Cause::Deadline),
        };
        let slot = Arc::new(Slot::new(claimed.id, claimed.fence));
        let max_result_bytes = entry.options.max_result_bytes;
        let payload = std::mem::take(&mut claimed.payload);
        let run = Arc::new(Run { claimed, stop_at, stop_cause, max_result_bytes, slot, permits });
        Self { run, payload, entry, graces: options.into() }
    }

    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.run.slot
    }

    /// What to report where there is no time left to call the handler at all.
    pub(crate) fn too_late(&self) -> Option<Report> {
        let late = Instant::now() >= self.run.stop_at && self.run.stop_cause == Cause::Deadline;
        late.then(|| stopped(Cause::Deadline).report(&self.run, self.entry.options))
    }

    /// What to report where the handler is not to be called.
    pub(crate) fn handed_back(&self) -> Report {
        stopped(Cause::ShuttingDown).report(&self.run, self.entry.options)
    }

    /// Runs it. Whatever happens, `done` hears once that the slot is free.
    pub(crate) async fn go(self, shift: Arc<Shift>, done: mpsc::Sender<Finished>) {
        let started = Instant::now();
        let Self { run, payload, entry, graces } = self;
        let panicked = failed(HandlerError::transient("panic", "the handler panicked while it was being dropped"));
        let report = Some(panicked.report(&run, entry.options));
        let mut exit = Exit { shift, slot: run.slot.clone(), done, report };
        let ended = drive(&run, payload, &entry, graces).await;
        let outcome = outcome(ended, run.slot.signal.cause(), run.max_result_bytes);
        let name = outcome.as_ref().map_or("lost", Outcome::name);
        let claimed = &run.claimed;
        measure::run(&claimed.kind, name, started.elapsed());
        tracing::debug!(
            task.id = %claimed.id, task.fence = claimed.fence.0, kind = %claimed.kind, attempt = claimed.attempt,
            outcome = name, "a run ended"
        );
        exit.report = outcome.map(|outcome| outcome.report(&run, entry.options));
    }
}

/// Calls the handler and waits until it ends, or is dropped.
async fn drive(run: &Arc<Run>, payload: String, entry: &Entry, graces: Graces) -> Ended {
    let execution = AssertUnwindSafe(async {
        // Called inside of the future, so that a panic before its first await is caught as well.
        entry.executor.execute(Context::new(run.clone()), payload).await
    });
    let mut execution = pin!(execution.catch_unwind());
    let signal = &run.slot.signal;
    let ended = tokio::select! {
        biased;
        ended = &mut execution => Some(ended),
        () = signal.stopped() => None,
        () = sleep_until(run.stop_at) => { signal.stop(run.stop_cause); None }
    };
    let ended = match ended {
        Some(ended) => Some(ended),
        None => see_out(run, graces, execution).await,
    };
    match ended {
        Some(Ok(returned)) => Ended::Returned(returned),
        Some(Err(panic)) => Ended::Panicked(panic_message(&*panic)),
        None => Ended::Dropped,
    }
}

/// Gives the handler its grace after it was told to stop.
async fn see_out<T>(run: &Run, graces: Graces, execution: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let now = Instant::now();
    let signal = &run.slot.signal;
    let until = match signal.cause() {
        // Longer, since it may have to tell others; but not beyond the end of its time.
        Some(Cause::Cancelled) => (now + graces.cancel).min(run.stop_at.max(now) + graces.stop),
        _ => now + graces.stop,
    };
    let patience = async {
        tokio::select! {
            () = sleep_until(until) => {}
            () = async { signal.lost().await; sleep(graces.stop).await } => {}
        }
    };
    tokio::select! {
        biased;
        ended = execution => Some(ended),
        () = patience => None,
    }
}

/// Frees the slot and sends the report when it is dropped, so that not even a panic in a handler's destructor can keep
/// a slot for good.
struct Exit {
    shift: Arc<Shift>,
    slot: Arc<Slot>,
    done: mpsc::Sender<Finished>,
    report: Option<Report>,
}

impl Drop for Exit {
    fn drop(&mut self) {
        self.shift.leave(&self.slot);
        let report = self.report.take().filter(|_| self.slot.signal.cause() != Some(Cause::Lost));
        let finished = Finished { shift: self.shift.clone(), report };
        // There is a place for each slot, so it fails only where nobody is left to hear it.
        let _ = self.done.try_send(finished);
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("the handler panicked").to_owned()
}
