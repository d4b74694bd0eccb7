//! Where the runs of a session ask for permits of peers and give them back. One transaction at a time carries all that
//! has come up meanwhile; what is given back stays here until the store has heard of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::backoff::{self, BackoffPolicy};
use tidegate_core::{Fence, PeerName, TaskId};
use tidegate_store::{PermitAnswer, PermitCall, supervise};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::permit::PermitError;
use crate::port::{PortError, SessionPort, WorkPort};
use crate::shift::Shift;

/// Most calls of a process that hold a permit or wait for one: one for each of very many slots.
const MAX_CALLS: usize = 4_096;
/// Most permits that are on their way back. Beyond it nothing new is asked for.
const MAX_LEAVING: usize = 4_096;
/// The longest until a call that waits looks for room by itself, since what other processes free rings no bell here. The
/// wait is between half of this and all of it, so that processes do not look in step.
const POLL: Duration = Duration::from_millis(100);
/// The longest wait where no call waits: only a bound.
const IDLE: Duration = Duration::from_secs(30);
/// The delays between tries of a transaction that failed, well below any lease.
const RETRY: BackoffPolicy = BackoffPolicy { base_ms: 50, max_ms: 2_000 };

type Reply = oneshot::Sender<Result<(), PermitError>>;

/// What a call waits for.
pub(crate) type Answered = oneshot::Receiver<Result<(), PermitError>>;

/// The calls of one session.
#[derive(Debug, Default)]
pub(crate) struct PermitDesk {
    table: Mutex<Table>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    /// At most one of each run: a task that holds a permit waits for no other.
    calls: HashMap<(TaskId, Fence), Call>,
    /// What the store has still to hear of.
    leaving: Vec<Leaving>,
    /// The session is over, and its permits with it.
    closed: bool,
}

#[derive(Debug)]
struct Call {
    call: PermitCall,
    stage: Stage,
    asked: Instant,
    reply: Option<Reply>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The store has not heard of it.
    New,
    /// It was asked for, and its answer has not come.
    Sent,
    /// It is counted among those that wait, until then.
    Waiting(Instant),
    Held,
}

#[derive(Debug)]
struct Leaving {
    call: PermitCall,
    heard: Option<oneshot::Sender<()>>,
}

/// What one transaction carries.
#[derive(Debug, Default)]
struct Batch {
    released: Vec<PermitCall>,
    asked: Vec<PermitCall>,
}

impl PermitDesk {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a permit. Busy at once where the run has a call here already, or there are too many.
    pub(crate) fn ask(&self, call: PermitCall) -> Result<Answered, PermitError> {
        let mut table = self.table();
        if table.closed {
            return Err(PermitError::Lost);
        }
        let full = table.calls.len() >= MAX_CALLS || table.leaving.len() >= MAX_LEAVING;
        if full || table.calls.contains_key(&(call.task, call.fence)) {
            return Err(PermitError::Busy { retry_after: None });
        }
        let (reply, answered) = oneshot::channel();
        let asked = Call { call: call.clone(), stage: Stage::New, asked: Instant::now(), reply: Some(reply) };
        table.calls.insert((call.task, call.fence), asked);
        drop(table);
        self.changed.notify_one();
        Ok(answered)
    }

    /// Gives a permit back, or gives up waiting for it. Completes when the store has heard of it, or the session is over.
    pub(crate) fn release(&self, call: &PermitCall) -> oneshot::Receiver<()> {
        let (heard, told) = oneshot::channel();
        let mut table = self.table();
        if let Some(stage) = table.remove(call)
            && stage != Stage::New
            && !table.closed
        {
            table.leaving.push(Leaving { call: call.clone(), heard: Some(heard) });
            drop(table);
            self.changed.notify_one();
        }
        told
    }

    /// The session is over: nothing is waited for any more, and nothing is held.
    fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        table.leaving.clear();
        for (_, call) in table.calls.drain() {
            answer(call.reply, Err(PermitError::Lost));
        }
    }

    /// Ends the waits that have lasted long enough. Returns when the next one ends.
    fn end_waits(&self, now: Instant) -> Option<Instant> {
        let mut table = self.table();
        let over = |call: &Call| matches!(call.stage, Stage::Waiting(until) if until <= now);
        let ended: Vec<PermitCall> =
            table.calls.values().filter(|call| over(call)).map(|call| call.call.clone()).collect();
        for call in ended {
            table.leave(&call, PermitError::Busy { retry_after: None });
        }
        let waits = table.calls.values().filter_map(|call| match call.stage {
            Stage::Waiting(until) => Some(until),
            _ => None,
        });
        waits.min()
    }

    /// Whether the store has to be told of something, or asked.
    fn has_news(&self) -> bool {
        let table = self.table();
        !table.leaving.is_empty() || table.calls.values().any(|call| matches!(call.stage, Stage::New | Stage::Sent))
    }

    /// The peers that calls wait for.
    fn waited_for(&self) -> Vec<PeerName> {
        let table = self.table();
        let waits = table.calls.values().filter(|call| matches!(call.stage, Stage::Waiting(_)));
        let mut peers: Vec<PeerName> = waits.map(|call| call.call.peer.clone()).collect();
        peers.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        peers.dedup();
        peers
    }

    /// All that is to be told and asked now, those that have waited longest first.
    fn batch(&self) -> Batch {
        let mut table = self.table();
        let mut asking: Vec<&mut Call> = table.calls.values_mut().filter(|call| call.stage != Stage::Held).collect();
        asking.sort_by_key(|call| call.asked);
        for call in &mut asking {
            if call.stage == Stage::New {
                call.stage = Stage::Sent;
            }
        }
        let asked = asking.into_iter().map(|call| call.call.clone()).collect();
        let released = table.leaving.iter().map(|leaving| leaving.call.clone()).collect();
        Batch { released, asked }
    }

    /// Passes on what the store answered.
    fn answered(&self, batch: &Batch, answers: &[PermitAnswer]) {
        let mut table = self.table();
        let heard: Vec<_> = batch.released.iter().map(|call| call.call).collect();
        table.leaving.retain_mut(|leaving| {
            let done = heard.contains(&leaving.call.call);
            if done && let Some(heard) = leaving.heard.take() {
                // Nobody may be waiting for it.
                let _ = heard.send(());
            }
            !done
        });
        for (asked, told) in batch.asked.iter().zip(answers) {
            let Some(call) = table.find(asked) else { continue };
            match told {
                PermitAnswer::Taken => {
                    call.stage = Stage::Held;
                    answer(call.reply.take(), Ok(()));
                }
                PermitAnswer::Waits { max } if call.stage == Stage::Sent => {
                    call.stage = Stage::Waiting(call.asked + *max);
                }
                PermitAnswer::Waits { .. } => {}
                PermitAnswer::Busy { retry_after } => {
                    table.leave(asked, PermitError::Busy { retry_after: *retry_after });
                }
                PermitAnswer::Lost => table.leave(asked, PermitError::Lost),
            }
        }
    }

    /// Nobody knows whether it was done: those that wait go on, and those that asked are told, and what they may hold is
    /// given back.
    fn failed(&self, batch: &Batch) {
        let mut table = self.table();
        for asked in &batch.asked {
            if table.find(asked).is_some_and(|call| call.stage == Stage::Sent) {
                table.leave(asked, PermitError::Unavailable);
            }
        }
    }
}

impl Table {
    fn find(&mut self, call: &PermitCall) -> Option<&mut Call> {
        self.calls.get_mut(&(call.task, call.fence)).filter(|known| known.call.call == call.call)
    }

    fn remove(&mut self, call: &PermitCall) -> Option<Stage> {
        self.find(call)?;
        self.calls.remove(&(call.task, call.fence)).map(|call| call.stage)
    }

    /// Tells a call that it gets no permit. Whatever the store holds for it goes back: a release of nothing is nothing.
    fn leave(&mut self, call: &PermitCall, error: PermitError) {
        let Some(known) = self.calls.remove(&(call.task, call.fence)) else { return };
        answer(known.reply, Err(error));
        let refused_at_once = known.stage == Stage::Sent && error != PermitError::Unavailable;
        if !refused_at_once {
            self.leaving.push(Leaving { call: known.call, heard: None });
        }
    }
}

fn answer(reply: Option<Reply>, told: Result<(), PermitError>) {
    // The caller may be gone; what it was given comes back with its guard.
    let _ = reply.map(|reply| reply.send(told));
}

/// Carries asks and releases to the store until the shift is over.
pub(crate) async fn serve<P: WorkPort>(
    port: Arc<P>,
    session: Arc<P::Session>,
    shift: Arc<Shift>,
    desk: Arc<PermitDesk>,
) {
    let serving = || {
        let counter =
            Counter { port: port.clone(), session: session.clone(), shift: shift.clone(), desk: desk.clone() };
        async move { counter.serve().await }
    };
    tokio::select! {
        biased;
        () = shift.over() => {}
        () = supervise("permits", CancellationToken::new(), serving) => {}
    }
    desk.close();
}

struct Counter<P: WorkPort> {
    port: Arc<P>,
    session: Arc<P::Session>,
    shift: Arc<Shift>,
    desk: Arc<PermitDesk>,
}

impl<P: WorkPort> Counter<P> {
    async fn serve(self) {
        let mut failures: u32 = 0;
        loop {
            self.until_due().await;
            let batch = self.desk.batch();
            match self.exchange(&batch).await {
                Ok(answers) => {
                    failures = 0;
                    self.desk.answered(&batch, &answers);
                }
                Err(PortError::SessionLost) => {
                    self.shift.lose("a call found its lease over");
                    return std::future::pending().await;
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "permits could not be asked for");
                    self.desk.failed(&batch);
                    failures = failures.saturating_add(1);
                    let delay = backoff::delay_ms(RETRY, failures, None, rand::random_range(0.5..1.0));
                    self.pass_time(Instant::now() + Duration::from_millis(delay)).await;
                }
            }
        }
    }

    /// Returns when there is something to tell or to ask.
    async fn until_due(&self) {
        let mut look_at = Instant::now() + POLL.mul_f64(rand::random_range(0.5..1.0));
        loop {
            let next = self.desk.end_waits(Instant::now());
            if self.desk.has_news() {
                return;
            }
            let Some(next) = next else {
                self.desk.changed.notified().await;
                continue;
            };
            let max = next.min(look_at).saturating_duration_since(Instant::now());
            let rung = tokio::select! {
                () = self.desk.changed.notified() => false,
                () = self.port.wait_for_permit(max.min(IDLE)) => true,
            };
            if rung && self.desk.end_waits(Instant::now()).is_some() {
                look_at = Instant::now() + POLL.mul_f64(rand::random_range(0.5..1.0));
                // What cannot be looked at is asked for, and fails or not.
                if self.session.permit_room(&self.desk.waited_for()).await.unwrap_or(true) {
                    return;
                }
            }
        }
    }

    /// One transaction. It is not cut in the middle, and the waits of calls end meanwhile as they should.
    async fn exchange(&self, batch: &Batch) -> Result<Vec<PermitAnswer>, PortError> {
        let (session, released, asked) = (self.session.clone(), batch.released.clone(), batch.asked.clone());
        let mut exchanging = tokio::spawn(async move { session.permits(&released, &asked).await });
        loop {
            let next = self.desk.end_waits(Instant::now()).unwrap_or_else(|| Instant::now() + IDLE);
            tokio::select! {
                biased;
                exchanged = &mut exchanging => {
                    return exchanged.unwrap_or_else(|error| Err(PortError::OutcomeUnknown(error.into())));
                }
                () = sleep_until(next) => {}
            }
        }
    }

    /// Lets the time pass until the next try; the waits of calls end meanwhile as they should.
    async fn pass_time(&self, until: Instant) {
        while Instant::now() < until {
            let next = self.desk.end_waits(Instant::now()).map_or(until, |next| next.min(until));
            sleep_until(next).await;
        }
    }
}
