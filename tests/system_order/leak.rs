//! C04: whatever becomes of a call, its permit comes back.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use tidegate_testkit::{Behaviour, FakeTool, poll_until, short_or_long};
use tokio::task::JoinSet;

use crate::called::{PEER, REAP, SLACK, all_complete, calls, more_requests, nothing_in_use, usage, with_peer};
use crate::caller::{Caller, id_of};
use crate::fleet::{ALIVE, Fleet, LIMIT, number};
use crate::verdict::assert_sound;

const LEASE: Duration = Duration::from_secs(2);
/// Calls that the peer takes at once.
const AT_ONCE: u32 = 4;
/// The longest that a call of a task may take, so that those that hang end.
const ATTEMPT_MS: u64 = 250;
/// The longest that a caller waits for its task before it leaves.
const PATIENCE_MS: u64 = 600;

/// One thing after another that a tool should not do, and now and then an answer.
fn misbehaviour(count: usize) -> Vec<Behaviour> {
    let soon = Duration::from_millis(20);
    let each = [
        Behaviour::Hang,
        Behaviour::CutMidBody,
        Behaviour::status(502),
        Behaviour::Slow(soon),
        Behaviour::Drip(1_000, soon),
        Behaviour::After(soon, Box::new(Behaviour::CutMidBody)),
        Behaviour::After(soon, Box::new(Behaviour::status(502))),
        Behaviour::BadJson,
    ];
    each.into_iter().cycle().take(count).collect()
}

/// Submits a task and waits for its result, but not for long: then it hangs up, and some cancel. Returns the id where the
/// caller got to know it.
async fn impatient(caller: Caller, n: usize) -> Option<String> {
    let task = json!({"kind": "tool", "payload": n, "attempt_timeout_ms": ATTEMPT_MS, "max_attempts": 2});
    let patience = Duration::from_millis(rand::random_range(0..PATIENCE_MS));
    if n.is_multiple_of(2) {
        let wait = [("prefer", "wait=30")];
        let call = caller.send_with(Method::POST, "/v1/tasks", &wait, &task);
        return tokio::time::timeout(patience, call).await.ok().map(|answer| id_of(&answer.unwrap().body));
    }
    let id = caller.add(&task).await;
    tokio::time::sleep(patience).await;
    // It may have ended before.
    caller.cancel(&id).await.unwrap();
    Some(id)
}

/// Two hundred tasks (short: a hundred) whose tool hangs, cuts and fails and whose callers leave and cancel, while a worker
/// is killed and another told to stop.
///
/// Broken by: a permit that is released by whoever waits for the answer, that is released only on success, that a time-out
/// forgets, that dies with its worker, or a counter in a process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_becomes_of_calls_and_callers_nothing_stays_in_use() {
    let tasks = short_or_long(100, 200);
    let tool = FakeTool::start().await;
    let fleet = with_peer(Fleet::new().await.with_lease(LEASE), &tool.url("/"), AT_ONCE);
    let fleet = fleet.with("WORKER__SHUTDOWN_GRACE_MS", 50);
    let server = fleet.serve().await;
    let (mut dies, stops, _stays) = (fleet.worker(4).await, fleet.worker(4).await, fleet.worker(4).await);
    tool.on("/", misbehaviour(tasks * 4));
    let mut callers = JoinSet::new();
    for n in 0..tasks {
        callers.spawn(impatient(server.caller.clone(), n));
    }
    more_requests(&tool, 0, tasks / 4).await;
    assert!(usage(&server.caller, PEER).await[0] > 0, "nothing is in use: this shows nothing");
    dies.kill9();
    more_requests(&tool, tasks / 4, tasks / 4).await;
    stops.terminate();
    let known: Vec<String> = callers.join_all().await.into_iter().flatten().collect();
    assert!(known.len() < tasks, "nobody left");
    poll_until(LIMIT, "the end of every task", async || (number(fleet.db.url(), ALIVE).await == 0).then_some(())).await;
    let over = Instant::now();
    nothing_in_use(&server.caller, LEASE + REAP + SLACK).await;
    eprintln!("{} calls; nothing in use {:?} after the last task", tool.seen().len(), over.elapsed());
    tool.wait_until_idle(LIMIT).await;

    // All of it can be used again, and no more.
    tool.on("/", [Behaviour::Slow(Duration::from_millis(300))]);
    tool.count_anew();
    let ids = server.caller.add_all(calls(3 * AT_ONCE as usize)).await;
    all_complete(&server.caller, &ids).await;
    assert_eq!(tool.max_in_flight(), AT_ONCE as usize);
    nothing_in_use(&server.caller, SLACK).await;
    assert_sound(fleet.db.url(), &[known, ids].concat()).await;
}
