//! Claim, run, settle, idle and drain.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::settlement::Ending;
use tidegate_core::{Kind, Reason};
use tokio::time::{Instant, sleep};

use super::{deaf, executor, nothing, obedient, options, registry, start};
use crate::fake::{FakeStore, Plan, task};
use crate::{BadOptions, Drained, HandlerError, Worker, WorkerOptions};

#[tokio::test(start_paused = true)]
async fn what_is_submitted_is_run_and_settled() {
    let worker = start(options(), nothing());
    worker.store.submit([task(1, "echo", r#"{"b":1.50,"a":[]}"#), task(2, "own", "null")]);
    worker.store.until("both settled", |state| state.settled.len() == 2).await;
    {
        let state = worker.store.state();
        assert!(state.settled.iter().all(|report| report.ending == Ending::Completed && report.fence.0 == 1));
        assert_eq!(state.settled[0].result.as_deref(), Some(r#"{"b":1.50,"a":[]}"#));
        assert!(state.leases.is_empty());
    }
    assert_eq!(worker.shut_down().await, Drained::default());
}

#[tokio::test(start_paused = true)]
async fn no_more_run_than_there_are_slots_and_one_turn_is_in_flight() {
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let own = executor({
        let most = most.clone();
        move |_| {
            let (running, most) = (running.clone(), most.clone());
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_millis(7)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok("null".to_owned())
            }
        }
    });
    let worker = start(options(), own);
    worker.store.state().turn_time = Duration::from_millis(3);
    worker.store.submit((0..100).map(|number| task(number, "own", "null")));
    worker.store.until("all settled", |state| state.settled.len() == 100).await;
    let state = worker.store.state();
    assert_eq!(most.load(Ordering::SeqCst), 4);
    assert_eq!(state.most_in_flight, 1);
    assert!(state.turns.iter().all(|(_, want)| *want <= 4));
}

#[tokio::test(start_paused = true)]
async fn handlers_that_end_at_once_fill_whole_turns() {
    let worker = start(WorkerOptions { slots: 256, ..options() }, nothing());
    worker.store.state().turn_time = Duration::from_millis(1);
    worker.store.submit((0..10_240).map(|number| task(number, "own", "null")));
    worker.store.until("all settled", |state| state.settled.len() == 10_240).await;
    // Forty claims of 256, one settlement after the last, and one look that finds nothing.
    let turns = worker.store.state().turns.len();
    assert!(turns <= 43, "{turns} turns");
}

#[tokio::test(start_paused = true)]
async fn what_ends_during_a_turn_joins_the_next() {
    let worker = start(WorkerOptions { slots: 64, ..options() }, nothing());
    worker.store.state().turn_time = Duration::from_millis(10);
    worker.store.submit((0..64).map(|number| task(number, "sleep", &format!(r#"{{"ms":{number}}}"#))));
    worker.store.until("all settled", |state| state.settled.len() == 64).await;
    let turns = worker.store.state().turns.clone();
    assert!(turns.len() <= 12, "{turns:?}");
}

#[tokio::test(start_paused = true)]
async fn what_ends_while_a_turn_waits_for_the_lock_joins_that_turn_and_its_slots_are_filled() {
    let worker = start(options(), nothing());
    worker.store.state().lock_time = Duration::from_millis(5);
    // Two waves of four, of which one ends a moment before the others.
    worker.store.submit((0..8).map(|number| task(number, "sleep", r#"{"ms":100}"#)));
    worker.store.state().queue[0].payload = r#"{"ms":98}"#.to_owned();
    worker.store.until("all settled", |state| state.settled.len() == 8).await;
    let turns = worker.store.state().turns.clone();
    assert_eq!(turns.iter().find(|(reports, _)| *reports > 0), Some(&(4, 4)), "{turns:?}");
    assert_eq!(turns.iter().filter(|(reports, _)| *reports > 0).count(), 2, "{turns:?}");
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_looks_about_once_a_second_and_hears_the_bell_at_once() {
    let worker = start(options(), nothing());
    sleep(Duration::from_secs(60)).await;
    let turns = worker.store.state().turns.len();
    assert!((60..=125).contains(&turns), "{turns} turns in a minute");
    let rung = Instant::now();
    worker.store.submit([task(1, "echo", "1")]);
    worker.store.until("settled", |state| state.settled.len() == 1).await;
    assert!(rung.elapsed() <= Duration::from_millis(2), "{:?}", rung.elapsed());
}

#[tokio::test(start_paused = true)]
async fn work_that_nobody_rang_for_is_found() {
    let worker = start(options(), nothing());
    worker.store.until("idle", |state| !state.turns.is_empty()).await;
    worker.store.state().queue.push_back(task(1, "echo", "1"));
    let started = Instant::now();
    worker.store.until("settled", |state| state.settled.len() == 1).await;
    assert!(started.elapsed() <= Duration::from_millis(1_010), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn draining_lets_handlers_finish_and_claims_no_more() {
    let worker = start(options(), nothing());
    worker.store.submit([task(1, "sleep", r#"{"ms":20000}"#)]);
    worker.store.until("running", |state| state.leases.len() == 1).await;
    let store = worker.store.clone();
    let beats = store.state().beats.len();
    worker.shutdown.cancel();
    worker.store.submit([task(2, "echo", "1")]);
    let asked = Instant::now();
    assert_eq!(worker.shut_down().await, Drained::default());
    assert!(asked.elapsed() >= Duration::from_secs(19) && asked.elapsed() <= Duration::from_secs(21));
    assert_eq!(store.endings(1), [Ending::Completed]);
    let state = store.state();
    assert!(state.beats.len() >= beats + 3, "no heartbeat while draining");
    assert!(state.closed && state.leases.is_empty() && state.queue.len() == 1);
}

#[tokio::test(start_paused = true)]
async fn an_operator_drains_a_worker_as_a_shutdown_does() {
    let worker = start(options(), nothing());
    worker.store.submit([task(1, "sleep", r#"{"ms":20000}"#)]);
    worker.store.until("running", |state| state.leases.len() == 1).await;
    let (store, asked) = (worker.store.clone(), Instant::now());
    store.ask_to_drain();
    store.until("a beat", |state| state.beats.last().is_some_and(|beat| *beat > asked)).await;
    store.submit([task(2, "echo", "1")]);
    // Nobody shuts it down.
    assert_eq!(worker.life.await.unwrap(), Drained::default());
    assert!(asked.elapsed() >= Duration::from_secs(19) && asked.elapsed() <= Duration::from_secs(21));
    assert_eq!(store.endings(1), [Ending::Completed]);
    let state = store.state();
    assert!(state.closed && state.leases.is_empty() && state.queue.len() == 1);
}

#[tokio::test(start_paused = true)]
async fn a_draining_worker_whose_session_is_lost_does_not_come_back() {
    let worker = start(options(), obedient(Duration::ZERO));
    worker.store.submit([task(1, "own", "null")]);
    worker.store.until("running", |state| state.leases.len() == 1).await;
    let (store, asked) = (worker.store.clone(), Instant::now());
    store.ask_to_drain();
    store.until("a beat", |state| state.beats.last().is_some_and(|beat| *beat > asked)).await;
    store.state().beat_plan = Some(Plan::Lost);
    assert_eq!(worker.life.await.unwrap(), Drained::default());
    let state = store.state();
    assert_eq!((state.sessions.len(), state.closed), (1, false));
}

#[tokio::test(start_paused = true)]
async fn what_does_not_finish_within_the_grace_is_handed_back() {
    for (own, slow) in [(obedient(Duration::ZERO), false), (deaf(), true)] {
        let worker = start(options(), own);
        worker.store.submit([task(1, "own", "null"), task(2, "sleep", r#"{"ms":250000}"#)]);
        worker.store.until("running", |state| state.leases.len() == 2).await;
        let store = worker.store.clone();
        let asked = Instant::now();
        assert_eq!(worker.shut_down().await, Drained::default());
        assert!(asked.elapsed() >= Duration::from_secs(30), "{:?}", asked.elapsed());
        assert!(asked.elapsed() <= Duration::from_millis(30_200), "{slow}: {:?}", asked.elapsed());
        assert_eq!((store.endings(1), store.endings(2)), (vec![Ending::HandedBack], vec![Ending::HandedBack]));
        assert!(store.state().closed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_is_obeyed_while_draining() {
    let worker = start(options(), nothing());
    worker.store.submit([task(1, "sleep", r#"{"ms":250000}"#)]);
    worker.store.until("running", |state| state.leases.len() == 1).await;
    let store = worker.store.clone();
    worker.shutdown.cancel();
    sleep(Duration::from_secs(1)).await;
    let asked = Instant::now();
    store.ask_to_cancel(1);
    assert_eq!(worker.shut_down().await, Drained::default());
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    assert_eq!(store.endings(1), [Ending::Cancelled]);
}

#[tokio::test(start_paused = true)]
async fn what_a_turn_claims_while_the_shutdown_comes_is_handed_back_unstarted() {
    let calls = Arc::new(AtomicUsize::new(0));
    let own = executor({
        let calls = calls.clone();
        move |_| {
            calls.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<Result<String, HandlerError>>()
        }
    });
    let worker = start(options(), own);
    worker.store.until("idle", |state| !state.turns.is_empty()).await;
    worker.store.state().turn_time = Duration::from_millis(50);
    worker.store.submit([task(1, "own", "null")]);
    worker.store.until("a turn started", |state| state.turns.len() == 2).await;
    let store = worker.store.clone();
    worker.shut_down().await;
    assert_eq!((store.endings(1), calls.load(Ordering::SeqCst)), (vec![Ending::HandedBack], 0));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_workers_future_drains_it() {
    let worker = start(options(), nothing());
    worker.store.submit([task(1, "sleep", r#"{"ms":1000}"#)]);
    worker.store.until("running", |state| state.leases.len() == 1).await;
    worker.life.abort();
    worker.store.until("closed", |state| state.closed).await;
    assert_eq!(worker.store.endings(1), [Ending::Completed]);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_nobody_asked_for_is_handed_back() {
    let worker = start(options(), nothing());
    worker.store.submit([task(1, "other", "null")]);
    worker.store.until("settled", |state| state.settled.len() == 1).await;
    assert_eq!(worker.store.endings(1), [Ending::HandedBack]);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let refused = |options: WorkerOptions| {
        Worker::new(Arc::new(FakeStore::default()), registry(nothing()), options).map(|_| ()).unwrap_err()
    };
    let other = Kind::parse("other").unwrap();
    assert_eq!(refused(WorkerOptions { slots: 0, ..options() }), BadOptions::Slots(0));
    assert_eq!(refused(WorkerOptions { slots: 10_001, ..options() }), BadOptions::Slots(10_001));
    let short = Duration::from_millis(299);
    assert_eq!(refused(WorkerOptions { lease: short, ..options() }), BadOptions::Lease(short));
    assert_eq!(refused(WorkerOptions { kinds: Some(vec![]), ..options() }), BadOptions::NoKinds);
    assert_eq!(
        refused(WorkerOptions { kinds: Some(vec![other.clone()]), ..options() }),
        BadOptions::UnknownKind(other)
    );
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_fails_for_good() {
    let own = executor(|_| async { Ok(format!("\"{}\"", "x".repeat(300_000))) });
    let worker = start(options(), own);
    worker.store.submit([task(1, "own", "null")]);
    worker.store.until("settled", |state| state.settled.len() == 1).await;
    let rejected = Ending::Failed { retryable: false, retry_after_ms: None, reason: Some(Reason::OutputRejected) };
    assert_eq!(worker.store.endings(1), [rejected]);
}
