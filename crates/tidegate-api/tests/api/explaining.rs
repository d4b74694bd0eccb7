//! Why a task stands where it stands.

use serde_json::{Value, json};
use tidegate_core::{Reason, Status};

use crate::fake::{NOW, Trouble};
use crate::harness::Api;

async fn explain(api: &Api, id: impl std::fmt::Display) -> Value {
    api.get(&format!("/v1/tasks/{id}/explain")).await.expect(200).json()
}

#[tokio::test]
async fn a_waiting_task_tells_what_holds_it() {
    let api = Api::new();
    let id = api.submit("{\"kind\":\"echo\"}").await.expect(202).id();
    let told = explain(&api, id).await;
    let members = "id status reason since waiting_ms eligible_at queue_position estimated_start_ms blockers summary";
    let names: Vec<_> = told.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, members.split_whitespace().collect::<Vec<_>>());
    assert_eq!(
        (&told["status"], &told["queue_position"], &told["waiting_ms"]),
        (&json!("QUEUED"), &json!(1), &json!(0))
    );
    let next = json!({
        "kind": "queue_position", "name": null, "limit": 1, "in_use": 1, "until": null, "pause_id": null,
        "detail": "it is next in the queue"
    });
    assert_eq!(told["blockers"], json!([next]));
    let pause = "{\"kind\":\"echo\",\"reason\":\"their maintenance\",\"until\":\"2030-01-01T00:00:00Z\"}";
    let pause = api.post("/v1/admin/pauses", pause).await.expect(201).json();
    let told = explain(&api, id).await;
    let held = &told["blockers"][0];
    assert_eq!((&held["kind"], &held["name"], &held["pause_id"]), (&json!("pause"), &json!("kind echo"), &pause["id"]));
    assert_eq!((&held["until"], &told["estimated_start_ms"]), (&pause["until"], &Value::Null));
    let summary = told["summary"].as_str().unwrap();
    assert!(summary.starts_with("Queued for 0 ms: kind echo is paused for another "), "{summary}");
    assert!(summary.ends_with("(their maintenance); it is next in the queue."), "{summary}");
}

#[tokio::test]
async fn a_task_that_does_not_wait_says_what_it_does_or_did() {
    let api = Api::new();
    let id = api.submit("{\"kind\":\"echo\"}").await.expect(202).id();
    api.fake.update(id, |task| {
        task.status = Status::Running;
        task.attempt = 1;
        task.started_ms = Some(NOW - 1_500);
        task.worker = Some("w-1".into());
    });
    let told = explain(&api, id).await;
    assert_eq!(
        (&told["status"], &told["blockers"], &told["waiting_ms"]),
        (&json!("RUNNING"), &json!([]), &Value::Null)
    );
    assert_eq!(told["summary"], "Running on w-1 for 1.5 s, attempt 1 of 3.");
    api.fake.update(id, |task| {
        task.status = Status::Failed;
        task.reason = Some(Reason::PermanentError);
        task.finished_ms = Some(NOW);
    });
    let told = explain(&api, id).await;
    assert_eq!((&told["reason"], &told["queue_position"]), (&json!("permanent_error"), &Value::Null));
    assert_eq!(told["summary"], "Ended FAILED 0 ms ago: permanent_error.");
    let later = api.submit("{\"kind\":\"echo\",\"delay_ms\":90000}").await.expect(202).id();
    let told = explain(&api, later).await;
    assert_eq!(told["eligible_at"], told["blockers"][0]["until"]);
    assert_eq!(told["summary"], "Deferred for 0 ms: it may start in 1 min 30 s (scheduled).");
}

#[tokio::test]
async fn what_cannot_be_explained_is_refused_like_what_cannot_be_read() {
    let api = Api::new();
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    let uri = format!("/v1/tasks/{id}/explain");
    let unknown = api.get("/v1/tasks/018f0000-0000-7000-8000-000000000007/explain").await;
    unknown.refused(404, "not_found");
    let other = api.ask("GET", &uri).header("x-tenant", "other").send().await;
    assert_eq!((other.status, &other.text), (unknown.status, &unknown.text));
    api.get("/v1/tasks/x/explain").await.refused(404, "not_found");
    api.get(&format!("{uri}?x=1")).await.refused(422, "unknown_field");
    api.fake.trouble(Some(Trouble::Unavailable));
    api.get(&uri).await.refused(503, "store_unavailable");
}
