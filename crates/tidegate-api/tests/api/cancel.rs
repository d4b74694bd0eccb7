//! Cancelling a task.

use tidegate_core::Status;

use crate::fake::{NOW, Trouble};
use crate::harness::Api;

#[tokio::test]
async fn a_waiting_task_is_cancelled_at_once_and_again_is_the_same() {
    let api = Api::new();
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    let uri = format!("/v1/tasks/{id}/cancel");
    let answer = api.post(&uri, "{\"reason\":\"no longer\\nneeded\\u001b\"}").await.expect(200);
    insta::assert_snapshot!(answer.stable());
    // With no body, and so no type, it is the same.
    let again = api.ask("POST", &uri).send().await.expect(200);
    assert_eq!(again.json()["status"], "CANCELLED");
    assert_eq!(api.fake.cancel_details(), [Some("no longer\nneeded\u{fffd}".into()), None]);
}

#[tokio::test]
async fn a_running_task_is_asked_to_stop() {
    let api = Api::new();
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    api.fake.update(id, |task| {
        task.status = Status::Running;
        task.started_ms = Some(NOW);
    });
    let answer = api.post(&format!("/v1/tasks/{id}/cancel"), "{}").await.expect(200).json();
    assert_eq!(answer["status"], "RUNNING");
    assert_eq!(answer["cancel"]["requested_at"], "2026-11-30T00:53:20.000Z");
    assert!(answer["cancel"]["delivered_at"].is_null() && answer["cancel"]["acknowledged_at"].is_null());
}

#[tokio::test]
async fn a_task_that_ended_otherwise_is_409() {
    let api = Api::new();
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    api.fake.complete(id, "1");
    let answer = api.post(&format!("/v1/tasks/{id}/cancel"), "").await;
    let problem = answer.refused(409, "already_ended");
    assert_eq!((&problem["outcome"], answer.id()), (&"COMPLETED".into(), id));
    api.post("/v1/tasks/018f0000-0000-7000-8000-000000000007/cancel", "").await.refused(404, "not_found");
}

#[tokio::test]
async fn a_bad_body_cancels_nothing() {
    let api = Api::new();
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    let uri = format!("/v1/tasks/{id}/cancel");
    let long = format!("{{\"reason\":\"{}\"}}", "é".repeat(1_001));
    for (body, status, reason) in [
        ("x", 400, "invalid_json"),
        ("[]", 422, "invalid_value"),
        ("{\"reason\":7}", 422, "invalid_value"),
        ("{\"reason\":\"\\u0000\"}", 422, "invalid_value"),
        ("{\"why\":\"\"}", 422, "unknown_field"),
        ("{\"reason\":\"a\",\"reason\":\"b\"}", 422, "duplicate_field"),
        (&long, 422, "invalid_value"),
        (&"x".repeat(20_000), 413, "body_too_large"),
    ] {
        api.post(&uri, body.to_owned()).await.refused(status, reason);
    }
    api.ask("POST", &uri)
        .header("content-type", "text/plain")
        .body("{}")
        .send()
        .await
        .refused(415, "unsupported_media_type");
    assert!(api.fake.cancel_details().is_empty());
}

#[tokio::test]
async fn a_cancel_whose_fate_is_unknown_says_so() {
    let api = Api::with(|settings| settings.write_timeout = std::time::Duration::from_millis(20));
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    for (trouble, reason) in [
        (Trouble::OutcomeUnknown, "outcome_unknown"),
        (Trouble::Hangs, "outcome_unknown"),
        (Trouble::Unavailable, "store_unavailable"),
    ] {
        api.fake.trouble(Some(trouble));
        let answer = api.post(&format!("/v1/tasks/{id}/cancel"), "").await;
        answer.refused(503, reason);
        assert!(answer.header("retry-after").is_some());
    }
}
