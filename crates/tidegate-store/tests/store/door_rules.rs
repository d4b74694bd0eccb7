//! Rules at the door beside room: parents and their budgets, cancelled tokens, callers' clocks, the predicted wait.

use std::time::{Duration, Instant};

use serde_json::json;
use tidegate_core::admission::Decision;
use tidegate_core::settlement::Ending;
use tidegate_core::submission::Submission;
use tidegate_core::{Reason, Status, TaskId, TenantId};
use tidegate_testkit::poll_until;
use tokio::task::JoinSet;

use crate::door::{LIMIT, Replica, decided, open_limits, stands};
use crate::{Cell, report, tenant};

const HOUR_MS: i64 = 3_600_000;

fn rejected(reason: Reason) -> (Status, Option<Reason>) {
    (Status::Rejected, Some(reason))
}

async fn now(cell: &Cell) -> i64 {
    sqlx::query_scalar("SELECT tidegate.now_ms()").fetch_one(&mut cell.db.connect().await).await.unwrap()
}

fn child_of(cell: &Cell, parent: TaskId) -> Submission {
    Submission { parent_id: Some(parent), ..cell.submission() }
}

#[tokio::test]
async fn a_child_gets_strictly_less_than_its_running_parent() {
    let cell = Cell::with(open_limits()).await;
    let mut parent = cell.submission();
    (parent.depth, parent.fanout, parent.timing.timeout_ms) = (2, 3, Some(60_000));
    let parent = cell.add(parent).await;
    assert_eq!(stands(&cell.decide(child_of(&cell, parent)).await.1), rejected(Reason::ParentNotRunning));
    let session = cell.session(1).await;
    let running = cell.claim(&session).await;
    let mut child = child_of(&cell, parent);
    (child.depth, child.timing.timeout_ms) = (9, Some(600_000));
    let (child, decision) = cell.decide(child).await;
    assert_eq!((stands(&decision), decision.depth), ((Status::Queued, None), 1), "a hop less");
    assert_eq!(decision.times.deadline, running.deadline_ms - 300);
    let mut short = child_of(&cell, parent);
    short.timing.timeout_ms = Some(1_000);
    let decision = cell.decide(short).await.1;
    assert!(decision.times.deadline < running.deadline_ms - 50_000, "its own, where that is sooner");
    let stored = cell.store.task(&tenant(), child).await.unwrap().unwrap();
    assert_eq!((stored.parent_id, stored.deadline_ms), (Some(parent), running.deadline_ms - 300));
    // Another tenant's task is nobody's parent, as if it were not there.
    let stranger = Submission { tenant: TenantId::parse("other").unwrap(), ..child_of(&cell, parent) };
    assert_eq!(stands(&cell.decide(stranger).await.1), rejected(Reason::ParentNotRunning));
    let nobody = child_of(&cell, cell.store.next_id());
    assert_eq!(stands(&cell.decide(nobody).await.1), rejected(Reason::ParentNotRunning));
    assert_eq!(stands(&cell.decide(child_of(&cell, parent)).await.1), (Status::Queued, None), "the third of three");
    assert_eq!(stands(&cell.decide(child_of(&cell, parent)).await.1), rejected(Reason::FanoutExhausted));
    cell.settle(&session, &running, Ending::Completed).await;
    assert_eq!(stands(&cell.decide(child_of(&cell, parent)).await.1), rejected(Reason::ParentNotRunning));
    cell.assert_sound().await;
}

#[tokio::test]
async fn hops_are_used_up_and_a_parent_that_is_to_stop_starts_nothing() {
    let cell = Cell::with(open_limits()).await;
    let parent = cell.add(Submission { depth: 0, ..cell.submission() }).await;
    let session = cell.session(2).await;
    cell.claim(&session).await;
    assert_eq!(stands(&cell.decide(child_of(&cell, parent)).await.1), rejected(Reason::DepthExhausted));
    let other = cell.add(cell.submission()).await;
    cell.claim(&session).await;
    cell.canceller.cancel(&tenant(), other, None).await.unwrap();
    assert_eq!(stands(&cell.decide(child_of(&cell, other)).await.1), rejected(Reason::ParentNotRunning));
    cell.assert_sound().await;
}

#[tokio::test]
async fn racing_children_from_two_replicas_spend_the_fan_out_exactly() {
    let cell = Cell::with(open_limits()).await;
    let parent = cell.add(Submission { fanout: 4, ..cell.submission() }).await;
    let session = cell.session(1).await;
    cell.claim(&session).await;
    let replica = Replica::of(&cell);
    let mut posts = JoinSet::new();
    for n in 0..30 {
        let admitter = if n % 2 == 0 { cell.admitter.clone() } else { replica.admitter.clone() };
        let child = child_of(&cell, parent);
        posts.spawn(async move { stands(&decided(admitter.admit(child, Instant::now()).await.unwrap()).1) });
    }
    let answers = posts.join_all().await;
    let count = |wanted| answers.iter().filter(|answer| **answer == wanted).count();
    assert_eq!((count((Status::Queued, None)), count(rejected(Reason::FanoutExhausted))), (4, 26));
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_token_that_was_cancelled_refuses_its_tenants_submissions_before_anything_else() {
    let cell = Cell::with(open_limits()).await;
    let sql = "INSERT INTO tidegate.cancelled_token (tenant, token, cancelled_ms, expires_ms) \
        VALUES ('default', 'trip-42', tidegate.now_ms(), tidegate.now_ms() + 86400000), \
            ('default', 'trip-41', 1, tidegate.now_ms() - 1)";
    sqlx::raw_sql(sql).execute(&mut cell.db.connect().await).await.unwrap();
    let with_token = |token: &str| Submission { cancellation_token: Some(token.into()), ..cell.submission() };
    let mut late = with_token("trip-42");
    late.timing.deadline = Some(1);
    for submission in [with_token("trip-42"), late] {
        let (id, decision) = cell.decide(submission).await;
        assert_eq!(stands(&decision), (Status::Cancelled, Some(Reason::TokenCancelled)));
        assert_eq!(decision.retry_after_ms, None);
        let task = poll_until(LIMIT, "its record", async || cell.store.task(&tenant(), id).await.unwrap()).await;
        assert_eq!((task.status, task.reason), (Status::Cancelled, Some(Reason::TokenCancelled)));
    }
    assert_eq!(stands(&cell.decide(with_token("trip-41")).await.1), (Status::Queued, None), "a day is over");
    let other = Submission { tenant: TenantId::parse("other").unwrap(), ..with_token("trip-42") };
    assert_eq!(stands(&cell.decide(other).await.1), (Status::Queued, None), "tokens are a tenant's own");
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_callers_clock_an_hour_off_leaves_relative_deadlines_alone_and_absolute_ones_are_literal_and_capped() {
    let cell = Cell::with(open_limits()).await;
    for skew in [-HOUR_MS - 60_000, -HOUR_MS, 0, HOUR_MS, HOUR_MS + 60_000] {
        // The id carries the caller's side's clock; nothing else of it does.
        let id = TaskId::new(now(&cell).await + skew, rand_bytes(), 0);
        let mut relative = Submission { id, ..cell.submission() };
        relative.timing.timeout_ms = Some(30_000);
        let before = now(&cell).await;
        let (id, decision) = cell.decide(relative).await;
        let after = now(&cell).await;
        assert!((before - 1_000..=after).contains(&(decision.times.deadline - 30_000)), "{skew}: {decision:?}");
        let stored = cell.store.task(&tenant(), id).await.unwrap().unwrap();
        assert_eq!(stored.deadline_ms, decision.times.deadline);
        assert_eq!(stored.enqueued_ms, decision.times.arrived);
    }
    let absolute = async |deadline: i64| {
        let mut submission = cell.submission();
        submission.timing.deadline = Some(deadline);
        cell.decide(submission).await.1
    };
    let started = now(&cell).await;
    assert_eq!(absolute(started + HOUR_MS).await.times.deadline, started + HOUR_MS, "taken literally");
    let capped = absolute(started + 48 * HOUR_MS).await.times;
    assert_eq!(capped.deadline, capped.arrived + 24 * HOUR_MS);
    let passed = absolute(started - HOUR_MS).await;
    assert_eq!(stands(&passed), (Status::Expired, Some(Reason::DeadlinePassed)));
    assert_eq!(passed.retry_after_ms, None);
    cell.assert_sound().await;
}

fn rand_bytes() -> [u8; 10] {
    let mut bytes = [7; 10];
    bytes[2..].copy_from_slice(&rand::random::<[u8; 8]>());
    bytes
}

#[tokio::test]
async fn less_time_than_is_useful_is_refused_for_a_delayed_task_too() {
    let cell = Cell::with(open_limits()).await;
    let mut submission = Submission { min_useful_ms: 5_000, ..cell.submission() };
    submission.timing.timeout_ms = Some(4_999);
    assert_eq!(stands(&cell.decide(submission).await.1), (Status::Expired, Some(Reason::DeadlineTooShort)));
    let mut delayed = Submission { min_useful_ms: 5_000, ..cell.submission() };
    delayed.timing.start = tidegate_core::submission::Start::After(10_000);
    delayed.timing.deadline = Some(now(&cell).await + 12_000);
    assert_eq!(stands(&cell.decide(delayed).await.1), (Status::Expired, Some(Reason::DeadlineTooShort)));
    cell.assert_sound().await;
}

/// Runs so many tasks at once, each for at least a fifth of a second.
async fn run(cell: &Cell, tasks: u32) {
    for _ in 0..tasks {
        cell.add(cell.submission()).await;
    }
    let session = cell.session(tasks).await;
    let claimed = cell.claim_all(&session, tasks as usize).await;
    assert_eq!(claimed.len(), tasks as usize);
    let until = now(cell).await + 200;
    poll_until(LIMIT, "the end of the runs", async || (now(cell).await >= until).then_some(())).await;
    let reports: Vec<_> = claimed.iter().map(|task| report(task, Ending::Completed)).collect();
    session.turn(&reports, 0).await.unwrap();
    session.close().await.unwrap();
}

#[tokio::test]
async fn what_by_the_predicted_wait_cannot_start_in_time_is_refused_now_with_the_estimate() {
    let cell = Cell::with(open_limits()).await;
    let timed = async |timeout_ms| -> Decision {
        let mut submission = cell.submission();
        submission.timing.timeout_ms = Some(timeout_ms);
        cell.decide(submission).await.1
    };
    // The first look at the counters: what ends from here on is within the window.
    poll_until(LIMIT, "the first look", async || cell.admitter.facts()).await;
    run(&cell, 19).await;
    cell.store.patch_limits(&json!({"max_running": 1})).await.unwrap();
    let session = cell.session(4).await;
    // One on the slot, ten behind it.
    for _ in 0..11 {
        cell.add(cell.submission()).await;
    }
    let decision = timed(1_000).await;
    assert_eq!((decision.status, decision.expected_wait_ms), (Status::Queued, None), "19 runs say nothing");
    // The twentieth.
    let task = cell.claim(&session).await;
    let until = now(&cell).await + 200;
    poll_until(LIMIT, "the end of the run", async || (now(&cell).await >= until).then_some(())).await;
    cell.settle(&session, &task, Ending::Completed).await;
    let decision = timed(1_000).await;
    assert_eq!(stands(&decision), (Status::Expired, Some(Reason::DeadlineTooShort)));
    // Ten at least, of a fifth of a second each, by one slot.
    assert!(decision.expected_wait_ms.unwrap() >= 2_000, "{decision:?}");
    assert_eq!(decision.retry_after_ms, None, "a deadline does not come again");
    let decision = timed(300_000).await;
    assert_eq!(decision.status, Status::Queued);
    assert!(decision.expected_wait_ms.unwrap() >= 2_000 && decision.queue_position.unwrap() >= 11, "{decision:?}");
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_predicted_wait_beyond_what_is_accepted_sheds_the_low_classes() {
    let mut limits = open_limits();
    limits.max_expected_wait_ms = 1_000;
    limits.classes.background.shed_at = Some(0.8);
    let cell = Cell::with(limits).await;
    poll_until(LIMIT, "the first look", async || cell.admitter.facts()).await;
    run(&cell, 20).await;
    cell.store.patch_limits(&json!({"max_running": 1})).await.unwrap();
    let _session = cell.session(1).await;
    for _ in 0..8 {
        cell.add(cell.submission()).await;
    }
    let decision = cell.decide(cell.of_priority(10)).await.1;
    assert_eq!(stands(&decision), (Status::Shed, Some(Reason::LowPriority)), "seven of 200 ms are more than 800");
    assert!(Duration::from_millis(decision.retry_after_ms.unwrap()) >= Duration::from_secs(1));
    assert_eq!(cell.decide(cell.submission()).await.1.status, Status::Queued);
    cell.assert_sound().await;
}
