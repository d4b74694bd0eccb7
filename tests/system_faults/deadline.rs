//! C09: what is late ends once, and is never started again.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_testkit::{Behaviour, FakeTool, poll_until};

use crate::fleet::{ALIVE, Fleet, LIMIT, number, wait_for_number};
use crate::verdict::assert_sound;

/// How much later than its deadline a task may be seen to end: a sweep, on a busy machine.
const SWEEP_MS: i64 = 2_000;

/// The difference of two instants of a task, in milliseconds, by the database's clock.
async fn between(fleet: &Fleet, from: &Value, to: &Value) -> i64 {
    let (from, to) = (from.as_str().unwrap(), to.as_str().unwrap());
    let ms = format!("SELECT (extract(epoch FROM '{to}'::timestamptz - '{from}'::timestamptz) * 1000)::bigint");
    number(fleet.db.url(), &ms).await
}

#[tokio::test]
async fn without_a_worker_a_task_expires_once_at_its_deadline_and_is_never_started() {
    let fleet = Fleet::new().await;
    let server = fleet.serve().await;
    let id = server.caller.add(&json!({"kind": "echo", "timeout_ms": 2_000})).await;
    let later = server.caller.add(&json!({"kind": "echo", "timeout_ms": 2_000, "delay_ms": 100})).await;
    for id in [&id, &later] {
        let task = server.caller.ended(id, LIMIT).await;
        assert_eq!((&task["status"], &task["reason"]), (&"EXPIRED".into(), &"deadline_passed".into()), "{task}");
        let late_ms = between(&fleet, &task["deadline"], &task["finished_at"]).await;
        assert!((0..SWEEP_MS).contains(&late_ms), "it expired {late_ms} ms after its deadline");
    }
    // The worker comes 5 s after they came in, and finds nothing to start.
    let long_ago = "SELECT count(*) FROM tidegate.task WHERE enqueued_ms + 5000 < tidegate.now_ms()";
    wait_for_number(fleet.db.url(), long_ago, 2).await;
    let _worker = fleet.worker(1).await;
    let next = server.caller.add(&json!({"kind": "echo"})).await;
    assert_eq!(server.caller.ended(&next, LIMIT).await["status"], "COMPLETED");
    for id in [&id, &later] {
        let task = server.caller.task(id).await;
        assert_eq!((&task["status"], &task["deliveries"]), (&"EXPIRED".into(), &0.into()), "{task}");
        assert_eq!(server.caller.runs(id).await, []);
    }
    assert_sound(fleet.db.url(), &[id, later, next]).await;
}

#[tokio::test]
async fn a_failure_that_leaves_no_time_for_another_attempt_ends_the_task_at_once() {
    let tool = FakeTool::start().await;
    let failure = Behaviour::After(Duration::from_millis(1_900), Box::new(Behaviour::status(500)));
    tool.on("/", [failure]);
    let fleet = Fleet::new().await.with_tool("tool", &tool.url("/"));
    let fleet = fleet.with("KINDS__TOOL__BACKOFF", "{ base_ms = 5000, max_ms = 5000 }");
    let server = fleet.serve().await;
    let _worker = fleet.worker(2).await;
    let id = server.caller.add(&json!({"kind": "tool", "timeout_ms": 2_900})).await;
    // The twin: with time left the same failure is tried again.
    let patient = server.caller.add(&json!({"kind": "tool", "timeout_ms": 60_000})).await;
    let task = server.caller.ended(&id, LIMIT).await;
    assert_eq!((&task["status"], &task["reason"]), (&"FAILED".into(), &"retry_no_time".into()), "{task}");
    let left_ms = between(&fleet, &task["finished_at"], &task["deadline"]).await;
    assert!(left_ms > 0, "it waited for its deadline instead of ending at once");
    assert_eq!(server.caller.runs(&id).await.len(), 1);
    poll_until(LIMIT, "the other task's retry", async || {
        let task = server.caller.task(&patient).await;
        (task["status"] == "DEFERRED" && task["reason"] == "retry_backoff" || task["attempt"] == 2).then_some(())
    })
    .await;
    server.caller.cancel(&patient).await.unwrap();
    wait_for_number(fleet.db.url(), ALIVE, 0).await;
    assert_sound(fleet.db.url(), &[id, patient]).await;
}
