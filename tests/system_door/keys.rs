//! Idempotency keys over two replicas, and over the death of one of them (C13, C14).

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tidegate_testkit::{Fault, FaultProxy, POLL_INTERVAL, poll_until, short_or_long};
use tokio::task::JoinSet;

use crate::caller::id_of;
use crate::fleet::{Fleet, LIMIT, number};

/// What each piece to and from the database is held back for: between a commit and its answer there is as much.
const SLOW: Duration = Duration::from_millis(120);

fn task() -> Value {
    json!({"kind": "echo", "payload": {"n": 1}})
}

#[tokio::test]
async fn however_many_race_on_a_key_there_is_one_task_and_one_answer() {
    let fleet = Fleet::new().await;
    let servers = [fleet.serve().await, fleet.serve().await];
    for count in short_or_long(vec![2, 3, 10, 50], (2..=50).collect()) {
        let key = format!("key-{count}");
        let mut posts = JoinSet::new();
        for n in 0..count {
            let (caller, key) = (servers[n % 2].caller.clone(), key.clone());
            posts.spawn(async move { caller.submit_with_key(&task(), &key).await.unwrap() });
        }
        let answers = posts.join_all().await;
        let made = answers.iter().filter(|answer| answer.status == StatusCode::ACCEPTED).count();
        let replayed = answers.iter().filter(|answer| answer.status == StatusCode::OK).count();
        assert_eq!((made, replayed), (1, count - 1), "{answers:?}");
        let id = id_of(&answers[0].body);
        assert!(answers.iter().all(|answer| id_of(&answer.body) == id), "{answers:?}");
    }
    let other = servers[0].caller.submit_with_key(&json!({"kind": "echo"}), "key-2").await.unwrap();
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY, "another body: {}", other.body);
}

#[tokio::test]
async fn a_key_whose_replica_was_killed_between_commit_and_answer_replays_its_task() {
    let fleet = Fleet::new().await;
    let (proxy, slow) = FaultProxy::for_database(fleet.db.url()).await;
    let other = fleet.serve().await;
    let mut interrupted = 0;
    for n in 0..20 {
        if interrupted == short_or_long(2, 5) {
            break;
        }
        proxy.set(Fault::None);
        let mut dying = fleet.serve_on(&slow).await;
        // What it needs to know of the flow it knows by now.
        dying.caller.add(&task()).await;
        proxy.set(Fault::Delay(SLOW));
        let key = format!("killed-{n}");
        let post = tokio::spawn({
            let (caller, key) = (dying.caller.clone(), key.clone());
            async move { caller.submit_with_key(&task(), &key).await }
        });
        let there = format!("SELECT count(*) FROM tidegate.idempotency WHERE key = '{key}'");
        poll_until(LIMIT, "the commit, or an answer", async || {
            (number(fleet.db.url(), &there).await == 1 || post.is_finished()).then_some(())
        })
        .await;
        dying.process.kill9();
        let first = post.await.unwrap();
        if number(fleet.db.url(), &there).await == 0 {
            // So slow a database was "unavailable": nothing was let in.
            continue;
        }
        interrupted += usize::from(first.is_err());
        let again = other.caller.submit_with_key(&task(), &key).await.unwrap();
        assert_eq!(again.status, StatusCode::OK, "{}", again.body);
        let id = format!(
            "SELECT count(*) FROM tidegate.idempotency WHERE key = '{key}' AND task_id = '{}'",
            id_of(&again.body)
        );
        assert_eq!(number(fleet.db.url(), &id).await, 1, "the task of the first answer");
        let tasks = format!("SELECT count(*) FROM tidegate.task WHERE idempotency_key = '{key}'");
        assert_eq!(number(fleet.db.url(), &tasks).await, 1);
    }
    assert!(interrupted > 0, "no answer was lost in the looks that come every {POLL_INTERVAL:?}");
}

#[tokio::test]
async fn two_tenants_may_use_the_same_key_and_do_not_see_each_other() {
    let fleet = Fleet::new().await;
    let server = fleet.serve().await;
    let mut posts = Vec::new();
    for tenant in ["a", "b", "a", "b"] {
        let headers = [("x-tenant", tenant), ("idempotency-key", "same")];
        posts.push(server.caller.send_with(Method::POST, "/v1/tasks", &headers, &task()).await.unwrap());
    }
    let statuses: Vec<StatusCode> = posts.iter().map(|post| post.status).collect();
    assert_eq!(statuses, [StatusCode::ACCEPTED, StatusCode::ACCEPTED, StatusCode::OK, StatusCode::OK]);
    let made: Vec<String> = posts.iter().map(|post| id_of(&post.body)).collect();
    assert!(made[0] != made[1] && made[0] == made[2] && made[1] == made[3], "{made:?}");
    let path = format!("/v1/tasks/{}", made[1]);
    let stranger = server.caller.send_with(Method::GET, &path, &[("x-tenant", "a")], &Value::Null).await.unwrap();
    assert_eq!(stranger.status, StatusCode::NOT_FOUND);
}
