//! C11: work that takes every thread and every connection, and a heartbeat that goes on regardless.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};
use tidegate_core::Kind;
use tidegate_store::{Store, StoreOptions};
use tidegate_testkit::{DataDir, pg_bin, poll_until};
use tidegate_worker::{Context, Executor as Runs, KindOptions, Registry, RunFuture, StorePort, Worker, WorkerOptions};
use tokio_util::sync::CancellationToken;

use crate::caller::{Caller, sleep};
use crate::fleet::{ALIVE, Fleet, LIMIT, RUNNING, connect, number, tidegate, wait_for_number};
use crate::verdict::assert_sound;

const LEASE: Duration = Duration::from_secs(2);
/// How long everything is taken.
const TAKEN: Duration = Duration::from_secs(6);
/// Threads of the runtime that the handlers run on, and of the handlers that spin on them.
const THREADS: usize = 2;

/// Spins, as a handler does that computes and never yields.
struct Spin(Duration);

impl Runs for Spin {
    fn execute(&self, _: Context, payload: String) -> RunFuture<'_> {
        Box::pin(async move {
            let until = Instant::now() + self.0;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            Ok(payload)
        })
    }
}

/// A worker with a runtime of its own, whose every thread spins.
fn spinning_worker(url: String, stop: CancellationToken) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::open(StoreOptions::new(url)).unwrap();
            let mut registry = Registry::new();
            registry.register(Kind::parse("spin").unwrap(), KindOptions::default(), Arc::new(Spin(TAKEN)));
            let options = WorkerOptions { lease: LEASE, slots: THREADS as u32, ..WorkerOptions::default() };
            let worker = Worker::new(Arc::new(StorePort::new(store)), registry, options).unwrap();
            assert_eq!(worker.run(stop).await.left, []);
        });
    })
}

#[tokio::test]
async fn handlers_that_spin_on_every_thread_lose_no_lease() {
    let fleet = Fleet::new().await;
    let server = fleet.serve().await;
    let stop = CancellationToken::new();
    let worker = spinning_worker(fleet.db.url().to_owned(), stop.clone());
    let ids = server.caller.add_all((0..THREADS).map(|n| json!({"kind": "spin", "payload": n}))).await;
    for id in &ids {
        let task = server.caller.ended(id, TAKEN + LIMIT).await;
        assert_eq!((&task["status"], &task["fence"]), (&"COMPLETED".into(), &1.into()), "{task}");
        assert!(task["run_ms"].as_u64().unwrap() >= (LEASE * 3).as_millis() as u64 - 1, "{task}");
    }
    stop.cancel();
    tokio::task::spawn_blocking(|| worker.join().unwrap()).await.unwrap();
    assert_sound(fleet.db.url(), &ids).await;
}

/// Opens connections until the server has no more to give, and lets each of them sleep.
async fn take_every_connection(url: &str) -> Vec<PgConnection> {
    let mut taken = Vec::new();
    loop {
        match PgConnection::connect(url).await {
            Ok(connection) => taken.push(connection),
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("53300") => return taken,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A Postgres of its own: on the one of the tests nobody else could connect meanwhile.
#[tokio::test]
async fn a_heartbeat_survives_when_every_connection_is_taken() {
    let data_dir = DataDir::new();
    let mut builder = tidegate().args(["up", "--listen", "127.0.0.1:0", "--data-dir"]).args([data_dir.path()]);
    if let Some(pg_bin) = pg_bin() {
        builder = builder.args(["--pg-bin".as_ref(), pg_bin.as_os_str()]);
    }
    let mut up = builder.env("TIDEGATE__WORKER__LEASE_MS", LEASE.as_millis().to_string()).spawn();
    let caller = Caller::new(up.wait_for_url(LIMIT).await);
    let url = data_dir.database_url();
    let ids = caller.add_all((0..4).map(|_| sleep(TAKEN.as_millis() as u64 + 1_000))).await;
    wait_for_number(&url, RUNNING, ids.len() as i64).await;

    // The server's last connections, and those of the process: every read of it waits for this lock.
    let mut locker = connect(&url).await;
    locker.execute("BEGIN; LOCK TABLE tidegate.task IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let taken = take_every_connection(&url).await;
    assert!(taken.len() > 10, "only {} connections were there to take", taken.len());
    let since = Instant::now();
    let mut reads = tokio::task::JoinSet::new();
    for id in ids.iter().cycle().take(50) {
        let (caller, path) = (caller.clone(), format!("/v1/tasks/{id}"));
        reads.spawn(async move { caller.get(&path).await.unwrap().status });
    }
    poll_until(LIMIT, "three leases", async || (since.elapsed() >= TAKEN).then_some(())).await;
    locker.execute("ROLLBACK").await.unwrap();
    drop((locker, taken));
    for status in reads.join_all().await {
        assert!([StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE].contains(&status), "{status}");
    }
    for id in &ids {
        let task = caller.ended(id, LIMIT).await;
        assert_eq!((&task["status"], &task["fence"]), (&"COMPLETED".into(), &1.into()), "{task}");
    }
    assert!(!up.output().contains("was lost"), "{}", up.output());
    assert_eq!(number(&url, ALIVE).await, 0);
    assert_sound(&url, &ids).await;
    up.terminate();
    assert_eq!(up.wait(LIMIT).await.code(), Some(0), "{}", up.output());
}
