//! Cancelling by token and by workflow: every state, every tenant alone, over many pages, and against all else that may
//! happen at the same moment.

use std::collections::{HashMap, HashSet};

use tidegate_core::submission::{Start, Submission, Timing};
use tidegate_store::{Group, GroupCancelled};

use super::*;

fn token(name: &str) -> Group {
    Group::Token(name.into())
}

fn workflow(name: &str) -> Group {
    Group::Workflow(name.into())
}

fn reached(cancelled: u64, requested: u64) -> GroupCancelled {
    GroupCancelled { cancelled, requested }
}

async fn cancel(cell: &Cell, group: Group) -> GroupCancelled {
    cell.canceller.cancel_group(&tenant(), group).await.unwrap()
}

/// A submission that belongs to the token `t` and the workflow `w`.
fn member(cell: &Cell) -> Submission {
    let mut submission = cell.submission();
    (submission.cancellation_token, submission.workflow_id) = (Some("t".into()), Some("w".into()));
    submission
}

async fn count(cell: &Cell, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(&mut cell.db.connect().await).await.unwrap()
}

/// No record of a group or parent is left, and the counters are true.
async fn assert_over(cell: &Cell) {
    let marks = "SELECT (SELECT count(*) FROM tidegate.cancel_group) + (SELECT count(*) FROM tidegate.cancel_parent)";
    assert_eq!(count(cell, marks).await, 0);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_group_is_cancelled_wherever_its_tasks_are() {
    for (group, reason) in [(token("t"), Reason::TokenCancelled), (workflow("w"), Reason::WorkflowCancelled)] {
        let cell = Cell::new().await;
        let session = cell.session(3).await;
        let ended = cell.add(member(&cell)).await;
        let first = cell.claim(&session).await;
        cell.settle(&session, &first, Ending::Completed).await;
        let running = cell.add(member(&cell)).await;
        let held = cell.claim(&session).await;
        let mut later = member(&cell);
        later.timing = Timing { start: Start::After(60_000), ..Timing::default() };
        let deferred = cell.add(later).await;
        let mut waiting = Vec::new();
        for _ in 0..4 {
            waiting.push(cell.add(member(&cell)).await);
        }
        let statuses = async || {
            let mut statuses = Vec::new();
            for id in &waiting {
                statuses.push(cell.status(*id).await.0);
            }
            statuses
        };
        let (admitted, queued) = (Status::Admitted, Status::Queued);
        assert_eq!(statuses().await, [admitted, admitted, queued, queued]);
        let other = cell.add(cell.submission()).await;

        assert_eq!(cancel(&cell, group.clone()).await, reached(5, 1));
        assert_eq!(statuses().await, [Status::Cancelled; 4]);
        for id in waiting.iter().chain([&deferred]) {
            let task = cell.store.task(&tenant(), *id).await.unwrap().unwrap();
            assert_eq!((task.status, task.reason), (Status::Cancelled, Some(reason)));
            assert!(task.cancel_requested_ms.is_some());
        }
        assert_eq!(cell.status(ended).await, (Status::Completed, None));
        assert!(!cell.status(other).await.0.is_final());
        // Asked again it finds nothing new, and still tells what has not stopped yet.
        assert_eq!(cancel(&cell, group.clone()).await, reached(0, 1));
        assert_eq!(session.heart().beat(&[(held.id, held.fence)]).await.unwrap().cancel, [running]);
        assert_eq!(cell.settle(&session, &held, Ending::Cancelled).await, Settled::Ended(Status::Cancelled));
        let task = cell.store.task(&tenant(), running).await.unwrap().unwrap();
        assert_eq!(task.reason, Some(reason));
        assert!(task.cancel_requested_ms <= task.cancel_delivered_ms && task.cancel_acknowledged_ms.is_some());
        assert_eq!(cancel(&cell, group).await, reached(0, 0));
        assert_over(&cell).await;
    }
}

#[tokio::test]
async fn the_first_reason_to_stop_a_running_task_is_the_one_that_is_kept() {
    let cell = Cell::new().await;
    let session = cell.session(2).await;
    let id = cell.add(member(&cell)).await;
    let task = cell.claim(&session).await;
    assert_eq!(cancel(&cell, workflow("w")).await, reached(0, 1));
    assert_eq!(cancel(&cell, token("t")).await, reached(0, 1));
    cell.canceller.cancel(&tenant(), id, None).await.unwrap();
    cell.settle(&session, &task, FAILED).await;
    assert_eq!(cell.status(id).await, (Status::Cancelled, Some(Reason::WorkflowCancelled)));
    assert_over(&cell).await;
}

#[tokio::test]
async fn a_token_is_refused_from_then_on_for_a_day_and_a_workflow_is_not() {
    let cell = Cell::new().await;
    // Nothing lives yet.
    assert_eq!(cancel(&cell, token("t")).await, reached(0, 0));
    assert_eq!(cancel(&cell, workflow("w")).await, reached(0, 0));
    let day = "SELECT expires_ms - cancelled_ms FROM tidegate.cancelled_token WHERE tenant = 'default' AND token = 't'";
    assert_eq!(count(&cell, day).await, 86_400_000);
    let Admission::Decided { decision, .. } = cell.admit(member(&cell)).await else { panic!("not decided") };
    assert_eq!((decision.status, decision.reason), (Status::Cancelled, Some(Reason::TokenCancelled)));
    let mut only_workflow = member(&cell);
    only_workflow.cancellation_token = None;
    cell.add(only_workflow).await;
    // A day later the token is free again, and its record goes.
    let later = "UPDATE tidegate.cancelled_token SET expires_ms = tidegate.now_ms() - 1";
    sqlx::raw_sql(later).execute(&mut cell.db.connect().await).await.unwrap();
    cell.add(member(&cell)).await;
    cell.store.prune(&tidegate_store::Retention::default()).await.unwrap();
    assert_eq!(count(&cell, "SELECT count(*) FROM tidegate.cancelled_token").await, 0);
    // Cancelling once more counts the day anew.
    assert_eq!(cancel(&cell, token("t")).await, reached(1, 0));
    cell.store.prune(&tidegate_store::Retention::default()).await.unwrap();
    assert_eq!(count(&cell, "SELECT count(*) FROM tidegate.cancelled_token").await, 1);
    assert_over(&cell).await;
}

#[tokio::test]
async fn tenants_with_the_same_names_have_nothing_to_do_with_each_other() {
    let cell = Cell::new().await;
    let other = TenantId::parse("other").unwrap();
    let (mine, mut theirs) = (cell.add(member(&cell)).await, member(&cell));
    theirs.tenant = other.clone();
    let theirs = cell.add(theirs).await;
    let status = async || cell.store.task(&other, theirs).await.unwrap().unwrap().status;
    assert_eq!(cancel(&cell, token("t")).await, reached(1, 0));
    assert_eq!(cancel(&cell, workflow("w")).await, reached(0, 0));
    assert_eq!(cell.status(mine).await.0, Status::Cancelled);
    assert!(!status().await.is_final());
    let mut later = member(&cell);
    later.tenant = other.clone();
    cell.add(later).await;
    let answer = cell.canceller.cancel_group(&other, workflow("w")).await.unwrap();
    assert_eq!(answer, reached(2, 0));
    assert_eq!(status().await, Status::Cancelled);
    assert_over(&cell).await;
}

/// Works until nothing is left: claims up to `slots` at a time, and completes what it claimed. Returns what it ran.
async fn work(session: &Session, slots: usize) -> HashMap<TaskId, Settled> {
    let (mut reports, mut settled) = (Vec::<Report>::new(), HashMap::new());
    loop {
        let turn = session.turn(&reports, slots).await.unwrap();
        settled.extend(reports.iter().map(|report| report.id).zip(turn.settled));
        if turn.claimed.is_empty() {
            return settled;
        }
        reports = turn.claimed.iter().map(|task| report(task, Ending::Completed)).collect();
    }
}

/// Each task of the table ended once, told once, and as `settled` and the answer say.
async fn assert_ended_once(cell: &Cell, ids: &[TaskId], ran: &HashMap<TaskId, Settled>, answer: GroupCancelled) {
    let mut cancelled = 0;
    for id in ids {
        let task = cell.store.task(&tenant(), *id).await.unwrap().unwrap();
        match ran.get(id) {
            Some(settled) => {
                assert_eq!((task.status, *settled), (Status::Completed, Settled::Ended(Status::Completed)));
                assert!(task.started_ms.is_some());
            }
            None => {
                assert_eq!((task.status, task.started_ms), (Status::Cancelled, None), "a cancelled task was started");
                cancelled += 1;
            }
        }
    }
    assert_eq!(answer.cancelled, cancelled);
    assert!(answer.requested <= ran.len() as u64);
    let told = "SELECT count(*) FROM tidegate.task t WHERE 1 <> \
        (SELECT count(*) FROM tidegate.event e WHERE t.id = ANY(e.task_ids) AND e.status IN ('COMPLETED', 'CANCELLED') AND e.status = t.status)";
    assert_eq!(count(cell, told).await, 0);
    assert_eq!(count(cell, "SELECT count(*) FROM tidegate.cancel_request").await, 0);
}

#[tokio::test]
async fn twelve_hundred_tasks_are_cancelled_while_workers_claim_them() {
    let cell = Cell::new().await;
    let mut ids = Vec::new();
    for _ in 0..12 {
        let adding = (0..100).map(|_| cell.add(member(&cell)));
        ids.extend(futures_util::future::join_all(adding).await);
    }
    let (first, second) = (cell.session(20).await, cell.session(20).await);
    let (answer, mut ran, more) = tokio::join!(cancel(&cell, token("t")), work(&first, 20), work(&second, 20));
    ran.extend(more);
    assert!(answer.cancelled > 0 && !ran.is_empty(), "hardly a race: {answer:?}, {} ran", ran.len());
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 1_200);
    assert_ended_once(&cell, &ids, &ran, answer).await;
    assert_over(&cell).await;
}

/// C12 for groups: cancel, claim and completion of the same tasks at the same moment, three hundred times over.
#[tokio::test]
async fn group_cancels_claims_and_completions_may_race() {
    let cell = Cell::new().await;
    let session = cell.session(4).await;
    let (mut ids, mut all) = (Vec::new(), HashMap::new());
    let mut total = reached(0, 0);
    for round in 0..100 {
        let name = format!("t{round}");
        let mut group = Vec::new();
        for n in 0..3 {
            let mut submission = member(&cell);
            submission.cancellation_token = Some(name.clone());
            if (round + n) % 5 == 0 {
                // Goes to the queue at once, but by way of the deferred.
                submission.timing = Timing { start: Start::After(1), ..Timing::default() };
            }
            group.push(cell.add(submission).await);
        }
        let promote = async {
            for _ in 0..round % 3 {
                cell.store.promote_due(Default::default()).await.unwrap();
            }
        };
        let one_by_one = async {
            for id in group.iter().take(round % 2) {
                cell.canceller.cancel(&tenant(), *id, None).await.unwrap();
            }
        };
        let cancels = async {
            for _ in 0..rand::random_range(0..40) {
                tokio::task::yield_now().await;
            }
            cancel(&cell, token(&name)).await
        };
        let (answer, ran, (), ()) = tokio::join!(cancels, work(&session, 1 + round % 3), promote, one_by_one);
        // What the single cancel got hold of first is not the group's.
        for id in group.iter().take(round % 2) {
            if cell.status(*id).await == (Status::Cancelled, Some(Reason::CancelRequested)) {
                total.cancelled += 1;
            }
        }
        total.cancelled += answer.cancelled;
        total.requested += answer.requested;
        // Nothing of the group lives any longer than its run.
        all.extend(ran);
        all.extend(work(&session, 3).await);
        ids.extend(group);
    }
    assert_eq!(ids.len(), 300);
    assert!(total.cancelled > 30 && all.len() > 30, "hardly a race: {total:?}, {} ran", all.len());
    assert_ended_once(&cell, &ids, &all, total).await;
    assert_over(&cell).await;
}

/// Whatever is let in with the token is reached by the cancel; whatever is not reached is refused.
#[tokio::test]
async fn nothing_slips_in_between_a_cancelled_token_and_its_tasks() {
    let cell = Cell::new().await;
    for round in 0..20 {
        let name = format!("t{round}");
        let arrivals = (0..40).map(|n| {
            let (cell, name) = (&cell, name.clone());
            async move {
                for _ in 0..n * 5 {
                    tokio::task::yield_now().await;
                }
                let submission = Submission { cancellation_token: Some(name), ..cell.submission() };
                let Admission::Decided { id, decision } = cell.admit(submission).await else { panic!("not decided") };
                (id, decision.reason == Some(Reason::TokenCancelled))
            }
        });
        let (arrived, answer) = tokio::join!(futures_util::future::join_all(arrivals), cancel(&cell, token(&name)));
        let let_in: Vec<TaskId> = arrived.iter().filter(|(_, refused)| !refused).map(|(id, _)| *id).collect();
        assert_eq!(answer, reached(let_in.len() as u64, 0));
        for id in let_in {
            assert_eq!(cell.status(id).await, (Status::Cancelled, Some(Reason::TokenCancelled)));
        }
    }
    assert_over(&cell).await;
}

#[tokio::test]
async fn a_group_whose_process_died_is_carried_out_by_a_keeper() {
    let cell = Cell::new().await;
    let ids = [cell.add(member(&cell)).await, cell.add(member(&cell)).await];
    // It died as soon as it had recorded what it was to do.
    let recorded = "INSERT INTO tidegate.cancel_group VALUES ('default', 1, 'w', gen_random_uuid(), tidegate.now_ms())";
    let mut connection = cell.db.connect().await;
    sqlx::raw_sql(recorded).execute(&mut connection).await.unwrap();
    assert_eq!(cell.store.cancel_abandoned_group().await.unwrap(), None, "it may still be at work");
    let long_ago = "UPDATE tidegate.cancel_group SET touched_ms = touched_ms - 60000";
    sqlx::raw_sql(long_ago).execute(&mut connection).await.unwrap();
    assert_eq!(cell.store.cancel_abandoned_group().await.unwrap(), Some(2));
    assert_eq!(cell.store.cancel_abandoned_group().await.unwrap(), None);
    for id in ids {
        assert_eq!(cell.status(id).await, (Status::Cancelled, Some(Reason::WorkflowCancelled)));
    }
    assert_over(&cell).await;
}

#[tokio::test]
async fn a_long_history_is_walked_in_pages() {
    let cell = Cell::new().await;
    let id = cell.add(member(&cell)).await;
    // Twelve thousand that ended long ago, older and younger than the one that lives.
    let history = "INSERT INTO tidegate.task (id, tenant, kind, class, priority, flow_id, rank, enqueued_ms, deadline_ms, min_useful_ms, max_attempts, \
            depth, fanout, tokens, usd_micros, admission_wait_ms, workflow_id, payload, status, reason, finished_ms) \
        SELECT (lpad(to_hex(n * 20000000000), 12, '0') || '7000800000000000' || lpad(to_hex(n), 4, '0'))::uuid, \
            'default', 'echo', 1, 50, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 'w', 'null', 'CANCELLED', 'cancel_requested', 1 FROM generate_series(1, 12000) n";
    sqlx::raw_sql(history).execute(&mut cell.db.connect().await).await.unwrap();
    assert_eq!(cancel(&cell, workflow("w")).await, reached(1, 0));
    assert_eq!(cell.status(id).await, (Status::Cancelled, Some(Reason::WorkflowCancelled)));
    assert_over(&cell).await;
}
