//! One session of a worker: turn after turn until it is lost or drained.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::OptionFuture;
use tidegate_core::backoff::{self, BackoffPolicy};
use tidegate_core::{Fence, TaskId};
use tidegate_store::{Claimed, Report, Settled, Turn};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle, yield_now};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::attempt::{Attempt, Finished};
use crate::measure;
use crate::options::WorkerOptions;
use crate::outbox::{Outbox, Refusal};
use crate::permit_desk::{self, PermitDesk};
use crate::port::{PortError, SessionPort, WorkPort};
use crate::registry::Registry;
use crate::report::unasked;
use crate::shift::Shift;
use crate::stop::Cause;

/// The longest an idle worker waits before it looks for work by itself, in case a ring was lost. The wait is between
/// half of this and all of it, so that workers do not look in step.
const POLL: Duration = Duration::from_secs(1);
/// The delays between tries of a turn that failed, well below any lease.
const TURN_RETRY: BackoffPolicy = BackoffPolicy { base_ms: 50, max_ms: 2_000 };
/// How often a turn is put off for handlers that are just ending. Each time all others that are ready run once; it
/// stops as soon as nobody ended meanwhile.
const GATHER_ROUNDS: usize = 8;
/// How long a draining worker tries to settle after its last handler was told to stop.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// The longest that closing a session is waited for.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// What a worker keeps from one session to the next.
pub(crate) struct Desk {
    pub(crate) registry: Registry,
    pub(crate) options: WorkerOptions,
    /// Slots whose handler has not stopped, of whichever session.
    pub(crate) busy: usize,
    pub(crate) done: mpsc::Sender<Finished>,
    pub(crate) finished: mpsc::Receiver<Finished>,
}

/// How a session ended.
pub(crate) enum Served {
    /// Its leases are not its own any more.
    Lost,
    /// It was drained. These leases it could not give back.
    Drained(Vec<(TaskId, Fence)>),
}

/// How far a session is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// Handlers may finish.
    Finishing {
        until: Instant,
    },
    /// Handlers were told to stop.
    Stopping {
        until: Instant,
    },
    /// What is left stays behind.
    GivenUp,
}

/// What became of one turn.
struct Turned {
    reports: Vec<Report>,
    /// Whether some of the reports may have been settled before.
    again: bool,
    want: usize,
    /// When the claim was asked for.
    sent: Instant,
    result: Result<Turn, PortError>,
}

enum Event {
    Lost,
    Finished(Finished),
    Turned(Result<Turned, JoinError>),
    Rung,
    Shutdown,
    Time,
}

/// One session being served.
pub(crate) struct Serving<'a, P: WorkPort> {
    port: Arc<P>,
    desk: &'a mut Desk,
    session: Arc<P::Session>,
    shift: Arc<Shift>,
    permits: Arc<PermitDesk>,
    /// Shared with the turn in flight, which takes along what is reported before it has the lock.
    outbox: Arc<Mutex<Outbox>>,
    turn: Option<JoinHandle<Turned>>,
    /// The wait for work. Kept while busy, so that no ring is missed.
    bell: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Whether a claim may find something.
    hungry: bool,
    /// Whether the turn before failed, so that some reports of the next may have been settled by it.
    again: bool,
    failures: u32,
    retry_at: Option<Instant>,
    /// When a peer's rate may let something start.
    look_at: Option<Instant>,
    stage: Stage,
}

impl<'a, P: WorkPort> Serving<'a, P> {
    pub(crate) fn new(port: Arc<P>, desk: &'a mut Desk, session: P::Session, shift: Arc<Shift>) -> Self {
        let (session, permits) = (Arc::new(session), Arc::<PermitDesk>::default());
        tokio::spawn(permit_desk::serve(port.clone(), session.clone(), shift.clone(), permits.clone()));
        Self {
            port,
            desk,
            session,
            shift,
            permits,
            outbox: Arc::default(),
            turn: None,
            bell: None,
            hungry: true,
            again: false,
            failures: 0,
            retry_at: None,
            look_at: None,
            stage: Stage::Open,
        }
    }

    /// Serves until the session is lost or, after `shutdown` or at an operator's word, drained.
    pub(crate) async fn serve(mut self, shutdown: &CancellationToken) -> Served {
        loop {
            if self.may_turn() {
                self.gather().await;
                self.start_turn();
            }
            measure::slots(self.desk.options.slots as usize, self.desk.busy);
            if self.is_drained() {
                return self.leave().await;
            }
            match self.next_event(shutdown).await {
                Event::Lost => return Served::Lost,
                Event::Finished(finished) => self.take_in(finished),
                Event::Turned(turned) => self.turned(turned),
                Event::Rung => {
                    self.bell = None;
                    self.hungry = true;
                }
                Event::Shutdown => self.drain(),
                Event::Time => self.look_at_the_clock(),
            }
        }
    }

    async fn next_event(&mut self, shutdown: &CancellationToken) -> Event {
        let idle = self.turn.is_none() && self.stage == Stage::Open && !self.hungry && self.free() > 0;
        if idle && self.bell.is_none() {
            let port = self.port.clone();
            let max = POLL.mul_f64(rand::random_range(0.5..1.0));
            self.bell = Some(Box::pin(async move { port.wait_for_work(max).await }));
        }
        let open = self.stage == Stage::Open;
        let wake_at = self.wake_at();
        let Self { desk, shift, turn, bell, .. } = self;
        tokio::select! {
            biased;
            () = shift.lost() => Event::Lost,
            () = shutdown.cancelled(), if open => Event::Shutdown,
            () = shift.draining(), if open => Event::Shutdown,
            Some(finished) = desk.finished.recv() => Event::Finished(finished),
            Some(turned) = OptionFuture::from(turn.as_mut()) => Event::Turned(turned),
            Some(()) = OptionFuture::from(wake_at.map(sleep_until)) => Event::Time,
            Some(()) = OptionFuture::from(bell.as_mut()), if idle => Event::Rung,
        }
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        locked(&self.outbox)
    }

    /// Slots that neither a handler nor an unsettled lease is in.
    fn free(&self) -> usize {
        (self.desk.options.slots as usize).saturating_sub(self.desk.busy + self.outbox().len())
    }

    fn may_turn(&self) -> bool {
        let claim = self.stage == Stage::Open && self.hungry && self.free() > 0;
        self.turn.is_none() && self.retry_at.is_none() && (claim || !self.outbox().is_empty())
    }

    fn wake_at(&self) -> Option<Instant> {
        let stage = match self.stage {
            Stage::Finishing { until } | Stage::Stopping { until } => Some(until),
            Stage::Open | Stage::GivenUp => None,
        };
        let look = self.look_at.filter(|_| self.stage == Stage::Open);
        [self.retry_at, stage, look].into_iter().flatten().min()
    }

    /// Lets handlers that end at once join the turn that is about to start.
    async fn gather(&mut self) {
        for _ in 0..GATHER_ROUNDS {
            let before = self.outbox().len();
            yield_now().await;
            while let Ok(finished) = self.desk.finished.try_recv() {
                self.take_in(finished);
            }
            if self.outbox().len() == before {
                return;
            }
        }
    }

    fn take_in(&mut self, finished: Finished) {
        self.desk.busy = self.desk.busy.saturating_sub(1);
        // A run of an earlier session frees its slot, and has nothing to say.
        if Arc::ptr_eq(&finished.shift, &self.shift)
            && let Some(report) = finished.report
        {
            self.outbox().push(report);
        }
    }

    fn start_turn(&mut self) {
        let suspicious = self.outbox().is_suspicious();
        let mut reports = self.outbox().take();
        let want = if self.stage == Stage::Open && !suspicious { self.free() } else { 0 };
        if want > 0 {
            self.hungry = false;
        }
        let (session, again, outbox) = (self.session.clone(), self.again, self.outbox.clone());
        // A task of its own: it must not be cut in the middle, whatever happens here.
        self.turn = Some(tokio::spawn(async move {
            let sent = Instant::now();
            let before = reports.len();
            // Those that end at almost the same moment need not wait for a second turn.
            let late = || if suspicious { Vec::new() } else { locked(&outbox).take() };
            let result = session.turn_gathering(&mut reports, want, &late).await;
            let want = if want > 0 { want + reports.len() - before } else { 0 };
            Turned { reports, again, want, sent, result }
        }));
    }

    fn turned(&mut self, turned: Result<Turned, JoinError>) {
        self.turn = None;
        let Turned { reports, again, want, sent, result } = match turned {
            Ok(turned) => turned,
            Err(error) => {
                tracing::error!(%error, "a turn broke off");
                return self.shift.lose("a turn broke off, and its reports with it");
            }
        };
        match result {
            Ok(turn) => {
                self.failures = 0;
                self.again = false;
                if !again {
                    note_losses(&reports, &turn.settled);
                }
                self.hungry |= want > 0 && (turn.claimed.len() >= want || turn.more);
                if want > 0 {
                    self.look_at = turn.again_in.map(|wait| Instant::now() + wait);
                }
                turn.claimed.into_iter().for_each(|claimed| self.start(claimed, sent));
            }
            Err(PortError::SessionLost) => self.shift.lose("a turn found its lease over"),
            Err(PortError::Refused(error)) if !reports.is_empty() => {
                tracing::error!(error, reports = reports.len(), "the store refused a value of a report");
                self.hungry |= want > 0;
                if self.outbox().refused(reports) == Refusal::Hopeless {
                    self.shift.lose("a report could not be settled in any form");
                }
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, reports = reports.len(), "a turn failed");
                self.again = true;
                self.hungry |= want > 0;
                self.outbox().put_back(reports);
                self.failures = self.failures.saturating_add(1);
                let delay = backoff::delay_ms(TURN_RETRY, self.failures, None, rand::random_range(0.5..1.0));
                self.retry_at = Some(Instant::now() + Duration::from_millis(delay));
            }
        }
    }

    /// Starts a task that a turn claimed which was sent at `sent`.
    fn start(&mut self, claimed: Claimed, sent: Instant) {
        let Some(entry) = self.desk.registry.get(&claimed.kind) else {
            // Never asked for. Handed back, another worker may have it.
            tracing::error!(task.id = %claimed.id, kind = %claimed.kind, "claimed a task of a kind that nothing here runs");
            self.outbox().push(unasked(&claimed));
            return;
        };
        let attempt = Attempt::new(claimed, sent, entry.clone(), &self.desk.options, self.permits.clone());
        if self.stage != Stage::Open {
            self.outbox().push(attempt.handed_back());
        } else if let Some(report) = attempt.too_late() {
            self.outbox().push(report);
        } else if self.shift.enter(attempt.slot().clone()) {
            self.desk.busy += 1;
            tokio::spawn(attempt.go(self.shift.clone(), self.desk.done.clone()));
        }
    }

    /// Stops claiming and lets handlers finish.
    fn drain(&mut self) {
        tracing::info!(tasks = self.desk.busy, grace = ?self.desk.options.shutdown_grace, "draining");
        self.stage = Stage::Finishing { until: Instant::now() + self.desk.options.shutdown_grace };
        self.bell = None;
    }

    fn look_at_the_clock(&mut self) {
        let now = Instant::now();
        self.retry_at = self.retry_at.filter(|at| *at > now);
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = None;
            self.hungry = true;
        }
        match self.stage {
            Stage::Finishing { until } if until <= now => {
                self.shift.stop_all(Cause::ShuttingDown);
                self.stage = Stage::Stopping { until: now + self.desk.options.stop_grace + SETTLE_LIMIT };
            }
            Stage::Stopping { until } if until <= now => self.stage = Stage::GivenUp,
            _ => {}
        }
    }

    fn is_drained(&self) -> bool {
        match self.stage {
            Stage::Open => false,
            Stage::GivenUp => true,
            Stage::Finishing { .. } | Stage::Stopping { .. } => {
                self.turn.is_none() && self.outbox().is_empty() && self.shift.is_idle() && self.desk.finished.is_empty()
            }
        }
    }

    async fn leave(self) -> Served {
        self.shift.end();
        let left: Vec<_> = self.shift.leases().into_iter().chain(self.outbox().leases()).collect();
        if left.is_empty() && self.turn.is_none() {
            let session = self.session;
            let closing = tokio::spawn(async move { session.close().await });
            match timeout(CLOSE_LIMIT, closing).await {
                Ok(Ok(Ok(()))) => tracing::info!("drained"),
                _ => tracing::warn!("the session could not be closed: it lapses with its lease"),
            }
        } else {
            tracing::warn!(tasks = left.len(), "left behind: their leases lapse with the session");
        }
        Served::Drained(left)
    }
}

fn locked(outbox: &Mutex<Outbox>) -> MutexGuard<'_, Outbox> {
    outbox.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says which reports came after their lease was lost.
fn note_losses(reports: &[Report], settled: &[Settled]) {
    for (report, _) in reports.iter().zip(settled).filter(|(_, settled)| **settled == Settled::LeaseLost) {
        tracing::warn!(task.id = %report.id, task.fence = report.fence.0, "a lease was lost: its report changed nothing");
        measure::leases_lost(1);
    }
}
