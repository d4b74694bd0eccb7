//! Retention: partitions made ahead, turned over, and what must outlive them.

use std::time::Duration;

use sqlx::Row;
use tidegate_core::settlement::Ending;
use tidegate_core::{Status, TaskId};
use tidegate_store::Retention;

use crate::{Cell, tenant};

const SHORT: Retention = Retention {
    finished: Duration::from_millis(1),
    refused: Duration::from_millis(1),
    partition: Duration::from_millis(400),
};

async fn partitions(cell: &Cell, table: &str) -> i64 {
    let sql = "SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass($1)";
    let row = sqlx::query(sql).bind(format!("tidegate.{table}")).fetch_one(&mut cell.db.connect().await).await.unwrap();
    row.get(0)
}

#[tokio::test]
async fn partitions_are_made_ahead_and_take_in_what_came_before_them() {
    let cell = Cell::new().await;
    let early = cell.add(cell.submission()).await;
    assert_eq!(cell.store.make_partitions(&Retention::default()).await.unwrap(), 16);
    assert_eq!(cell.store.make_partitions(&Retention::default()).await.unwrap(), 0);
    assert_eq!(partitions(&cell, "task").await, 5);
    assert_eq!(cell.status(early).await, (Status::Queued, None));
    let left: i64 = sqlx::query("SELECT count(*) FROM tidegate.task_kept")
        .fetch_one(&mut cell.db.connect().await)
        .await
        .unwrap()
        .get(0);
    assert_eq!(left, 0);
    cell.add(cell.submission()).await;
    cell.assert_sound().await;
}

/// How many wait for a lock on a table, those among them that want it for themselves alone or the others.
async fn waiting_for(conn: &mut sqlx::PgConnection, tables: &[&str], alone: bool) -> i64 {
    let sql = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = ANY($1::text[]::regclass[]) \
        AND (mode = 'AccessExclusiveLock') = $2";
    let names: Vec<_> = tables.iter().map(|table| format!("tidegate.{table}")).collect();
    sqlx::query(sql).bind(names).bind(alone).fetch_one(conn).await.unwrap().get(0)
}

/// Whoever planned a read before a partition took rows in, and read after it, looked where the rows had been.
#[tokio::test]
async fn a_task_that_moves_into_a_new_partition_is_seen_by_all_who_read_meanwhile() {
    const READERS: usize = 4;
    let cell = Cell::new().await;
    let id = cell.add(cell.submission()).await;
    let (mut watcher, mut blocker) = (cell.db.connect().await, cell.db.connect().await);
    // A partition is attached in 50 ms or at another try.
    tidegate_testkit::poll_until(Duration::from_secs(30), "the partitions", async || {
        sqlx::raw_sql("BEGIN; LOCK TABLE ONLY tidegate.task_kept IN ACCESS SHARE MODE")
            .execute(&mut blocker)
            .await
            .unwrap();
        let store = cell.store.clone();
        let made = tokio::spawn(async move { store.make_partitions(&Retention::default()).await });
        while waiting_for(&mut watcher, &["task_kept"], true).await == 0 && !made.is_finished() {}
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..READERS {
            let store = cell.store.clone();
            readers.spawn(async move { store.task(&tenant(), id).await.unwrap() });
        }
        while waiting_for(&mut watcher, &["task", "task_kept"], false).await < READERS as i64 && !made.is_finished() {}
        sqlx::raw_sql("ROLLBACK").execute(&mut blocker).await.unwrap();
        assert!(readers.join_all().await.iter().all(Option::is_some), "a task that is there was not seen");
        made.await.unwrap().is_ok().then_some(())
    })
    .await;
    assert_eq!(partitions(&cell, "task").await, 5);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_dropped_partition_takes_the_finished_along_and_nothing_else() {
    let cell = Cell::new().await;
    cell.store.make_partitions(&SHORT).await.unwrap();
    let session = cell.session(4).await;
    let (finished, running, waiting) =
        (cell.add(cell.submission()).await, cell.add(cell.submission()).await, cell.add(cell.submission()).await);
    let first = cell.claim(&session).await;
    let second = cell.claim(&session).await;
    assert_eq!((first.id, second.id), (finished, running));
    cell.settle(&session, &first, Ending::Completed).await;
    tokio::time::sleep(Duration::from_millis(900)).await;
    let pruned = cell.store.prune(&SHORT).await.unwrap();
    assert!(pruned.dropped >= 2 && pruned.moved == 2, "{pruned:?}");
    assert_eq!(cell.store.task(&tenant(), finished).await.unwrap(), None);
    assert_eq!(cell.status(running).await, (Status::Running, None));
    assert_eq!(cell.status(waiting).await, (Status::Admitted, None));
    cell.settle(&session, &second, Ending::Completed).await;
    assert_eq!(cell.status(running).await, (Status::Completed, None));
    cell.assert_sound().await;
    // What outlived its partition goes by row.
    tokio::time::sleep(Duration::from_millis(10)).await;
    cell.store.prune(&SHORT).await.unwrap();
    assert_eq!(cell.store.task(&tenant(), running).await.unwrap(), None);
    assert_eq!(cell.status(waiting).await, (Status::Admitted, None));
}

#[tokio::test]
async fn a_reader_in_the_way_of_a_drop_is_waited_for_at_most_a_moment() {
    let cell = Cell::new().await;
    cell.store.make_partitions(&SHORT).await.unwrap();
    let id = cell.add(cell.submission()).await;
    cell.canceller.cancel(&tenant(), id, None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(900)).await;
    let mut reader = cell.db.connect().await;
    sqlx::raw_sql("BEGIN; SELECT count(*) FROM tidegate.task").execute(&mut reader).await.unwrap();
    let pruned = cell.store.prune(&SHORT).await;
    assert!(pruned.is_err() || pruned.is_ok_and(|pruned| pruned.moved == 0));
    cell.add(cell.submission()).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut reader).await.unwrap();
    tidegate_testkit::poll_until(Duration::from_secs(5), "the drop", async || {
        cell.store.prune(&SHORT).await.unwrap();
        cell.store.task(&tenant(), id).await.unwrap().is_none().then_some(())
    })
    .await;
    cell.assert_sound().await;
}

#[tokio::test]
async fn empty_flows_go_and_come_back() {
    let cell = Cell::new().await;
    let session = cell.session(4).await;
    let id = cell.add(cell.submission()).await;
    let task = cell.claim(&session).await;
    cell.settle(&session, &task, Ending::Completed).await;
    for _ in 0..2 {
        cell.store.prune(&Retention::default()).await.unwrap();
    }
    let flows: i64 =
        sqlx::query("SELECT count(*) FROM tidegate.flow").fetch_one(&mut cell.db.connect().await).await.unwrap().get(0);
    assert_eq!(flows, 0);
    let next = cell.add(cell.submission()).await;
    assert_ne!(id, next);
    assert_eq!(cell.claim(&session).await.id, next);
    cell.assert_sound().await;
}

#[tokio::test]
async fn counters_are_turned_over_and_stay_exact() {
    let cell = Cell::new().await;
    let session = cell.session(4).await;
    sqlx::raw_sql("UPDATE tidegate.usage SET version = 998; ").execute(&mut cell.db.connect().await).await.unwrap();
    for _ in 0..5 {
        cell.add(cell.submission()).await;
        sqlx::raw_sql("UPDATE tidegate.flow_usage SET version = 999")
            .execute(&mut cell.db.connect().await)
            .await
            .unwrap();
    }
    let generation: i32 = sqlx::query("SELECT max(generation) FROM tidegate.usage WHERE scope = 0")
        .fetch_one(&mut cell.db.connect().await)
        .await
        .unwrap()
        .get(0);
    assert_eq!(generation, 2);
    let turn = session.turn(&[], 4).await.unwrap();
    assert_eq!(turn.claimed.len(), 4);
    cell.assert_sound().await;
}

#[tokio::test]
async fn the_auditor_finds_what_drifted() {
    let cell = Cell::new().await;
    let id = cell.add(cell.submission()).await;
    cell.assert_sound().await;
    let mut conn = cell.db.connect().await;
    sqlx::raw_sql("UPDATE tidegate.usage SET queued = queued + 1 WHERE scope = 2").execute(&mut conn).await.unwrap();
    let drifts = cell.store.audit().await.unwrap();
    assert_eq!(drifts.iter().map(|drift| drift.what.as_str()).collect::<Vec<_>>(), ["usage 2 default"]);
    sqlx::raw_sql("UPDATE tidegate.usage SET queued = queued - 1 WHERE scope = 2").execute(&mut conn).await.unwrap();
    sqlx::query("DELETE FROM tidegate.ready WHERE task_id = $1").bind(id.0).execute(&mut conn).await.unwrap();
    assert!(cell.store.audit_records().await.unwrap().iter().any(|drift| drift.what == format!("task {id} nowhere")));
}

#[tokio::test]
async fn the_database_itself_keeps_an_outcome() {
    let cell = Cell::new().await;
    let id: TaskId = cell.add(cell.submission()).await;
    cell.canceller.cancel(&tenant(), id, None).await.unwrap();
    let mut conn = cell.db.connect().await;
    for sql in [
        "UPDATE tidegate.task SET status = 'COMPLETED', reason = NULL, result = '1', deliveries = 1 WHERE id = $1",
        "UPDATE tidegate.task SET status = NULL, reason = NULL, finished_ms = NULL WHERE id = $1",
    ] {
        let refused = sqlx::query(sql).bind(id.0).execute(&mut conn).await.unwrap_err();
        assert_eq!(refused.as_database_error().and_then(|error| error.code()).as_deref(), Some("TG001"));
    }
}
