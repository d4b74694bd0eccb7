//! Ten times the capacity of background work does not keep critical work out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::json;
use tidegate_testkit::{poll_until, short_or_long};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::bodies::resident;
use crate::caller::{Answer, Caller};
use crate::fleet::{ALIVE, Fleet, LIMIT, number};

/// Slots, and how long each task takes: forty a second.
const SLOTS: u32 = 10;
const RUN_MS: u64 = 250;
const CAPACITY: f64 = 40.0;
/// Requests that are open at once of one stream: a machine that cannot send as many sends fewer.
const OPEN: usize = 200;
/// Bounds for a machine that does much else meanwhile; the numbers themselves are printed.
const LOOSE: Duration = Duration::from_secs(5);

/// Submits at a steady rate, however long answers take, and returns every answer.
async fn stream(caller: Caller, priority: u8, a_second: f64, until: Instant) -> Vec<Answer> {
    let open = Arc::new(Semaphore::new(OPEN));
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / a_second));
    let mut posts = JoinSet::new();
    while Instant::now() < until {
        ticks.tick().await;
        let permit = open.clone().acquire_owned().await.unwrap();
        let caller = caller.clone();
        posts.spawn(async move {
            let task = json!({"kind": "sleep", "payload": {"ms": RUN_MS}, "priority": priority});
            let answer = caller.submit(&task).await.unwrap();
            drop(permit);
            answer
        });
    }
    posts.join_all().await
}

fn p99(answers: impl Iterator<Item = Duration>) -> Duration {
    let mut took: Vec<Duration> = answers.collect();
    took.sort();
    took.get(took.len().saturating_sub(1).min(took.len() * 99 / 100)).copied().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_critical_work_is_admitted_under_a_flood_of_background() {
    let fleet = Fleet::new().await.with("LIMITS__MAX_QUEUED", 200);
    let server = fleet.serve().await;
    let _worker = fleet.worker(SLOTS).await;
    let critical =
        |seconds: u64| stream(server.caller.clone(), 95, CAPACITY / 2.0, Instant::now() + Duration::from_secs(seconds));
    let before = critical(short_or_long(4, 30)).await;
    let flood_s = short_or_long(8, 120);
    let until = Instant::now() + Duration::from_secs(flood_s);
    let background = tokio::spawn(stream(server.caller.clone(), 10, CAPACITY * 10.0, until));
    let pid = server.process.pid();
    let memory = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(flood_s / 2)).await;
        resident(pid)
    });
    let during = critical(flood_s).await;
    let (background, settled, last) = (background.await.unwrap(), memory.await.unwrap(), resident(pid));
    for answer in before.iter().chain(&during) {
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.body);
    }
    let refused = || background.iter().filter(|answer| answer.status == StatusCode::SERVICE_UNAVAILABLE);
    let (p99_before, p99_during) =
        (p99(before.iter().map(|answer| answer.took)), p99(during.iter().map(|answer| answer.took)));
    let p99_refused = p99(refused().map(|answer| answer.took));
    eprintln!(
        "critical: {} before, {} during, all admitted; p99 {p99_before:?} -> {p99_during:?}",
        before.len(),
        during.len()
    );
    eprintln!("background: {} sent, {} refused, p99 {p99_refused:?}", background.len(), refused().count());
    eprintln!("memory: {} -> {} MiB", settled >> 20, last >> 20);
    assert!(refused().count() > background.len() / 2, "there was no flood");
    assert!(refused().all(|answer| ["low_priority", "queue_full"].contains(&answer.reason())));
    assert!(p99_during < LOOSE && p99_refused < LOOSE, "{p99_during:?} {p99_refused:?}");
    assert!(last < settled * 2, "memory grew from {settled} to {last}");
    poll_until(LIMIT, "the end of every task", async || (number(fleet.db.url(), ALIVE).await == 0).then_some(())).await;
}
