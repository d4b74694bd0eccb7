//! The store is away, forgets to answer, or refuses.

use std::time::Duration;

use tidegate_core::settlement::Ending;
use tidegate_core::{Reason, TaskId};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{nothing, options, start};
use crate::WorkerOptions;
use crate::fake::{Plan, task};

#[tokio::test(start_paused = true)]
async fn reports_survive_an_outage_and_handlers_go_on() {
    let worker = start(options(), nothing());
    worker.store.submit([task(1, "sleep", r#"{"ms":1000}"#), task(2, "sleep", r#"{"ms":4000}"#)]);
    worker.store.until("running", |state| state.leases.len() == 2).await;
    worker.store.state().turn_plans.extend([Plan::Fail; 5]);
    worker.store.until("settled", |state| state.settled.len() == 2).await;
    assert_eq!((worker.store.endings(1), worker.store.endings(2)), (vec![Ending::Completed], vec![Ending::Completed]));
    let state = worker.store.state();
    assert_eq!((state.sessions.len(), state.stale.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn tries_of_a_turn_are_spread_out_but_not_for_long() {
    let worker = start(options(), nothing());
    worker.store.until("idle", |state| !state.turns.is_empty()).await;
    let before = worker.store.state().turns.len();
    worker.store.state().turn_plans.extend([Plan::Fail; 1_000]);
    worker.store.submit([task(1, "echo", "1")]);
    sleep(Duration::from_secs(10)).await;
    let tries = worker.store.state().turns.len() - before;
    assert!((8..=20).contains(&tries), "{tries} tries in ten seconds");
    worker.store.state().turn_plans.clear();
    let back = Instant::now();
    worker.store.until("settled", |state| state.settled.len() == 1).await;
    assert!(back.elapsed() <= Duration::from_millis(2_010), "{:?}", back.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_turn_of_unknown_outcome_loses_neither_its_claims_nor_its_settlements() {
    let worker = start(options(), nothing());
    worker.store.submit([task(1, "sleep", r#"{"ms":5000}"#), task(2, "sleep", r#"{"ms":100}"#)]);
    worker.store.until("running", |state| state.leases.len() == 2).await;
    // The settlement of the second is made, and claims a third; nobody hears of either.
    worker.store.state().turn_plans.push_back(Plan::DoThenFail);
    worker.store.state().queue.push_back(task(3, "echo", "1"));
    worker.store.until("all settled", |state| state.settled.len() == 3).await;
    let state = worker.store.state();
    assert_eq!(state.stale.len(), 1, "the same report again, which changed nothing");
    assert!(state.leases.is_empty());
    assert_eq!(state.sessions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_the_store_refuses_costs_only_its_own_task_its_result() {
    let worker = start(WorkerOptions { slots: 16, ..options() }, nothing());
    worker.store.state().unstorable.insert(TaskId(Uuid::from_u128(5)));
    worker.store.submit((0..10).map(|number| task(number, "echo", "1")));
    worker.store.until("all settled", |state| state.settled.len() == 10).await;
    for number in 0..10 {
        let rejected = Ending::Failed { retryable: false, retry_after_ms: None, reason: Some(Reason::OutputRejected) };
        let expected = if number == 5 { rejected } else { Ending::Completed };
        assert_eq!(worker.store.endings(number), [expected], "{number}");
    }
    assert_eq!(worker.store.state().sessions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_drain_gives_up_on_a_store_that_stays_away_and_says_what_it_left() {
    let worker = start(WorkerOptions { shutdown_grace: Duration::from_secs(2), ..options() }, nothing());
    worker.store.submit([task(1, "sleep", r#"{"ms":1000}"#)]);
    worker.store.until("running", |state| state.leases.len() == 1).await;
    worker.store.state().turn_plans.extend([Plan::Fail; 1_000]);
    let store = worker.store.clone();
    let asked = Instant::now();
    let drained = worker.shut_down().await;
    assert_eq!(drained.left.len(), 1);
    assert!(asked.elapsed() <= Duration::from_secs(8), "{:?}", asked.elapsed());
    assert!(!store.state().closed, "a session that holds a lease must lapse");
}
