//! Over the real store: what the fake cannot show.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_api::{AppState, Settings, StoreBackend};
use tidegate_core::backoff::BackoffPolicy;
use tidegate_core::limits::Limits;
use tidegate_core::settlement::Ending;
use tidegate_core::{Kind, TenantId};
use tidegate_store::{Admitter, AdmitterOptions, Canceller, Report, Session, SessionSpec, Store, StoreOptions};
use tidegate_testkit::{Fault, FaultProxy, TestDb, poll_until};

use crate::harness::{Answer, Api};

const PATIENCE: Duration = Duration::from_secs(20);

struct Cell {
    api: Api,
    store: Store,
    db: TestDb,
}

impl Cell {
    async fn new(limits: Limits) -> Self {
        let db = TestDb::migrated().await;
        let url = db.url().to_owned();
        Self::over(db, &url, limits).await
    }

    async fn over(db: TestDb, url: &str, limits: Limits) -> Self {
        let store = Store::open(StoreOptions::new(url)).unwrap();
        let admitter = Admitter::start(&store, AdmitterOptions::default()).unwrap();
        store.seed_policy(&limits, &BTreeMap::new(), &BTreeMap::new()).await.unwrap();
        let canceller = Canceller::start(&store).unwrap();
        let backend = Arc::new(StoreBackend { store: store.clone(), admitter, canceller });
        let state = AppState::new(backend, Settings::default(), None);
        Self { api: Api::new().over(state), store, db }
    }

    async fn session(&self) -> Session {
        let kinds = vec![(Kind::parse("echo").unwrap(), Default::default())];
        let (lease, settle_reserve) = (Duration::from_secs(15), Duration::ZERO);
        let spec =
            SessionSpec { worker: "w1".into(), kinds, slots: 4, lease, settle_reserve, at_once: Default::default() };
        self.store.open_session(spec).await.unwrap()
    }

    /// Runs one task as a worker would, to its completion with its own payload.
    async fn run_one(&self, session: &Session) {
        let task = session.turn(&[], 1).await.unwrap().claimed.pop().unwrap();
        let report = Report {
            id: task.id,
            fence: task.fence,
            ending: Ending::Completed,
            result: Some(task.payload),
            error: None,
            usage: None,
            backoff: BackoffPolicy::default(),
        };
        session.turn(&[report], 0).await.unwrap();
    }

    /// The task, once a refusal that is recorded in the background can be read.
    async fn readable(&self, id: impl std::fmt::Display) -> Value {
        let uri = format!("/v1/tasks/{id}");
        poll_until(PATIENCE, &format!("{uri} to be readable"), async || {
            Some(self.api.get(&uri).await).filter(|answer| answer.status == 200).map(|answer| answer.json())
        })
        .await
    }
}

/// Without what may differ between the moment of the answer and a later reading.
fn steady(answer: &Answer) -> Value {
    let mut json = answer.json();
    for name in ["remaining_ms", "queue_wait_ms"] {
        json[name] = Value::Null;
    }
    json
}

#[tokio::test]
async fn what_a_submission_answers_is_what_is_read_later() {
    let cell = Cell::new(Limits::default()).await;
    let body = r#"{"kind":"echo","payload":{"b": 1.50, "a": 123456789012345678901234567890, "b": "\u00e9"},
        "priority":"critical","timeout_ms":30000,"min_useful_ms":5,"cost":{"tokens":7,"usd_micros":1000000000000},
        "peer":"p","max_attempts":2,"attempt_timeout_ms":9000,"cancellation_token":"t é","workflow_id":"w","labels":{"b":"1","a":""}}"#;
    let answer = cell.api.ask("POST", "/v1/tasks").header("idempotency-key", "k").json(body).send().await.expect(202);
    let read = cell.api.get(&format!("/v1/tasks/{}", answer.id())).await.expect(200);
    assert_eq!(steady(&answer), steady(&read));
    let payload = r#""payload":{"b": 1.50, "a": 123456789012345678901234567890, "b": "\u00e9"},"#;
    assert!(answer.text.contains(payload) && read.text.contains(payload));
    let again = cell.api.ask("POST", "/v1/tasks").header("idempotency-key", "k").json(body).send().await.expect(200);
    assert_eq!(again.id(), answer.id());
    let other =
        cell.api.ask("POST", "/v1/tasks").header("idempotency-key", "k").json("{\"kind\":\"echo\"}").send().await;
    other.refused(422, "key_reused");
}

#[tokio::test]
async fn the_largest_values_that_are_let_in_can_be_kept() {
    let cell = Cell::new(Limits::default()).await;
    let label = format!("\"{}\":\"{}\"", "é".repeat(64), "\u{1F30A}".repeat(256));
    let name = "\u{1F30A}".repeat(255);
    let kind = "k".repeat(128);
    let body = format!(
        "{{\"kind\":\"{kind}\",\"peer\":\"{kind}\",\"priority\":100,\"timeout_ms\":86400000,\"min_useful_ms\":86400000,\
         \"max_attempts\":100,\"attempt_timeout_ms\":2592000000,\"delay_ms\":316224000000,\
         \"cost\":{{\"tokens\":1000000000000,\"usd_micros\":1000000000000}},\"workflow_id\":\"{name}\",\
         \"cancellation_token\":\"{name}\",\"labels\":{{{label}}},\"payload\":\"{}\"}}",
        "x".repeat((256 << 10) - 2)
    );
    let tenant = "t".repeat(128);
    let key = "~".repeat(255);
    let answer = cell.api.ask("POST", "/v1/tasks").header("x-tenant", &tenant).header("idempotency-key", &key);
    let answer = answer.header("x-budget", "{\"depth\":2147483647,\"fanout\":2147483647}").json(body).send().await;
    let id = answer.expect(202).id();
    let read = cell.api.ask("GET", &format!("/v1/tasks/{id}")).header("x-tenant", &tenant).send().await.expect(200);
    assert_eq!(read.json()["workflow_id"], name);
    // Times at the ends of what can be said make no failure either.
    for (header, body) in [
        ("-9223372036854775808", "{\"kind\":\"echo\"}"),
        ("9223372036854775807", "{\"kind\":\"echo\",\"not_before\":\"0000-01-01T00:00:00Z\"}"),
        ("9223372036854775807", "{\"kind\":\"echo\",\"deadline\":\"9999-12-31T23:59:59.999Z\"}"),
    ] {
        let answer = cell.api.ask("POST", "/v1/tasks").header("x-deadline-epoch-ms", header).json(body).send().await;
        let answer = answer.expect(if header.starts_with('-') { 503 } else { 202 });
        cell.readable(answer.id()).await;
    }
}

#[tokio::test]
async fn every_refusal_can_be_read() {
    let mut limits = Limits { max_queued: 1, ..Limits::default() };
    limits.classes.standard.shed_at = None;
    let cell = Cell::new(limits).await;
    let batch = format!(
        r#"{{"tasks":[{{"kind":"echo"}},{{"kind":"echo"}},{{"kind":"echo","deadline":"2020-01-01T00:00:00Z"}},
            {{"kind":"echo","payload":"{}"}}]}}"#,
        "x".repeat(300_000)
    );
    let answer = cell.api.post("/v1/tasks/batch", batch).await.expect(200).json();
    for (at, (outcome, reason)) in [
        ("QUEUED", Value::Null),
        ("REJECTED", "queue_full".into()),
        ("EXPIRED", "deadline_passed".into()),
        ("REJECTED", "payload_too_large".into()),
    ]
    .into_iter()
    .enumerate()
    {
        let item = &answer["results"][at];
        assert_eq!(item["outcome"], outcome, "{at}: {item}");
        let read = cell.readable(item["task_id"].as_str().unwrap()).await;
        assert_eq!((&read["status"], &read["reason"]), (&outcome.into(), &reason));
        if outcome != "QUEUED" {
            let cancel = format!("/v1/tasks/{}/cancel", item["task_id"].as_str().unwrap());
            let problem = cell.api.post(&cancel, "").await.refused(409, "already_ended");
            assert_eq!((&problem["outcome"], &problem["task_id"]), (&outcome.into(), &item["task_id"]));
            cell.api.ask("POST", &cancel).header("x-tenant", "other").json("").send().await.refused(404, "not_found");
        }
    }
    let listed = cell.api.get("/v1/tasks").await.expect(200).json();
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn what_a_cancelled_token_refused_is_cancelled_already() {
    let cell = Cell::new(Limits::default()).await;
    cell.api.post("/v1/cancellations", r#"{"token":"t"}"#).await.expect(200);
    let refused = cell.api.submit(r#"{"kind":"echo","cancellation_token":"t"}"#).await;
    refused.refused(409, "token_cancelled");
    let cancelled = cell.api.post(&format!("/v1/tasks/{}/cancel", refused.id()), "").await.expect(200).json();
    assert_eq!((&cancelled["status"], &cancelled["reason"]), (&"CANCELLED".into(), &"token_cancelled".into()));
}

#[tokio::test]
async fn what_a_draining_server_refused_outlives_it() {
    let cell = Cell::new(Limits::default()).await;
    cell.api.state.start_draining();
    let refused = cell.api.submit("{\"kind\":\"echo\"}").await;
    assert_eq!(refused.refused(503, "draining")["outcome"], "REJECTED");
    let read = cell.api.get(&format!("/v1/tasks/{}", refused.id())).await.expect(200).json();
    assert_eq!((&read["status"], &read["reason"]), (&"REJECTED".into(), &"draining".into()));
    cell.store.close().await;
    let elsewhere = Store::open(StoreOptions::new(cell.db.url())).unwrap();
    assert!(elsewhere.task(&TenantId::default_tenant(), refused.id()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_wait_ends_with_the_task() {
    let cell = Cell::new(Limits::default()).await;
    let session = cell.session().await;
    let ask =
        cell.api.ask("POST", "/v1/tasks").header("prefer", "wait=20").json("{\"kind\":\"echo\",\"payload\":[1.0]}");
    let worker = async {
        poll_until(PATIENCE, "a task with a slot of its own", async || {
            cell.api.get("/v1/tasks?status=ADMITTED").await.text.contains("\"ADMITTED\"").then_some(())
        })
        .await;
        cell.run_one(&session).await;
    };
    let (answer, ()) = tokio::join!(ask.send(), worker);
    let answer = answer.expect(200);
    assert!(answer.text.contains("\"result\":[1.0]"), "{}", answer.text);
    assert_eq!(answer.json()["worker"], "w1");
    let attempts = cell.api.get(&format!("/v1/tasks/{}/attempts", answer.id())).await.expect(200).json();
    assert_eq!(attempts["attempts"][0]["outcome"], "completed");
    cell.api.post(&format!("/v1/tasks/{}/cancel", answer.id()), "").await.refused(409, "already_ended");
}

#[tokio::test]
async fn a_cancel_ends_what_waits() {
    let cell = Cell::new(Limits::default()).await;
    let id = cell.api.submit("{\"kind\":\"echo\"}").await.expect(202).id();
    let answer = cell.api.post(&format!("/v1/tasks/{id}/cancel"), "{\"reason\":\"so it is\"}").await.expect(200).json();
    assert_eq!((&answer["status"], &answer["detail"]), (&"CANCELLED".into(), &"so it is".into()));
    cell.api.post(&format!("/v1/tasks/{id}/cancel"), "{}").await.expect(200);
    let pressure = cell.api.get("/v1/pressure").await.expect(200).json();
    assert_eq!((&pressure["queued"], &pressure["running"]), (&0.into(), &0.into()));
    cell.api.get("/readyz").await.expect(200);
    assert!(cell.api.get("/").await.expect(200).text.contains(&id.to_string()));
}

#[tokio::test]
async fn a_listing_through_the_api_finds_every_task_once() {
    let cell = Cell::new(Limits::default()).await;
    let items: Vec<_> = (0..23).map(|n| format!("{{\"kind\":\"echo\",\"payload\":{n}}}")).collect();
    cell.api.post("/v1/tasks/batch", format!("{{\"tasks\":[{}]}}", items.join(","))).await.expect(200);
    let mut seen = Vec::new();
    let mut uri = "/v1/tasks?limit=5".to_owned();
    loop {
        let page = cell.api.get(&uri).await.expect(200).json();
        seen.extend(page["tasks"].as_array().unwrap().iter().map(|task| task["payload"].as_u64().unwrap()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        uri = format!("/v1/tasks?limit=5&cursor={cursor}");
    }
    assert_eq!(seen, (0..23).rev().collect::<Vec<_>>());
}

#[tokio::test]
async fn a_database_that_is_away_is_said_within_two_seconds() {
    let db = TestDb::migrated().await;
    let (proxy, url) = FaultProxy::for_database(db.url()).await;
    let cell = Cell::over(db, &url, Limits::default()).await;
    let id = cell.api.submit("{\"kind\":\"echo\"}").await.expect(202).id();
    proxy.set(Fault::Blackhole);
    proxy.strand_all();
    let (read, uri) = (format!("/v1/tasks/{id}"), format!("/v1/tasks/{id}/attempts"));
    let started = Instant::now();
    let (submitted, read, attempts, ready) = tokio::join!(
        cell.api.submit("{\"kind\":\"echo\"}"),
        cell.api.get(&read),
        cell.api.get(&uri),
        cell.api.get("/readyz")
    );
    assert!(started.elapsed() < Duration::from_millis(2_200), "{:?}", started.elapsed());
    for answer in [submitted, read, attempts, ready] {
        answer.refused(503, "store_unavailable");
        assert!(answer.header("retry-after").is_some());
    }
}

#[tokio::test]
async fn what_operators_change_is_stored_and_what_tenants_hold_is_told() {
    let cell = Cell::new(Limits { max_deferred: 7, ..Limits::default() }).await;
    let patch = async |uri: &str, change: &str| cell.api.ask("PATCH", uri).json(change.to_owned()).send().await;
    let limits = patch("/v1/admin/limits", "{\"max_running\":3}").await.expect(200).json();
    assert_eq!((&limits["max_deferred"], &limits["max_running"]), (&7.into(), &3.into()));
    assert_eq!(cell.api.get("/v1/admin/limits").await.json(), limits);
    let refused = patch("/v1/admin/limits", "{\"max_running\":4,\"max_deferred\":null}").await;
    assert_eq!(refused.refused(422, "invalid_value")["pointer"], "/max_deferred");
    assert_eq!(cell.api.get("/v1/admin/limits").await.json(), limits);

    patch("/v1/admin/tenants/default", "{\"max_queued\":100,\"max_priority\":60}").await.expect(200);
    patch("/v1/admin/peers/hotels", "{\"max_in_flight\":2}").await.expect(200);
    let task =
        cell.api.submit("{\"kind\":\"echo\",\"payload\":1,\"priority\":100,\"peer\":\"hotels\"}").await.expect(202);
    let read = cell.api.get(&format!("/v1/tasks/{}", task.id())).await.expect(200).json();
    assert_eq!((&read["priority"], read["priority_notes"].as_array().unwrap().len()), (&60.into(), 1));
    let tenant = cell.api.get("/v1/admin/tenants/default").await.expect(200).json();
    assert_eq!((&tenant["usage"]["queued"], &tenant["usage"]["bytes"]), (&1.into(), &1.into()));
    let peer = cell.api.get("/v1/admin/peers/hotels").await.expect(200).json();
    assert_eq!((&peer["usage"]["waiting"], &peer["usage"]["in_flight"]), (&1.into(), &0.into()));
    let page = cell.api.get("/v1/admin/tenants").await.expect(200).json();
    assert_eq!(page["tenants"][0], tenant);

    let past = "{\"kind\":\"echo\",\"until\":\"2020-01-01T00:00:00Z\"}";
    assert_eq!(cell.api.post("/v1/admin/pauses", past).await.refused(422, "invalid_value")["pointer"], "/until");
    let pause = cell.api.post("/v1/admin/pauses", "{\"peer\":\"hotels\",\"reason\":\"down\"}").await.expect(201).json();
    assert_eq!(cell.api.get("/v1/admin/pauses").await.json()["pauses"][0], pause);
    let uri = format!("/v1/admin/pauses/{}", pause["id"].as_str().unwrap());
    cell.api.ask("DELETE", &uri).send().await.expect(204);
    cell.api.ask("DELETE", "/v1/admin/tenants/default").send().await.expect(204);
    assert_eq!(cell.api.get("/v1/admin/tenants/default").await.expect(200).json()["configured"], false);
}

#[tokio::test]
async fn a_cancelled_group_is_gone_with_its_children_and_its_token_is_refused() {
    let cell = Cell::new(Limits::default()).await;
    let member = "{\"kind\":\"echo\",\"cancellation_token\":\"trip-42\",\"workflow_id\":\"wf-7\"}";
    let session = cell.session().await;
    let parent = cell.api.submit(member).await.expect(202).id();
    assert_eq!(session.turn(&[], 1).await.unwrap().claimed[0].id, parent);
    let waiting = cell.api.submit(member).await.expect(202).id();
    let child = cell.api.submit(format!("{{\"kind\":\"echo\",\"parent_id\":\"{parent}\"}}")).await.expect(202).id();
    let cancel = async |body: &str| cell.api.post("/v1/cancellations", body.to_owned()).await.expect(200).json();
    let reached = cancel("{\"token\":\"trip-42\"}").await;
    assert_eq!(reached, serde_json::json!({"cancelled": 1, "requested": 1}));
    for (id, reason) in [(waiting, "token_cancelled"), (child, "parent_cancelled")] {
        let task = cell.api.get(&format!("/v1/tasks/{id}")).await.expect(200).json();
        assert_eq!((&task["status"], &task["reason"]), (&"CANCELLED".into(), &reason.into()));
    }
    let asked = cell.api.get(&format!("/v1/tasks/{parent}")).await.expect(200).json();
    assert_eq!((&asked["status"], &asked["children"]), (&"RUNNING".into(), &serde_json::json!([child])));
    assert!(asked["cancel"]["requested_at"].is_string());
    let late = cell.api.submit(member).await;
    let problem = late.refused(409, "token_cancelled");
    assert_eq!((&problem["outcome"], late.header("retry-after")), (&"CANCELLED".into(), None));
    // A workflow is not refused.
    let again = cell.api.submit("{\"kind\":\"echo\",\"workflow_id\":\"wf-7\"}").await.expect(202).id();
    let reached = cancel("{\"workflow_id\":\"wf-7\"}").await;
    assert_eq!(reached, serde_json::json!({"cancelled": 1, "requested": 1}));
    let task = cell.api.get(&format!("/v1/tasks/{again}")).await.expect(200).json();
    assert_eq!(task["reason"], "workflow_cancelled");
}
