//! A task's life: claimed in order, settled once, returned, lost.

use std::time::Duration;

use tidegate_core::settlement::Ending;
use tidegate_core::submission::{Start, Timing};
use tidegate_core::{Fence, Reason, Status};
use tidegate_store::Settled;

use crate::{Cell, FAILED, kind, priority, report, tenant};

#[tokio::test]
async fn a_task_goes_from_the_door_to_its_result() {
    let cell = Cell::new().await;
    let id = cell.add(cell.submission()).await;
    assert_eq!(cell.status(id).await, (Status::Queued, None));
    let session = cell.session(4).await;
    let task = cell.claim(&session).await;
    assert_eq!((task.id, task.fence, task.attempt, task.payload.as_str()), (id, Fence(1), 1, "{\"n\":1}"));
    assert!(task.remaining > Duration::from_secs(290));
    assert_eq!(cell.status(id).await, (Status::Running, None));
    cell.assert_sound().await;
    assert_eq!(cell.settle(&session, &task, Ending::Completed).await, Settled::Ended(Status::Completed));
    let done = cell.store.task(&tenant(), id).await.unwrap().unwrap();
    assert_eq!(
        (done.status, done.result.as_deref(), done.attempt, done.worker.as_deref()),
        (Status::Completed, Some("{\"ok\":true}"), 1, Some("w1"))
    );
    assert!(done.enqueued_ms <= done.started_ms.unwrap() && done.started_ms <= done.finished_ms);
    cell.assert_sound().await;
}

/// As many reports as make a turn look for work beside taking leases away, and endings of every form in one turn.
#[tokio::test]
async fn large_turns_settle_and_claim_at_once() {
    const TURN: usize = 60;
    let cell = Cell::new().await;
    for n in 0..3 * TURN {
        let mut submission = cell.submission();
        submission.priority = priority(50 + (n % 7) as i64);
        cell.add(submission).await;
    }
    // More slots than that: some are kept for the classes above.
    let session = cell.session(2 * TURN as u32).await;
    let mut held = session.turn(&[], TURN).await.unwrap().claimed;
    let mut seen = std::collections::HashSet::new();
    for round in 0..3 {
        assert_eq!(held.len(), TURN);
        assert!(held.iter().all(|task| seen.insert(task.id)), "a task was claimed twice");
        let mut reports: Vec<_> = held.iter().map(|task| report(task, Ending::Completed)).collect();
        reports[0].usage = Some(tidegate_core::submission::Cost { tokens: 0, usd_micros: 7 });
        let mut wanted = vec![Settled::Ended(Status::Completed); TURN];
        if round == 1 {
            // One that is not plain has the whole turn written in the long form.
            let ending = Ending::Failed { retryable: false, retry_after_ms: None, reason: None };
            reports[1] = report(&held[1], ending);
            wanted[1] = Settled::Ended(Status::Failed);
        }
        let turn = session.turn(&reports, TURN).await.unwrap();
        assert_eq!(turn.settled, wanted);
        cell.assert_sound().await;
        let done = cell.store.task(&tenant(), held[0].id).await.unwrap().unwrap();
        assert_eq!((done.status, done.attempt, done.result.is_some()), (Status::Completed, 1, true));
        assert_eq!(done.actual.map(|cost| (cost.tokens, cost.usd_micros)), Some((0, 7)));
        let other = cell.store.task(&tenant(), held[2].id).await.unwrap().unwrap();
        assert_eq!((other.actual, other.error.is_none(), other.worker.as_deref()), (None, true, Some("w1")));
        held = turn.claimed;
    }
    assert!(held.is_empty() && seen.len() == 3 * TURN);
}

#[tokio::test]
async fn claims_follow_class_then_rank_over_all_flows() {
    let cell = Cell::new().await;
    let mut wanted = Vec::new();
    for (n, value) in [95, 50, 50, 20, 41, 99, 30].into_iter().enumerate() {
        let mut submission = cell.submission();
        submission.kind = kind(if n % 2 == 0 { "echo" } else { "other" });
        submission.priority = priority(value);
        wanted.push((value, cell.add(submission).await));
    }
    wanted.sort_by_key(|(value, id)| (-*value, *id));
    let kinds = vec![(kind("echo"), Default::default()), (kind("other"), Default::default())];
    let (lease, settle_reserve) = (Duration::from_secs(15), Duration::ZERO);
    let spec = tidegate_store::SessionSpec {
        worker: "w".into(),
        kinds,
        slots: 9,
        lease,
        settle_reserve,
        at_once: Default::default(),
    };
    let session = cell.store.open_session(spec).await.unwrap();
    let mut got = Vec::new();
    loop {
        let turn = session.turn(&[], 2).await.unwrap();
        if turn.claimed.is_empty() {
            break;
        }
        got.extend(turn.claimed.iter().map(|task| task.id));
    }
    assert_eq!(got, wanted.iter().map(|(_, id)| *id).collect::<Vec<_>>());
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_worker_gets_only_its_kinds_and_no_more_than_it_wants() {
    let cell = Cell::new().await;
    let mut other = cell.submission();
    other.kind = kind("other");
    cell.add(other).await;
    for _ in 0..3 {
        cell.add(cell.submission()).await;
    }
    let session = cell.session(2).await;
    let turn = session.turn(&[], 2).await.unwrap();
    assert_eq!(turn.claimed.len(), 2);
    let reports: Vec<_> = turn.claimed.iter().map(|task| report(task, Ending::Completed)).collect();
    let turn = session.turn(&reports, 2).await.unwrap();
    assert_eq!(turn.settled, [Settled::Ended(Status::Completed); 2]);
    assert_eq!(turn.claimed.len(), 1);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_stale_fence_changes_nothing() {
    let cell = Cell::new().await;
    let id = cell.add(cell.submission()).await;
    let session = cell.session(4).await;
    let first = cell.claim(&session).await;
    assert_eq!(cell.settle(&session, &first, Ending::HandedBack).await, Settled::Returned(Reason::HandedBack));
    assert_eq!(cell.store.promote_due(Default::default()).await.unwrap().0, 1);
    let second = cell.claim(&session).await;
    assert_eq!((second.id, second.fence, second.attempt), (id, Fence(2), 1));
    for ending in [Ending::Completed, FAILED, Ending::Cancelled, Ending::HandedBack, Ending::DeadlineHit] {
        assert_eq!(cell.settle(&session, &first, ending).await, Settled::LeaseLost);
    }
    assert_eq!(cell.status(id).await, (Status::Running, None));
    assert_eq!(cell.settle(&session, &second, Ending::Completed).await, Settled::Ended(Status::Completed));
    assert_eq!(cell.settle(&session, &second, FAILED).await, Settled::LeaseLost);
    assert_eq!(cell.status(id).await, (Status::Completed, None));
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_failure_is_retried_until_its_attempts_are_used_up() {
    let cell = Cell::new().await;
    let mut submission = cell.submission();
    submission.max_attempts = 2;
    let id = cell.add(submission).await;
    let session = cell.session(4).await;
    let first = cell.claim(&session).await;
    let mut failed = report(&first, FAILED);
    failed.error = Some(tidegate_store::TaskError { kind: "oops".into(), message: "no".into(), retryable: true });
    failed.backoff = tidegate_core::backoff::BackoffPolicy { base_ms: 0, max_ms: 0 };
    assert_eq!(session.turn(&[failed], 0).await.unwrap().settled, [Settled::Returned(Reason::RetryBackoff)]);
    assert_eq!(cell.status(id).await, (Status::Deferred, Some(Reason::RetryBackoff)));
    cell.assert_sound().await;
    assert_eq!(cell.store.promote_due(Default::default()).await.unwrap().0, 1);
    let second = cell.claim(&session).await;
    assert_eq!(second.attempt, 2);
    assert_eq!(cell.settle(&session, &second, FAILED).await, Settled::Ended(Status::Failed));
    assert_eq!(cell.status(id).await, (Status::Failed, Some(Reason::AttemptsExhausted)));
    let attempts = cell.store.attempts(&tenant(), id).await.unwrap().unwrap();
    let told: Vec<_> = attempts.iter().map(|a| (a.number, a.fence.0, a.outcome.as_str())).collect();
    assert_eq!(told, [(1, 1, "failed"), (2, 2, "failed")]);
    assert_eq!(attempts[0].error.as_ref().map(|error| error.kind.as_str()), Some("oops"));
    cell.assert_sound().await;
}

/// A session settles by what it remembers of the leases that it took, and reads them only where it does not.
#[tokio::test]
async fn what_goes_back_to_wait_is_what_its_lease_said() {
    const LASTING: &str = "rank, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes, deliveries, \
        failures, losses, max_attempts, enqueued_ms";
    let cell = Cell::new().await;
    let mut submission = cell.submission();
    submission.priority = priority(61);
    submission.max_attempts = 7;
    submission.min_useful_ms = 11;
    submission.attempt_timeout_ms = Some(60_013);
    submission.cost = tidegate_core::submission::Cost { tokens: 17, usd_micros: 19 };
    let id = cell.add(submission).await;
    let mut conn = cell.db.connect().await;
    sqlx::query("UPDATE tidegate.ready SET failures = 2, losses = 1, deliveries = 4").execute(&mut conn).await.unwrap();
    let session = cell.session(4).await;
    let claimed = cell.claim(&session).await;
    let mut row = async |table: &str| -> serde_json::Value {
        let sql = format!("SELECT to_jsonb(r) FROM (SELECT {LASTING} FROM tidegate.{table}) r");
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut conn).await.unwrap()
    };
    let mut lease = row("lease").await;
    assert_eq!(lease["deliveries"], 5);
    assert_eq!(cell.settle(&session, &claimed, FAILED).await, Settled::Returned(Reason::RetryBackoff));
    lease["failures"] = 3.into();
    assert_eq!(row("deferred").await, lease);
    let attempts = cell.store.attempts(&tenant(), id).await.unwrap().unwrap();
    assert_eq!((attempts[0].number, attempts[0].fence.0), (3, 5));
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_result_after_the_deadline_is_kept_on_the_attempt() {
    let cell = Cell::new().await;
    let mut submission = cell.submission();
    submission.timing = Timing { timeout_ms: Some(1_000), ..Timing::default() };
    let id = cell.add(submission).await;
    let session = cell.session(4).await;
    let task = cell.claim(&session).await;
    tokio::time::sleep(task.remaining + Duration::from_millis(5)).await;
    assert_eq!(cell.settle(&session, &task, Ending::Completed).await, Settled::Ended(Status::TimedOut));
    assert_eq!(cell.status(id).await, (Status::TimedOut, Some(Reason::DeadlinePassed)));
    let attempts = cell.store.attempts(&tenant(), id).await.unwrap().unwrap();
    assert_eq!((attempts.len(), attempts[0].result.as_deref()), (1, Some("{\"ok\":true}")));
    cell.assert_sound().await;
}

#[tokio::test]
async fn doomed_work_is_ended_by_the_claim_itself() {
    let cell = Cell::new().await;
    let mut submission = cell.submission();
    submission.min_useful_ms = 1_000;
    submission.timing = Timing { timeout_ms: Some(1_500), ..Timing::default() };
    let id = cell.add(submission).await;
    let fine = cell.add(cell.submission()).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let session = cell.session(4).await;
    let turn = session.turn(&[], 4).await.unwrap();
    assert_eq!(turn.claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [fine]);
    assert_eq!(cell.status(id).await, (Status::Expired, Some(Reason::DeadlineTooShort)));
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_task_whose_time_is_all_kept_back_for_its_answer_is_not_started() {
    let cell = Cell::new().await;
    let mut submission = cell.submission();
    submission.min_useful_ms = 0;
    submission.timing = Timing { timeout_ms: Some(2_000), ..Timing::default() };
    let id = cell.add(submission).await;
    let kinds = vec![(kind("echo"), Default::default())];
    // As long as the task has in all, so that whatever is left now is not more.
    let (lease, settle_reserve) = (Duration::from_secs(15), Duration::from_secs(2));
    let spec = tidegate_store::SessionSpec {
        worker: "w".into(),
        kinds,
        slots: 1,
        lease,
        settle_reserve,
        at_once: Default::default(),
    };
    let session = cell.store.open_session(spec).await.unwrap();
    assert_eq!(session.turn(&[], 1).await.unwrap().claimed, []);
    assert_eq!(cell.status(id).await, (Status::Expired, Some(Reason::DeadlineTooShort)));
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_delayed_task_waits_for_its_time() {
    let cell = Cell::new().await;
    let mut submission = cell.submission();
    submission.timing = Timing { start: Start::After(1_500), ..Timing::default() };
    let id = cell.add(submission).await;
    assert_eq!(cell.status(id).await, (Status::Deferred, Some(Reason::Scheduled)));
    assert_eq!(cell.store.promote_due(Default::default()).await.unwrap().0, 0);
    tidegate_testkit::poll_until(Duration::from_secs(10), "its time", async || {
        (cell.store.promote_due(Default::default()).await.unwrap().0 == 1).then_some(())
    })
    .await;
    let task = cell.store.task(&tenant(), id).await.unwrap().unwrap();
    assert_eq!(task.status, Status::Queued);
    assert!(task.now_ms >= task.enqueued_ms + 1_500);
    cell.assert_sound().await;
}

#[tokio::test]
async fn the_leases_of_a_silent_session_are_reaped_and_its_late_report_changes_nothing() {
    let cell = Cell::new().await;
    let id = cell.add(cell.submission()).await;
    let session = cell.session_with(4, Duration::from_millis(200)).await;
    let task = cell.claim(&session).await;
    assert_eq!(cell.store.reap_lost(true).await.unwrap(), 0);
    tidegate_testkit::poll_until(Duration::from_secs(10), "the lease to be reaped", async || {
        (cell.store.reap_lost(true).await.unwrap() == 1).then_some(())
    })
    .await;
    assert_eq!(cell.status(id).await, (Status::Deferred, Some(Reason::WorkerLost)));
    assert!(matches!(
        session.heart().beat(&[(task.id, task.fence)]).await,
        Err(tidegate_store::StoreError::SessionLost)
    ));
    assert_eq!(cell.settle(&session, &task, Ending::Completed).await, Settled::LeaseLost);
    assert!(
        matches!(session.turn(&[], 1).await, Ok(turn) if turn.claimed.is_empty()),
        "nothing waits in the queue yet"
    );
    assert_eq!(cell.store.promote_due(Default::default()).await.unwrap().0, 1);
    assert!(matches!(session.turn(&[], 1).await, Err(tidegate_store::StoreError::SessionLost)));
    let next = cell.session(4).await;
    let again = cell.claim(&next).await;
    assert_eq!((again.id, again.fence, again.attempt), (id, Fence(2), 1));
    cell.assert_sound().await;
}

#[tokio::test]
async fn three_losses_are_enough() {
    let cell = Cell::new().await;
    let id = cell.add(cell.submission()).await;
    for _ in 0..3 {
        let session = cell.session(4).await;
        cell.claim(&session).await;
        session.close().await.unwrap();
        tidegate_testkit::poll_until(Duration::from_secs(20), "the lease to be reaped", async || {
            (cell.store.reap_lost(true).await.unwrap() == 1).then_some(())
        })
        .await;
        cell.store.promote_due(Default::default()).await.unwrap();
    }
    assert_eq!(cell.status(id).await, (Status::Failed, Some(Reason::Quarantined)));
    let attempts = cell.store.attempts(&tenant(), id).await.unwrap().unwrap();
    assert_eq!(attempts.iter().map(|attempt| attempt.outcome.as_str()).collect::<Vec<_>>(), ["lost"; 3]);
    cell.assert_sound().await;
}

#[tokio::test]
async fn waiting_tasks_expire_at_their_deadline_wherever_they_wait() {
    let cell = Cell::new().await;
    let mut queued = cell.submission();
    queued.timing = Timing { timeout_ms: Some(800), ..Timing::default() };
    let mut deferred = cell.submission();
    deferred.timing = Timing { start: Start::After(700), remaining_ms: Some(800), ..Timing::default() };
    let (queued, deferred) = (cell.add(queued).await, cell.add(deferred).await);
    let living = cell.add(cell.submission()).await;
    tokio::time::sleep(Duration::from_millis(900)).await;
    let (count, swept) = cell.store.expire_waiting(Default::default()).await.unwrap();
    assert_eq!(count, 2);
    assert_eq!(cell.store.expire_waiting(swept).await.unwrap(), (0, swept));
    for id in [queued, deferred] {
        assert_eq!(cell.status(id).await, (Status::Expired, Some(Reason::DeadlinePassed)));
    }
    assert_eq!(cell.status(living).await, (Status::Queued, None));
    cell.assert_sound().await;
}

/// What ends while a turn waits for the cell's lock is settled by it, and its slots are filled too.
#[tokio::test]
async fn a_turn_takes_along_what_ended_before_it_had_the_lock() {
    let cell = Cell::new().await;
    for _ in 0..6 {
        cell.add(cell.submission()).await;
    }
    let session = cell.session(8).await;
    let held = session.turn(&[], 3).await.unwrap().claimed;
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let late = || {
        asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        held[1..].iter().map(|task| report(task, Ending::Completed)).collect()
    };
    let mut reports = vec![report(&held[0], Ending::Completed)];
    let turn = session.turn_gathering(&mut reports, 1, &late).await.unwrap();
    assert_eq!(turn.settled, [Settled::Ended(Status::Completed); 3]);
    assert_eq!(
        reports.iter().map(|report| report.id).collect::<Vec<_>>(),
        held.iter().map(|task| task.id).collect::<Vec<_>>()
    );
    assert_eq!((turn.claimed.len(), asked.into_inner()), (3, 1));
    cell.assert_sound().await;
    // Where nothing is wanted, nothing more is claimed for what came late.
    cell.add(cell.submission()).await;
    let mut reports = vec![report(&turn.claimed[0], Ending::Completed)];
    let late = || vec![report(&turn.claimed[1], Ending::Completed)];
    let last = session.turn_gathering(&mut reports, 0, &late).await.unwrap();
    assert_eq!((last.settled.len(), last.claimed.len()), (2, 0));
    cell.assert_sound().await;
}
