//! C06: one at a time is one at a time, however many workers are free.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tidegate_testkit::{Behaviour, FakeTool, short_or_long};

use crate::called::{SLACK, all_complete, calls, nothing_in_use, with_peer};
use crate::caller::Caller;
use crate::fleet::{ALIVE, Fleet, wait_for_number};
use crate::verdict::assert_sound;

/// Worker processes, each with a session of its own.
const WORKERS: usize = 10;
/// How long each call takes.
const CALL: Duration = Duration::from_millis(50);

/// Submits tasks of a kind for a tenant, all at once.
async fn add_for(caller: &Caller, tenant: &str, count: usize) {
    let tasks: Vec<Value> = (0..count).map(|n| json!({"kind": "other", "payload": n})).collect();
    let headers = [("x-tenant", tenant)];
    let answer = caller.send_with(Method::POST, "/v1/tasks/batch", &headers, &json!({"tasks": tasks})).await.unwrap();
    assert!(answer.body["results"].as_array().unwrap().iter().all(|result| result["status"].is_string()));
}

/// A peer that takes one call at a time, and beside it a tenant that may run one task at a time with a tool of its own.
///
/// Broken by: a claim that counts what runs before it has the lock, or a count that each worker keeps for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_workers_never_run_two_where_one_may_run() {
    let tasks = short_or_long(80, 200);
    let (of_peer, of_tenant) = (FakeTool::start().await, FakeTool::start().await);
    let fleet = with_peer(Fleet::new().await, &of_peer.url("/"), 1).with_tool("other", &of_tenant.url("/"));
    let fleet = fleet.with("TENANTS__ACME__MAX_RUNNING", 1);
    let server = fleet.serve().await;
    for tool in [&of_peer, &of_tenant] {
        tool.on("/", [Behaviour::Slow(CALL)]);
    }
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(fleet.worker(2).await);
    }
    add_for(&server.caller, "acme", tasks).await;
    let ids = server.caller.add_all(calls(tasks)).await;
    all_complete(&server.caller, &ids).await;
    wait_for_number(fleet.db.url(), ALIVE, 0).await;
    for tool in [&of_peer, &of_tenant] {
        assert_eq!((tool.max_in_flight(), tool.seen().len()), (1, tasks));
    }
    nothing_in_use(&server.caller, SLACK).await;
    assert_sound(fleet.db.url(), &ids).await;
}
