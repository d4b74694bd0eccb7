//! Lost leases, lost sessions, the watchdog, and handlers that starve or do not stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::settlement::Ending;
use tokio::time::{Instant, sleep};

use super::{deaf, executor, launch, nothing, options, registry, start};
use crate::fake::{FakeStore, Plan, task};
use crate::{Context, HandlerError, Stop, Worker, WorkerOptions};

#[tokio::test(start_paused = true)]
async fn a_lost_lease_stops_its_handler_within_a_heartbeat_and_no_other() {
    let stopped = Arc::new(AtomicUsize::new(0));
    let own = executor({
        let stopped = stopped.clone();
        move |ctx: Context| {
            let stopped = stopped.clone();
            async move {
                ctx.cancelled().await;
                assert_eq!(ctx.checkpoint(), Err(Stop::Lost));
                stopped.fetch_add(1, Ordering::SeqCst);
                Ok("too late".to_owned())
            }
        }
    });
    let worker = start(options(), own);
    worker.store.submit([task(1, "own", "null"), task(2, "sleep", r#"{"ms":12000}"#)]);
    worker.store.until("running", |state| state.leases.len() == 2).await;
    worker.store.reap(1);
    sleep(Duration::from_millis(5_050)).await;
    assert_eq!(stopped.load(Ordering::SeqCst), 1);
    worker.store.until("the other settled", |state| !state.settled.is_empty()).await;
    let state = worker.store.state();
    assert_eq!((state.settled.len(), state.stale.len(), state.sessions.len()), (1, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_report_whose_lease_is_gone_changes_nothing() {
    let worker = start(options(), nothing());
    worker.store.submit([task(1, "sleep", r#"{"ms":1000}"#)]);
    worker.store.until("running", |state| state.leases.len() == 1).await;
    worker.store.reap(1);
    worker.store.until("reported", |state| state.stale.len() == 1).await;
    worker.store.submit([task(2, "echo", "1")]);
    worker.store.until("going on", |state| state.settled.len() == 1).await;
    assert!(worker.store.endings(1).is_empty());
}

/// Starts a handler that does not listen and waits until its session is lost. When that was, from the start.
async fn lose(plan: Plan, beat_time: Duration) -> (Duration, super::Running) {
    let began = Instant::now();
    let worker = start(options(), deaf());
    worker.store.submit([task(1, "own", "null")]);
    worker.store.until("running", |state| state.leases.len() == 1).await;
    worker.store.state().beat_time = beat_time;
    worker.store.until("a heartbeat", |state| state.beats.len() == 1).await;
    sleep(beat_time + Duration::from_millis(1)).await;
    worker.store.state().beat_plan = Some(plan);
    worker.store.until("another session", |state| state.sessions.len() == 2).await;
    let after = began.elapsed();
    worker.store.state().beat_plan = None;
    (after, worker)
}

#[tokio::test(start_paused = true)]
async fn without_an_answered_heartbeat_everything_stops_before_the_lease_is_over() {
    for plan in [Plan::Hang, Plan::Fail] {
        // The first heartbeat is sent after 5 s; 12.5 s after that the leases are in doubt.
        let (after, worker) = lose(plan, Duration::ZERO).await;
        assert!((17_500..17_700).contains(&after.as_millis()), "{after:?}");
        assert_eq!(worker.store.state().sessions.len(), 2);
        worker.store.state().leases.clear();
        worker.store.submit([task(2, "echo", "1")]);
        worker.store.until("the new session works", |state| state.settled.len() == 1).await;
        assert!(worker.store.endings(1).is_empty(), "reported after the lease was in doubt");
    }
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_counts_from_before_a_heartbeat_was_sent() {
    let (after, _) = lose(Plan::Hang, Duration::from_secs(4)).await;
    assert!((17_500..17_700).contains(&after.as_millis()), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_or_a_turn_that_finds_the_session_lost_ends_it_at_once() {
    let (after, _) = lose(Plan::Lost, Duration::ZERO).await;
    assert!((10_000..10_300).contains(&after.as_millis()), "{after:?}");

    let worker = start(options(), nothing());
    worker.store.submit([task(1, "sleep", r#"{"ms":3000}"#), task(2, "sleep", r#"{"ms":1000}"#)]);
    worker.store.until("running", |state| state.leases.len() == 2).await;
    worker.store.state().turn_plans.push_back(Plan::Lost);
    worker.store.until("another session", |state| state.sessions.len() == 2).await;
    sleep(Duration::from_secs(10)).await;
    let state = worker.store.state();
    assert!(state.settled.is_empty() && state.stale.is_empty(), "the lost session's runs said something");
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_hangs_does_not_outlive_its_session() {
    let worker = start(options(), nothing());
    worker.store.until("idle", |state| !state.turns.is_empty()).await;
    {
        let mut state = worker.store.state();
        state.turn_plans.push_back(Plan::Hang);
        state.beat_plan = Some(Plan::Fail);
    }
    worker.store.until("another session", |state| state.sessions.len() == 2).await;
    worker.store.state().beat_plan = None;
    worker.store.submit([task(1, "echo", "1")]);
    worker.store.until("the new session works", |state| state.settled.len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn sessions_that_are_lost_at_once_are_not_opened_in_a_hurry() {
    let worker = start(options(), nothing());
    worker.store.state().turn_plans.extend([Plan::Lost; 1_000]);
    sleep(Duration::from_secs(60)).await;
    let sessions = worker.store.state().sessions.len();
    assert!((10..=40).contains(&sessions), "{sessions} sessions in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_after_a_loss_waits_for_handlers_to_stop_and_opens_no_session() {
    let worker = start(options(), deaf());
    worker.store.submit([task(1, "own", "null")]);
    worker.store.until("running", |state| state.leases.len() == 1).await;
    worker.shutdown.cancel();
    worker.store.state().beat_plan = Some(Plan::Lost);
    let store = worker.store.clone();
    worker.shut_down().await;
    let state = store.state();
    assert_eq!((state.sessions.len(), state.closed), (1, false));
}

/// Real time and threads from here on: nothing else shows what a handler does that holds its thread.
fn start_on_threads(options: WorkerOptions, own: Arc<dyn crate::Executor>) -> super::Running {
    let store = FakeStore::default();
    let worker = Worker::new(Arc::new(store.clone()), registry(own), options).unwrap();
    launch(store, worker)
}

#[test]
fn handlers_that_spin_on_every_thread_for_three_leases_lose_nothing() {
    const THREADS: usize = 2;
    let lease = Duration::from_millis(900);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().unwrap();
    let spinning = Arc::new(AtomicUsize::new(0));
    let own = executor({
        let spinning = spinning.clone();
        move |ctx: Context| {
            let spinning = spinning.clone();
            async move {
                // Spins until all spin, so that no thread of the runtime is left; then for three leases.
                spinning.fetch_add(1, Ordering::SeqCst);
                while spinning.load(Ordering::SeqCst) < THREADS {
                    std::hint::spin_loop();
                }
                let until = std::time::Instant::now() + lease * 3;
                while std::time::Instant::now() < until {
                    ctx.checkpoint()?;
                }
                Ok("null".to_owned())
            }
        }
    });
    let store = runtime.block_on(async {
        let worker = start_on_threads(WorkerOptions { lease, ..options() }, own);
        worker.store.submit((0..THREADS as u128).map(|number| task(number, "own", "null")));
        worker.store.until("both settled", |state| state.settled.len() == THREADS).await;
        let store = worker.store.clone();
        worker.shut_down().await;
        store
    });
    let state = store.state();
    assert!(state.settled.iter().all(|report| report.ending == Ending::Completed), "{:?}", state.settled);
    assert_eq!((state.sessions.len(), state.stale.len()), (1, 0));
    let gaps = state.beats.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(state.beats.len() >= 8 && gaps.max().unwrap() < lease, "{:?}", state.beats.len());
}

/// The twin: the same, with the heartbeat where the handlers are.
#[test]
fn a_heartbeat_on_the_handlers_runtime_would_be_starved() {
    let lease = Duration::from_millis(300);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let own = executor(move |ctx: Context| async move {
        let until = std::time::Instant::now() + lease * 3;
        while std::time::Instant::now() < until {
            ctx.checkpoint()?;
        }
        Ok("null".to_owned())
    });
    runtime.block_on(async {
        let worker = start(WorkerOptions { lease, ..options() }, own);
        worker.store.submit([task(1, "own", "null")]);
        worker.store.until("the session was lost", |state| state.sessions.len() == 2).await;
    });
}

#[test]
fn a_slot_is_free_only_when_its_handler_has_really_stopped() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let release = Arc::new(AtomicBool::new(false));
    let own = executor({
        let release = release.clone();
        move |_| {
            let release = release.clone();
            async move {
                while !release.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err::<String, _>(HandlerError::transient("x", "y"))
            }
        }
    });
    runtime.block_on(async {
        let worker = start_on_threads(WorkerOptions { slots: 1, ..options() }, own);
        let late = tidegate_store::Claimed { remaining: Duration::from_millis(200), ..task(1, "own", "null") };
        worker.store.submit([late]);
        worker.store.until("running", |state| state.leases.len() == 1).await;
        worker.store.submit([task(2, "echo", "1")]);
        // Long past the deadline and the grace, and longer than the longest poll.
        sleep(Duration::from_millis(1_500)).await;
        assert!(worker.store.state().settled.is_empty() && worker.store.state().queue.len() == 1);
        release.store(true, Ordering::SeqCst);
        worker.store.until("both settled", |state| state.settled.len() == 2).await;
        // It failed only after its time was over, of which no timer could tell it.
        assert_eq!(worker.store.endings(2), [Ending::Completed]);
    });
}
