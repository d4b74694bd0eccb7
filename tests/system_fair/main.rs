//! The order of a whole cell: real processes over one Postgres, and tenants and classes that want more than there is.
//! Every case has a form of some seconds, and its full size under `bin/test --long`. The same over hours of virtual time
//! is in the tests of core.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "../system_faults/caller.rs"]
#[allow(dead_code, reason = "shared with the tests of faults")]
mod caller;
#[path = "../system_faults/fleet.rs"]
#[allow(dead_code, reason = "shared with the tests of faults")]
mod fleet;

mod ageing;
mod flood;
mod shares;

use std::ops::RangeInclusive;
use std::time::Duration;

use rand::RngExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::caller::Caller;
use crate::fleet::{Fleet, number};

/// Most tasks of one batch.
const BATCH: usize = 1_000;
/// Longer than any of these tests: no deadline and no predicted wait plays a part.
const LONG_MS: u64 = 3_600_000;

/// A cell in which very much may wait for long.
async fn patient_fleet() -> Fleet {
    Fleet::new()
        .await
        .with("LIMITS__MAX_QUEUED", 200_000)
        .with("LIMITS__MAX_EXPECTED_WAIT_MS", LONG_MS)
        .with("LIMITS__DEFAULT_TIMEOUT_MS", LONG_MS)
}

/// A task that sleeps for a time within these bounds.
fn sleep_of(ms: &RangeInclusive<u64>, priority: u8) -> Value {
    json!({"kind": "sleep", "payload": {"ms": rand::rng().random_range(ms.clone())}, "priority": priority})
}

/// Submits a task of a tenant that must be let in.
async fn submit(caller: &Caller, tenant: &str, task: &Value) {
    let answer = caller.send_with(Method::POST, "/v1/tasks", &[("x-tenant", tenant)], task).await.unwrap();
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.body);
}

/// Submits many tasks of a tenant that must all be let in.
async fn submit_many(caller: &Caller, tenant: &str, count: usize, task: impl Fn() -> Value) {
    for first in (0..count).step_by(BATCH) {
        let tasks: Vec<Value> = (first..count.min(first + BATCH)).map(|_| task()).collect();
        let body = json!({"tasks": tasks});
        let answer = caller.send_with(Method::POST, "/v1/tasks/batch", &[("x-tenant", tenant)], &body).await.unwrap();
        let results = answer.body["results"].as_array().unwrap();
        assert!(results.iter().all(|result| result["task_id"].is_string()), "{}", answer.body);
    }
}

/// Now, by the database's clock.
async fn now_ms(fleet: &Fleet) -> i64 {
    number(fleet.db.url(), "SELECT tidegate.now_ms()").await
}

/// How long the tasks of a tenant waited that came within a span and have ended, shortest first.
async fn waits_ms(fleet: &Fleet, tenant: &str, span: std::ops::Range<i64>) -> Vec<i64> {
    let mut connection = fleet.db.connect().await;
    let sql = "SELECT started_ms - enqueued_ms FROM tidegate.task WHERE tenant = $1 AND enqueued_ms >= $2 AND enqueued_ms < $3 \
        AND status = 'COMPLETED' ORDER BY 1";
    let query = sqlx::query_scalar(sql).bind(tenant.to_owned()).bind(span.start).bind(span.end);
    query.fetch_all(&mut connection).await.unwrap()
}

/// Sleeps until an instant of a schedule: this is the load itself, nothing waits for it.
async fn at(instant: tokio::time::Instant) {
    tokio::time::sleep_until(instant).await;
}

fn percentile(sorted: &[i64], percent: usize) -> i64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// The time from one to the next of so many a second.
fn every(a_second: f64) -> Duration {
    Duration::from_secs_f64(1.0 / a_second)
}
