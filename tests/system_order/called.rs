//! A peer with limits, the tool behind it, and what is held of it.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_testkit::{FakeTool, poll_until};

use crate::caller::Caller;
use crate::fleet::{Fleet, LIMIT};

/// The peer that every tool here stands for.
pub(crate) const PEER: &str = "hotels";
/// How often the keeper looks for lost leases.
pub(crate) const REAP: Duration = Duration::from_secs(1);
/// How much a busy machine may add.
pub(crate) const SLACK: Duration = Duration::from_secs(2);

/// A cell with the kind `tool`, which calls this URL as the peer, with so many calls at once in the whole fleet. Nothing
/// else holds its tasks back: retries are plenty and at once, and the peer never counts as down.
pub(crate) fn with_peer(fleet: Fleet, url: &str, max_in_flight: u32) -> Fleet {
    fleet
        .with_tool("tool", url)
        .with("KINDS__TOOL__PEER", PEER)
        .with("KINDS__TOOL__BACKOFF", "{ base_ms = 1, max_ms = 1 }")
        .with("PEERS__HOTELS__MAX_IN_FLIGHT", max_in_flight)
        .with("PEERS__HOTELS__RETRY_BUDGET", "{ ratio = 1.0, cap = 1000000 }")
        .with("PEERS__HOTELS__BREAKER", "{ failures = 1000000 }")
}

/// So many tasks for the tool.
pub(crate) fn calls(count: usize) -> impl Iterator<Item = Value> {
    (0..count).map(|n| json!({"kind": "tool", "payload": n}))
}

/// What is in use of a peer, and what waits for it, as an operator is told.
pub(crate) async fn usage(caller: &Caller, peer: &str) -> [i64; 2] {
    let answer = caller.get(&format!("/v1/admin/peers/{peer}")).await.unwrap();
    ["in_flight", "waiting"]
        .map(|what| answer.body["usage"][what].as_i64().unwrap_or_else(|| panic!("{}", answer.body)))
}

/// Waits until nothing is in use of the peer, at most so long.
pub(crate) async fn nothing_in_use(caller: &Caller, within: Duration) {
    poll_until(within, "a peer of which nothing is in use", async || {
        (usage(caller, PEER).await == [0, 0]).then_some(())
    })
    .await;
}

/// Waits until these have ended, each COMPLETED.
pub(crate) async fn all_complete(caller: &Caller, ids: &[String]) {
    for id in ids {
        let task = caller.ended(id, LIMIT).await;
        assert_eq!(task["status"], "COMPLETED", "{task}");
    }
}

/// Waits for so many more requests than there were.
pub(crate) async fn more_requests(tool: &FakeTool, before: usize, count: usize) {
    tool.wait_for_requests(before + count, LIMIT).await;
}
