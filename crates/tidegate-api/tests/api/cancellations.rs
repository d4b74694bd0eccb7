//! Cancelling by token and by workflow.

use tidegate_core::Status;

use crate::fake::{NOW, Trouble};
use crate::harness::Api;

const URI: &str = "/v1/cancellations";
const MEMBER: &str = "{\"kind\":\"echo\",\"cancellation_token\":\"trip-42\",\"workflow_id\":\"wf-7\"}";

#[tokio::test]
async fn a_group_is_cancelled_by_its_token_or_its_workflow() {
    for (body, reason) in [
        ("{\"token\":\"trip-42\"}", "token_cancelled"),
        (" {\"token\":null,\"workflow_id\":\"wf-7\"}", "workflow_cancelled"),
    ] {
        let api = Api::new();
        let (waiting, running, ended) =
            (api.submit(MEMBER).await.id(), api.submit(MEMBER).await.id(), api.submit(MEMBER).await.id());
        let other = api.submit("{\"kind\":\"echo\"}").await.id();
        api.fake.update(running, |task| {
            task.status = Status::Running;
            task.started_ms = Some(NOW);
        });
        api.fake.complete(ended, "1");
        let answer = api.post(URI, body).await.expect(200);
        assert_eq!(answer.text, "{\"cancelled\":1,\"requested\":1}");
        let task = api.get(&format!("/v1/tasks/{waiting}")).await.json();
        assert_eq!((&task["status"], &task["reason"]), (&"CANCELLED".into(), &reason.into()));
        assert_ne!(api.get(&format!("/v1/tasks/{other}")).await.json()["status"], "CANCELLED");
        let again = api.post(URI, body).await.expect(200);
        assert_eq!(again.text, "{\"cancelled\":0,\"requested\":1}");
    }
}

#[tokio::test]
async fn only_the_tenant_that_asks_is_meant() {
    let api = Api::new();
    let id = api.submit(MEMBER).await.id();
    let theirs = api.ask("POST", URI).header("x-tenant", "other").json("{\"token\":\"trip-42\"}").send().await;
    assert_eq!(theirs.expect(200).text, "{\"cancelled\":0,\"requested\":0}");
    assert_ne!(api.get(&format!("/v1/tasks/{id}")).await.json()["status"], "CANCELLED");
}

#[tokio::test]
async fn what_does_not_name_exactly_one_group_cancels_nothing() {
    let api = Api::new();
    api.submit(MEMBER).await;
    let long = format!("{{\"token\":\"{}\"}}", "é".repeat(256));
    for (body, status, reason, pointer) in [
        ("", 400, "invalid_json", None),
        ("x", 400, "invalid_json", None),
        ("[]", 422, "invalid_value", Some("")),
        ("{}", 400, "missing_field", Some("")),
        ("{\"token\":null}", 400, "missing_field", Some("")),
        ("{\"token\":\"trip-42\",\"workflow_id\":\"wf-7\"}", 422, "invalid_value", Some("/workflow_id")),
        ("{\"token\":7}", 422, "invalid_value", Some("/token")),
        ("{\"token\":\"\"}", 422, "invalid_value", Some("/token")),
        ("{\"workflow_id\":\"\\n\"}", 422, "invalid_value", Some("/workflow_id")),
        ("{\"workflow_id\":\"\\u0000\"}", 422, "invalid_value", Some("/workflow_id")),
        ("{\"token\":\"trip-42\",\"token\":\"trip-42\"}", 422, "duplicate_field", Some("/token")),
        ("{\"token\":\"trip-42\",\"reason\":\"x\"}", 422, "unknown_field", Some("/reason")),
        (&long, 422, "invalid_value", Some("/token")),
        (&"x".repeat(10_000), 413, "body_too_large", None),
    ] {
        let problem = api.post(URI, body.to_owned()).await.refused(status, reason);
        assert_eq!(problem.get("pointer").and_then(|pointer| pointer.as_str()), pointer, "{body}");
    }
    let plain = api.ask("POST", URI).header("content-type", "text/plain").body("{\"token\":\"trip-42\"}").send().await;
    plain.refused(415, "unsupported_media_type");
    let query = api.ask("POST", "/v1/cancellations?token=trip-42").json("{\"token\":\"trip-42\"}").send().await;
    query.refused(422, "unknown_field");
    assert!(api.fake.cancel_details().is_empty());
}

#[tokio::test]
async fn a_full_system_still_cancels() {
    let api = Api::with_room(1);
    api.submit(MEMBER).await;
    api.submit(MEMBER).await.refused(503, "queue_full");
    assert_eq!(api.post(URI, "{\"token\":\"trip-42\"}").await.expect(200).text, "{\"cancelled\":1,\"requested\":0}");
}

#[tokio::test]
async fn a_group_cancel_whose_fate_is_unknown_says_so() {
    let api = Api::with(|settings| settings.write_timeout = std::time::Duration::from_millis(20));
    for (trouble, reason) in [
        (Trouble::OutcomeUnknown, "outcome_unknown"),
        (Trouble::Hangs, "outcome_unknown"),
        (Trouble::Unavailable, "store_unavailable"),
    ] {
        api.fake.trouble(Some(trouble));
        let answer = api.post(URI, "{\"workflow_id\":\"wf-7\"}").await;
        let problem = answer.refused(503, reason);
        assert!(answer.header("retry-after").is_some());
        assert_eq!(problem.get("task_id"), None);
    }
}
