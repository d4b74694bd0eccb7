//! Deadlines, attempt time-outs and cancels.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::settlement::Ending;
use tidegate_store::Claimed;
use tokio::time::{Instant, sleep};

use super::{Running, deaf, executor, nothing, obedient, options, start};
use crate::fake::task;
use crate::{Context, Executor, HandlerError, Stop, WorkerOptions};

fn with_remaining(task: Claimed, ms: u64) -> Claimed {
    Claimed { remaining: Duration::from_millis(ms), ..task }
}

fn with_timeout(task: Claimed, ms: u64) -> Claimed {
    Claimed { attempt_timeout: Some(Duration::from_millis(ms)), ..task }
}

/// Runs one task to its settlement. How it ended, and how long that took.
async fn run(own: Arc<dyn Executor>, task: Claimed) -> (Ending, Duration, Running) {
    let worker = start(options(), own);
    let started = Instant::now();
    worker.store.submit([task]);
    worker.store.until("settled", |state| state.settled.len() == 1).await;
    let ending = worker.store.state().settled[0].ending;
    (ending, started.elapsed(), worker)
}

#[tokio::test(start_paused = true)]
async fn at_the_deadline_less_the_reserve_a_handler_is_told_to_stop() {
    let (ending, took, _) = run(obedient(Duration::ZERO), with_remaining(task(1, "own", "null"), 1_000)).await;
    assert_eq!(ending, Ending::DeadlineHit);
    assert!((950..955).contains(&took.as_millis()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_listen_is_dropped_after_the_grace() {
    let (ending, took, _) = run(deaf(), with_remaining(task(1, "own", "null"), 1_000)).await;
    assert_eq!(ending, Ending::DeadlineHit);
    assert!((1_050..1_055).contains(&took.as_millis()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_result_within_the_grace_is_a_result() {
    let own = executor(|ctx: Context| async move {
        ctx.cancelled().await;
        sleep(Duration::from_millis(20)).await;
        Ok("7".to_owned())
    });
    let (ending, _, worker) = run(own, with_remaining(task(1, "own", "null"), 1_000)).await;
    assert_eq!(ending, Ending::Completed);
    assert_eq!(worker.store.state().settled[0].result.as_deref(), Some("7"));
}

#[tokio::test(start_paused = true)]
async fn with_no_time_left_the_handler_is_not_called() {
    let calls = Arc::new(AtomicUsize::new(0));
    let own = executor({
        let calls = calls.clone();
        move |_| {
            calls.fetch_add(1, Ordering::SeqCst);
            async { Ok("null".to_owned()) }
        }
    });
    let (ending, ..) = run(own, with_remaining(task(1, "own", "null"), 50)).await;
    assert_eq!((ending, calls.load(Ordering::SeqCst)), (Ending::DeadlineHit, 0));
}

#[tokio::test(start_paused = true)]
async fn the_time_is_counted_from_before_the_claim_was_asked_for() {
    // With one slot no turn but its own is under way.
    let worker = start(WorkerOptions { slots: 1, ..options() }, deaf());
    worker.store.until("idle", |state| !state.turns.is_empty()).await;
    worker.store.state().turn_time = Duration::from_millis(400);
    let started = Instant::now();
    worker.store.submit([with_remaining(task(1, "own", "null"), 1_000)]);
    worker.store.until("settled", |state| state.settled.len() == 1).await;
    // The deadline less the reserve, the grace, and the turn that settles it.
    assert!((1_450..1_460).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_attempts_own_time_out_is_told_apart_from_the_deadline() {
    let (ending, took, _) = run(obedient(Duration::ZERO), with_timeout(task(1, "own", "null"), 500)).await;
    assert_eq!(ending, Ending::AttemptTimedOut);
    assert!((500..505).contains(&took.as_millis()), "{took:?}");
    let both = with_remaining(with_timeout(task(1, "own", "null"), 500), 400);
    let (ending, took, _) = run(obedient(Duration::ZERO), both).await;
    assert_eq!(ending, Ending::DeadlineHit);
    assert!((350..355).contains(&took.as_millis()), "{took:?}");
}

/// In real time: no timer of the runtime can fire while its only thread is held.
#[tokio::test]
async fn a_handler_that_never_yields_learns_of_its_deadline_at_a_checkpoint() {
    let own = executor(|ctx: Context| async move {
        loop {
            match ctx.checkpoint() {
                Ok(()) => std::hint::spin_loop(),
                Err(stop @ Stop::Late) => return Err(stop.into()),
                Err(other) => return Err(HandlerError::permanent("wrong", other.to_string())),
            }
        }
    });
    let (ending, took, _) = run(own, with_remaining(task(1, "own", "null"), 300)).await;
    assert_eq!(ending, Ending::DeadlineHit);
    assert!(took >= Duration::from_millis(250), "{took:?}");
}

/// Runs one task, asks to cancel it after a second. How it ended, and how long after the cancel.
async fn cancel(own: Arc<dyn Executor>, task: Claimed) -> (Ending, Duration) {
    let worker = start(options(), own);
    worker.store.submit([task]);
    worker.store.until("running", |state| state.leases.len() == 1).await;
    sleep(Duration::from_secs(1)).await;
    let asked = Instant::now();
    worker.store.ask_to_cancel(1);
    worker.store.until("settled", |state| state.settled.len() == 1).await;
    (worker.store.endings(1)[0], asked.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_cancel_is_delivered_at_once_and_reported_when_the_handler_has_stopped() {
    let (ending, took) = cancel(obedient(Duration::from_secs(2)), task(1, "own", "null")).await;
    assert_eq!(ending, Ending::Cancelled);
    assert!((2_000..2_050).contains(&took.as_millis()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_finishes_before_it_obeys_a_cancel_has_finished() {
    let own = executor(|ctx: Context| async move {
        ctx.cancelled().await;
        Ok("1".to_owned())
    });
    assert_eq!(cancel(own, task(1, "own", "null")).await.0, Ending::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_ignores_a_cancel_is_dropped_after_its_grace_or_its_deadline() {
    let (ending, took) = cancel(deaf(), task(1, "own", "null")).await;
    assert_eq!(ending, Ending::Cancelled);
    assert!((5_000..5_050).contains(&took.as_millis()), "{took:?}");
    let (ending, took) = cancel(deaf(), with_remaining(task(1, "own", "null"), 3_000)).await;
    assert_eq!(ending, Ending::Cancelled);
    assert!((2_000..2_100).contains(&took.as_millis()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_cancels_is_a_few_heartbeats() {
    let worker = start(options(), nothing());
    worker.store.submit([task(1, "sleep", r#"{"ms":250000}"#)]);
    worker.store.until("running", |state| state.leases.len() == 1).await;
    let before = worker.store.state().beats.len();
    for _ in 0..1_000 {
        worker.store.ask_to_cancel(99);
        sleep(Duration::from_millis(1)).await;
    }
    let beats = worker.store.state().beats.len() - before;
    assert!((1..=52).contains(&beats), "{beats} in a second");
}
