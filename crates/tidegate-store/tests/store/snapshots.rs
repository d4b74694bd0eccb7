//! Who holds an old snapshot, as far as the database lets its user see.

use std::time::Duration;

use sqlx::{Executor, PgConnection};
use tidegate_store::{SnapshotHolder, Store, StoreOptions};
use tidegate_testkit::{TestDb, poll_until};

const LIMIT: Duration = Duration::from_secs(20);

/// Waits until so many are told of: the server's statistics are of a moment ago.
async fn holders(store: &Store, count: usize) -> Vec<SnapshotHolder> {
    poll_until(LIMIT, &format!("{count} holders"), async || {
        Some(store.snapshot_holders().await.unwrap()).filter(|holders| holders.len() == count)
    })
    .await
}

async fn session(db: &TestDb, application: &str, statements: &[&'static str]) -> PgConnection {
    let mut session = db.connect().await;
    let named = format!("SET application_name = '{application}'");
    session.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(named))).await.unwrap();
    for statement in statements {
        session.execute(*statement).await.unwrap();
    }
    session
}

#[tokio::test]
async fn those_who_hold_a_snapshot_are_told_and_those_who_hold_none_are_not() {
    let db = TestDb::migrated().await;
    let store = Store::open(StoreOptions::new(db.url())).unwrap();
    holders(&store, 0).await;
    let nothing = [
        session(&db, "idle", &["SELECT 1"]).await,
        session(&db, "between two statements", &["BEGIN", "SELECT 1"]).await,
        session(&db, "tidegate", &["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"]).await,
    ];
    let report = session(&db, "report", &["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"]).await;
    // One that is younger, though its transaction is another: it wrote, and has no snapshot between two statements.
    let writer = session(&db, "writer", &["BEGIN", "CREATE TABLE kept (n int)"]).await;
    let told = holders(&store, 2).await;
    for (holder, name) in told.iter().zip(["report", "writer"]) {
        assert!(holder.who.ends_with(&format!("application {name}")), "{told:?}");
        assert!(holder.age_ms.is_some_and(|age| (0..LIMIT.as_millis() as i64).contains(&age)), "{told:?}");
    }
    drop((nothing, writer));
    let again = holders(&store, 1).await;
    assert_eq!((&again[0].who, &again[0].xid), (&told[0].who, &told[0].xid), "it is the same snapshot");
    drop(report);
    holders(&store, 0).await;
}

/// A user without `pg_read_all_stats` sees who holds which snapshot, and not since when.
#[tokio::test]
async fn a_user_without_rights_sees_who_but_not_since_when() {
    let db = TestDb::migrated().await;
    // A role that every server has, and that may look at nothing.
    let url = format!("{}?options=-c%20role%3Dpg_signal_backend", db.url());
    let store = Store::open(StoreOptions::new(url)).unwrap();
    let _report = session(&db, "report", &["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"]).await;
    let told = holders(&store, 1).await;
    assert!(told[0].who.ends_with("application report"), "{told:?}");
    assert_eq!(told[0].age_ms, None);
    assert!(!told[0].xid.is_empty());
}
