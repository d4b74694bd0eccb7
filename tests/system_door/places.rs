//! Few places and many who want one, at two replicas (C07).

use reqwest::StatusCode;
use serde_json::{Value, json};
use tidegate_testkit::poll_until;
use tokio::task::JoinSet;

use crate::caller::{Answer, Caller, id_of};
use crate::fleet::{Fleet, LIMIT};

fn critical(n: usize) -> Value {
    json!({"kind": "echo", "payload": n, "priority": 95})
}

/// Reads a task at another replica than the one that decided it; a refusal is there within a second.
pub(crate) async fn readable(caller: &Caller, id: &str) -> Value {
    poll_until(LIMIT, &format!("task {id}"), async || {
        let answer = caller.get(&format!("/v1/tasks/{id}")).await.unwrap();
        (answer.status == StatusCode::OK).then_some(answer.body)
    })
    .await
}

#[tokio::test]
async fn of_sixty_four_racing_posts_at_one_place_exactly_one_is_let_in() {
    let fleet = Fleet::new().await.with("LIMITS__MAX_QUEUED", 1);
    let servers = [fleet.serve().await, fleet.serve().await];
    let mut posts = JoinSet::new();
    for n in 0..64 {
        let caller = servers[n % 2].caller.clone();
        posts.spawn(async move { (n, caller.submit(&critical(n)).await.unwrap()) });
    }
    let answers: Vec<(usize, Answer)> = posts.join_all().await;
    let accepted = answers.iter().filter(|(_, answer)| answer.status == StatusCode::ACCEPTED).count();
    let refused = answers
        .iter()
        .filter(|(_, answer)| answer.status == StatusCode::SERVICE_UNAVAILABLE && answer.reason() == "queue_full");
    assert_eq!((accepted, refused.count()), (1, 63), "{answers:?}");
    for (n, answer) in &answers {
        let task = readable(&servers[(n + 1) % 2].caller, &id_of(&answer.body)).await;
        let expected = if answer.status == StatusCode::ACCEPTED { "QUEUED" } else { "REJECTED" };
        assert_eq!(task["status"], expected, "{task}");
    }
}

#[tokio::test]
async fn of_a_batch_of_ten_as_many_are_let_in_as_there_are_places() {
    let fleet = Fleet::new().await.with("LIMITS__MAX_QUEUED", 5);
    let server = fleet.serve().await;
    let tasks: Vec<Value> = (0..10).map(critical).collect();
    let answer = server.caller.post("/v1/tasks/batch", &json!({"tasks": tasks})).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let results = answer.body["results"].as_array().unwrap();
    let word = |result: &Value| result["reason"].as_str().or(result["status"].as_str()).unwrap_or("").to_owned();
    let words: Vec<String> = results.iter().map(word).collect();
    assert_eq!(words, [["QUEUED"; 5], ["queue_full"; 5]].concat(), "each decided alone, in order: {}", answer.body);
    for (n, result) in results.iter().enumerate() {
        let task = readable(&server.caller, &id_of(&json!({"task_id": result["task_id"]}))).await;
        assert_eq!(task["status"], if n < 5 { "QUEUED" } else { "REJECTED" });
    }
}
