//! C12: cancels, claims and completions of the same tasks at the same moment.

use std::time::Duration;

use rand::RngExt;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tidegate_testkit::short_or_long;
use tokio::task::JoinSet;

use crate::caller::{Caller, sleep};
use crate::fleet::{ALIVE, Fleet, LIMIT, connect, execute, wait_for_number};
use crate::verdict::assert_sound;

/// At most so many at once.
const AT_ONCE: usize = 40;
/// The longest that a task runs, and that its cancel waits.
const RUN_MS: u64 = 20;
const WAIT_MS: u64 = 40;

/// Submits a task, cancels it at some moment, and returns its id with the answer.
async fn race(caller: Caller) -> (String, StatusCode, Value) {
    let (run_ms, wait_ms) = (rand::rng().random_range(0..RUN_MS), rand::rng().random_range(0..WAIT_MS));
    let id = caller.add(&sleep(run_ms)).await;
    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
    let answer = caller.cancel(&id).await.unwrap();
    (id, answer.status, answer.body)
}

#[tokio::test]
async fn cancels_claims_and_completions_race_to_one_outcome() {
    let fleet = Fleet::new().await;
    let server = fleet.serve().await;
    let workers = [fleet.worker(8).await, fleet.worker(8).await];
    let (mut races, mut raced) = (JoinSet::new(), Vec::new());
    for _ in 0..short_or_long(200, 1_000) {
        if races.len() >= AT_ONCE {
            raced.push(races.join_next().await.unwrap().unwrap());
        }
        races.spawn(race(server.caller.clone()));
    }
    raced.extend(races.join_all().await);
    wait_for_number(fleet.db.url(), ALIVE, 0).await;

    let mut seen = std::collections::BTreeMap::<&str, usize>::new();
    for (id, status, told) in &raced {
        let task = server.caller.ended(id, LIMIT).await;
        let now = task["status"].as_str().unwrap();
        let what = match (*status, told["status"].as_str()) {
            (StatusCode::OK, Some("CANCELLED")) => {
                assert_eq!(now, "CANCELLED", "what was told to be cancelled is: {task}");
                "cancelled"
            }
            (StatusCode::OK, _) => {
                assert!(!told["cancel"]["requested_at"].is_null(), "{told}");
                assert!(["CANCELLED", "COMPLETED"].contains(&now), "{task}");
                "requested"
            }
            (StatusCode::CONFLICT, _) => {
                assert_eq!(now, "COMPLETED", "what had ended stays as it was: {task}");
                "ended"
            }
            _ => panic!("{status} {told}"),
        };
        *seen.entry(what).or_default() += 1;
        // A cancel that was acknowledged while the task waited: never started.
        if what == "cancelled" && task["cancel"]["delivered_at"].is_null() && task["started_at"].is_null() {
            assert_eq!(task["deliveries"], 0, "{task}");
        }
        assert!(task["deliveries"].as_u64().unwrap() <= 1, "{task}");
    }
    eprintln!("{seen:?}");
    assert!(seen.len() >= 2, "the moments of the cancels were all alike: {seen:?}");
    let ids: Vec<String> = raced.into_iter().map(|(id, ..)| id).collect();
    assert_sound(fleet.db.url(), &ids).await;
    drop(workers);
    server.caller.add(&json!({"kind": "echo"})).await;
}

/// A server dies in the midst of a group: two pages of it are cancelled, the third is not. The keeper of another goes on.
#[tokio::test]
async fn a_group_whose_server_is_killed_is_cancelled_to_the_end() {
    let fleet = Fleet::new().await;
    let (mut first, second) = (fleet.serve().await, fleet.serve().await);
    let task = json!({"kind": "echo", "cancellation_token": "trip-42"});
    let mut ids = first.caller.add_all(vec![task.clone(); 600]).await;
    ids.extend(first.caller.add_all(vec![task.clone(); 600]).await);
    // The group is walked from its newest task down: the oldest one's record is in the last page.
    let mut holder = connect(fleet.db.url()).await;
    let hold =
        "BEGIN; SELECT 1 FROM tidegate.task WHERE id = (SELECT id FROM tidegate.task ORDER BY id LIMIT 1) FOR UPDATE";
    sqlx::raw_sql(hold).execute(&mut holder).await.unwrap();
    let (caller, group) = (first.caller.clone(), json!({"token": "trip-42"}));
    let asked = tokio::spawn(async move { caller.post("/v1/cancellations", &group).await });
    wait_for_number(fleet.db.url(), ALIVE, 200).await;
    first.process.kill9();
    assert!(asked.await.unwrap().is_err(), "nobody answered");
    sqlx::raw_sql("ROLLBACK").execute(&mut holder).await.unwrap();
    // What was recorded is not forgotten: the door of the other refuses the token, and in time the rest is cancelled.
    let late = second.caller.submit(&task).await.unwrap();
    assert_eq!((late.status, late.reason()), (StatusCode::CONFLICT, "token_cancelled"), "{}", late.body);
    execute(fleet.db.url(), "UPDATE tidegate.cancel_group SET touched_ms = touched_ms - 10000").await;
    wait_for_number(fleet.db.url(), ALIVE, 0).await;
    wait_for_number(fleet.db.url(), "SELECT count(*) FROM tidegate.cancel_group", 0).await;
    for id in &ids {
        let task = second.caller.task(id).await;
        assert_eq!((&task["status"], &task["reason"]), (&"CANCELLED".into(), &"token_cancelled".into()));
    }
    assert_sound(fleet.db.url(), &ids).await;
}
