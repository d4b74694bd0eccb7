//! What the database says about itself, and refusals from before the door.

use std::time::{Duration, Instant};

use tidegate_core::limits::Limits;
use tidegate_core::submission::Cost;
use tidegate_core::{Class, PeerName, Reason, Status, TenantId};
use tidegate_store::{Admission, SchemaState, Store, StoreOptions, TaskFilter, TaskRecord, Work, inspect, migrate};
use tidegate_testkit::{TestDb, poll_until};

use crate::{Cell, tenant};

#[tokio::test]
async fn a_database_tells_how_it_is_before_and_after_it_was_migrated() {
    let db = TestDb::new().await;
    let seen = inspect(db.url()).await.unwrap();
    assert_eq!((seen.schema, seen.may_create, seen.read_only), (SchemaState::Empty, true, false));
    assert!(seen.version >= 150_000 && seen.connections >= 1 && seen.max_connections > seen.connections, "{seen:?}");
    let skew = seen.now_ms - chrono::Utc::now().timestamp_millis();
    assert!(skew.abs() < 10_000, "{skew}");
    migrate(db.url()).await.unwrap();
    let seen = inspect(db.url()).await.unwrap();
    assert_eq!((seen.schema, seen.may_create), (SchemaState::Current, true));
}

#[tokio::test]
async fn a_cell_tells_who_works_there_and_what_waits_for_nobody() {
    let db = TestDb::new().await;
    assert_eq!(inspect(db.url()).await.unwrap().work, None, "there are no tables yet");
    let cell = Cell::new().await;
    let work = async || inspect(cell.db.url()).await.unwrap().work.unwrap();
    assert_eq!(work().await, Work::default());
    for kind in ["echo", "mail", "mail", "ocr"] {
        let mut submission = cell.submission();
        submission.kind = crate::kind(kind);
        cell.add(submission).await;
    }
    let kinds = |kinds: &[&str]| kinds.iter().map(|kind| (*kind).to_owned()).collect::<Vec<_>>();
    let none =
        Work { queued: 4, unserved: 4, unserved_kinds: 3, kinds: kinds(&["mail", "echo", "ocr"]), ..Work::default() };
    assert_eq!(work().await, none);
    let session = cell.session(4).await;
    let one =
        Work { sessions: 1, slots: 4, unserved: 3, unserved_kinds: 2, kinds: kinds(&["mail", "ocr"]), ..none.clone() };
    assert_eq!(work().await, one);
    cell.store.drain_worker(session.id().0).await.unwrap().unwrap();
    assert_eq!(work().await, none, "who drains takes nothing");
}

#[tokio::test]
async fn twenty_four_may_migrate_an_empty_database_at_once_whatever_their_user_is_called() {
    // A user called like our schema makes `"$user"` of the search path lead somewhere only once the schema is there.
    let db = TestDb::new().await;
    let name = format!("\"{}\"", db.name());
    let mut conn = db.connect().await;
    let path = format!("ALTER DATABASE {name} SET search_path = tidegate, public");
    sqlx::raw_sql(sqlx::AssertSqlSafe(path)).execute(&mut conn).await.unwrap();
    for migrated in futures_util::future::join_all((0..24).map(|_| migrate(db.url()))).await {
        migrated.unwrap();
    }
    assert_eq!(inspect(db.url()).await.unwrap().schema, SchemaState::Current);
}

#[tokio::test]
async fn a_snapshot_that_is_held_is_seen() {
    let db = TestDb::new().await;
    let mut holder = db.connect().await;
    for statement in ["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"] {
        sqlx::query(statement).execute(&mut holder).await.unwrap();
    }
    poll_until(Duration::from_secs(10), "the age of the snapshot", async || {
        inspect(db.url()).await.unwrap().oldest_snapshot_ms.filter(|age| *age > 0)
    })
    .await;
}

#[tokio::test]
async fn a_refusal_can_be_read_at_once_by_its_tenant_and_reads_the_same_once_it_is_written() {
    let cell = Cell::with(Limits { max_queued: 0, ..Limits::default() }).await;
    let mut submission = cell.submission();
    submission.labels = Some("{\"a\":\"b\"}".into());
    submission.workflow_id = Some("wf".into());
    submission.priority = crate::priority(95);
    submission.cost = Cost { tokens: 7, usd_micros: 9 };
    let id = submission.id;
    // The row is locked out of the table, so that it is certain where the answer comes from.
    let mut locking = cell.db.connect().await;
    sqlx::raw_sql("BEGIN; LOCK TABLE tidegate.refusal IN SHARE MODE").execute(&mut locking).await.unwrap();
    assert!(matches!(cell.admit(submission).await, Admission::Decided { decision, .. } if decision.status.is_final()));
    let at_once = cell.store.task(&tenant(), id).await.unwrap().expect("the refusal");
    assert_eq!((at_once.status, at_once.reason), (Status::Rejected, Some(Reason::QueueFull)));
    assert!(cell.store.explain(&tenant(), id).await.unwrap().is_some());
    assert_eq!(cell.store.attempts(&tenant(), id).await.unwrap(), Some(vec![]));
    let other = TenantId::parse("other").unwrap();
    assert_eq!(cell.store.task(&other, id).await.unwrap(), None);
    // A listing shows it too, by every part of its filter, until it is written and after.
    let any = || TaskFilter { limit: 9, ..TaskFilter::default() };
    let label = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    let filters = [
        (any(), true),
        (TaskFilter { status: Some(Status::Rejected), labels: label("a", "b"), ..any() }, true),
        (TaskFilter { class: Some(Class::Critical), workflow_id: Some("wf".into()), ..any() }, true),
        (TaskFilter { kind: Some(crate::kind("echo")), ..any() }, true),
        (TaskFilter { status: Some(Status::Shed), ..any() }, false),
        (TaskFilter { labels: label("a", "c"), ..any() }, false),
        (TaskFilter { class: Some(Class::Standard), ..any() }, false),
        (TaskFilter { kind: Some(crate::kind("other")), ..any() }, false),
        (TaskFilter { peer: PeerName::parse("hotels").ok(), ..any() }, false),
        (TaskFilter { workflow_id: Some("other".into()), ..any() }, false),
        (TaskFilter { before: Some(id), ..any() }, false),
    ];
    let listed = async |tenant: &TenantId, filter: &TaskFilter| {
        cell.store.tasks(tenant, filter).await.unwrap().tasks.iter().map(|task| task.id).collect::<Vec<_>>()
    };
    let shows = async || {
        for (filter, shown) in &filters {
            assert_eq!(listed(&tenant(), filter).await, if *shown { vec![id] } else { vec![] }, "{filter:?}");
        }
        assert_eq!(listed(&other, &any()).await, []);
    };
    shows().await;
    sqlx::raw_sql("COMMIT").execute(&mut locking).await.unwrap();
    // Another process has no memory of it.
    let elsewhere = Store::open(StoreOptions::new(cell.db.url())).unwrap();
    let written = poll_until(Duration::from_secs(10), "the record of the refusal", async || {
        elsewhere.task(&tenant(), id).await.unwrap()
    })
    .await;
    let as_written = |mut task: TaskRecord, now_ms| {
        task.now_ms = now_ms;
        task.labels = task.labels.map(|labels| labels.replace(' ', ""));
        task
    };
    assert_eq!(as_written(at_once, 0), as_written(written, 0));
    shows().await;
}

#[tokio::test]
async fn what_was_refused_before_the_door_can_be_read_without_its_payload() {
    let cell = Cell::new().await;
    let submission = cell.submission();
    assert!(cell.admitter.refuse(&submission, Reason::PayloadTooLarge, Instant::now()));
    let task = poll_until(Duration::from_secs(10), "the record of the refusal", async || {
        cell.store.task(&tenant(), submission.id).await.unwrap()
    })
    .await;
    assert_eq!((task.status, task.reason), (Status::Rejected, Some(Reason::PayloadTooLarge)));
    assert_eq!((task.payload, task.kind.as_str()), (None, "echo"));
}

#[tokio::test]
async fn what_was_refused_last_is_written_before_the_store_is_closed() {
    let cell = Cell::new().await;
    let elsewhere = Store::open(StoreOptions::new(cell.db.url())).unwrap();
    let refuse = || {
        let submission = cell.submission();
        assert!(cell.admitter.refuse(&submission, Reason::Draining, Instant::now()));
        submission.id
    };
    // Once one is written, the next ones are being gathered for a while; and there are more than one statement takes.
    let first = refuse();
    poll_until(Duration::from_secs(10), "the first record", async || elsewhere.task(&tenant(), first).await.unwrap())
        .await;
    let ids: Vec<_> = (0..1_500).map(|_| refuse()).collect();
    cell.store.close().await;
    for id in [ids[0], ids[1_499]] {
        let task = elsewhere.task(&tenant(), id).await.unwrap().expect("the refusal");
        assert_eq!((task.status, task.reason), (Status::Rejected, Some(Reason::Draining)));
    }
}
