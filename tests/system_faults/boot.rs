//! C22: many replicas start on an empty database at once.

use tidegate_testkit::{Proc, TestDb, short_or_long};

use crate::caller::Caller;
use crate::fleet::{LIMIT, number, tidegate};

/// Processes that start at once: most only migrate, some go on to serve.
const MIGRATING: usize = 20;
const SERVING: usize = 4;

fn start(db: &TestDb, arguments: &[&str]) -> Proc {
    tidegate().args(arguments).env("DATABASE_URL", db.url()).spawn()
}

#[tokio::test]
async fn twenty_four_replicas_come_up_on_an_empty_database() {
    for _ in 0..short_or_long(1, 20) {
        let db = TestDb::new().await;
        let mut migrating: Vec<Proc> = (0..MIGRATING).map(|_| start(&db, &["migrate"])).collect();
        let serve = ["serve", "--listen", "127.0.0.1:0"];
        let mut serving: Vec<Proc> = (0..SERVING).map(|_| start(&db, &serve)).collect();
        for process in &mut migrating {
            assert_eq!(process.wait(LIMIT).await.code(), Some(0), "{}", process.output());
        }
        for process in &mut serving {
            let caller = Caller::new(process.wait_for_url(LIMIT).await);
            caller.add(&serde_json::json!({"kind": "echo"})).await;
        }
        // None did the work of another again.
        assert_eq!(number(db.url(), "SELECT count(*) - count(DISTINCT version) FROM tidegate.migration").await, 0);
        assert_eq!(number(db.url(), "SELECT count(*) FROM tidegate.migration WHERE NOT success").await, 0);
        assert_eq!(number(db.url(), "SELECT count(*) FROM tidegate.task").await, SERVING as i64);
    }
}

/// A task that waited in the default partition would have to be moved while others read it.
#[tokio::test]
async fn a_new_database_has_its_partitions_before_the_first_task_comes() {
    const PARTITIONS: &str = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'tidegate.task'::regclass AND inhrelid <> 'tidegate.task_kept'::regclass";
    let db = TestDb::migrated().await;
    let mut process = start(&db, &["serve", "--listen", "127.0.0.1:0"]);
    let caller = Caller::new(process.wait_for_url(LIMIT).await);
    assert!(number(db.url(), PARTITIONS).await > 1, "{}", process.output());
    caller.add(&serde_json::json!({"kind": "echo"})).await;
    assert_eq!(number(db.url(), "SELECT count(*) FROM tidegate.task_kept").await, 0);
}
