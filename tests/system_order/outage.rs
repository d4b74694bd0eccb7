//! C30: an outage is over, and those who failed do not come back all at once.

use std::time::{Duration, Instant};

use sqlx::Connection;
use tidegate_testkit::{Behaviour, FakeTool, Fault, FaultProxy, Seen, poll_until, short_or_long};

use crate::called::{SLACK, all_complete, calls, nothing_in_use, with_peer};
use crate::fleet::{Fleet, LIMIT, connect, number, wait_for_number};
use crate::verdict::assert_sound;

/// How long a call takes once the peer is back.
const CALL: Duration = Duration::from_millis(20);
/// The most in one batch of submissions.
const BATCH: usize = 1_000;
/// Over how long a rate is looked at.
const WINDOW: Duration = Duration::from_millis(500);
const NEVER_TRIED: &str = "SELECT count(*) FROM tidegate.task WHERE status IS NULL AND deliveries = 0";
const BACKING_OFF: &str = "SELECT count(*) FROM tidegate.deferred";

/// An outage.
struct Outage {
    tasks: usize,
    lasts: Duration,
    /// The longest delay before a retry: more than it takes for all to fail.
    backoff_ms: i64,
    /// Calls that the peer takes at once.
    at_once: u32,
}

const SHORT: Outage = Outage { tasks: 300, lasts: Duration::from_secs(4), backoff_ms: 4_000, at_once: 4 };
const LONG: Outage = Outage { tasks: 5_000, lasts: Duration::from_secs(60), backoff_ms: 60_000, at_once: 16 };

/// When those that failed may run again, in milliseconds.
async fn due(url: &str) -> Vec<i64> {
    let mut connection = connect(url).await;
    let due = sqlx::query_scalar("SELECT eligible_ms FROM tidegate.deferred ORDER BY eligible_ms");
    let due = due.fetch_all(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    due
}

/// The most calls within one window.
fn busiest(seen: &[Seen]) -> usize {
    let ends = |from: usize| seen[from..].iter().take_while(|call| call.at - seen[from].at < WINDOW).count();
    (0..seen.len()).map(ends).max().unwrap_or(0)
}

/// All fail within moments because the peer is down. Their retries are spread over the whole of the backoff; when the peer
/// is back it sees its limit and no more, and each task once.
///
/// Broken by: a backoff without jitter, retries that pass no limits, a crowd let through by a returning flow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_outage_retries_come_spread_and_through_the_limits() {
    let Outage { tasks, lasts, backoff_ms, at_once } = short_or_long(SHORT, LONG);
    let tool = FakeTool::start().await;
    tool.on("/", [Behaviour::Slow(CALL)]);
    let proxy = FaultProxy::start(tool.address().to_string()).await;
    let fleet = with_peer(Fleet::new().await, &format!("http://{}/", proxy.address()), at_once)
        .with("KINDS__TOOL__MAX_ATTEMPTS", 1_000)
        .with("KINDS__TOOL__BACKOFF", format!("{{ base_ms = {backoff_ms}, max_ms = {backoff_ms} }}"));
    let server = fleet.serve().await;
    let _workers = [fleet.worker(16).await, fleet.worker(16).await];
    proxy.set(Fault::Refuse);
    let down = Instant::now();
    let mut ids = Vec::new();
    for batch in (0..tasks).step_by(BATCH) {
        ids.extend(server.caller.add_all(calls((tasks - batch).min(BATCH))).await);
    }
    poll_until(LIMIT * 2, "the first failure of each", async || {
        (number(fleet.db.url(), NEVER_TRIED).await == 0).then_some(())
    })
    .await;
    let due = due(fleet.db.url()).await;
    eprintln!("all had failed {:?} after it went down, {} of {tasks} back off", down.elapsed(), due.len());
    assert!(due.len() > tasks / 4, "{} back off", due.len());
    // Uniform over the backoff, less those whose moment has come: no tenth of it may hold much more than its share.
    let fullest =
        (0..due.len()).map(|n| due[n..].iter().take_while(|at| **at < due[n] + backoff_ms / 10).count()).max();
    let (spread, fullest) = (due[due.len() - 1] - due[0], fullest.unwrap_or(0));
    assert!(spread > backoff_ms / 2, "retries are spread over {spread} ms");
    assert!(fullest < due.len() / 2, "{fullest} of {} retries come within a tenth of the backoff", due.len());

    poll_until(lasts + LIMIT, "the end of the outage", async || (down.elapsed() >= lasts).then_some(())).await;
    assert_eq!(tool.seen().len(), 0);
    proxy.set(Fault::None);
    let back = Instant::now();
    all_complete(&server.caller, &ids).await;
    let seen = tool.seen();
    let most = at_once as usize * (WINDOW.as_millis() / CALL.as_millis() + 1) as usize;
    eprintln!("{} calls within {:?}, at most {} in {WINDOW:?}", seen.len(), back.elapsed(), busiest(&seen));
    assert_eq!((tool.max_in_flight(), seen.len()), (at_once as usize, tasks));
    assert!(busiest(&seen) <= most, "{} calls within {WINDOW:?}", busiest(&seen));
    nothing_in_use(&server.caller, SLACK).await;
    wait_for_number(fleet.db.url(), BACKING_OFF, 0).await;
    assert_sound(fleet.db.url(), &ids).await;
}
