//! C05: the connection breaks between every pair of statements of an operation, before each one and before each answer.
//! Whatever the caller was told is true, nothing is lost, and nothing is leaked.

use tidegate_core::submission::Idempotency;
use tidegate_store::{AdmitError, CancelOutcome, Group, GroupCancelled, StoreError};
use tidegate_testkit::FaultProxy;

use super::*;

/// How often an operation is broken at every place until all that can come of it was seen.
const MAX_ROUNDS: u32 = 4;
/// More pieces than any operation exchanges with the database.
const MAX_PIECES: u64 = 100;
/// How often an operation that failed is tried again. One is broken once, and what it had open once more at most.
const MAX_TRIES: usize = 5;

/// A cell that is reached through a network that breaks, and the same cell for whoever checks.
struct Broken {
    cell: Cell,
    proxy: FaultProxy,
    /// Through the network.
    far: Store,
}

impl Broken {
    async fn new() -> Self {
        let cell = Cell::new().await;
        let (proxy, url) = FaultProxy::for_database(cell.db.url()).await;
        let far = Store::open(StoreOptions::new(url)).unwrap();
        Self { cell, proxy, far }
    }

    async fn session(&self, lease: Duration) -> Session {
        let kinds = vec![(kind("echo"), Default::default())];
        self.far
            .open_session(SessionSpec {
                worker: "far".into(),
                kinds,
                slots: 4,
                lease,
                settle_reserve: Duration::ZERO,
                at_once: Default::default(),
            })
            .await
            .unwrap()
    }

    async fn add(&self) -> TaskId {
        self.cell.add(self.cell.submission()).await
    }

    /// Every task has ended, once, and nothing is left of any.
    async fn assert_over(&self) {
        self.cell.assert_sound().await;
        let left = "SELECT (SELECT count(*) FROM tidegate.task WHERE status IS NULL) + (SELECT count(*) FROM tidegate.lease) \
            + (SELECT count(*) FROM tidegate.cancel_request) + (SELECT count(*) FROM tidegate.cancel_group) \
            + (SELECT count(*) FROM tidegate.cancel_parent) + (SELECT sum(queued + running + deferred + bytes)::bigint FROM tidegate.usage)";
        let told = "SELECT count(*) FROM tidegate.task t WHERE 1 <> \
            (SELECT count(*) FROM tidegate.event e WHERE t.id = ANY(e.task_ids) AND e.status = t.status)";
        let mut connection = self.cell.db.connect().await;
        for sql in [left, told] {
            let faults: i64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
            assert_eq!(faults, 0, "{sql}");
        }
    }
}

/// Breaks an operation after 0, 1, 2, … pieces, until it is over before it breaks.
async fn break_everywhere(proxy: &FaultProxy, mut operation: impl AsyncFnMut()) {
    for pieces in 0..MAX_PIECES {
        proxy.cut_after(pieces);
        operation().await;
        if !proxy.was_cut() {
            assert!(pieces >= 4, "over after {pieces} pieces: the operation did not go through the network");
            return;
        }
    }
    panic!("an operation that takes more than {MAX_PIECES} pieces");
}

/// Tries until it succeeds.
async fn persist<T>(mut operation: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let mut last = None;
    for _ in 0..MAX_TRIES {
        match operation().await {
            Ok(value) => return value,
            Err(error) => last = Some(error),
        }
    }
    panic!("still {last:?} after {MAX_TRIES} tries");
}

#[tokio::test]
async fn an_admission_that_breaks_is_all_or_nothing_and_its_answer_is_true() {
    let broken = Broken::new().await;
    let door = Admitter::start(&broken.far, AdmitterOptions::default()).unwrap();
    let (mut n, mut answers) = (0_u8, [0; 3]);
    // Where the network puts two pieces together, one place to break is passed over: the next round meets it.
    let mut rounds = 0;
    while rounds == 0 || (rounds < MAX_ROUNDS && answers.contains(&0)) {
        rounds += 1;
        break_everywhere(&broken.proxy, async || {
            n += 1;
            let mut submission = broken.cell.submission();
            submission.idempotency = Some(Idempotency { key: format!("k{n}"), body_sha256: [n; 32] });
            let id = submission.id;
            let answer = door.admit(submission.clone(), Instant::now()).await;
            let there = broken.cell.store.task(&tenant(), id).await.unwrap().is_some();
            match answer {
                Ok(_) => assert!(there, "a task that was let in is gone"),
                Err(AdmitError::Unavailable) => assert!(!there, "a task is there that was said not to be"),
                Err(AdmitError::OutcomeUnknown(told)) => assert_eq!(told, id),
                Err(other) => panic!("{other:?}"),
            }
            answers[match answer {
                Ok(_) => 0,
                Err(AdmitError::Unavailable) => 1,
                Err(_) => 2,
            }] += 1;
            broken.cell.assert_sound().await;
            // Whoever tries again with the same key has one task in the end.
            let made = match broken.cell.admit(submission).await {
                Admission::Decided { id, .. } | Admission::Replayed { id } => id,
                other => panic!("{other:?}"),
            };
            assert_eq!(made, id);
            assert_eq!(broken.cell.canceller.cancel(&tenant(), id, None).await.unwrap(), CancelOutcome::Cancelled);
        })
        .await;
    }
    assert!(answers.iter().all(|count| *count > 0), "not every answer was seen: {answers:?}");
    broken.assert_over().await;
}

#[tokio::test]
async fn a_turn_that_breaks_settles_once_and_claims_nothing_that_nobody_knows_of() {
    let broken = Broken::new().await;
    let session = broken.session(Duration::from_secs(60)).await;
    let mut held: Vec<Claimed> = Vec::new();
    break_everywhere(&broken.proxy, async || {
        let fresh = [broken.add().await, broken.add().await];
        let reports: Vec<Report> = held.iter().map(|task| report(task, Ending::Completed)).collect();
        let turn = persist(async || session.turn(&reports, 2).await).await;
        for task in &held {
            assert_eq!(broken.cell.status(task.id).await, (Status::Completed, None));
        }
        let mut claimed: Vec<TaskId> = turn.claimed.iter().map(|task| task.id).collect();
        claimed.sort();
        assert_eq!(claimed, fresh, "what is leased is known, and all of it is leased");
        for task in &turn.claimed {
            assert_eq!((task.fence.0, task.payload.as_str()), (1, "{\"n\":1}"));
        }
        broken.cell.assert_sound().await;
        held = turn.claimed;
    })
    .await;
    let reports: Vec<Report> = held.iter().map(|task| report(task, Ending::Completed)).collect();
    session.turn(&reports, 0).await.unwrap();
    broken.assert_over().await;
}

#[tokio::test]
async fn a_cancel_that_breaks_can_be_asked_for_again() {
    let broken = Broken::new().await;
    let canceller = Canceller::start(&broken.far).unwrap();
    let session = broken.cell.session(4).await;
    break_everywhere(&broken.proxy, async || {
        let running = broken.add().await;
        let task = broken.cell.claim(&session).await;
        let waiting = broken.add().await;
        let asked = persist(async || canceller.cancel(&tenant(), running, None).await).await;
        assert_eq!(asked, CancelOutcome::Requested);
        let cancelled = persist(async || canceller.cancel(&tenant(), waiting, None).await).await;
        assert!(matches!(cancelled, CancelOutcome::Cancelled | CancelOutcome::AlreadyCancelled), "{cancelled:?}");
        broken.cell.assert_sound().await;
        let settled = broken.cell.settle(&session, &task, Ending::Cancelled).await;
        assert_eq!(settled, Settled::Ended(Status::Cancelled));
    })
    .await;
    broken.assert_over().await;
}

/// The cancel of a group, and of the children of one that runs: where its process cannot go on, a keeper does.
#[tokio::test]
async fn a_group_cancel_that_breaks_is_carried_on() {
    let broken = Broken::new().await;
    let canceller = Canceller::start(&broken.far).unwrap();
    // Nobody sends its heartbeats, and on a busy machine this takes longer than a usual lease.
    let session = broken.cell.session_with(4, Duration::from_secs(600)).await;
    let (mut n, mut answers) = (0, [0; 3]);
    break_everywhere(&broken.proxy, async || {
        n += 1;
        let token = format!("t{n}");
        let member = || Submission { cancellation_token: Some(token.clone()), ..broken.cell.submission() };
        broken.cell.add(member()).await;
        let task = broken.cell.claim(&session).await;
        let waiting = broken.cell.add(member()).await;
        let child = broken.cell.add(Submission { parent_id: Some(task.id), ..broken.cell.submission() }).await;
        let group = Group::Token(token.clone());
        let answer = canceller.cancel_group(&tenant(), group.clone()).await;
        let recorded = "SELECT count(*) FROM tidegate.cancelled_token WHERE token = $1";
        let mut connection = broken.cell.db.connect().await;
        let recorded: i64 = sqlx::query_scalar(recorded).bind(&token).fetch_one(&mut connection).await.unwrap();
        answers[match &answer {
            Ok(reached) => {
                assert_eq!(*reached, GroupCancelled { cancelled: 1, requested: 1 });
                0
            }
            Err(StoreError::OutcomeUnknown(_)) => 1,
            Err(_) => {
                assert_eq!(recorded, 0, "nothing was done, it said");
                2
            }
        }] += 1;
        if recorded == 0 {
            broken.cell.canceller.cancel_group(&tenant(), group).await.unwrap();
        }
        let long_ago = "UPDATE tidegate.cancel_group SET touched_ms = 0";
        sqlx::raw_sql(long_ago).execute(&mut connection).await.unwrap();
        while broken.cell.store.cancel_abandoned_group().await.unwrap().is_some() {}
        while broken.cell.store.cancel_children().await.unwrap().is_some() {}
        let ended = |reason| (Status::Cancelled, Some(reason));
        assert_eq!(broken.cell.status(waiting).await, ended(Reason::TokenCancelled));
        assert_eq!(broken.cell.status(child).await, ended(Reason::ParentCancelled));
        assert_eq!(broken.cell.settle(&session, &task, FAILED).await, Settled::Ended(Status::Cancelled));
        assert_eq!(broken.cell.status(task.id).await, ended(Reason::TokenCancelled));
        broken.cell.assert_sound().await;
    })
    .await;
    assert!(answers.iter().all(|count| *count > 0), "not every answer was seen: {answers:?}");
    broken.assert_over().await;
}

#[tokio::test]
async fn a_sweep_that_breaks_is_made_by_the_next() {
    let broken = Broken::new().await;
    break_everywhere(&broken.proxy, async || {
        let lost = broken.add().await;
        let session = broken.cell.session_with(4, Duration::from_millis(300)).await;
        assert_eq!(broken.cell.claim(&session).await.id, lost);
        session.close().await.unwrap();
        // The session's own row tells how long a lease is, and by that the database has long been up.
        let again = "INSERT INTO tidegate.session SELECT l.session_id, 'dead', '{echo}', 1, 1, 0 FROM tidegate.lease l";
        let mut connection = broken.cell.db.connect().await;
        sqlx::query(again).execute(&mut connection).await.unwrap();
        persist(async || broken.far.reap_lost(true).await).await;
        assert_eq!(broken.cell.status(lost).await, (Status::Deferred, Some(Reason::WorkerLost)));
        persist(async || broken.far.promote_due(Default::default()).await).await;
        assert_eq!(broken.cell.status(lost).await, (Status::Queued, None));
        broken.cell.assert_sound().await;
        broken.cell.canceller.cancel(&tenant(), lost, None).await.unwrap();
    })
    .await;
    broken.assert_over().await;
}

/// The twin: a hand-over in two transactions loses a task at one of these moments, and it is noticed.
#[tokio::test]
async fn a_hand_over_in_two_transactions_is_caught() {
    let mut caught = 0;
    for pieces in 0..MAX_PIECES {
        let broken = Broken::new().await;
        let id = broken.add().await;
        let (proxy, url) = FaultProxy::for_database(broken.cell.db.url()).await;
        let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&url).await.unwrap();
        proxy.cut_after(pieces);
        for sql in [
            "DELETE FROM tidegate.ready",
            "INSERT INTO tidegate.lease SELECT id, gen_random_uuid(), flow_id, rank, 0, deadline_ms, 0, NULL, 0, 0, 7, 1, 0, 0, 1, 0 FROM tidegate.task",
        ] {
            let _broken = sqlx::raw_sql(sql).execute(&mut connection).await;
        }
        let was_cut = proxy.was_cut();
        let drifts = broken.cell.store.audit_records().await.unwrap();
        caught += usize::from(drifts.iter().any(|drift| drift.what == format!("task {id} nowhere")));
        if !was_cut {
            break;
        }
    }
    assert!(caught > 0);
}
