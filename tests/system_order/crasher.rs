//! C08: a task that kills its worker, and its neighbours, who did nothing.

use std::time::Duration;

use serde_json::json;
use tidegate_testkit::{Behaviour, FakeTool, Proc, poll_until, short_or_long};

use crate::caller::sleep;
use crate::fleet::{ALIVE, Fleet, LIMIT, RUNNING, kind_with_tool, number, tidegate, wait_for_number};
use crate::verdict::assert_sound;

/// Slots of each worker, all of which tasks of any class may take.
const SLOTS: usize = 16;
const WORKERS: usize = 3;
/// Losses after which an input is taken to be the cause.
const MAX_LOSSES: usize = 3;

/// Starts the worker of this place. Its tool is told the place by the path.
async fn worker(fleet: &Fleet, tool: &FakeTool, place: usize, lease: Duration) -> Proc {
    let mut builder = tidegate()
        .args(["worker", "--slots", &SLOTS.to_string()])
        .env("DATABASE_URL", fleet.db.url())
        .env("TIDEGATE__WORKER__LEASE_MS", lease.as_millis().to_string());
    for (name, value) in kind_with_tool("crash", &tool.url(&format!("/{place}"))) {
        builder = builder.env(&name, value);
    }
    let mut process = builder.spawn();
    process.wait_for_line("\"serving\"", LIMIT).await;
    process
}

/// Kills the worker whose tool was called, and starts another in its place, until no task is left. Returns how often.
async fn restart_whoever_is_killed(fleet: &Fleet, tool: &FakeTool, workers: &mut [Proc], lease: Duration) -> usize {
    let mut killed = 0;
    let limit = LIMIT * short_or_long(1, 3);
    poll_until(limit, "the end of every task", async || {
        if let Some(call) = tool.seen().get(killed) {
            let place: usize = call.uri.path().trim_start_matches('/').parse().unwrap();
            workers[place].kill9();
            killed += 1;
            workers[place] = worker(fleet, tool, place, lease).await;
        }
        (number(fleet.db.url(), ALIVE).await == 0).then_some(())
    })
    .await;
    killed
}

/// A crasher and 15 others fill the 16 slots of one worker, which dies with all of them; then there are three, each started
/// again when it was killed.
///
/// Broken by: a loss that is not counted, one that is counted for neighbours until they are condemned too, suspects that run
/// beside one another, a crasher that is delivered for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_kills_its_workers_is_quarantined_and_its_neighbours_complete() {
    let (lease, run_ms) = short_or_long((Duration::from_secs(1), 600), (Duration::from_secs(5), 6_000));
    let tool = FakeTool::start().await;
    // Nobody answers: its worker is dead before.
    for place in 0..WORKERS {
        tool.on(&format!("/{place}"), [Behaviour::Hang]);
    }
    let fleet = Fleet::new().await.with("LIMITS__CLASSES__CRITICAL__RESERVE", "0.0");
    let server = fleet.serve().await;
    let crasher = server.caller.add(&json!({"kind": "crash"})).await;
    let innocent = server.caller.add_all((1..SLOTS).map(|_| sleep(run_ms))).await;
    let mut workers = vec![worker(&fleet, &tool, 0, lease).await];
    wait_for_number(fleet.db.url(), RUNNING, SLOTS as i64).await;
    for place in 1..WORKERS {
        workers.push(worker(&fleet, &tool, place, lease).await);
    }
    let killed = restart_whoever_is_killed(&fleet, &tool, &mut workers, lease).await;
    let task = server.caller.task(&crasher).await;
    assert_eq!((&task["status"], &task["reason"]), (&"FAILED".into(), &"quarantined".into()), "{task}");
    assert_eq!((killed, &task["deliveries"]), (MAX_LOSSES, &MAX_LOSSES.into()), "{task}");
    let losses = number(fleet.db.url(), "SELECT sum(losses)::bigint FROM tidegate.task WHERE kind <> 'crash'").await;
    eprintln!("the innocent were lost {losses} times");
    assert!(losses >= innocent.len() as i64, "the crasher had no neighbours: this shows nothing");
    for id in &innocent {
        let task = server.caller.task(id).await;
        assert_eq!(task["status"], "COMPLETED", "{task}");
    }
    assert_sound(fleet.db.url(), &innocent).await;
}

/// Between two losses the crasher can be cancelled, and is not delivered again.
///
/// Broken by: a cancel that reaches only what waits in the queue, or only live workers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_kills_its_workers_can_be_cancelled_while_its_worker_is_dead() {
    let lease = Duration::from_secs(short_or_long(1, 5));
    let tool = FakeTool::start().await;
    tool.on("/0", [Behaviour::Hang]);
    let fleet = Fleet::new().await;
    let server = fleet.serve().await;
    let mut dies = worker(&fleet, &tool, 0, lease).await;
    let crasher = server.caller.add(&json!({"kind": "crash"})).await;
    tool.wait_for_requests(1, LIMIT).await;
    dies.kill9();
    // Its lease is not over: nobody knows yet.
    server.caller.cancel(&crasher).await.unwrap();
    let _next = worker(&fleet, &tool, 1, lease).await;
    let task = server.caller.ended(&crasher, LIMIT).await;
    assert_eq!((&task["status"], &task["deliveries"]), (&"CANCELLED".into(), &1.into()), "{task}");
    assert_eq!(tool.seen().len(), 1);
    assert_sound(fleet.db.url(), &[crasher]).await;
}
