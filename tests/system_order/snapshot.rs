//! C24: somebody holds an old snapshot. Claims go on, and it is told who it is.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::{Connection, Executor};
use tidegate_testkit::{is_long, poll_until, short_or_long};
use tokio::task::JoinSet;

use crate::caller::Caller;
use crate::fleet::{ALIVE, Fleet, LIMIT, connect, wait_for_number};
use crate::verdict::assert_sound;

/// Callers, each of which submits so many tasks, waits for the last of them, and begins again.
const CALLERS: usize = 6;
const BATCH: usize = 50;
/// The longest until it is told, by what the page of operations says.
const TOLD: Duration = Duration::from_secs(60);

/// How long everything takes.
struct Course {
    warm_up: Duration,
    window: Duration,
    held: Duration,
    /// The share of the first window's rate that must be left in the last.
    floor: f64,
}

/// A few seconds on a machine that does much else meanwhile: it would have to be bad to be seen.
const SHORT: Course = Course {
    warm_up: Duration::from_secs(1),
    window: Duration::from_secs(2),
    held: Duration::from_secs(15),
    floor: 0.4,
};
const LONG: Course = Course {
    warm_up: Duration::from_secs(20),
    window: Duration::from_secs(30),
    held: Duration::from_secs(600),
    floor: 0.8,
};

/// A number that the process tells.
async fn metric(caller: &Caller, name: &str) -> f64 {
    let answer = caller.get("/metrics").await.unwrap();
    let text = answer.body.as_str().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.trim().parse().unwrap())
}

/// Settlements a second, over so long.
async fn rate(caller: &Caller, window: Duration) -> f64 {
    let read = async || (Instant::now(), metric(caller, "tidegate_turn_settled_tasks_sum").await);
    let from = read().await;
    tokio::time::sleep(window).await;
    let to = read().await;
    (to.1 - from.1) / (to.0 - from.0).as_secs_f64()
}

fn load(caller: &Caller) -> JoinSet<()> {
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let caller = caller.clone();
        callers.spawn(async move {
            loop {
                let tasks = vec![json!({"kind": "echo"}); BATCH];
                let answer = caller.post("/v1/tasks/batch", &json!({"tasks": tasks})).await.unwrap();
                let last = answer.body["results"][BATCH - 1]["task_id"].as_str().unwrap().to_owned();
                // Whether it has ended by then or not: there is more to do.
                caller.get(&format!("/v1/tasks/{last}?wait_ms=5000")).await.unwrap();
            }
        });
    }
    callers
}

/// A steady load through one process, while a transaction in REPEATABLE READ is held open.
///
/// Broken by: a claim that walks dead rows, an index on counters, nobody who looks at who holds what.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_held_snapshot_claims_go_on_and_its_holder_is_told() {
    let course = short_or_long(SHORT, LONG);
    let mut fleet = Fleet::new().await;
    if !is_long() {
        fleet = fleet.with("KEEPER__SNAPSHOT_INTERVAL_MS", 1_000).with("KEEPER__SNAPSHOT_ALERT_MS", 3_000);
    }
    let mut up = fleet.start_on(fleet.db.url(), &["up", "--listen", "127.0.0.1:0"]);
    let caller = Caller::new(up.wait_for_url(LIMIT).await);
    let mut load = load(&caller);
    tokio::time::sleep(course.warm_up).await;
    let first = rate(&caller, course.window).await;
    assert!(first > 0.0, "nothing was done");
    assert_eq!(metric(&caller, "tidegate_oldest_snapshot_seconds").await, 0.0, "our own hold nothing up");

    let mut holder = connect(fleet.db.url()).await;
    holder.execute("SET application_name = 'report'; SET idle_in_transaction_session_timeout = 0").await.unwrap();
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tidegate.task").await.unwrap();
    let held = Instant::now();
    let warning = up.wait_for_line("old snapshot", TOLD).await;
    eprintln!("told {:?} after it was taken", held.elapsed());
    assert!(warning.contains("application report") && warning.contains("WARN"), "{warning}");
    assert!(metric(&caller, "tidegate_oldest_snapshot_seconds").await >= 1.0);

    let until = course.held - course.window;
    poll_until(course.held + LIMIT, "the last window", async || (held.elapsed() >= until).then_some(())).await;
    let last = rate(&caller, course.window).await;
    eprintln!("{first:.0} settlements a second, and {last:.0} after {:?} of it", held.elapsed());
    assert!(last >= first * course.floor, "{first:.0} -> {last:.0} settlements a second");
    holder.execute("COMMIT").await.unwrap();
    holder.close().await.unwrap();
    poll_until(TOLD, "the all-clear", async || {
        (metric(&caller, "tidegate_oldest_snapshot_seconds").await == 0.0).then_some(())
    })
    .await;
    load.shutdown().await;
    wait_for_number(fleet.db.url(), ALIVE, 0).await;
    up.terminate();
    assert_eq!(up.wait(LIMIT).await.code(), Some(0), "{}", up.output());
    assert_sound(fleet.db.url(), &[]).await;
}
