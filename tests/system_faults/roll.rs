//! C31: a deploy. Workers are told to stop, one after another, under tasks that take longer than they may.

use std::time::{Duration, Instant};

use tidegate_testkit::{poll_until, short_or_long};

use crate::caller::sleep;
use crate::fleet::{ALIVE, Fleet, LIMIT, number, wait_for_number};
use crate::verdict::assert_sound;

/// What a task takes longer than the one before it, so that they do not end in step with one another and the restarts.
const OUT_OF_STEP_MS: u64 = 70;

/// A rolling restart.
struct Roll {
    workers: usize,
    slots: u32,
    tasks: usize,
    task_ms: u64,
    every: Duration,
    lasts: Duration,
    /// Less than a task takes, so that some are handed back.
    grace_ms: u64,
}

const SHORT: Roll = Roll {
    workers: 2,
    slots: 4,
    tasks: 80,
    task_ms: 1_000,
    every: Duration::from_secs(2),
    lasts: Duration::from_secs(12),
    grace_ms: 300,
};
const LONG: Roll = Roll {
    workers: 3,
    slots: 4,
    tasks: 90,
    task_ms: 10_000,
    every: Duration::from_secs(5),
    lasts: Duration::from_secs(120),
    grace_ms: 2_000,
};

#[tokio::test]
async fn a_rolling_restart_loses_nothing_and_counts_no_failure() {
    let roll = short_or_long(SHORT, LONG);
    let fleet = Fleet::new().await.with("WORKER__SHUTDOWN_GRACE_MS", roll.grace_ms);
    let server = fleet.serve().await;
    let mut workers = Vec::new();
    for _ in 0..roll.workers {
        workers.push(fleet.worker(roll.slots).await);
    }
    let ids =
        server.caller.add_all((0..roll.tasks).map(|n| sleep(roll.task_ms + OUT_OF_STEP_MS * (n % 10) as u64))).await;
    let (started, mut turn) = (Instant::now(), 1);
    while started.elapsed() < roll.lasts {
        let at = roll.every * turn;
        poll_until(LIMIT, "the next restart", async || (started.elapsed() >= at).then_some(())).await;
        let mut old = workers.remove(0);
        old.terminate();
        workers.push(fleet.worker(roll.slots).await);
        assert_eq!(old.wait(LIMIT).await.code(), Some(0), "{}", old.output());
        turn += 1;
    }
    let whole = Duration::from_millis(roll.task_ms) * roll.tasks as u32;
    poll_until(whole, "the end of every task", async || (number(fleet.db.url(), ALIVE).await == 0).then_some(())).await;
    for id in &ids {
        let task = server.caller.task(id).await;
        assert_eq!((&task["status"], &task["attempt"]), (&"COMPLETED".into(), &1.into()), "{task}");
        let runs = server.caller.runs(id).await;
        let (last, before) = runs.split_last().unwrap();
        assert_eq!((last.0, last.2.as_str()), (1, "completed"), "{runs:?}");
        assert!(before.iter().all(|run| run.2 == "handed_back"), "{runs:?}");
    }
    let penalties = number(fleet.db.url(), "SELECT sum(failures + losses)::bigint FROM tidegate.task").await;
    let handed_back = number(fleet.db.url(), "SELECT sum(deliveries - 1)::bigint FROM tidegate.task").await;
    assert_eq!(penalties, 0);
    assert!(handed_back > 0, "nothing was in the midst of a run when its worker stopped: this shows nothing");
    wait_for_number(fleet.db.url(), "SELECT count(*) FROM tidegate.session", roll.workers as i64).await;
    assert_sound(fleet.db.url(), &ids).await;
}
