//! A process that stops while it holds the lock that every other needs.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use reqwest::StatusCode;
use serde_json::json;
use sqlx::Executor;
use tidegate_testkit::{Fault, FaultProxy, poll_until};

use crate::caller::Caller;
use crate::fleet::{ALIVE, Fleet, LIMIT, connect, wait_for_number};
use crate::verdict::assert_sound;

/// The longest that one stopped process may keep the others from going on.
const GOING_ON: Duration = Duration::from_secs(3);
/// How much a busy machine may add.
const SLACK: Duration = Duration::from_millis(700);
/// A caller whose own patience at the door ends just before the lock is free has to come again.
const COME_AGAIN: Duration = Duration::from_millis(1_800);
/// How long each piece on the way to the database takes for the process that will be stopped: long enough to be stopped
/// between two statements.
const SLOW: Duration = Duration::from_millis(250);

const HOLDERS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction' \
    AND query LIKE '%EXECUTE tidegate_lock%'";

/// Submits again and again until one task is let in. Whatever else is answered must be the store's trouble, and come soon.
async fn submit_until_let_in(caller: &Caller, since: Instant) -> (String, Duration) {
    poll_until(LIMIT, "a task to be let in", async || {
        let answer = caller.submit(&json!({"kind": "echo"})).await.unwrap();
        if answer.status == StatusCode::ACCEPTED {
            return Some((crate::caller::id_of(&answer.body), since.elapsed()));
        }
        assert_eq!((answer.status, answer.reason()), (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"));
        assert!(answer.took < Duration::from_secs(2) + SLACK, "a refusal took {:?}", answer.took);
        None
    })
    .await
}

#[tokio::test]
async fn an_api_that_is_stopped_inside_its_transaction_holds_the_others_up_for_3_s_at_most() {
    let fleet = Fleet::new().await;
    let (proxy, slow_url) = FaultProxy::for_database(fleet.db.url()).await;
    let (stopped, other) = (fleet.serve_on(&slow_url).await, fleet.serve().await);
    let _worker = fleet.worker(2).await;
    // Both doors have their connections before the way to the database grows long: what is slow then is the transaction.
    other.caller.add(&json!({"kind": "echo"})).await;
    stopped.caller.add(&json!({"kind": "echo"})).await;

    proxy.set(Fault::Delay(SLOW));
    let caller = stopped.caller.clone();
    let unanswered = tokio::spawn(async move { caller.submit(&json!({"kind": "echo"})).await });
    wait_for_number(fleet.db.url(), HOLDERS, 1).await;
    stopped.process.freeze();
    // What it had sent before still arrives, and then nothing.
    let since = Instant::now();
    let (id, took) = submit_until_let_in(&other.caller, since).await;
    assert!(took < GOING_ON + SLACK + COME_AGAIN, "the others went on after {took:?}");
    assert_eq!(other.caller.ended(&id, LIMIT).await["status"], "COMPLETED");
    assert!(since.elapsed() < GOING_ON + COME_AGAIN + SLACK * 2, "a task was run after {:?}", since.elapsed());

    proxy.set(Fault::None);
    stopped.process.signal(Signal::SIGCONT);
    // Nobody can say more to that caller than that the store was not there, or that nobody knows.
    let answer = unanswered.await.unwrap().unwrap();
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.body);
    let (again, _) = submit_until_let_in(&stopped.caller, Instant::now()).await;
    wait_for_number(fleet.db.url(), ALIVE, 0).await;
    assert_sound(fleet.db.url(), &[id, again]).await;
}

/// The twin: a holder without our time-outs, such as a transaction begun by hand, does stop everybody.
#[tokio::test]
async fn a_holder_without_time_outs_stops_everybody() {
    let fleet = Fleet::new().await;
    let server = fleet.serve().await;
    let mut holder = connect(fleet.db.url()).await;
    holder.execute("BEGIN; SELECT 1 FROM tidegate.cell WHERE id = 1 FOR UPDATE").await.unwrap();
    let since = Instant::now();
    while since.elapsed() < GOING_ON + SLACK {
        let answer = server.caller.submit(&json!({"kind": "echo"})).await.unwrap();
        assert_eq!((answer.status, answer.reason()), (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"));
    }
    holder.execute("ROLLBACK").await.unwrap();
    submit_until_let_in(&server.caller, Instant::now()).await;
}
