//! C33: what waits for a peer's rate holds nothing meanwhile.

use std::time::{Duration, Instant};

use serde_json::json;
use tidegate_testkit::{Behaviour, FakeTool, poll_until, short_or_long};

use crate::called::{PEER, SLACK, calls, usage, with_peer};
use crate::fleet::{ALIVE, Fleet, LIMIT, RUNNING, number, wait_for_number};
use crate::verdict::assert_sound;

const SLOTS: u32 = 4;
/// Calls that the peer takes in a minute: its bucket holds a minute's worth at most.
const A_MINUTE: usize = 6;
/// Tasks that wait for it: many times what there are slots.
const WAITING: usize = 40;

/// A peer at its rate with many times the slots' worth of tasks for it, and one task for another peer: that one runs at
/// once, all slots are free, and the peer sees its rate and no more.
///
/// Broken by: a rate that is waited for in a slot, with a permit, or at the head of the queue before everybody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_at_its_rate_holds_no_slot_and_nobody_up() {
    let (tool, other) = (FakeTool::start().await, FakeTool::start().await);
    tool.on("/", [Behaviour::Slow(Duration::from_millis(10))]);
    let fleet = with_peer(Fleet::new().await, &tool.url("/"), 1_000).with_tool("other", &other.url("/"));
    let fleet = fleet.with("PEERS__HOTELS__REQUESTS_PER_MINUTE", A_MINUTE).with("KINDS__OTHER__PEER", "trains");
    let server = fleet.serve().await;
    let _worker = fleet.worker(SLOTS).await;
    let began = Instant::now();
    let ids = server.caller.add_all(calls(WAITING)).await;
    tool.wait_for_requests(1, LIMIT).await;
    // What may be called is called; then nothing runs, though nearly all of them wait.
    wait_for_number(fleet.db.url(), RUNNING, 0).await;
    let sent = Instant::now();
    let id = server.caller.add(&json!({"kind": "other"})).await;
    let task = server.caller.ended(&id, LIMIT).await;
    eprintln!("the other peer's task was done after {:?}", sent.elapsed());
    assert_eq!(task["status"], "COMPLETED", "{task}");
    assert!(sent.elapsed() < SLACK, "it took {:?}", sent.elapsed());

    let watched = Duration::from_secs(short_or_long(5, 90));
    poll_until(watched + LIMIT, "the peer's rate", async || (began.elapsed() >= watched).then_some(())).await;
    let (seen, earned) = (tool.seen().len(), began.elapsed().as_secs_f64() / 60.0 * A_MINUTE as f64);
    eprintln!("{seen} calls within {:?}", began.elapsed());
    assert!(seen <= A_MINUTE + earned.ceil() as usize, "{seen} calls within {:?}", began.elapsed());
    let [in_flight, waiting] = usage(&server.caller, PEER).await;
    assert!(in_flight <= 1, "{in_flight} are in use of a peer that may not be called");
    assert!(waiting as usize >= WAITING - seen - 1, "{waiting} wait");
    for id in &ids {
        // Those that ran have ended.
        server.caller.cancel(id).await.unwrap();
    }
    poll_until(LIMIT, "the end of every task", async || (number(fleet.db.url(), ALIVE).await == 0).then_some(())).await;
    assert_sound(fleet.db.url(), &ids).await;
}
