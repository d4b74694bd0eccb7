//! C03: a permit belongs to a lease, and comes back once, however late its first owner is.

use std::time::{Duration, Instant};

use serde_json::json;
use tidegate_core::Kind;
use tidegate_core::settlement::Ending;
use tidegate_store::{Report, SessionSpec, Settled, Store, StoreError, StoreOptions};
use tidegate_testkit::{Behaviour, FakeTool, FaultProxy, Proc, poll_until, short_or_long};

use crate::called::{PEER, REAP, SLACK, all_complete, calls, more_requests, nothing_in_use, with_peer};
use crate::caller::Caller;
use crate::fleet::{Fleet, LIMIT, Server, execute};
use crate::verdict::assert_sound;

/// Tasks that are run after the loss.
const MORE: usize = 50;
/// How long the tool takes for each of them.
const QUICK: Duration = Duration::from_millis(20);
/// Part of the statement that a heartbeat is.
const HEARTBEAT: &str = "UPDATE tidegate.heartbeat";

/// A cell whose peer takes one call at a time. Each test starts its own workers.
async fn cell(tool: &FakeTool, lease: Duration) -> (Fleet, Server) {
    let fleet = with_peer(Fleet::new().await.with_lease(lease), &tool.url("/"), 1);
    let server = fleet.serve().await;
    (fleet, server)
}

/// One task, whose first call takes so long and whose others are quick; returns when that call is under way.
async fn slow_first(caller: &Caller, tool: &FakeTool, first: Duration) -> String {
    tool.on("/", [Behaviour::Slow(first), Behaviour::Slow(QUICK)]);
    let id = caller.add(&json!({"kind": "tool"})).await;
    more_requests(tool, 0, 1).await;
    id
}

/// The heartbeat of a healthy worker does not get through for longer than its lease. Its watchdog gives the task up before
/// another starts it, so that not even those two are ever called at once.
///
/// Broken by: a worker that goes on until it is told, a reaper that does not wait for the lease, a hand-back on loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_heartbeat_is_blocked_gives_its_permit_up_once() {
    let lease = Duration::from_secs(short_or_long(3, 15));
    let tool = FakeTool::start().await;
    let (fleet, server) = cell(&tool, lease).await;
    let (proxy, url) = FaultProxy::for_database_with(fleet.db.url(), HEARTBEAT).await;
    let mut blocked = fleet.worker_on(&url, 4).await;
    let lost = slow_first(&server.caller, &tool, lease * 2).await;
    let _others = [fleet.worker(4).await, fleet.worker(4).await];
    proxy.silence_marked(true);
    blocked.wait_for_line("the session was lost", LIMIT).await;
    let ids = server.caller.add_all(calls(MORE)).await;
    // The second call of the first task, and some of the others: the network heals in their midst.
    more_requests(&tool, 1, 10).await;
    proxy.silence_marked(false);
    all_complete(&server.caller, &ids).await;
    let task = server.caller.ended(&lost, LIMIT).await;
    assert_eq!((&task["status"], &task["fence"]), (&"COMPLETED".into(), &2.into()), "{task}");
    assert_eq!((tool.max_in_flight(), tool.seen().len()), (1, MORE + 2));
    nothing_in_use(&server.caller, lease + REAP + SLACK).await;
    assert_sound(fleet.db.url(), &ids).await;
}

/// A worker freezes in the midst of a call, and wakes after its lease with the answer in hand.
///
/// Broken by: a late report that releases the permit of whoever holds it now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_worker_that_finishes_late_gives_nothing_back() {
    let lease = Duration::from_secs(short_or_long(1, 15));
    let tool = FakeTool::start().await;
    let (fleet, server) = cell(&tool, lease).await;
    let mut frozen = fleet.worker(4).await;
    let lost = slow_first(&server.caller, &tool, lease).await;
    frozen.freeze();
    let _others = [fleet.worker(4).await, fleet.worker(4).await];
    let task = server.caller.ended(&lost, lease + LIMIT).await;
    assert_eq!((&task["status"], &task["fence"]), (&"COMPLETED".into(), &2.into()), "{task}");
    // The frozen one's call may still have been under way beside it; from here on it is answered.
    assert!(tool.max_in_flight() <= 2);
    tool.wait_until_idle(LIMIT).await;
    tool.count_anew();
    let ids = server.caller.add_all(calls(MORE)).await;
    more_requests(&tool, 2, 10).await;
    frozen.thaw();
    frozen.wait_for_line("lost", LIMIT).await;
    all_complete(&server.caller, &ids).await;
    assert_eq!((tool.max_in_flight(), tool.seen().len()), (1, MORE + 2));
    nothing_in_use(&server.caller, lease + REAP + SLACK).await;
    assert_sound(fleet.db.url(), &ids).await;
}

fn completed(id: tidegate_core::TaskId, fence: tidegate_core::Fence) -> Report {
    let result = Some("1".to_owned());
    let (ending, backoff) = (Ending::Completed, Default::default());
    Report { id, fence, ending, result, error: None, usage: None, backoff }
}

/// A worker of somebody else's making, which sends no heartbeat and does not watch itself: it reports that it finished again
/// and again, under its old session and under a new one, while others run.
///
/// Broken by: a release that is guarded by the task alone, or by the session alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_reports_of_a_worker_that_does_not_watch_itself_give_nothing_back() {
    let lease = Duration::from_secs(short_or_long(1, 5));
    let tool = FakeTool::start().await;
    let (fleet, server) = cell(&tool, lease).await;
    let store = Store::open(StoreOptions::new(fleet.db.url())).unwrap();
    let kinds = vec![(Kind::parse("tool").unwrap(), Default::default())];
    let spec = SessionSpec {
        worker: "rude".into(),
        kinds,
        slots: 1,
        lease,
        settle_reserve: Duration::ZERO,
        at_once: Default::default(),
    };
    let old = store.open_session(spec.clone()).await.unwrap();
    let id = server.caller.add(&json!({"kind": "tool"})).await;
    let claimed = poll_until(LIMIT, "the task", async || old.turn(&[], 1).await.unwrap().claimed.pop()).await;
    let report = completed(claimed.id, claimed.fence);
    // The first call is that of the same task under its next fence, and takes long.
    tool.on("/", [Behaviour::Slow(QUICK * 25), Behaviour::Slow(QUICK)]);
    let _others = [fleet.worker(4).await, fleet.worker(4).await];
    more_requests(&tool, 0, 1).await;
    let ids = server.caller.add_all(calls(MORE)).await;
    let new = store.open_session(SessionSpec { lease: LIMIT * 10, ..spec }).await.unwrap();
    let mut reported = 0;
    while tool.seen().len() < MORE {
        for session in [&old, &new] {
            match session.turn(std::slice::from_ref(&report), 0).await {
                Ok(turn) => assert_eq!(turn.settled, [Settled::LeaseLost]),
                Err(error) => assert!(matches!(error, StoreError::SessionLost), "{error}"),
            }
        }
        reported += 1;
    }
    assert!(reported > 5, "it reported {reported} times");
    all_complete(&server.caller, &ids).await;
    let task = server.caller.ended(&id, LIMIT).await;
    assert_eq!((&task["status"], &task["fence"]), (&"COMPLETED".into(), &2.into()), "{task}");
    assert_eq!((tool.max_in_flight(), tool.seen().len()), (1, MORE + 1));
    nothing_in_use(&server.caller, lease + REAP + SLACK).await;
    new.close().await.unwrap();
    assert_sound(fleet.db.url(), &ids).await;
}

/// The twin: one release too many, by hand, and the tool sees two at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_that_comes_back_twice_is_seen_by_the_tool() {
    let tool = FakeTool::start().await;
    let (fleet, server) = cell(&tool, Duration::from_secs(15)).await;
    tool.on("/", [Behaviour::Slow(QUICK)]);
    let _workers: [Proc; 2] = [fleet.worker(4).await, fleet.worker(4).await];
    server.caller.add_all(calls(MORE)).await;
    more_requests(&tool, 0, 5).await;
    assert_eq!(tool.max_in_flight(), 1);
    let release = "BEGIN; SELECT 1 FROM tidegate.cell WHERE id = 1 FOR UPDATE; \
        UPDATE tidegate.usage SET running = running - 1 WHERE scope = 3 AND key = 'hotels'; COMMIT";
    execute(fleet.db.url(), release).await;
    let since = Instant::now();
    poll_until(LIMIT, "two calls at once", async || (tool.max_in_flight() == 2).then_some(())).await;
    eprintln!("{PEER} saw two calls at once after {:?}", since.elapsed());
}
