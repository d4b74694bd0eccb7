//! Plans of what is asked outside a transaction: made once, for tables of any size.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{PgConnection, Row};
use tidegate_core::{Status, TaskId};
use tidegate_store::{Store, StoreOptions, TaskFilter};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

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

/// Stands between as a pooler does that hands one session to many: it refuses settings for a session, and forwards the
/// rest. Tells how often it refused.
async fn pooler(upstream: String) -> (u16, tokio::sync::watch::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (refused, seen) = tokio::sync::watch::channel(0);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (upstream, refused) = (upstream.clone(), refused.clone());
            tokio::spawn(async move {
                let mut server = TcpStream::connect(upstream).await.unwrap();
                loop {
                    let length = client.read_u32().await.unwrap();
                    let mut rest = vec![0; length as usize - 4];
                    client.read_exact(&mut rest).await.unwrap();
                    // A request for TLS comes first.
                    if rest == 80_877_103_u32.to_be_bytes() {
                        client.write_all(b"N").await.unwrap();
                        continue;
                    }
                    if rest.windows(8).any(|name| name == b"options\0") {
                        let fields = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0";
                        client.write_u8(b'E').await.unwrap();
                        client.write_u32(4 + fields.len() as u32).await.unwrap();
                        client.write_all(fields).await.unwrap();
                        refused.send_modify(|refused| *refused += 1);
                        return;
                    }
                    server.write_u32(length).await.unwrap();
                    server.write_all(&rest).await.unwrap();
                    let _closed = copy_bidirectional(&mut client, &mut server).await;
                    return;
                }
            });
        }
    });
    (port, seen)
}

#[tokio::test]
async fn a_pooler_that_refuses_settings_of_a_session_is_asked_without() {
    let cell = Cell::new().await;
    let id = cell.add(cell.submission()).await;
    let direct = PgConnectOptions::from_str(cell.db.url()).unwrap();
    let upstream = format!("{}:{}", direct.get_host(), direct.get_port());
    let (port, refused) = pooler(upstream.clone()).await;
    let url = cell.db.url().replacen(&upstream, &format!("127.0.0.1:{port}"), 1);
    assert_ne!(url, cell.db.url());
    let options = StoreOptions { direct_url: Some(cell.db.url().to_owned()), ..StoreOptions::new(url) };
    let store = Store::open(options).unwrap();
    let tenant = tenant();
    let ask = || futures_util::future::join_all((0..20).map(|_| store.task(&tenant, id)));
    assert!(ask().await.into_iter().all(|task| task.unwrap().is_some()));
    let once = *refused.borrow();
    assert!(once > 0, "no settings were asked for");
    // Those who came at once may all have been refused; nobody who comes later is.
    assert!(ask().await.into_iter().all(|task| task.unwrap().is_some()));
    assert_eq!(*refused.borrow(), once);
}
