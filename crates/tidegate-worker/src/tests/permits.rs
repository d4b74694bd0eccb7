//! Permits of further peers: asked for, waited for, given back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::settlement::Ending;
use tidegate_core::{PeerName, Reason};
use tokio::time::{Instant, timeout};

use super::{Running, executor, options, start};
use crate::fake::{Plan, State, task};
use crate::{Context, Executor, HandlerError, PermitError, Stop, WorkerOptions};

fn peer(name: &str) -> PeerName {
    PeerName::parse(name).unwrap()
}

/// What handlers saw, in order.
type Seen = Arc<Mutex<Vec<Result<(), PermitError>>>>;

/// Asks for one permit, holds it for a second, and says what it was told.
fn holding(seen: &Seen) -> Arc<dyn Executor> {
    let seen = seen.clone();
    executor(move |ctx: Context| {
        let seen = seen.clone();
        async move {
            let permit = ctx.permit(&peer("hotels")).await;
            seen.lock().unwrap().push(permit.as_ref().map(|_| ()).map_err(|error| *error));
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(permit?);
            Ok("null".to_owned())
        }
    })
}

fn told(seen: &Seen) -> Vec<Result<(), PermitError>> {
    seen.lock().unwrap().clone()
}

async fn settled(worker: &Running, count: usize) {
    worker.store.until("all settled", |state: &State| state.settled.len() == count).await;
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_held_as_long_as_its_guard_and_given_back_by_dropping_it() {
    let seen = Seen::default();
    let worker = start(options(), {
        let seen = seen.clone();
        executor(move |ctx: Context| {
            let seen = seen.clone();
            async move {
                let permit = ctx.permit(&peer("hotels")).await?;
                let second = ctx.permit(&peer("flights")).await.map(|_| ());
                seen.lock().unwrap().push(second);
                assert_eq!(permit.peer(), &peer("hotels"));
                drop(permit);
                // Though the store has not heard of it: what is given back goes first.
                ctx.permit(&peer("flights")).await?.release().await;
                ctx.cancelled().await;
                Ok("null".to_owned())
            }
        })
    });
    worker.store.submit([task(1, "own", "null")]);
    worker.store.until("three exchanges", |state| state.exchanges.len() == 3).await;
    worker.store.until("nothing held", |state| state.permits.is_empty()).await;
    assert_eq!(told(&seen), [Err(PermitError::Busy { retry_after: None })]);
    let exchanges = worker.store.state().exchanges.clone();
    assert_eq!(exchanges, [(0, 1), (1, 1), (1, 0)]);
    worker.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_with_a_peer_of_its_own_is_busy_without_asking() {
    let seen = Seen::default();
    let worker = start(options(), holding(&seen));
    let mut own = task(1, "own", "null");
    own.peer = Some(peer("trains"));
    worker.store.submit([own]);
    settled(&worker, 1).await;
    assert_eq!(told(&seen), [Err(PermitError::Busy { retry_after: None })]);
    assert_eq!(worker.store.state().exchanges, []);
    let ending = Ending::Failed { retryable: false, retry_after_ms: None, reason: Some(Reason::BulkheadFull) };
    assert_eq!(worker.store.endings(1), [ending]);
    worker.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_take_turns_and_those_that_wait_too_long_are_told() {
    let seen = Seen::default();
    let worker = start(options(), holding(&seen));
    {
        let mut state = worker.store.state();
        (state.permit_room, state.permit_wait) = (Some(1), Duration::from_millis(2_500));
    }
    worker.store.submit((1..=4).map(|number| task(number, "own", "null")));
    settled(&worker, 4).await;
    // Each holds it for a second: the fourth would have it after three.
    let busy = Err(PermitError::Busy { retry_after: None });
    assert_eq!(told(&seen), [Ok(()), Ok(()), Ok(()), busy]);
    worker.store.until("nothing held", |state| state.permits.is_empty()).await;
    worker.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_peer_that_lets_nobody_wait_says_when_to_come_again() {
    let seen = Seen::default();
    let worker = start(options(), holding(&seen));
    worker.store.state().permit_room = Some(0);
    worker.store.submit([task(1, "own", "null")]);
    settled(&worker, 1).await;
    assert_eq!(told(&seen), [Err(PermitError::Busy { retry_after: Some(Duration::from_secs(1)) })]);
    worker.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_a_cancel_a_deadline_or_a_loss_and_leaves_nothing_behind() {
    let seen = Seen::default();
    let worker = start(options(), holding(&seen));
    {
        let mut state = worker.store.state();
        (state.permit_room, state.permit_wait) = (Some(0), Duration::from_secs(3_600));
    }
    let waits = |state: &State| state.permits.len() == 1;
    worker.store.submit([task(1, "own", "null")]);
    worker.store.until("it waits", waits).await;
    worker.store.ask_to_cancel(1);
    settled(&worker, 1).await;
    let mut short = task(2, "own", "null");
    short.remaining = Duration::from_secs(20);
    worker.store.submit([short]);
    settled(&worker, 2).await;
    assert_eq!(told(&seen), [Err(PermitError::Cancelled(Stop::Cancelled)), Err(PermitError::Cancelled(Stop::Late))]);
    worker.store.submit([task(3, "own", "null")]);
    worker
        .store
        .until("it waits", |state| state.permits.iter().any(|(call, _)| call.task == task(3, "own", "null").id))
        .await;
    worker.store.reap(3);
    worker.store.until("it is told", |_| told(&seen).len() == 3).await;
    assert_eq!(told(&seen)[2], Err(PermitError::Lost));
    worker.store.until("nobody waits", |state| state.permits.is_empty()).await;
    worker.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_reached_loses_no_release() {
    let worker = start(options(), {
        executor(|ctx: Context| async move {
            drop(ctx.permit(&peer("hotels")).await?);
            ctx.cancelled().await;
            Ok("null".to_owned())
        })
    });
    {
        let mut state = worker.store.state();
        state.permit_plans.extend([Plan::Work, Plan::Fail, Plan::DoThenFail, Plan::Fail, Plan::Work]);
    }
    worker.store.submit([task(1, "own", "null")]);
    worker.store.until("five exchanges", |state| state.exchanges.len() == 5).await;
    worker.store.until("nothing held", |state| state.permits.is_empty()).await;
    assert_eq!(worker.store.state().exchanges, [(0, 1), (1, 0), (1, 0), (1, 0), (1, 0)]);
    worker.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn an_ask_whose_answer_was_lost_is_unavailable_and_what_it_took_goes_back() {
    let seen = Seen::default();
    let worker = start(options(), holding(&seen));
    worker.store.state().permit_plans.push_back(Plan::DoThenFail);
    worker.store.submit([task(1, "own", "null")]);
    settled(&worker, 1).await;
    assert_eq!(told(&seen), [Err(PermitError::Unavailable)]);
    worker.store.until("nothing held", |state| state.permits.is_empty()).await;
    assert!(matches!(worker.store.endings(1)[..], [Ending::Failed { retryable: true, .. }]));
    worker.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_in_time_though_the_store_does_not_answer() {
    let took = Arc::new(Mutex::new(None));
    let worker = start(WorkerOptions { lease: Duration::from_secs(600), ..options() }, {
        let took = took.clone();
        executor(move |ctx: Context| {
            let took = took.clone();
            async move {
                let asked = Instant::now();
                let told = ctx.permit(&peer("hotels")).await.map(|_| ());
                *took.lock().unwrap() = Some((told, asked.elapsed()));
                Ok::<_, HandlerError>("null".to_owned())
            }
        })
    });
    {
        let mut state = worker.store.state();
        (state.permit_room, state.permit_wait) = (Some(0), Duration::from_secs(2));
        state.permit_plans.extend([Plan::Work, Plan::Hang]);
    }
    worker.store.submit([task(1, "own", "null")]);
    worker.store.until("it waits", |state| state.permits.len() == 1).await;
    // From now on there is room, and the next transaction hangs.
    worker.store.state().permit_room = None;
    settled(&worker, 1).await;
    let (told, after) = took.lock().unwrap().unwrap();
    assert_eq!(told, Err(PermitError::Busy { retry_after: None }));
    assert!(after >= Duration::from_secs(2) && after < Duration::from_millis(2_100), "{after:?}");
    let closed = timeout(Duration::from_secs(3_600), worker.shut_down()).await;
    assert!(closed.is_ok());
}
