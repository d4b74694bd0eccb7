//! The door with workers behind it: slots that are reserved, claimed by whom they were reserved for, and taken back.

use std::time::{Duration, Instant};

use serde_json::json;
use tidegate_core::admission::Decision;
use tidegate_core::limits::Limits;
use tidegate_core::pause::{PauseMode, PauseTarget};
use tidegate_core::settlement::Ending;
use tidegate_core::submission::Submission;
use tidegate_core::{Reason, Status, TaskId, TenantId};
use tidegate_store::{
    Admission, Admitter, AdmitterOptions, CancelOutcome, Claimed, Session, SessionSpec, Store, StoreOptions, Swept,
};
use tidegate_testkit::poll_until;

use crate::{Cell, kind, priority, tenant};

/// More than any single step takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A second replica of the API on the same database.
pub(crate) struct Replica {
    pub(crate) store: Store,
    pub(crate) admitter: Admitter,
}

impl Replica {
    pub(crate) fn of(cell: &Cell) -> Self {
        let store = Store::open(StoreOptions::new(cell.db.url())).unwrap();
        let admitter = Admitter::start(&store, AdmitterOptions::default()).unwrap();
        Self { store, admitter }
    }

    pub(crate) async fn decide(&self, submission: Submission) -> (TaskId, Decision) {
        decided(self.admitter.admit(submission, Instant::now()).await.unwrap())
    }
}

/// What was decided, where it was decided now.
pub(crate) fn decided(admission: Admission) -> (TaskId, Decision) {
    match admission {
        Admission::Decided { id, decision } => (id, decision),
        other => panic!("{other:?}"),
    }
}

/// Where a decision puts a task, and why.
pub(crate) fn stands(decision: &Decision) -> (Status, Option<Reason>) {
    (decision.status, decision.reason)
}

/// Limits under which nothing is shed, and every class may take every slot.
pub(crate) fn open_limits() -> Limits {
    let mut limits = Limits::default();
    let classes = &mut limits.classes;
    for class in [&mut classes.critical, &mut classes.standard, &mut classes.background] {
        (class.reserve, class.max_share, class.shed_at) = (0.0, 1.0, None);
    }
    limits
}

impl Cell {
    pub(crate) async fn decide(&self, submission: Submission) -> (TaskId, Decision) {
        decided(self.admit(submission).await)
    }

    /// A submission of a priority.
    pub(crate) fn of_priority(&self, value: i64) -> Submission {
        Submission { priority: priority(value), ..self.submission() }
    }

    /// A submission of a kind.
    pub(crate) fn of_kind(&self, name: &str) -> Submission {
        Submission { kind: kind(name), ..self.submission() }
    }

    /// A session that runs these kinds.
    pub(crate) async fn session_for(&self, kinds: &[&str], slots: u32, lease: Duration) -> Session {
        let kinds = kinds.iter().map(|name| (kind(name), Default::default())).collect();
        let spec = SessionSpec {
            worker: "w2".into(),
            kinds,
            slots,
            lease,
            settle_reserve: Duration::from_millis(50),
            at_once: Default::default(),
        };
        self.store.open_session(spec).await.unwrap()
    }

    pub(crate) async fn claim_all(&self, session: &Session, want: usize) -> Vec<Claimed> {
        session.turn(&[], want).await.unwrap().claimed
    }

    /// Waits until so many reserved slots were taken back.
    async fn taken_back(&self, wanted: usize) {
        let mut count = 0;
        poll_until(LIMIT, "the reserved slots", async || {
            count += self.store.take_back_reserved().await.unwrap();
            (count >= wanted).then_some(())
        })
        .await;
        assert_eq!(count, wanted);
    }

    async fn promote(&self) -> usize {
        self.store.promote_due(Swept::default()).await.unwrap().0
    }
}

fn ids(claimed: &[Claimed]) -> Vec<TaskId> {
    claimed.iter().map(|task| task.id).collect()
}

#[tokio::test]
async fn a_free_slot_is_reserved_and_its_own_session_claims_it_whoever_else_waits() {
    let cell = Cell::with(open_limits()).await;
    let first = cell.session(1).await;
    let (reserved, decision) = cell.decide(cell.submission()).await;
    assert_eq!((stands(&decision), decision.session), ((Status::Admitted, None), Some(first.id().0.as_u128())));
    assert_eq!((cell.status(reserved).await, decision.expected_wait_ms), ((Status::Admitted, None), Some(0)));
    // Every slot is taken now: these wait, the more important one too.
    let (waits, decision) = cell.decide(cell.submission()).await;
    assert_eq!(stands(&decision), (Status::Queued, None));
    let (critical, decision) = cell.decide(cell.of_priority(95)).await;
    assert_eq!(stands(&decision), (Status::Queued, None));
    let second = cell.session(4).await;
    assert_eq!(ids(&cell.claim_all(&second, 4).await), [critical, waits], "not what is reserved for the other");
    assert_eq!(cell.claim_all(&second, 2).await, []);
    let task = cell.claim(&first).await;
    assert_eq!(task.id, reserved);
    assert_eq!(cell.claim_all(&first, 1).await, []);
    cell.settle(&first, &task, Ending::Completed).await;
    assert_eq!(cell.status(reserved).await, (Status::Completed, None));
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_session_with_a_reserved_slot_starts_what_it_is_reserved_for_before_all_that_waits() {
    let cell = Cell::with(open_limits()).await;
    let first = cell.session(1).await;
    let (reserved, _) = cell.decide(cell.submission()).await;
    let (critical, decision) = cell.decide(cell.of_priority(100)).await;
    assert_eq!(stands(&decision), (Status::Queued, None));
    let _second = cell.session(1).await;
    // There is a slot for the critical one in the cell, but not on this session.
    assert_eq!(ids(&cell.claim_all(&first, 1).await), [reserved]);
    assert_eq!(cell.status(critical).await, (Status::Queued, None));
    cell.assert_sound().await;
}

#[tokio::test]
async fn nobody_is_admitted_past_those_who_wait_or_to_a_worker_that_does_not_run_the_kind() {
    let cell = Cell::with(open_limits()).await;
    let waits = cell.add(cell.submission()).await;
    let session = cell.session(2).await;
    assert_eq!(stands(&cell.decide(cell.submission()).await.1), (Status::Queued, None), "someone was here first");
    let (above, decision) = cell.decide(cell.of_priority(95)).await;
    assert_eq!(stands(&decision), (Status::Admitted, None), "nobody waits in its class or above");
    assert_eq!(stands(&cell.decide(cell.of_kind("other")).await.1), (Status::Queued, None));
    let claimed = ids(&cell.claim_all(&session, 2).await);
    assert_eq!(claimed, [above, waits]);
    cell.assert_sound().await;
}

#[tokio::test]
async fn what_waits_for_another_kind_keeps_nobody_from_a_free_slot() {
    let cell = Cell::with(open_limits()).await;
    cell.add(cell.of_kind("other")).await;
    let _session = cell.session(1).await;
    assert_eq!(stands(&cell.decide(cell.submission()).await.1), (Status::Admitted, None));
    cell.assert_sound().await;
}

#[tokio::test]
async fn slots_of_two_sessions_are_reserved_up_to_the_last_from_two_replicas() {
    let cell = Cell::with(open_limits()).await;
    let sessions = [cell.session(3).await, cell.session(2).await];
    let replica = Replica::of(&cell);
    let mut posts = tokio::task::JoinSet::new();
    for n in 0..20 {
        let admitter = if n % 2 == 0 { cell.admitter.clone() } else { replica.admitter.clone() };
        let submission = cell.submission();
        posts.spawn(async move { decided(admitter.admit(submission, Instant::now()).await.unwrap()).1 });
    }
    let decisions = posts.join_all().await;
    for (session, slots) in sessions.iter().zip([3, 2]) {
        let own = decisions.iter().filter(|decision| decision.session == Some(session.id().0.as_u128())).count();
        assert_eq!(own, slots);
        let claimed = cell.claim_all(session, slots).await;
        assert_eq!(claimed.len(), slots);
    }
    assert_eq!(decisions.iter().filter(|decision| decision.status == Status::Queued).count(), 15);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_reserved_slot_that_nobody_claims_is_taken_back_and_its_task_queues() {
    let cell = Cell::with(open_limits()).await;
    let session = cell.session(1).await;
    let (id, _) = cell.decide(cell.submission()).await;
    cell.taken_back(1).await;
    assert_eq!(cell.status(id).await, (Status::Queued, None));
    let task = cell.store.task(&tenant(), id).await.unwrap().unwrap();
    assert!(task.now_ms - task.enqueued_ms >= 1_000, "not before a second");
    assert_eq!(cell.store.take_back_reserved().await.unwrap(), 0);
    cell.assert_sound().await;
    let task = cell.claim(&session).await;
    assert_eq!(task.id, id);
    cell.settle(&session, &task, Ending::Completed).await;
    cell.assert_sound().await;
}

#[tokio::test]
async fn where_the_queue_is_full_it_is_deferred_however_many_are_and_promoted_first() {
    let cell = Cell::with(Limits { max_queued: 0, max_deferred: 0, ..open_limits() }).await;
    let session = cell.session(1).await;
    let (id, decision) = cell.decide(cell.submission()).await;
    assert_eq!(stands(&decision), (Status::Admitted, None), "a slot needs no place in the queue");
    cell.taken_back(1).await;
    assert_eq!(cell.status(id).await, (Status::Deferred, Some(Reason::Overload)));
    assert_eq!((cell.promote().await, cell.claim_all(&session, 1).await), (0, vec![]));
    cell.assert_sound().await;
    cell.store.patch_limits(&json!({"max_queued": 1})).await.unwrap();
    let refused = cell.decide(cell.submission()).await.1;
    assert_eq!(stands(&refused), (Status::Rejected, Some(Reason::QueueFull)), "accepted work goes before newcomers");
    assert_eq!(cell.promote().await, 1);
    assert_eq!(cell.claim(&session).await.id, id);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_pause_that_holds_takes_reserved_slots_back_at_once() {
    let cell = Cell::with(open_limits()).await;
    let session = cell.session(2).await;
    let (id, _) = cell.decide(cell.submission()).await;
    let pause = cell.store.create_pause(PauseTarget::Kind(kind("echo")), PauseMode::Hold, None, None).await.unwrap();
    assert_eq!(cell.claim_all(&session, 2).await, [], "held, though a slot is reserved");
    assert_eq!(cell.store.take_back_reserved().await.unwrap(), 1);
    assert_eq!(cell.status(id).await, (Status::Queued, None));
    let (_, decision) = cell.decide(cell.submission()).await;
    assert_eq!((stands(&decision), decision.expected_wait_ms), ((Status::Queued, None), None), "it queues, held");
    assert_eq!(cell.claim_all(&session, 2).await, []);
    cell.store.delete_pause(pause.id).await.unwrap();
    assert_eq!(cell.claim_all(&session, 2).await.len(), 2);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_pause_that_refuses_says_so_with_the_time_to_come_again() {
    let cell = Cell::with(open_limits()).await;
    let now: i64 =
        sqlx::query_scalar("SELECT tidegate.now_ms()").fetch_one(&mut cell.db.connect().await).await.unwrap();
    let refuse = async |target, until| cell.store.create_pause(target, PauseMode::Refuse, until, None).await.unwrap();
    let whole = refuse(PauseTarget::Kind(kind("echo")), Some(now + 120_000)).await;
    let (_, decision) = cell.decide(cell.submission()).await;
    assert_eq!(stands(&decision), (Status::Rejected, Some(Reason::Paused)));
    assert!((60_000..=180_000).contains(&decision.retry_after_ms.unwrap()), "{decision:?}");
    cell.store.delete_pause(whole.id).await.unwrap();
    refuse(PauseTarget::Tenant(tenant()), None).await;
    assert_eq!(stands(&cell.decide(cell.submission()).await.1), (Status::Rejected, Some(Reason::TenantPaused)));
    let other = Submission { tenant: TenantId::parse("other").unwrap(), ..cell.submission() };
    assert_eq!(stands(&cell.decide(other).await.1), (Status::Queued, None));
    cell.assert_sound().await;
}

#[tokio::test]
async fn what_was_reserved_on_a_session_that_died_or_left_goes_to_another() {
    let cell = Cell::with(open_limits()).await;
    let dying = cell.session_for(&["echo"], 1, Duration::from_millis(1_500)).await;
    let (on_dying, decision) = cell.decide(cell.submission()).await;
    assert_eq!(decision.session, Some(dying.id().0.as_u128()));
    let leaving = cell.session(1).await;
    let (on_leaving, decision) = cell.decide(cell.submission()).await;
    assert_eq!(decision.session, Some(leaving.id().0.as_u128()));
    leaving.close().await.unwrap();
    cell.taken_back(2).await;
    let expired = "SELECT count(*) FROM tidegate.heartbeat WHERE expires_ms > tidegate.now_ms()";
    let mut conn = cell.db.connect().await;
    poll_until(LIMIT, "the end of its lease", async || {
        let live: i64 = sqlx::query_scalar(expired).fetch_one(&mut conn).await.unwrap();
        (live == 0).then_some(())
    })
    .await;
    for id in [on_dying, on_leaving] {
        assert_eq!(cell.status(id).await, (Status::Queued, None));
    }
    cell.assert_sound().await;
    let (last, decision) = cell.decide(cell.submission()).await;
    assert_eq!(stands(&decision), (Status::Queued, None), "nobody is there to reserve a slot of");
    assert!(matches!(dying.turn(&[], 1).await, Err(tidegate_store::StoreError::SessionLost)));
    let session = cell.session(3).await;
    assert_eq!(ids(&cell.claim_all(&session, 3).await), [on_dying, on_leaving, last]);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_cancel_gives_a_reserved_slot_back() {
    let cell = Cell::with(open_limits()).await;
    let session = cell.session(1).await;
    for _ in 0..3 {
        let (id, decision) = cell.decide(cell.submission()).await;
        assert_eq!(stands(&decision), (Status::Admitted, None));
        assert_eq!(cell.canceller.cancel(&tenant(), id, None).await.unwrap(), CancelOutcome::Cancelled);
    }
    assert_eq!(cell.claim_all(&session, 1).await, []);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_task_whose_deadline_passes_on_a_reserved_slot_expires_and_gives_it_back() {
    let cell = Cell::with(open_limits()).await;
    let session = cell.session(1).await;
    let mut short = cell.submission();
    short.timing.timeout_ms = Some(200);
    let (id, decision) = cell.decide(short).await;
    assert_eq!(stands(&decision), (Status::Admitted, None));
    poll_until(LIMIT, "its end", async || {
        (cell.store.expire_waiting(Swept::default()).await.unwrap().0 == 1).then_some(())
    })
    .await;
    assert_eq!(cell.status(id).await, (Status::Expired, Some(Reason::DeadlinePassed)));
    assert_eq!(stands(&cell.decide(cell.submission()).await.1), (Status::Admitted, None));
    assert_eq!(cell.claim_all(&session, 1).await.len(), 1);
    cell.assert_sound().await;
}

#[tokio::test]
async fn no_slot_is_reserved_for_a_kind_of_which_the_worker_runs_only_so_many() {
    let cell = Cell::new().await;
    let spec = |worker: &str, most: u32| SessionSpec {
        worker: worker.into(),
        kinds: vec![(kind("tool"), Default::default()), (kind("echo"), Default::default())],
        at_once: [(kind("tool"), most)].into(),
        slots: 8,
        lease: Duration::from_secs(15),
        settle_reserve: Duration::from_millis(50),
    };
    let few = cell.store.open_session(spec("few", 2)).await.unwrap();
    let mut standing = Vec::new();
    for name in ["tool", "tool", "tool", "tool", "echo"] {
        let id = cell.add(cell.of_kind(name)).await;
        standing.push(cell.status(id).await.0);
    }
    assert_eq!(standing[..4], [Status::Queued; 4]);
    assert_eq!(standing[4], Status::Admitted, "of other kinds it takes as many as it has slots");
    let claimed = few.turn(&[], 8).await.unwrap().claimed;
    assert_eq!(claimed.iter().filter(|task| task.kind == kind("tool")).count(), 2);
    assert_eq!(claimed.len(), 3);
    // A limit that is none, and a session of a program that says nothing of it.
    let many = cell.store.open_session(spec("many", 8)).await.unwrap();
    many.turn(&[], 2).await.unwrap();
    let id = cell.add(cell.of_kind("tool")).await;
    assert_eq!(cell.status(id).await.0, Status::Admitted);
    cell.assert_sound().await;
}
