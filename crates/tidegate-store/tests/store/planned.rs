//! Plans of what is asked outside a transaction: made once, for tables of any size.

use std::time::Duration;

use sqlx::{PgConnection, Row};
use tidegate_core::{Status, TaskId};
use tidegate_store::{Store, TaskFilter};

use crate::{Cell, tenant};

/// Adds tasks, as many at a time as a batch takes.
async fn add_many(cell: &Cell, tasks: usize) -> Vec<TaskId> {
    let adding = (0..tasks).map(|_| cell.add(cell.submission()));
    futures_util::future::join_all(adding).await
}

/// Rows of our tables that were read one after the other.
async fn read_in_turn(conn: &mut PgConnection) -> i64 {
    let sql = "SELECT sum(seq_tup_read)::bigint FROM pg_stat_user_tables WHERE schemaname = 'tidegate' \
        AND relname IN ('task_kept', 'ready', 'lease', 'deferred', 'event_kept')";
    sqlx::query(sql).fetch_one(conn).await.unwrap().get(0)
}

/// What callers ask of one task.
async fn ask(store: &Store, id: TaskId) {
    assert_eq!(store.task(&tenant(), id).await.unwrap().unwrap().status, Status::Queued);
    assert!(store.attempts(&tenant(), id).await.unwrap().unwrap().is_empty());
    assert!(!store.wait_for_end(id, Duration::from_millis(10)).await.unwrap());
    assert!(store.explain(&tenant(), id).await.unwrap().is_some());
    let page = TaskFilter { limit: 5, ..TaskFilter::default() };
    assert_eq!(store.tasks(&tenant(), &page).await.unwrap().tasks.len(), 5);
}

/// A burst after a quiet time: nobody has analysed the tables since they were small.
#[tokio::test]
async fn what_was_planned_while_tables_were_small_walks_none_when_they_are_large() {
    const SMALL: usize = 60;
    const LARGE: usize = 3_000;
    let cell = Cell::new().await;
    let mut conn = cell.db.connect().await;
    let tables = "ALTER TABLE tidegate.task_kept SET (autovacuum_enabled = off); ALTER TABLE tidegate.ready SET (autovacuum_enabled = off)";
    sqlx::raw_sql(tables).execute(&mut conn).await.unwrap();
    let id = add_many(&cell, SMALL).await[0];
    sqlx::raw_sql("ANALYZE").execute(&mut conn).await.unwrap();
    // From the sixth time on a plan may be the one that is kept.
    for _ in 0..12 {
        ask(&cell.store, id).await;
    }
    let id = add_many(&cell, LARGE).await[LARGE / 2];
    // A session tells what it has read once a second.
    let told = Duration::from_millis(1_100);
    tokio::time::sleep(told).await;
    ask(&cell.store, id).await;
    let before = read_in_turn(&mut conn).await;
    for _ in 0..3 {
        ask(&cell.store, id).await;
    }
    tokio::time::sleep(told).await;
    ask(&cell.store, id).await;
    let read = read_in_turn(&mut conn).await - before;
    assert!(read < LARGE as i64, "{read} rows were read one after the other");
}
