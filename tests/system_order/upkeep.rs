//! C16: no keeper leads, so none can be stuck in the lead.

use std::time::{Duration, Instant};

use serde_json::json;
use tidegate_testkit::{Fault, FaultProxy, poll_until, short_or_long};
use tokio::task::JoinHandle;

use crate::called::{REAP, SLACK};
use crate::caller::{Caller, sleep};
use crate::fleet::{ALIVE, Fleet, LIMIT, RUNNING, Server, number, wait_for_number};
use crate::verdict::assert_sound;

/// How long each piece takes on the way to the database at first: long enough to see a keeper in the midst of its work.
const SLOW: Duration = Duration::from_millis(200);
/// The longest that a stopped keeper may hold the others up: the database ends its transaction.
const GOING_ON: Duration = Duration::from_secs(3);
/// A keeper in the midst of a transaction that holds the cell.
const HOLDING: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction' \
    AND query LIKE '%EXECUTE tidegate_lock%'";
/// Locks that belong to a session, and would outlive whoever took them.
const SESSION_LOCKS: &str = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
    WHERE l.locktype = 'advisory' AND d.datname = current_database()";

/// Keeps submitting tasks that nobody runs, each with a deadline that passes soon, until aborted.
fn always_something_to_expire(caller: Caller) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            // While a holder is in the way the door says so: then the next.
            let _ = caller.submit(&json!({"kind": "nobody", "timeout_ms": 200})).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}

/// Submits a task that nobody runs, and returns how long after its deadline it was seen to be over.
async fn expires(server: &Server) -> Duration {
    let task = json!({"kind": "nobody", "timeout_ms": 300});
    let id = poll_until(LIMIT, "a task to be let in", async || {
        let answer = server.caller.submit(&task).await.unwrap();
        answer.status.is_success().then(|| crate::caller::id_of(&answer.body))
    })
    .await;
    let since = Instant::now();
    let task = server.caller.ended(&id, LIMIT).await;
    assert_eq!((&task["status"], &task["reason"]), (&"EXPIRED".into(), &"deadline_passed".into()), "{task}");
    since.elapsed().saturating_sub(Duration::from_millis(300))
}

/// The only keeper's way to the database grows longer than every time-out in the midst of its work. Another begins, expires
/// and reaps within seconds; then that one dies, the way is short again, and the first goes on.
///
/// Broken by: a lead that is a session's advisory lock, or a lease that only its holder can end; a transaction without
/// time-outs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upkeep_goes_on_when_the_keeper_at_work_is_cut_off_and_when_its_successor_dies() {
    let lease = Duration::from_secs(short_or_long(1, 5));
    let fleet = Fleet::new().await.with_lease(lease);
    let (proxy, far) = FaultProxy::for_database(fleet.db.url()).await;
    let mut process = fleet.start_on(fleet.db.url(), &["serve", "--no-keeper", "--listen", "127.0.0.1:0"]);
    let caller = Caller::new(process.wait_for_url(LIMIT).await);
    let server = Server { process, caller };
    let mut worker = fleet.worker(4).await;
    let running = server.caller.add_all((0..3).map(|_| sleep(600_000))).await;
    wait_for_number(fleet.db.url(), RUNNING, 3).await;
    let first = fleet.start_on(&far, &["keeper"]);
    expires(&server).await;

    let load = always_something_to_expire(server.caller.clone());
    proxy.set(Fault::Delay(SLOW));
    wait_for_number(fleet.db.url(), HOLDING, 1).await;
    proxy.set(Fault::Delay(LIMIT));
    let (cut_off, mut second) = (Instant::now(), fleet.start_on(fleet.db.url(), &["keeper"]));
    worker.kill9();
    poll_until(LIMIT, "the dead worker's tasks", async || (number(fleet.db.url(), RUNNING).await == 0).then_some(()))
        .await;
    let reaped = cut_off.elapsed();
    assert!(reaped < lease + REAP + GOING_ON + SLACK, "reaped after {reaped:?}");
    let late = expires(&server).await;
    assert!(late < SLACK, "expired {late:?} after its deadline");
    assert_eq!(number(fleet.db.url(), SESSION_LOCKS).await, 0);

    second.kill9();
    proxy.set(Fault::None);
    proxy.cut_all();
    let late = expires(&server).await;
    eprintln!("reaped after {reaped:?}; the first keeper was back {late:?} after a deadline");
    assert!(late < GOING_ON * 3 + SLACK, "expired {late:?} after its deadline");
    assert_eq!(number(fleet.db.url(), SESSION_LOCKS).await, 0);
    load.abort();
    for id in &running {
        server.caller.cancel(id).await.unwrap();
    }
    wait_for_number(fleet.db.url(), ALIVE, 0).await;
    drop(first);
    assert_sound(fleet.db.url(), &running).await;
}
