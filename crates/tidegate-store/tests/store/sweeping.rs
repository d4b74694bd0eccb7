//! Sweeps go on from where the one before ended. Nothing may fall between two of them.

use std::time::{Duration, Instant};

use sqlx::Connection;
use tidegate_core::submission::{Start, Timing};
use tidegate_store::Swept;

use crate::Cell;

/// Tasks, and over how long their instants are spread: closer together than two statements are.
const TASKS: u64 = 400;
const SPREAD_MS: u64 = 2_000;
/// From the submission of all to the first of the instants.
const LEAD_MS: u64 = 2_500;
/// A moment after the last of the instants.
const AFTER: Duration = Duration::from_millis(500);

/// Sweeps as the keeper does, each from where the last one ended, until all instants have passed.
async fn sweep_past_all(cell: &Cell, began: Instant) {
    let mut swept = Swept::default();
    let over = Duration::from_millis(LEAD_MS + SPREAD_MS) + AFTER;
    while began.elapsed() < over {
        let due = cell.store.due(swept).await.unwrap();
        if due.late {
            swept = cell.store.expire_waiting(swept).await.unwrap().1;
        }
        if due.eligible.is_some_and(|eligible| eligible <= due.now) {
            swept = cell.store.promote_due(swept).await.unwrap().1;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn left_in(cell: &Cell, place: &str) -> i64 {
    let mut connection = cell.db.connect().await;
    let count = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM tidegate.{place}"));
    let left = sqlx::query_scalar(count).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    left
}

/// Broken by: a sweep that says it looked up to a later clock than the one that it looked by.
#[tokio::test]
async fn no_task_becomes_due_between_two_sweeps_unseen() {
    let cell = Cell::new().await;
    let began = Instant::now();
    let adding = (0..TASKS).map(|n| {
        let at = LEAD_MS + n * SPREAD_MS / TASKS;
        let at = at.saturating_sub(began.elapsed().as_millis() as u64);
        let timing = Timing { start: Start::After(at), ..Timing::default() };
        cell.add(tidegate_core::submission::Submission { timing, ..cell.submission() })
    });
    futures_util::future::join_all(adding).await;
    assert_eq!(left_in(&cell, "deferred").await, TASKS as i64);
    sweep_past_all(&cell, began).await;
    assert_eq!((left_in(&cell, "deferred").await, left_in(&cell, "ready").await), (0, TASKS as i64));
    cell.assert_sound().await;
}

/// The same for deadlines, of tasks that wait in the queue and of such that are deferred until a moment before.
#[tokio::test]
async fn no_deadline_passes_between_two_sweeps_unseen() {
    let cell = Cell::new().await;
    let began = Instant::now();
    let adding = (0..TASKS).map(|n| {
        let at = LEAD_MS + n * SPREAD_MS / TASKS;
        let at = at.saturating_sub(began.elapsed().as_millis() as u64);
        let timing = match n % 2 {
            0 => Timing { timeout_ms: Some(at), ..Timing::default() },
            _ => Timing { start: Start::After(at - 1), remaining_ms: Some(at), ..Timing::default() },
        };
        cell.add(tidegate_core::submission::Submission { timing, ..cell.submission() })
    });
    futures_util::future::join_all(adding).await;
    sweep_past_all(&cell, began).await;
    assert_eq!((left_in(&cell, "deferred").await, left_in(&cell, "ready").await), (0, 0));
    cell.assert_sound().await;
}
