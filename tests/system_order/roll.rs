//! C31 under load: a deploy while a peer is used to its limit.

use std::time::{Duration, Instant};

use tidegate_testkit::{Behaviour, FakeTool, poll_until, short_or_long};

use crate::called::{REAP, SLACK, calls, nothing_in_use, with_peer};
use crate::fleet::{ALIVE, Fleet, LIMIT, number};
use crate::verdict::assert_sound;

const WORKERS: usize = 3;
const SLOTS: u32 = 4;
/// Calls that the peer takes at once: fewer than there are slots, so that a permit that is free is taken at once.
const AT_ONCE: usize = 3;

/// A rolling restart.
struct Roll {
    tasks: usize,
    call: Duration,
    every: Duration,
    lasts: Duration,
    /// Less than a call takes, so that some are handed back.
    grace: Duration,
    lease: Duration,
}

const SHORT: Roll = Roll {
    tasks: 30,
    call: Duration::from_millis(800),
    every: Duration::from_secs(1),
    lasts: Duration::from_secs(8),
    grace: Duration::from_millis(200),
    lease: Duration::from_secs(3),
};
const LONG: Roll = Roll {
    tasks: 30,
    call: Duration::from_secs(10),
    every: Duration::from_secs(5),
    lasts: Duration::from_secs(120),
    grace: Duration::from_secs(2),
    lease: Duration::from_secs(15),
};

/// Broken by: a permit that is handed back before its handler has stopped, a worker that keeps its tasks to itself when it
/// leaves, a hand-back that counts as a failure or a loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_never_calls_more_than_the_peer_takes() {
    let roll = short_or_long(SHORT, LONG);
    let tool = FakeTool::start().await;
    tool.on("/", [Behaviour::Slow(roll.call)]);
    let fleet = with_peer(Fleet::new().await.with_lease(roll.lease), &tool.url("/"), AT_ONCE as u32);
    let fleet = fleet.with("WORKER__SHUTDOWN_GRACE_MS", roll.grace.as_millis());
    let server = fleet.serve().await;
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(fleet.worker(SLOTS).await);
    }
    let ids = server.caller.add_all(calls(roll.tasks)).await;
    let (started, mut turn) = (Instant::now(), 1);
    while started.elapsed() < roll.lasts {
        let at = roll.every * turn;
        poll_until(LIMIT, "the next restart", async || (started.elapsed() >= at).then_some(())).await;
        let mut old = workers.remove(0);
        old.terminate();
        workers.push(fleet.worker(SLOTS).await);
        assert_eq!(old.wait(LIMIT).await.code(), Some(0), "{}", old.output());
        turn += 1;
    }
    let whole = roll.call * roll.tasks as u32;
    poll_until(whole + LIMIT, "the end of every task", async || {
        (number(fleet.db.url(), ALIVE).await == 0).then_some(())
    })
    .await;
    nothing_in_use(&server.caller, roll.lease + REAP + SLACK).await;
    assert_eq!(tool.max_in_flight(), AT_ONCE);
    for id in &ids {
        let task = server.caller.task(id).await;
        assert_eq!((&task["status"], &task["attempt"]), (&"COMPLETED".into(), &1.into()), "{task}");
    }
    let penalties = number(fleet.db.url(), "SELECT sum(failures + losses)::bigint FROM tidegate.task").await;
    let handed_back = number(fleet.db.url(), "SELECT sum(deliveries - 1)::bigint FROM tidegate.task").await;
    assert_eq!(penalties, 0);
    assert!(handed_back > 0, "nothing was in the midst of a call when its worker stopped: this shows nothing");
    assert_sound(fleet.db.url(), &ids).await;
}
