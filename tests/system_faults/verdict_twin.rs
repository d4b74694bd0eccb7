//! The twin of every test here: what is wrong is noticed by `verdict`.

use std::time::{Duration, Instant};

use sqlx::Executor;
use tidegate_core::settlement::Ending;
use tidegate_core::submission::Submission;
use tidegate_core::{Kind, TenantId};
use tidegate_store::{Admitter, AdmitterOptions, Report, SessionSpec, Store, StoreOptions};
use tidegate_testkit::TestDb;

use crate::fleet::execute;
use crate::verdict::faults;

/// A cell in which one task was completed.
async fn cell() -> (TestDb, String) {
    let db = TestDb::migrated().await;
    let store = Store::open(StoreOptions::new(db.url())).unwrap();
    let door = Admitter::start(&store, AdmitterOptions::default()).unwrap();
    let (tenant, kind) = (TenantId::default_tenant(), Kind::parse("echo").unwrap());
    let submission = Submission::new(store.next_id(), tenant, kind.clone(), "1".into());
    let id = submission.id.to_string();
    door.admit(submission, Instant::now()).await.unwrap();
    let (kinds, lease) = (vec![(kind, Default::default())], Duration::from_secs(15));
    let session = store
        .open_session(SessionSpec {
            worker: "w".into(),
            kinds,
            slots: 1,
            lease,
            settle_reserve: Duration::ZERO,
            at_once: Default::default(),
        })
        .await
        .unwrap();
    let task = session.turn(&[], 1).await.unwrap().claimed.remove(0);
    let result = Some("1".to_owned());
    let (ending, backoff) = (Ending::Completed, Default::default());
    let report = Report { id: task.id, fence: task.fence, ending, result, error: None, usage: None, backoff };
    session.turn(&[report], 0).await.unwrap();
    (db, id)
}

#[tokio::test]
async fn what_is_tampered_with_is_noticed() {
    let revive = "ALTER TABLE tidegate.task DISABLE TRIGGER ALL; \
        UPDATE tidegate.task SET status = NULL, finished_ms = NULL, result = NULL";
    let rewrite = "ALTER TABLE tidegate.task DISABLE TRIGGER ALL; \
        UPDATE tidegate.task SET status = 'CANCELLED', reason = 'cancel_requested', result = NULL";
    let lease = "INSERT INTO tidegate.lease SELECT id, gen_random_uuid(), flow_id, rank, 0, 0, 0, NULL, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0 FROM tidegate.task";
    for (tampering, noticed) in [
        ("DELETE FROM tidegate.event", "it was told: []"),
        (
            "INSERT INTO tidegate.event (at_ms, tenant, kind, status, task_ids) SELECT at_ms, tenant, kind, status, task_ids FROM tidegate.event",
            "it was told: [\"COMPLETED\", \"COMPLETED\"]",
        ),
        ("UPDATE tidegate.usage SET running = 1 WHERE scope = 0", "1 left in usage"),
        ("UPDATE tidegate.usage SET queued = -1, running = 1 WHERE scope = 1", "usage 1"),
        ("UPDATE tidegate.task SET deliveries = 3", "started 3 times"),
        ("DELETE FROM tidegate.task", "is not known"),
        (revive, "has not ended"),
        (revive, "nowhere"),
        (rewrite, "is CANCELLED, but it was told: [\"COMPLETED\"]"),
        (lease, "1 left in lease"),
    ] {
        let (db, id) = cell().await;
        assert_eq!(faults(db.url(), std::slice::from_ref(&id)).await, Vec::<String>::new(), "before {tampering}");
        execute(db.url(), tampering).await;
        let faults = faults(db.url(), &[id]).await;
        assert!(faults.iter().any(|fault| fault.contains(noticed)), "{tampering}: {faults:?}");
    }
}

#[tokio::test]
async fn an_open_transaction_is_noticed() {
    let (db, _) = cell().await;
    let mut left_open = db.connect().await;
    left_open.execute("BEGIN; SELECT 1").await.unwrap();
    assert_eq!(faults(db.url(), &[]).await, ["a transaction is open"]);
}
