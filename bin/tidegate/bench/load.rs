//! Work for the store: tasks that are submitted by many at once, and sessions that run them in no time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate_core::backoff::BackoffPolicy;
use tidegate_core::kind_policy::Effects;
use tidegate_core::limits::Limits;
use tidegate_core::peer::PeerLimits;
use tidegate_core::settlement::Ending;
use tidegate_core::submission::Submission;
use tidegate_core::tenant::TenantLimits;
use tidegate_core::{Kind, PeerName, Priority, Status, TenantId};
use tidegate_store::{
    Admission, Admitter, AdmitterOptions, Claimed, PolicyError, Report, Retention, Session, SessionSpec, Settled,
    Store, StoreError, StoreOptions, migrate, yardstick,
};
use tokio::task::JoinSet;

use super::ground::broken;
use crate::exit::Failure;

/// Most tasks that a session claims, and settles, in one transaction.
pub(super) const TURN: usize = 500;
/// Tasks get this long to end, so that none expires in a backlog.
const TIMEOUT_MS: u64 = 86_400_000;
/// A lease that outlives every measurement: nobody sends heartbeats.
const LEASE: Duration = Duration::from_secs(86_400);
/// What a handler that does nothing returns.
const RESULT: &str = "{\"ok\":true}";
/// The lowest priority of a task.
const FIRST_PRIORITY: usize = 45;

/// Bounds that no measurement reaches.
pub(super) const MAX_QUEUED: u32 = 50_000_000;
pub(super) const MAX_BYTES: u64 = 1 << 40;

/// The store with its door, set up on an empty database.
pub(super) struct Cell {
    pub(super) store: Store,
    door: Admitter,
    url: String,
    kinds: Vec<Kind>,
    priorities: usize,
    payload: String,
}

/// Tenants and peers with limits of their own.
#[derive(Default)]
pub(super) struct Named {
    pub(super) tenants: BTreeMap<TenantId, TenantLimits>,
    pub(super) peers: BTreeMap<PeerName, PeerLimits>,
}

/// Puts the limits in effect.
async fn seed(store: &Store, limits: &Limits, named: &Named) -> Result<(), StoreError> {
    store.seed_policy(limits, &named.tenants, &named.peers).await.map_err(|error| match error {
        PolicyError::Store(error) => error,
        PolicyError::Bad(bad) => StoreError::Schema(bad.to_string()),
    })
}

impl Cell {
    /// Makes the tables and opens the door. Tasks are spread over so many kinds and priorities.
    pub(super) async fn open(url: &str, kinds: u32, priorities: u32, payload: String) -> Result<Self, Failure> {
        Self::open_with(url, kinds, priorities, payload, &Named::default()).await
    }

    /// The same with these tenants and peers.
    pub(super) async fn open_with(
        url: &str,
        kinds: u32,
        priorities: u32,
        payload: String,
        named: &Named,
    ) -> Result<Self, Failure> {
        let opened = async {
            migrate(url).await?;
            let store = Store::open(StoreOptions::new(url))?;
            store.make_partitions(&Retention::default()).await?;
            let mut limits = Limits { max_queued: MAX_QUEUED, max_bytes: MAX_BYTES, ..Limits::default() };
            // What is measured is the hot path, not the division of the slots.
            for class in [&mut limits.classes.critical, &mut limits.classes.standard, &mut limits.classes.background] {
                (class.reserve, class.max_share, class.shed_at) = (0.0, 1.0, None);
            }
            seed(&store, &limits, named).await?;
            let door = Admitter::start(&store, AdmitterOptions::default())?;
            Ok((store, door))
        };
        let (store, door) = opened.await.map_err(|error| broken("the store cannot be opened", &error))?;
        let kinds = (0..kinds).map(|n| Kind::parse(&format!("bench{n}"))).collect::<Result<Vec<_>, _>>();
        let kinds = kinds.map_err(|error| Failure::other("a kind", error))?;
        Ok(Self { store, door, url: url.to_owned(), kinds, priorities: priorities.max(1) as usize, payload })
    }

    /// Registers a worker.
    pub(super) async fn session(&self) -> Result<Session, Failure> {
        self.session_of(TURN as u32).await
    }

    /// Registers a worker with so many slots.
    pub(super) async fn session_of(&self, slots: u32) -> Result<Session, Failure> {
        let kinds = self.kinds.iter().map(|kind| (kind.clone(), Effects::default())).collect();
        let settle_reserve = Duration::ZERO;
        let spec = SessionSpec {
            worker: "bench".to_owned(),
            kinds,
            slots,
            lease: LEASE,
            settle_reserve,
            at_once: Default::default(),
        };
        self.store.open_session(spec).await.map_err(|error| broken("a session cannot be opened", &error))
    }

    /// Submits one task, the `n`th, and sees it accepted.
    pub(super) async fn admit(&self, n: usize) -> Result<(), Failure> {
        self.let_in(self.submission(n)).await
    }

    /// The `n`th task.
    pub(super) fn submission(&self, n: usize) -> Submission {
        let kind = self.kinds[n % self.kinds.len()].clone();
        let mut submission =
            Submission::new(self.store.next_id(), TenantId::default_tenant(), kind, self.payload.clone());
        let priority = FIRST_PRIORITY + n / self.kinds.len() % self.priorities;
        submission.priority = Priority::new(priority as i64).unwrap_or(Priority::DEFAULT);
        submission.timing.timeout_ms = Some(TIMEOUT_MS);
        submission
    }

    async fn let_in(&self, submission: Submission) -> Result<(), Failure> {
        match self.door.admit(submission, Instant::now()).await {
            Ok(Admission::Decided { decision, .. }) if !decision.status.is_final() => Ok(()),
            Ok(other) => Err(Failure::Other(format!("a task was not let in: {other:?}"))),
            Err(error) => Err(Failure::other("a task was not admitted", error)),
        }
    }

    /// Submits so many tasks by so many callers at once. Returns how long it took.
    pub(super) async fn fill(self: &Arc<Self>, tasks: usize, callers: usize) -> Result<Duration, Failure> {
        self.fill_with(tasks, callers, |_, submission| submission).await
    }

    /// The same, each made what it should be, with its number, before it is submitted.
    pub(super) async fn fill_with(
        self: &Arc<Self>,
        tasks: usize,
        callers: usize,
        made: impl Fn(usize, Submission) -> Submission + Send + Sync + 'static,
    ) -> Result<Duration, Failure> {
        let (next, made) = (Arc::new(AtomicUsize::new(0)), Arc::new(made));
        let mut set = JoinSet::new();
        let started = Instant::now();
        for _ in 0..callers.min(tasks) {
            let (cell, next, made) = (self.clone(), next.clone(), made.clone());
            set.spawn(async move {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= tasks {
                        return Ok(());
                    }
                    cell.let_in(made(n, cell.submission(n))).await?;
                }
            });
        }
        all(set).await?;
        Ok(started.elapsed())
    }

    /// Claims and settles so many tasks by these sessions at once. Returns how long it took.
    pub(super) async fn drain(&self, sessions: &[Arc<Session>], tasks: usize) -> Result<Duration, Failure> {
        self.drain_by(sessions, tasks, TURN).await
    }

    /// The same, at most so many in one turn of a session.
    pub(super) async fn drain_by(
        &self,
        sessions: &[Arc<Session>],
        tasks: usize,
        most: usize,
    ) -> Result<Duration, Failure> {
        let to_claim = Arc::new(AtomicUsize::new(tasks));
        let mut set = JoinSet::new();
        let started = Instant::now();
        for session in sessions {
            set.spawn(work(session.clone(), to_claim.clone(), most));
        }
        all(set).await?;
        let took = started.elapsed();
        match to_claim.load(Ordering::Relaxed) {
            0 => Ok(took),
            left => Err(Failure::Other(format!("{left} tasks that should wait were not found"))),
        }
    }

    /// Makes sure that nothing was lost: counters agree with rows, and every task of so many that ran has its outcome,
    /// its result and its three transitions. Tells so.
    pub(super) async fn check(&self, ran: usize) -> Result<String, Failure> {
        let audited = async { Ok((self.store.audit().await?, yardstick::kept(&self.url).await?)) };
        let (drift, kept) = audited.await.map_err(|error| broken("the store cannot be audited", &error))?;
        if let Some(first) = drift.first() {
            return Err(Failure::Other(format!("{} counters drifted: {first:?}", drift.len())));
        }
        let ran = ran as i64;
        if (kept.tasks, kept.completed, kept.transitions) != (ran, ran, 3 * ran) {
            return Err(Failure::Other(format!("{ran} tasks ran, but this was kept of them: {kept:?}")));
        }
        let [ran, transitions] = [ran, kept.transitions].map(super::report::grouped);
        Ok(format!("kept: {ran} outcomes with results, {transitions} transitions in the outbox; no counter drifted"))
    }
}

/// Claims and settles until nothing is left to claim.
async fn work(session: Arc<Session>, to_claim: Arc<AtomicUsize>, most: usize) -> Result<(), Failure> {
    let mut reports: Vec<Report> = Vec::new();
    loop {
        let take = |left: usize| Some(left - left.min(most));
        let want = to_claim.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0).min(most);
        if want == 0 && reports.is_empty() {
            return Ok(());
        }
        let claimed = turn(&session, &reports, want).await?;
        to_claim.fetch_add(want - claimed.len(), Ordering::Relaxed);
        if claimed.is_empty() && reports.is_empty() {
            return Ok(());
        }
        reports = claimed.into_iter().map(completed).collect();
    }
}

/// One turn in which every report must count.
pub(super) async fn turn(session: &Session, reports: &[Report], want: usize) -> Result<Vec<Claimed>, Failure> {
    let turn = session.turn(reports, want).await.map_err(|error| broken("a turn failed", &error))?;
    match turn.settled.iter().find(|settled| **settled != Settled::Ended(Status::Completed)) {
        None => Ok(turn.claimed),
        Some(other) => Err(Failure::Other(format!("a task was not settled as completed: {other:?}"))),
    }
}

/// The report of a handler that did nothing.
pub(super) fn completed(task: Claimed) -> Report {
    Report {
        id: task.id,
        fence: task.fence,
        ending: Ending::Completed,
        result: Some(RESULT.to_owned()),
        error: None,
        usage: None,
        backoff: BackoffPolicy::default(),
    }
}

/// A JSON string of so many bytes in all.
pub(super) fn payload_of(bytes: u32) -> String {
    let frame = "{\"text\":\"\"}".len();
    format!("{{\"text\":\"{}\"}}", "x".repeat((bytes as usize).saturating_sub(frame)))
}

/// Waits for all; the first failure ends the others.
pub(super) async fn all(mut set: JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    while let Some(ended) = set.join_next().await {
        ended.map_err(|error| Failure::other("a part of the measurement broke off", error))??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_as_long_as_asked_and_json() {
        let payload = payload_of(100);
        assert_eq!(payload.len(), 100);
        assert!(tidegate_core::json::check(&payload, 4).is_ok());
    }
}
