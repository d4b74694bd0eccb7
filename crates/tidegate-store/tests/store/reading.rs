//! Listing and reading back.

use std::time::Duration;

use tidegate_core::settlement::Ending;
use tidegate_core::{Status, TaskId, TenantId};
use tidegate_store::{Admission, TaskFilter};

use crate::{Cell, kind, tenant};

fn filter() -> TaskFilter {
    TaskFilter { limit: 200, ..TaskFilter::default() }
}

#[tokio::test]
async fn pages_hold_every_task_once_newest_first() {
    let cell = Cell::new().await;
    let mut ids = Vec::new();
    for _ in 0..25 {
        ids.push(cell.add(cell.submission()).await);
    }
    let mut foreign = cell.submission();
    foreign.tenant = TenantId::parse("other").unwrap();
    cell.add(foreign).await;
    ids.reverse();
    let mut got = Vec::new();
    let mut page = TaskFilter { limit: 10, ..filter() };
    loop {
        let found = cell.store.tasks(&tenant(), &page).await.unwrap();
        got.extend(found.tasks.iter().map(|task| task.id));
        let Some(next) = found.next else { break };
        page.before = Some(next);
    }
    assert_eq!(got, ids);
}

/// The ids of each page, up to the one that says that nothing follows.
async fn pages(cell: &Cell, mut filter: TaskFilter) -> Vec<Vec<TaskId>> {
    let mut pages = Vec::new();
    loop {
        let found = cell.store.tasks(&tenant(), &filter).await.unwrap();
        pages.push(found.tasks.iter().map(|task| task.id).collect());
        assert!(pages.len() < 10, "{pages:?}");
        let Some(next) = found.next else { return pages };
        filter.before = Some(next);
    }
}

#[tokio::test]
async fn a_page_that_is_just_full_is_the_last_whatever_is_on_it() {
    let cell = Cell::with(tidegate_core::limits::Limits { max_queued: 4, ..Default::default() }).await;
    let of = |limit| TaskFilter { limit, ..filter() };
    assert_eq!(pages(&cell, of(1)).await, [[]; 1]);
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.insert(0, cell.add(cell.submission()).await);
    }
    let split = |ids: &[TaskId], at| ids.chunks(at).map(<[_]>::to_vec).collect::<Vec<_>>();
    for limit in [1, 2, 3, 4, 5] {
        assert_eq!(pages(&cell, of(limit)).await, split(&ids, limit.into()));
    }
    let queued = TaskFilter { status: Some(Status::Queued), ..of(4) };
    assert_eq!(pages(&cell, queued).await, split(&ids, 4));
    // The same where refusals are among them: first only in memory, since their table is locked, then written.
    let mut locking = cell.db.connect().await;
    sqlx::raw_sql("BEGIN; LOCK TABLE tidegate.refusal IN SHARE MODE").execute(&mut locking).await.unwrap();
    for _ in 0..4 {
        let Admission::Decided { id, decision } = cell.admit(cell.submission()).await else { panic!() };
        assert!(decision.status.is_final());
        ids.insert(0, id);
    }
    let right = async || {
        for limit in [1, 3, 4, 7, 8, 9] {
            assert_eq!(pages(&cell, of(limit)).await, split(&ids, limit.into()));
        }
        for limit in [2, 3, 4, 5] {
            let shed = TaskFilter { status: Some(Status::Shed), ..of(limit) };
            assert_eq!(pages(&cell, shed).await, split(&ids[..4], limit.into()));
        }
    };
    right().await;
    sqlx::raw_sql("COMMIT").execute(&mut locking).await.unwrap();
    let written = async || {
        let rows = sqlx::query("SELECT 1 FROM tidegate.refusal").fetch_all(&mut locking).await.unwrap();
        (rows.len() == 4).then_some(())
    };
    tidegate_testkit::poll_until(Duration::from_secs(10), "the records of the refusals", written).await;
    right().await;
}

#[tokio::test]
async fn filters_see_where_a_task_stands_and_what_it_is() {
    let cell = Cell::new().await;
    let session = cell.session(4).await;
    let done = cell.add(cell.submission()).await;
    let task = cell.claim(&session).await;
    cell.settle(&session, &task, Ending::Completed).await;
    let running = cell.add(cell.submission()).await;
    cell.claim(&session).await;
    let mut special = cell.submission();
    special.kind = kind("special");
    special.workflow_id = Some("wf-1".into());
    special.labels = Some("{\"team\":\"a\",\"safety\":\"true\"}".into());
    let special = cell.add(special).await;
    let found = async |filter: TaskFilter| {
        cell.store.tasks(&tenant(), &filter).await.unwrap().tasks.iter().map(|task| task.id).collect::<Vec<_>>()
    };
    assert_eq!(found(TaskFilter { status: Some(Status::Completed), ..filter() }).await, [done]);
    assert_eq!(found(TaskFilter { status: Some(Status::Running), ..filter() }).await, [running]);
    assert_eq!(found(TaskFilter { status: Some(Status::Queued), ..filter() }).await, [special]);
    assert_eq!(found(TaskFilter { kind: Some(kind("special")), ..filter() }).await, [special]);
    assert_eq!(found(TaskFilter { workflow_id: Some("wf-1".into()), ..filter() }).await, [special]);
    assert_eq!(found(TaskFilter { labels: vec![("team".into(), "a".into())], ..filter() }).await, [special]);
    assert_eq!(found(TaskFilter { labels: vec![("team".into(), "b".into())], ..filter() }).await, []);
    let arrived = cell.store.task(&tenant(), special).await.unwrap().unwrap().id.arrived_ms();
    assert_eq!(found(TaskFilter { from_ms: Some(arrived + 1), ..filter() }).await, []);
    assert_eq!(found(TaskFilter { to_ms: Some(arrived + 1), ..filter() }).await, [special, running, done]);
}

#[tokio::test]
async fn refused_submissions_are_listed_among_the_others() {
    let limits = tidegate_core::limits::Limits { max_queued: 1, ..Default::default() };
    let cell = Cell::with(limits).await;
    let kept = cell.add(cell.submission()).await;
    let tidegate_store::Admission::Decided { id: refused, .. } = cell.admit(cell.submission()).await else { panic!() };
    tidegate_testkit::poll_until(Duration::from_secs(1), "the refusal", async || {
        let page = cell.store.tasks(&tenant(), &filter()).await.unwrap();
        (page.tasks.iter().map(|task| task.id).collect::<Vec<_>>() == [refused, kept]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_page_is_bounded_in_bytes_too() {
    let cell = Cell::new().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        let mut large = cell.submission();
        large.payload = format!("\"{}\"", "x".repeat(3 << 20));
        ids.push(cell.add(large).await);
    }
    ids.reverse();
    let mut pages = Vec::new();
    let mut page = filter();
    loop {
        let found = cell.store.tasks(&tenant(), &page).await.unwrap();
        pages.push(found.tasks.iter().map(|task| task.id).collect::<Vec<_>>());
        let Some(next) = found.next else { break };
        page.before = Some(next);
    }
    assert_eq!(pages, [ids[0..2].to_vec(), ids[2..4].to_vec(), ids[4..].to_vec()]);
}

#[tokio::test]
async fn a_refusal_is_dated_when_it_arrived_however_late_it_is_written() {
    let limits = tidegate_core::limits::Limits { max_queued: 1, ..Default::default() };
    let cell = Cell::with(limits).await;
    cell.add(cell.submission()).await;
    // The second one is written with the next batch, a tenth of a second later.
    for _ in 0..2 {
        let tidegate_store::Admission::Decided { id, decision } = cell.admit(cell.submission()).await else { panic!() };
        let record = tidegate_testkit::poll_until(Duration::from_secs(5), "the refusal", async || {
            cell.store.task(&tenant(), id).await.unwrap()
        })
        .await;
        let (arrived, decided) = (decision.times.arrived, decision.decided);
        assert_eq!((record.enqueued_ms, record.finished_ms), (arrived, Some(decided)));
        assert_eq!(record.admission_wait_ms, decided - arrived);
    }
}

#[tokio::test]
async fn a_read_on_a_connection_that_died_while_it_waited_is_made_again() {
    let cell = Cell::new().await;
    let id = cell.add(cell.submission()).await;
    let mut connection = cell.db.connect().await;
    let others = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tidegate' AND query NOT LIKE 'LISTEN %'";
    for _ in 0..3 {
        cell.store.task(&tenant(), id).await.unwrap().unwrap();
        let end = format!("SELECT count(pg_terminate_backend(pid)) {others}");
        let ended: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(end)).fetch_one(&mut connection).await.unwrap();
        assert!(ended > 0, "no connection to break");
        let left = format!("SELECT count(*) {others}");
        tidegate_testkit::poll_until(Duration::from_secs(5), "the end of the backends", async || {
            let left: i64 =
                sqlx::query_scalar(sqlx::AssertSqlSafe(left.clone())).fetch_one(&mut connection).await.unwrap();
            (left == 0).then_some(())
        })
        .await;
        cell.store.task(&tenant(), id).await.unwrap().unwrap();
        cell.store.ping().await.unwrap();
    }
}

#[tokio::test]
async fn a_store_that_is_closed_leaves_no_connection() {
    let cell = Cell::new().await;
    let store = tidegate_store::Store::open(tidegate_store::StoreOptions::new(cell.db.url())).unwrap();
    store.ping().await.unwrap();
    let mut connection = cell.db.connect().await;
    let listeners =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'";
    let counted = async |connection: &mut sqlx::PgConnection, sql: &'static str| -> i64 {
        sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
    };
    tidegate_testkit::poll_until(Duration::from_secs(5), "both listeners", async || {
        (counted(&mut connection, listeners).await == 2).then_some(())
    })
    .await;
    store.close().await;
    tidegate_testkit::poll_until(Duration::from_secs(5), "the end of one", async || {
        (counted(&mut connection, listeners).await == 1).then_some(())
    })
    .await;
}
