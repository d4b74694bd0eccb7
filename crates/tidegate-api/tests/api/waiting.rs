//! Waiting for a task's end: by preference when submitting, by long-poll when reading.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fake::Trouble;
use crate::harness::{Answer, Api};

/// Runs `ask` while `meanwhile` happens, once a caller waits.
async fn once_waiting(api: &Arc<Api>, ask: impl Future<Output = Answer>, meanwhile: impl FnOnce(&Api)) -> Answer {
    let mut waiting = api.fake.waiting.subscribe();
    let then = async {
        waiting.wait_for(|count| *count > 0).await.unwrap();
        meanwhile(api);
    };
    tokio::join!(ask, then).0
}

fn first_id(api: &Api) -> tidegate_core::TaskId {
    api.fake.submissions()[0].id
}

#[tokio::test]
async fn a_preferred_wait_ends_with_the_task() {
    let api = Arc::new(Api::new());
    let ask =
        api.ask("POST", "/v1/tasks").header("prefer", "respond-async, wait=30").json("{\"kind\":\"echo\"}").send();
    let answer = once_waiting(&api, ask, |api| api.fake.complete(first_id(api), "7")).await.expect(200);
    assert_eq!(answer.header("preference-applied"), Some("wait=30"));
    assert_eq!((&answer.json()["status"], &answer.json()["result"]), (&"COMPLETED".into(), &7.into()));
    assert!(answer.header("location").is_some());
}

#[tokio::test]
async fn a_preferred_wait_that_is_over_is_a_202_with_the_task_as_it_is() {
    let api = Api::new();
    let started = Instant::now();
    let answer = api.ask("POST", "/v1/tasks").header("prefer", "wait=1").json("{\"kind\":\"echo\"}").send().await;
    let answer = answer.expect(202);
    assert!(started.elapsed() >= Duration::from_secs(1));
    assert_eq!(answer.header("preference-applied"), Some("wait=1"));
    assert_eq!(answer.json()["status"], "QUEUED");
    // No wait at all is a preference that is easily met; a bad one is none.
    let answer = api.ask("POST", "/v1/tasks").header("prefer", "wait=0").json("{\"kind\":\"echo\"}").send().await;
    assert_eq!(answer.expect(202).header("preference-applied"), Some("wait=0"));
    let answer = api.ask("POST", "/v1/tasks").header("prefer", "wait=soon").json("{\"kind\":\"echo\"}").send().await;
    assert_eq!(answer.expect(202).header("preference-applied"), None);
}

#[tokio::test]
async fn an_accepted_task_stays_accepted_when_it_cannot_be_read_again() {
    let api = Arc::new(Api::new());
    let ask = api.ask("POST", "/v1/tasks").header("prefer", "wait=30").json("{\"kind\":\"echo\"}").send();
    let answer = once_waiting(&api, ask, |api| {
        api.fake.trouble(Some(Trouble::Unavailable));
        api.fake.complete(first_id(api), "7");
    })
    .await;
    assert_eq!(answer.expect(202).json()["status"], "QUEUED");
}

#[tokio::test]
async fn a_replay_waits_too() {
    let api = Arc::new(Api::new());
    let send = |prefer: &'static str| {
        let ask = api.ask("POST", "/v1/tasks").header("idempotency-key", "k").header("prefer", prefer);
        ask.json("{\"kind\":\"echo\"}").send()
    };
    send("").await.expect(202);
    let answer = once_waiting(&api, send("wait=30"), |api| api.fake.complete(first_id(api), "7")).await;
    let answer = answer.expect(200);
    assert_eq!(answer.header("idempotent-replayed"), Some("true"));
    assert_eq!(answer.json()["status"], "COMPLETED");
}

#[tokio::test]
async fn a_long_poll_ends_with_the_task() {
    let api = Arc::new(Api::new());
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    let uri = format!("/v1/tasks/{id}?wait_ms=99999999");
    let answer = once_waiting(&api, api.get(&uri), |api| api.fake.complete(id, "7")).await.expect(200);
    assert_eq!(answer.json()["status"], "COMPLETED");
    // A task that has ended, an unknown one and another tenant's are not waited for.
    assert_eq!(api.get(&uri).await.expect(200).json()["status"], "COMPLETED");
    api.get("/v1/tasks/018f0000-0000-7000-8000-000000000007?wait_ms=60000").await.refused(404, "not_found");
    api.ask("GET", &uri).header("x-tenant", "other").send().await.refused(404, "not_found");
}

#[tokio::test]
async fn a_draining_server_lets_nobody_wait() {
    let api = Arc::new(Api::new());
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    let uri = format!("/v1/tasks/{id}?wait_ms=60000");
    let answer = once_waiting(&api, api.get(&uri), |api| api.state.start_draining()).await;
    assert_eq!(answer.expect(200).json()["status"], "QUEUED");
}

#[tokio::test]
async fn beyond_the_most_waiters_a_wait_returns_at_once() {
    let api = Arc::new(Api::with(|settings| settings.max_long_polls = 1));
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    let uri = format!("/v1/tasks/{id}?wait_ms=60000");
    let second = async {
        api.fake.waiting.subscribe().wait_for(|count| *count > 0).await.unwrap();
        let answer = api.get(&uri).await.expect(200);
        assert_eq!(answer.json()["status"], "QUEUED");
        api.fake.complete(id, "7");
    };
    let (first, ()) = tokio::join!(api.get(&uri), second);
    assert_eq!(first.expect(200).json()["status"], "COMPLETED");
}
