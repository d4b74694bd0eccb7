//! A store in memory, which fails on demand: the second implementation of the port.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tidegate_core::settlement::Ending;
use tidegate_core::submission::Cost;
use tidegate_core::{Fence, Kind, PeerName, Reason, Status, TaskId, TenantId};
use tidegate_store::{Beat, Claimed, PermitAnswer, PermitCall, Report, SessionId, SessionSpec, Settled, Turn};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::port::{HeartPort, PortError, Progress, SessionPort, WorkPort};

/// What the next turn does, or each heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// What it should.
    Work,
    /// Nothing, and says so.
    Fail,
    /// What it should, and then its answer is lost.
    DoThenFail,
    /// Never answers.
    Hang,
    /// Finds the session lost.
    Lost,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) queue: VecDeque<Claimed>,
    pub(crate) leases: HashMap<TaskId, (Fence, SessionId)>,
    /// Reports that changed something, in order.
    pub(crate) settled: Vec<Report>,
    /// Reports that changed nothing.
    pub(crate) stale: Vec<Report>,
    /// What a turn claimed whose answer was lost: the next brings it.
    unheard: Vec<Claimed>,
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) closed: bool,
    /// One for each of the next turns; after them all work.
    pub(crate) turn_plans: VecDeque<Plan>,
    pub(crate) beat_plan: Option<Plan>,
    /// How long turns and heartbeats take.
    pub(crate) turn_time: Duration,
    /// How long a turn waits for the lock.
    pub(crate) lock_time: Duration,
    pub(crate) beat_time: Duration,
    /// Tasks whose result is refused as a value.
    pub(crate) unstorable: HashSet<TaskId>,
    pub(crate) cancels: HashSet<TaskId>,
    /// Whether an operator has the session drain.
    pub(crate) draining: bool,
    /// Reports and wanted tasks of each turn.
    pub(crate) turns: Vec<(usize, usize)>,
    pub(crate) beats: Vec<Instant>,
    pub(crate) progress: Vec<Progress>,
    pub(crate) progress_plan: Option<Plan>,
    in_flight: usize,
    pub(crate) most_in_flight: usize,
    /// Calls that hold a permit, or wait for one.
    pub(crate) permits: Vec<(PermitCall, bool)>,
    /// Permits of every peer together; no limit where it is not set.
    pub(crate) permit_room: Option<usize>,
    /// How long a call may wait.
    pub(crate) permit_wait: Duration,
    /// One for each of the next transactions of permits; after them all work.
    pub(crate) permit_plans: VecDeque<Plan>,
    /// Releases and asks of each of them.
    pub(crate) exchanges: Vec<(usize, usize)>,
}

impl State {
    /// Calls that hold a permit.
    pub(crate) fn permits_held(&self) -> usize {
        self.permits.iter().filter(|(_, taken)| *taken).count()
    }

    fn answer(&mut self, session: SessionId, call: &PermitCall) -> PermitAnswer {
        if self.leases.get(&call.task) != Some(&(call.fence, session)) {
            return PermitAnswer::Lost;
        }
        let room = self.permit_room.is_none_or(|room| self.permits_held() < room);
        let max = self.permit_wait;
        match self.permits.iter_mut().find(|(known, _)| known.task == call.task) {
            Some((known, _)) if known.call != call.call => PermitAnswer::Busy { retry_after: None },
            Some((_, taken)) if *taken || room => {
                *taken = true;
                PermitAnswer::Taken
            }
            Some(_) => PermitAnswer::Waits { max },
            None if !room && max.is_zero() => PermitAnswer::Busy { retry_after: Some(Duration::from_secs(1)) },
            None => {
                self.permits.push((call.clone(), room));
                if room { PermitAnswer::Taken } else { PermitAnswer::Waits { max } }
            }
        }
    }
}

/// The fake. Clones are the same store.
#[derive(Clone, Default)]
pub(crate) struct FakeStore {
    state: Arc<Mutex<State>>,
    work: Arc<Notify>,
    cancel: Arc<Notify>,
    permit: Arc<Notify>,
}

pub(crate) fn task(number: u128, kind: &str, payload: &str) -> Claimed {
    Claimed {
        id: TaskId(Uuid::from_u128(number)),
        tenant: TenantId::default_tenant(),
        kind: Kind::parse(kind).unwrap(),
        peer: None,
        payload: payload.to_owned(),
        fence: Fence(0),
        attempt: 1,
        max_attempts: 3,
        remaining: Duration::from_secs(300),
        deadline_ms: 1_790_000_000_000,
        attempt_timeout: None,
        traceparent: None,
        depth: 2,
        fanout: 4,
        estimated: Cost::default(),
        suspect: false,
    }
}

impl FakeStore {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn submit(&self, tasks: impl IntoIterator<Item = Claimed>) {
        self.state().queue.extend(tasks);
        self.work.notify_one();
    }

    pub(crate) fn ask_to_cancel(&self, number: u128) {
        self.state().cancels.insert(TaskId(Uuid::from_u128(number)));
        self.cancel.notify_one();
    }

    /// Has the session drain, as an operator does.
    pub(crate) fn ask_to_drain(&self) {
        self.state().draining = true;
        self.cancel.notify_one();
    }

    /// Takes a lease away, as the reaper does.
    pub(crate) fn reap(&self, number: u128) {
        self.state().leases.remove(&TaskId(Uuid::from_u128(number)));
    }

    /// How the reports of a task ended.
    pub(crate) fn endings(&self, number: u128) -> Vec<Ending> {
        let id = TaskId(Uuid::from_u128(number));
        self.state().settled.iter().filter(|report| report.id == id).map(|report| report.ending).collect()
    }

    /// Waits until it is as it should be, for at most a minute.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let waiting = async {
            while !condition(&self.state()) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    fn settle_and_claim(&self, session: SessionId, reports: &[Report], want: usize) -> Result<Turn, PortError> {
        let mut state = self.state();
        if state.sessions.last() != Some(&session) {
            return Err(PortError::SessionLost);
        }
        if reports.iter().any(|report| state.unstorable.contains(&report.id) && report.result.is_some()) {
            return Err(PortError::Refused("a bad value".into()));
        }
        let mut turn = Turn { claimed: std::mem::take(&mut state.unheard), ..Turn::default() };
        for report in reports {
            let mine = state.leases.get(&report.id) == Some(&(report.fence, session));
            if mine {
                state.leases.remove(&report.id);
                state.permits.retain(|(call, _)| call.task != report.id);
                state.settled.push(report.clone());
                turn.settled.push(match report.ending {
                    Ending::HandedBack => Settled::Returned(Reason::HandedBack),
                    _ => Settled::Ended(Status::Completed),
                });
            } else {
                state.stale.push(report.clone());
                turn.settled.push(Settled::LeaseLost);
            }
        }
        while turn.claimed.len() < want
            && let Some(mut task) = state.queue.pop_front()
        {
            task.fence.0 += 1;
            assert_eq!(state.leases.insert(task.id, (task.fence, session)), None, "claimed twice");
            turn.claimed.push(task);
        }
        Ok(turn)
    }
}

fn unreachable() -> PortError {
    PortError::Unavailable("down".into())
}

impl WorkPort for FakeStore {
    type Session = FakeSession;

    async fn open_session(&self, _: SessionSpec) -> Result<FakeSession, PortError> {
        let mut state = self.state();
        let id = SessionId(Uuid::from_u128(state.sessions.len() as u128 + 1));
        state.sessions.push(id);
        Ok(FakeSession { store: self.clone(), id })
    }

    async fn wait_for_work(&self, max: Duration) {
        let _ = timeout(max, self.work.notified()).await;
    }

    async fn wait_for_cancel(&self, max: Duration) -> bool {
        timeout(max, self.cancel.notified()).await.is_ok()
    }

    async fn wait_for_permit(&self, max: Duration) {
        let _ = timeout(max, self.permit.notified()).await;
    }
}

pub(crate) struct FakeSession {
    store: FakeStore,
    id: SessionId,
}

impl SessionPort for FakeSession {
    type Heart = FakeHeart;

    fn id(&self) -> SessionId {
        self.id
    }

    fn heart(&self) -> FakeHeart {
        FakeHeart { store: self.store.clone(), id: self.id }
    }

    async fn turn(&self, reports: &[Report], want: usize) -> Result<Turn, PortError> {
        let (plan, time) = {
            let mut state = self.store.state();
            state.turns.push((reports.len(), want));
            state.in_flight += 1;
            state.most_in_flight = state.most_in_flight.max(state.in_flight);
            (state.turn_plans.pop_front().unwrap_or(Plan::Work), state.turn_time)
        };
        if !time.is_zero() {
            sleep(time).await;
        }
        let result = match plan {
            Plan::Work => self.store.settle_and_claim(self.id, reports, want),
            Plan::Fail => Err(unreachable()),
            Plan::DoThenFail => self.store.settle_and_claim(self.id, reports, want).and_then(|turn| {
                self.store.state().unheard = turn.claimed;
                Err(PortError::OutcomeUnknown("cut".into()))
            }),
            Plan::Hang => std::future::pending().await,
            Plan::Lost => Err(PortError::SessionLost),
        };
        self.store.state().in_flight -= 1;
        result
    }

    async fn turn_gathering(
        &self,
        reports: &mut Vec<Report>,
        want: usize,
        late: &(dyn Fn() -> Vec<Report> + Sync),
    ) -> Result<Turn, PortError> {
        let time = self.store.state().lock_time;
        if !time.is_zero() {
            sleep(time).await;
        }
        let before = reports.len();
        reports.append(&mut late());
        let more = if want > 0 { reports.len() - before } else { 0 };
        self.turn(reports, want + more).await
    }

    async fn permits(&self, released: &[PermitCall], asked: &[PermitCall]) -> Result<Vec<PermitAnswer>, PortError> {
        let plan = {
            let mut state = self.store.state();
            state.exchanges.push((released.len(), asked.len()));
            state.permit_plans.pop_front().unwrap_or(Plan::Work)
        };
        match plan {
            Plan::Work | Plan::DoThenFail => {}
            Plan::Fail => return Err(unreachable()),
            Plan::Hang => std::future::pending().await,
            Plan::Lost => return Err(PortError::SessionLost),
        }
        let mut state = self.store.state();
        state.permits.retain(|(known, _)| released.iter().all(|call| call.call != known.call));
        let answers = asked.iter().map(|call| state.answer(self.id, call)).collect();
        if plan == Plan::DoThenFail { Err(PortError::OutcomeUnknown("cut".into())) } else { Ok(answers) }
    }

    async fn permit_room(&self, _: &[PeerName]) -> Result<bool, PortError> {
        let state = self.store.state();
        Ok(state.permit_room.is_none_or(|room| state.permits_held() < room))
    }

    async fn close(&self) -> Result<(), PortError> {
        self.store.state().closed = true;
        Ok(())
    }
}

pub(crate) struct FakeHeart {
    store: FakeStore,
    id: SessionId,
}

impl HeartPort for FakeHeart {
    async fn beat(&mut self, held: &[(TaskId, Fence)]) -> Result<Beat, PortError> {
        let (plan, time) = {
            let mut state = self.store.state();
            state.beats.push(Instant::now());
            (state.beat_plan.unwrap_or(Plan::Work), state.beat_time)
        };
        if !time.is_zero() {
            sleep(time).await;
        }
        match plan {
            Plan::Work => {}
            Plan::Fail | Plan::DoThenFail => return Err(unreachable()),
            Plan::Hang => std::future::pending().await,
            Plan::Lost => return Err(PortError::SessionLost),
        }
        let state = self.store.state();
        let mine = |(id, fence): &(TaskId, Fence)| state.leases.get(id) == Some(&(*fence, self.id));
        Ok(Beat {
            cancel: held.iter().map(|(id, _)| *id).filter(|id| state.cancels.contains(id)).collect(),
            lost: held.iter().filter(|lease| !mine(lease)).map(|(id, _)| *id).collect(),
            draining: state.draining,
        })
    }

    async fn report_progress(&mut self, said: &[Progress]) -> Result<(), PortError> {
        let plan = self.store.state().progress_plan.take();
        match plan {
            None => {}
            Some(Plan::Hang) => std::future::pending().await,
            Some(_) => return Err(unreachable()),
        }
        self.store.state().progress.extend_from_slice(said);
        Ok(())
    }
}
