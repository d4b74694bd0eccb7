//! Cancels, wherever the task is, and against everything else that may happen to it at the same moment.

use std::time::Duration;

use tidegate_core::limits::Limits;
use tidegate_core::settlement::Ending;
use tidegate_core::submission::{Start, Submission, Timing};
use tidegate_core::{Reason, Status, TaskId, TenantId};
use tidegate_store::{Admission, CancelOutcome, Canceller, Group, Settled, Store, StoreOptions};
use tidegate_testkit::poll_until;

use crate::{Cell, FAILED, priority, tenant};

async fn cancel(cell: &Cell, id: TaskId) -> CancelOutcome {
    cell.canceller.cancel(&tenant(), id, Some("changed my mind".into())).await.unwrap()
}

#[tokio::test]
async fn what_waits_is_cancelled_at_once() {
    let cell = Cell::new().await;
    let queued = cell.add(cell.submission()).await;
    let mut later = cell.submission();
    later.timing = Timing { start: Start::After(60_000), ..Timing::default() };
    let deferred = cell.add(later).await;
    for id in [queued, deferred] {
        assert_eq!(cancel(&cell, id).await, CancelOutcome::Cancelled);
        assert_eq!(cell.status(id).await, (Status::Cancelled, Some(Reason::CancelRequested)));
        assert_eq!(cancel(&cell, id).await, CancelOutcome::AlreadyCancelled);
        let task = cell.store.task(&tenant(), id).await.unwrap().unwrap();
        assert_eq!(task.detail.as_deref(), Some("changed my mind"));
        assert!(task.cancel_requested_ms.is_some());
    }
    let session = cell.session(4).await;
    assert_eq!(session.turn(&[], 4).await.unwrap().claimed, []);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_running_task_is_asked_told_and_acknowledges() {
    let cell = Cell::new().await;
    let id = cell.add(cell.submission()).await;
    let session = cell.session(4).await;
    let task = cell.claim(&session).await;
    let held = [(task.id, task.fence)];
    assert_eq!(session.heart().beat(&held).await.unwrap(), Default::default());
    assert_eq!(cancel(&cell, id).await, CancelOutcome::Requested);
    assert_eq!(cancel(&cell, id).await, CancelOutcome::Requested);
    let asked = cell.store.task(&tenant(), id).await.unwrap().unwrap();
    assert_eq!((asked.status, asked.cancel_delivered_ms), (Status::Running, None));
    assert!(asked.cancel_requested_ms.is_some());
    assert_eq!(session.heart().beat(&held).await.unwrap().cancel, [id]);
    assert_eq!(cell.settle(&session, &task, Ending::Cancelled).await, Settled::Ended(Status::Cancelled));
    let ended = cell.store.task(&tenant(), id).await.unwrap().unwrap();
    assert_eq!((ended.status, ended.reason), (Status::Cancelled, Some(Reason::CancelRequested)));
    assert!(
        ended.cancel_requested_ms <= ended.cancel_delivered_ms
            && ended.cancel_delivered_ms <= ended.cancel_acknowledged_ms
    );
    assert!(ended.cancel_acknowledged_ms.is_some());
    assert_eq!(session.heart().beat(&[]).await.unwrap().cancel, [], "nothing is left behind");
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_task_that_finished_before_it_obeyed_is_completed_and_one_that_failed_is_not_run_again() {
    let cell = Cell::new().await;
    let session = cell.session(4).await;
    for (ending, status) in
        [(Ending::Completed, Status::Completed), (FAILED, Status::Cancelled), (Ending::HandedBack, Status::Cancelled)]
    {
        let id = cell.add(cell.submission()).await;
        let task = cell.claim(&session).await;
        assert_eq!(cancel(&cell, id).await, CancelOutcome::Requested);
        assert_eq!(cell.settle(&session, &task, ending).await, Settled::Ended(status));
    }
    cell.assert_sound().await;
}

#[tokio::test]
async fn another_tenants_task_and_an_ended_one_are_left_alone() {
    let cell = Cell::new().await;
    let id = cell.add(cell.submission()).await;
    let other = TenantId::parse("other").unwrap();
    assert_eq!(cell.canceller.cancel(&other, id, None).await.unwrap(), CancelOutcome::Unknown);
    assert_eq!(cancel(&cell, cell.store.next_id()).await, CancelOutcome::Unknown);
    let session = cell.session(4).await;
    let task = cell.claim(&session).await;
    cell.settle(&session, &task, Ending::Completed).await;
    assert_eq!(cancel(&cell, id).await, CancelOutcome::Ended);
    assert_eq!(cell.status(id).await, (Status::Completed, None));
}

#[tokio::test]
async fn what_was_refused_at_the_door_has_ended_in_memory_as_written() {
    let limits = Limits { max_queued: 1, ..Limits::default() };
    let cell = Cell::with(limits).await;
    cell.canceller.cancel_group(&tenant(), Group::Token("gone".into())).await.unwrap();
    cell.add(Submission { priority: priority(95), ..cell.submission() }).await;
    let with = |timing, token: Option<&str>, at| Submission {
        timing,
        cancellation_token: token.map(str::to_owned),
        priority: priority(at),
        ..cell.submission()
    };
    let late = Timing { deadline: Some(1), ..Timing::default() };
    let elsewhere = Store::open(StoreOptions::new(cell.db.url())).unwrap();
    let cancellers = [cell.canceller.clone(), Canceller::start(&elsewhere).unwrap()];
    let other = TenantId::parse("other").unwrap();
    for (submission, status, cancelled) in [
        (with(late, None, 50), Status::Expired, CancelOutcome::Ended),
        (with(Timing::default(), None, 95), Status::Rejected, CancelOutcome::Ended),
        (with(Timing::default(), None, 50), Status::Shed, CancelOutcome::Ended),
        (with(Timing::default(), Some("gone"), 50), Status::Cancelled, CancelOutcome::AlreadyCancelled),
    ] {
        // Nothing is written while the table is locked: what answers is the memory.
        let mut locking = cell.db.connect().await;
        sqlx::raw_sql("BEGIN; LOCK TABLE tidegate.refusal IN SHARE MODE").execute(&mut locking).await.unwrap();
        let Admission::Decided { id, decision } = cell.admit(submission).await else { panic!() };
        assert_eq!(decision.status, status);
        assert_eq!(cancel(&cell, id).await, cancelled, "{status} in memory");
        sqlx::raw_sql("COMMIT").execute(&mut locking).await.unwrap();
        poll_until(Duration::from_secs(10), "the record of the refusal", async || {
            elsewhere.task(&tenant(), id).await.unwrap()
        })
        .await;
        for canceller in &cancellers {
            assert_eq!(canceller.cancel(&tenant(), id, None).await.unwrap(), cancelled, "{status} as written");
            assert_eq!(canceller.cancel(&other, id, None).await.unwrap(), CancelOutcome::Unknown);
        }
        assert_eq!(cell.status(id).await.0, status, "nothing was changed");
    }
    cell.assert_sound().await;
}

/// C12: cancel, claim and completion of the same task at the same moment, many times over.
#[tokio::test]
async fn cancels_claims_and_completions_may_race() {
    let cell = Cell::new().await;
    let rounds = tidegate_testkit::short_or_long(20, 100);
    for round in 0..rounds {
        let mut ids = Vec::new();
        for _ in 0..10 {
            ids.push(cell.add(cell.submission()).await);
        }
        let session = cell.session(10).await;
        let cancels = async {
            let mut outcomes = Vec::new();
            for (n, id) in ids.iter().enumerate() {
                if (n + round) % 3 == 0 {
                    tokio::task::yield_now().await;
                }
                outcomes.push(cancel(&cell, *id).await);
            }
            outcomes
        };
        let work = async {
            let mut reports = Vec::new();
            let mut settled = Vec::new();
            loop {
                let turn = session.turn(&reports, 3).await.unwrap();
                settled.extend(reports.iter().map(|report: &tidegate_store::Report| report.id).zip(turn.settled));
                if turn.claimed.is_empty() {
                    return settled;
                }
                reports = turn.claimed.iter().map(|task| crate::report(task, Ending::Completed)).collect();
            }
        };
        let (outcomes, settled) = tokio::join!(cancels, work);
        for (id, outcome) in ids.iter().zip(outcomes) {
            let (status, _) = cell.status(*id).await;
            match outcome {
                CancelOutcome::Cancelled => {
                    assert_eq!(status, Status::Cancelled);
                    assert!(settled.iter().all(|(settled, _)| settled != id), "a cancelled task was run");
                }
                CancelOutcome::Requested | CancelOutcome::Ended => assert_eq!(status, Status::Completed),
                other => panic!("{other:?}"),
            }
        }
        session.close().await.unwrap();
    }
    cell.assert_sound().await;
}

#[tokio::test]
async fn whoever_waits_for_an_end_hears_of_it() {
    let cell = Cell::new().await;
    let id = cell.add(cell.submission()).await;
    assert!(!cell.store.wait_for_end(id, Duration::from_millis(20)).await.unwrap());
    let waiting = cell.store.wait_for_end(id, Duration::from_secs(10));
    let (ended, _) = tokio::join!(waiting, cancel(&cell, id));
    assert!(ended.unwrap());
    assert!(cell.store.wait_for_end(id, Duration::from_secs(10)).await.unwrap());
}
