//! Reading tasks.

use serde_json::Value;
use tidegate_core::submission::Cost;
use tidegate_core::{Fence, Reason, Status};
use tidegate_store::{AttemptRecord, TaskError};

use crate::fake::{NOW, Trouble};
use crate::harness::Api;

#[tokio::test]
async fn a_task_shows_all_that_is_known() {
    let api = Api::new();
    let answer = api.submit("{\"kind\":\"hotels\",\"payload\":{\"q\":1.0}}").await.expect(202);
    api.fake.update(answer.id(), |task| {
        task.status = Status::Running;
        task.attempt = 2;
        task.deliveries = 3;
        task.fence = Fence(3);
        task.started_ms = Some(NOW + 40);
        task.now_ms = NOW + 100;
        task.worker = Some("w-1".into());
        task.progress = Some("{\"done\": 0.5}".into());
        task.cancel_requested_ms = Some(NOW + 90);
        task.cancel_delivered_ms = Some(NOW + 95);
        task.actual = Some(Cost { tokens: 7, usd_micros: 1 });
        task.error = Some(TaskError { kind: "http_status".into(), message: "502 <b>".into(), retryable: true });
        task.children = vec![task.id];
        task.priority_notes = vec!["asked for 50".into()];
        task.note = Some("REMOTE_BUSY".into());
    });
    let read = api.get(&format!("/v1/tasks/{}", answer.id())).await.expect(200);
    assert_eq!(read.json()["remaining_ms"], 299_900);
    insta::assert_snapshot!(read.stable());
}

#[tokio::test]
async fn every_member_of_the_contract_is_there_even_without_a_value() {
    const MEMBERS: &str = "id kind tenant status reason detail priority class priority_notes attempt max_attempts \
        deliveries fence enqueued_at not_before started_at finished_at deadline remaining_ms admission_wait_ms \
        queue_wait_ms run_ms queue_position estimated_start_ms note cancel cost peer worker progress payload result \
        error labels workflow_id parent_id children cancellation_token idempotency_key redriven_from";
    let api = Api::new();
    let answer = api.submit("{\"kind\":\"echo\"}").await.expect(202);
    let read = api.get(&format!("/v1/tasks/{}", answer.id())).await.expect(200);
    for json in [answer.json(), read.json()] {
        let Value::Object(task) = json else { panic!("not an object") };
        assert_eq!(task.keys().map(String::as_str).collect::<Vec<_>>(), MEMBERS.split_whitespace().collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn what_is_not_yours_is_not_there() {
    let api = Api::new();
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    let unknown = api.get("/v1/tasks/018f0000-0000-7000-8000-000000000007").await;
    unknown.refused(404, "not_found");
    for (method, path) in [("GET", ""), ("GET", "/attempts"), ("GET", "/explain"), ("POST", "/cancel")] {
        let other = api.ask(method, &format!("/v1/tasks/{id}{path}")).header("x-tenant", "other").send().await;
        assert_eq!((other.status, &other.text), (unknown.status, &unknown.text), "{method} {path}");
        for malformed in ["x", "%00", "..%2f", "018F", "%ff", "018f0000000070008000000000000007", "' OR 1=1"] {
            let uri = format!("/v1/tasks/{}{path}", malformed.replace(' ', "%20").replace('\'', "%27"));
            let answer = api.ask(method, &uri).send().await;
            assert_eq!((answer.status, &answer.text), (unknown.status, &unknown.text), "{method} {uri}");
        }
    }
    assert_eq!(api.get(&format!("/v1/tasks/{id}")).await.expect(200).json()["status"], "QUEUED");
}

#[tokio::test]
async fn a_listing_goes_from_page_to_page() {
    let api = Api::new();
    for n in 0..7 {
        api.submit(format!("{{\"kind\":\"echo\",\"payload\":{n}}}")).await.expect(202);
    }
    api.ask("POST", "/v1/tasks").header("x-tenant", "other").json("{\"kind\":\"echo\"}").send().await.expect(202);
    let mut seen = Vec::new();
    let mut uri = "/v1/tasks?limit=3".to_owned();
    loop {
        let page = api.get(&uri).await.expect(200).json();
        seen.extend(page["tasks"].as_array().unwrap().iter().map(|task| task["payload"].as_u64().unwrap()));
        match page["next_cursor"].as_str() {
            Some(cursor) => uri = format!("/v1/tasks?limit=3&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, [6, 5, 4, 3, 2, 1, 0]);
}

#[tokio::test]
async fn a_listing_is_filtered() {
    let api = Api::new();
    api.submit("{\"kind\":\"a\",\"priority\":95,\"labels\":{\"team\":\"x y\",\"b\":\"\"}}").await.expect(202);
    api.submit("{\"kind\":\"b\",\"peer\":\"p\",\"workflow_id\":\"wf é\"}").await.expect(202);
    api.submit("{\"kind\":\"b\",\"delay_ms\":5000}").await.expect(202);
    for (query, count) in [
        ("", 3),
        ("kind=b", 2),
        ("kind=b&status=DEFERRED", 1),
        ("class=critical", 1),
        ("peer=p", 1),
        ("workflow_id=wf%20%C3%A9", 1),
        ("label.team=x+y", 1),
        ("label.team=x+y&label.b=", 1),
        ("label.team=z", 0),
        ("from=2026-11-30T00:53:20Z", 3),
        ("to=2026-11-30T00:53:20Z", 0),
        ("limit=200", 3),
    ] {
        let page = api.get(&format!("/v1/tasks?{query}")).await.expect(200).json();
        assert_eq!(page["tasks"].as_array().unwrap().len(), count, "{query}");
    }
}

#[tokio::test]
async fn attempts_tell_what_happened() {
    let api = Api::new();
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    let uri = format!("/v1/tasks/{id}/attempts");
    assert_eq!(api.get(&uri).await.expect(200).text, "{\"attempts\":[]}");
    api.fake.add_attempt(
        id,
        AttemptRecord {
            number: 1,
            fence: Fence(1),
            worker: Some("w-1".into()),
            started_ms: NOW,
            ended_ms: Some(NOW + 50),
            outcome: "failed".into(),
            reason: Some(Reason::RetryBackoff),
            error: Some(TaskError { kind: "http_status".into(), message: "502".into(), retryable: true }),
            result: None,
        },
    );
    insta::assert_snapshot!(api.get(&uri).await.expect(200).stable());
}

#[tokio::test]
async fn pressure_says_how_full_it_is() {
    let api = Api::with_room(8);
    for _ in 0..6 {
        api.submit("{\"kind\":\"echo\"}").await.expect(202);
    }
    let answer = api.get("/v1/pressure").await.expect(200);
    assert_eq!(answer.header("x-pressure"), Some("0.75"));
    insta::assert_snapshot!(answer.stable());
}

#[tokio::test]
async fn the_store_is_asked_for_numbers_at_most_once_a_second() {
    let api = Api::new();
    for _ in 0..20 {
        api.get("/v1/pressure").await.expect(200);
        api.get("/").await.expect(200);
    }
    assert!((1..=2).contains(&api.fake.gauges_asked()), "{}", api.fake.gauges_asked());
}

#[tokio::test]
async fn a_store_that_is_away_is_said_within_two_seconds() {
    let api = Api::new();
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    for trouble in [Trouble::Unavailable, Trouble::Hangs] {
        api.fake.trouble(Some(trouble));
        let started = std::time::Instant::now();
        let uris = [
            format!("/v1/tasks/{id}"),
            format!("/v1/tasks/{id}/attempts"),
            "/v1/tasks".into(),
            "/readyz".into(),
            "/v1/pressure".into(),
        ];
        let answers = futures_util::future::join_all(uris.iter().map(|uri| api.get(uri))).await;
        for answer in answers {
            answer.refused(503, "store_unavailable");
            assert!(answer.header("retry-after").is_some());
            assert_eq!(answer.header("x-shed-reason"), Some("store_unavailable"));
        }
        assert!(started.elapsed() < std::time::Duration::from_secs(2), "{trouble:?}");
        api.get("/livez").await.expect(200);
        api.get("/").await.expect(200);
    }
}

#[tokio::test]
async fn what_breaks_inside_stays_inside() {
    let api = Api::new();
    for trouble in [Trouble::Broken, Trouble::Panics] {
        api.fake.trouble(Some(trouble));
        let answer = api.ask("GET", "/v1/tasks").header("x-request-id", "req-77").send().await;
        answer.refused(500, "internal_error");
        assert!(!answer.text.contains("cupboard"), "{}", answer.text);
        assert_eq!(answer.header("x-request-id"), Some("req-77"));
    }
    api.fake.trouble(Some(Trouble::Panics));
    let answer = api.ask("POST", "/v1/tasks").header("x-request-id", "req-78").json("{\"kind\":\"echo\"}").send().await;
    assert!(answer.refused(500, "internal_error")["detail"].as_str().unwrap().contains("req-78"));
}
