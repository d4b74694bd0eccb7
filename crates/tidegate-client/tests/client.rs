//! The client against a server that says what it is told to.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod fake;

use std::time::Duration;

use fake::{Behaviour, Fake, answer};
use tidegate_client::{BatchItem, Class, Client, Error, NewTask, Status, TaskId, TaskQuery};

const ID: &str = "019a0000-0000-7000-8000-000000000000";

fn task_json(status: &str) -> String {
    format!(
        r#"{{"id":"{ID}","kind":"echo","tenant":"default","status":"{status}","reason":null,"detail":null,
        "priority":50,"class":"standard","priority_notes":[],"attempt":1,"max_attempts":3,"deliveries":1,"fence":1,
        "enqueued_at":"2026-11-30T08:15:00.000Z","not_before":null,"started_at":null,"finished_at":null,
        "deadline":"2026-11-30T08:20:00.000Z","remaining_ms":1,"admission_wait_ms":0,"queue_wait_ms":1,"run_ms":null,
        "queue_position":null,"estimated_start_ms":null,"note":null,"cancel":null,
        "cost":{{"estimated":{{"tokens":0,"usd_micros":0}},"actual":null}},"peer":null,"worker":null,"progress":null,
        "payload":{{"b":1.50,"a":1e400}},"result":null,"error":null,"labels":null,"workflow_id":null,"parent_id":null,
        "children":[],"cancellation_token":null,"idempotency_key":null,"redriven_from":null,"unheard_of":[1]}}"#
    )
}

fn problem_json(status: u16, reason: &str, more: &str) -> String {
    format!(
        r#"{{"type":"/docs/errors/{reason}","title":"T","status":{status},"detail":"D","reason":"{reason}"{more}}}"#
    )
}

fn id() -> TaskId {
    ID.parse().unwrap()
}

async fn client_of(behaviour: Behaviour) -> (Client, Fake) {
    let fake = Fake::start(vec![behaviour]).await;
    (Client::new(&fake.url(), Some("key-1")).unwrap(), fake)
}

#[tokio::test]
async fn a_submission_carries_what_was_said_and_the_answer_what_came() {
    let headers =
        ["x-pressure: 0.25", "idempotent-replayed: true", "x-request-id: r1", "date: Mon, 30 Nov 2026 08:15:00 GMT"];
    let (client, fake) = client_of(answer("202 Accepted", &headers, &task_json("QUEUED"))).await;
    let task = NewTask::new("echo")
        .payload_json(r#"{"b":1.50,"a":1e400}"#)
        .unwrap()
        .class(Class::Critical)
        .timeout(Duration::from_micros(1_500))
        .label("safety", "true")
        .idempotency_key("k1")
        .wait(Duration::from_secs(5));
    let task = client.submit(&task).await.unwrap();
    assert_eq!((task.id, task.status), (id(), Status::Queued));
    assert_eq!(task.payload.as_ref().map(|payload| payload.get()), Some(r#"{"b":1.50,"a":1e400}"#));
    assert!(task.json.contains("unheard_of"));
    assert_eq!((task.pressure, task.replayed, task.request_id.as_deref()), (Some(0.25), true, Some("r1")));
    assert_eq!(task.date.map(|date| date.timestamp()), Some(1_796_026_500));
    let request = fake.requests().remove(0);
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    for part in ["post /v1/tasks http/1.1", "authorization: bearer key-1", "idempotency-key: k1", "prefer: wait=5"] {
        assert!(head.contains(part), "{part:?} is not in {head}");
    }
    let expected = r#"{"kind":"echo","payload":{"b":1.50,"a":1e400},"priority":"critical","timeout_ms":2,"labels":{"safety":"true"}}"#;
    assert_eq!(body, expected);
}

#[tokio::test]
async fn a_refusal_says_why_which_task_and_when_to_try_again() {
    let more = format!(r#","task_id":"{ID}","outcome":"REJECTED","retry_after_ms":1500"#);
    let refused = answer("503 Service Unavailable", &["retry-after: 2"], &problem_json(503, "queue_full", &more));
    let (client, _fake) = client_of(refused).await;
    let Err(Error::Refused(refusal)) = client.submit(&NewTask::new("echo")).await else { panic!("not refused") };
    assert_eq!((refusal.status(), refusal.reason(), refusal.task_id()), (503, "queue_full", Some(id())));
    assert_eq!(
        (refusal.outcome(), refusal.retry_after()),
        (Some(Status::Rejected), Some(Duration::from_millis(1_500)))
    );
}

#[tokio::test]
async fn answers_are_told_apart_by_what_the_caller_can_do() {
    let task = format!(r#","task_id":"{ID}""#);
    let refused = |outcome: &str| format!(r#","task_id":"{ID}","outcome":"{outcome}""#);
    for (status, problem, expected) in [
        ("429 Too Many Requests", problem_json(429, "tenant_rate", ""), "refused"),
        ("503 Service Unavailable", problem_json(503, "store_unavailable", ""), "refused"),
        ("503 Service Unavailable", problem_json(503, "outcome_unknown", &task), "unknown"),
        ("422 Unprocessable Content", problem_json(422, "quarantined", &refused("REJECTED")), "refused"),
        ("409 Conflict", problem_json(409, "token_cancelled", &refused("CANCELLED")), "refused"),
        ("409 Conflict", problem_json(409, "already_ended", &refused("COMPLETED")), "problem"),
        ("422 Unprocessable Content", problem_json(422, "invalid_value", r#","pointer":"/kind""#), "problem"),
        ("404 Not Found", problem_json(404, "not_found", ""), "problem"),
        ("502 Bad Gateway", "<html>proxy</html>".to_owned(), "unexpected"),
        ("302 Found", String::new(), "unexpected"),
        ("200 OK", "{}".to_owned(), "unexpected"),
    ] {
        let (client, _fake) = client_of(answer(status, &[], &problem)).await;
        let got = match client.submit(&NewTask::new("echo")).await {
            Err(Error::Refused(_)) => "refused",
            Err(Error::OutcomeUnknown { task_id, .. }) => task_id.map_or("no id", |_| "unknown"),
            Err(Error::Problem(_)) => "problem",
            Err(Error::Unexpected { .. }) => "unexpected",
            other => panic!("{status}: {other:?}"),
        };
        assert_eq!(got, expected, "{status} {problem}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_and_one_that_does_not_answer_are_told_apart() {
    let fake = Fake::start(vec![Behaviour::Close, Behaviour::Hang]).await;
    let client = Client::builder(&fake.url()).timeout(Duration::from_millis(200)).build().unwrap();
    assert!(matches!(client.get(id()).await, Err(Error::NoAnswer { .. })));
    assert!(matches!(client.get(id()).await, Err(Error::NoAnswer { .. })));
    // Neither was tried again in secret.
    assert_eq!(fake.requests().len(), 2);
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client = Client::new(&format!("http://{nobody}"), None).unwrap();
    let error = client.get(id()).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { host, .. } if *host == nobody.to_string()), "{error:?}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let target = Fake::start(vec![answer("200 OK", &[], &task_json("COMPLETED"))]).await;
    let location = format!("location: {}/", target.url());
    let (client, _fake) = client_of(answer("307 Temporary Redirect", &[&location], "")).await;
    assert!(matches!(client.get(id()).await, Err(Error::Unexpected { status: 307, .. })));
    assert_eq!(target.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn an_answer_is_read_only_so_far() {
    let fake =
        Fake::start(vec![answer("200 OK", &[], &task_json("QUEUED")), answer("200 OK", &[], &"x".repeat(10_000))])
            .await;
    let client = Client::builder(&fake.url()).max_answer_bytes(task_json("QUEUED").len()).build().unwrap();
    assert!(client.get(id()).await.is_ok());
    assert!(matches!(client.get(id()).await, Err(Error::TooLarge { .. })));
}

#[tokio::test]
async fn queries_and_cancels_are_written_as_the_contract_says() {
    let list = r#"{"tasks":[],"next_cursor":"c2"}"#;
    let fake = Fake::start(vec![
        answer("200 OK", &[], list),
        answer("200 OK", &[], &task_json("CANCELLED")),
        answer("200 OK", &[], &task_json("COMPLETED")),
        answer("200 OK", &[], r#"{"cancelled":2,"requested":1}"#),
        answer("200 OK", &[], r#"{"cancelled":0,"requested":3}"#),
    ])
    .await;
    let client = Client::builder(&fake.url()).tenant("acme").build().unwrap();
    let query = TaskQuery {
        kind: Some("a b".to_owned()),
        labels: vec![("k&".to_owned(), "v=1".to_owned())],
        limit: Some(7),
        ..TaskQuery::default()
    };
    assert_eq!(client.list(&query).await.unwrap().next_cursor.as_deref(), Some("c2"));
    client.cancel(id(), Some("no longer needed")).await.unwrap();
    client.get_wait(id(), Duration::from_millis(250)).await.unwrap();
    assert_eq!(client.cancel_token("trip-42").await.unwrap().cancelled, 2);
    assert_eq!(client.cancel_workflow("wf-7").await.unwrap().requested, 3);
    let requests = fake.requests();
    for (request, parts) in requests.iter().zip([
        ["get /v1/tasks?kind=a+b&limit=7&label.k%26=v%3d1 ", "x-tenant: acme"],
        [&format!("post /v1/tasks/{ID}/cancel "), r#"{"reason":"no longer needed"}"#],
        [&format!("get /v1/tasks/{ID}?wait_ms=250 "), ""],
        ["post /v1/cancellations ", r#"{"token":"trip-42"}"#],
        ["post /v1/cancellations ", r#"{"workflow_id":"wf-7"}"#],
    ]) {
        for part in parts {
            assert!(request.contains(part), "{part:?} is not in {request}");
        }
    }
    assert!(!requests[0].contains("authorization"));
}

#[tokio::test]
async fn a_batch_is_answered_one_by_one_and_takes_no_headers() {
    let item = format!(
        r#"{{"status":"QUEUED","task_id":"{ID}","outcome":"QUEUED","reason":null,"class":"standard","deadline":"2026-11-30T08:20:00.000Z"}}"#
    );
    let results = format!(r#"{{"results":[{item},{}]}}"#, problem_json(503, "queue_full", ""));
    let fake = Fake::start(vec![answer("200 OK", &[], &results), answer("200 OK", &[], &results)]).await;
    let client = Client::new(&fake.url(), None).unwrap();
    let tasks = [NewTask::new("echo"), NewTask::new("sleep")];
    let answers = client.submit_batch(&tasks).await.unwrap();
    assert!(matches!(&answers[0], BatchItem::Accepted(item) if item.task_id == id()));
    assert!(matches!(&answers[1], BatchItem::Refused(problem) if problem.reason == "queue_full"));
    assert!(matches!(client.submit_batch(&tasks[..1]).await, Err(Error::Unexpected { .. })));
    let keyed = [NewTask::new("echo").idempotency_key("k")];
    assert!(matches!(client.submit_batch(&keyed).await, Err(Error::Invalid(_))));
    let many = vec![NewTask::new("echo"); 1_001];
    assert!(matches!(client.submit_batch(&many).await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn what_no_header_can_carry_is_not_sent() {
    let (client, fake) = client_of(Behaviour::Close).await;
    for task in [NewTask::new("echo").idempotency_key("a\nb"), NewTask::new("echo").traceparent("\0")] {
        assert!(matches!(client.submit(&task).await, Err(Error::Invalid(_))));
    }
    assert_eq!(fake.requests(), Vec::<String>::new());
}
