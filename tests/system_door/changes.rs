//! What an operator changes at one replica holds in the others within a second.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tidegate_testkit::poll_until;

use crate::caller::Caller;
use crate::fleet::Fleet;

const SECOND: Duration = Duration::from_secs(1);

async fn patch(caller: &Caller, path: &str, change: Value) {
    let answer = caller.send_with(Method::PATCH, &format!("/v1/admin/{path}"), &[], &change).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
}

/// Waits, no longer than a second, until a submission gets this answer: a reason, or nothing where it is let in.
async fn answered(caller: &Caller, task: &Value, reason: &str) {
    poll_until(SECOND, &format!("{reason:?} for {task}"), async || {
        let answer = caller.submit(task).await.unwrap();
        (answer.reason() == reason).then_some(())
    })
    .await;
}

#[tokio::test]
async fn limits_tenants_peers_and_pauses_hold_in_the_other_replica_within_a_second() {
    let fleet = Fleet::new().await;
    let (first, second) = (fleet.serve().await, fleet.serve().await);
    let (first, second) = (&first.caller, &second.caller);
    let (plain, critical) = (json!({"kind": "echo"}), json!({"kind": "echo", "priority": 95}));
    let hotels = json!({"kind": "echo", "peer": "hotels"});
    answered(second, &plain, "").await;

    patch(first, "limits", json!({"max_queued": 1})).await;
    answered(second, &critical, "queue_full").await;
    assert_eq!(second.get("/v1/admin/limits").await.unwrap().body["max_queued"], 1);
    patch(first, "limits", json!({"max_queued": 100_000})).await;
    answered(second, &critical, "").await;

    patch(first, "tenants/default", json!({"max_queued": 1})).await;
    answered(second, &plain, "tenant_queue_limit").await;
    patch(second, "tenants/default", json!({"max_queued": null})).await;
    answered(first, &plain, "").await;

    patch(first, "peers/hotels", json!({"max_waiting": 0})).await;
    answered(second, &hotels, "bulkhead_full").await;
    patch(second, "peers/hotels", json!({"max_waiting": null})).await;
    answered(first, &hotels, "").await;

    let pause = first.post("/v1/admin/pauses", &json!({"kind": "echo", "mode": "refuse"})).await.unwrap();
    assert!(pause.status.is_success(), "{}", pause.body);
    answered(second, &plain, "paused").await;
    let path = format!("/v1/admin/pauses/{}", pause.body["id"].as_str().unwrap());
    let ended = second.send_with(Method::DELETE, &path, &[], &Value::Null).await.unwrap();
    assert!(ended.status.is_success(), "{}", ended.body);
    answered(first, &plain, "").await;
}
