//! Permits of calls that running tasks make: exact over replicas, owned by a lease, and gone with it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sqlx::Executor;
use tidegate_core::settlement::Ending;
use tidegate_core::{PeerName, Reason, Status, TenantId};
use tidegate_store::{
    Admission, Claimed, Held, PermitAnswer, PermitCall, Session, Settled, Store, StoreError, StoreOptions,
};
use tidegate_testkit::poll_until;
use tokio::sync::Barrier;
use uuid::Uuid;

use crate::{Cell, FAILED, report, tenant};

const BUSY: PermitAnswer = PermitAnswer::Busy { retry_after: None };
const WAITS: PermitAnswer = PermitAnswer::Waits { max: Duration::from_secs(5) };

fn peer(name: &str) -> PeerName {
    PeerName::parse(name).unwrap()
}

fn call(task: &Claimed, name: &str) -> PermitCall {
    PermitCall { task: task.id, fence: task.fence, peer: peer(name), call: Uuid::now_v7() }
}

async fn limit(cell: &Cell, name: &str, patch: serde_json::Value) {
    cell.store.patch_peer(&peer(name), &patch).await.unwrap();
}

async fn ask(session: &Session, call: &PermitCall) -> PermitAnswer {
    session.permits(&[], std::slice::from_ref(call)).await.unwrap()[0]
}

async fn release(session: &Session, call: &PermitCall) {
    assert_eq!(session.permits(std::slice::from_ref(call), &[]).await.unwrap(), []);
}

async fn held(cell: &Cell, name: &str) -> (i64, i64) {
    let Held { running, queued, .. } = cell.store.peer(&peer(name)).await.unwrap().unwrap().held;
    (running, queued)
}

/// Running tasks without a peer, as many.
async fn running(cell: &Cell, session: &Session, tasks: usize) -> Vec<Claimed> {
    for _ in 0..tasks {
        cell.add(cell.submission()).await;
    }
    session.turn(&[], tasks).await.unwrap().claimed
}

#[tokio::test(flavor = "multi_thread")]
async fn of_fifty_that_ask_at_once_over_two_replicas_one_has_the_only_permit() {
    let cell = Cell::new().await;
    limit(&cell, "hotels", json!({"max_in_flight": 1})).await;
    let other = Store::open(StoreOptions::new(cell.db.url())).unwrap();
    let barrier = Arc::new(Barrier::new(10));
    let mut asking = Vec::new();
    for n in 0..10 {
        let store = if n % 2 == 0 { &cell.store } else { &other };
        let session = Arc::new(cell.session_of(store, 8, Duration::from_secs(15)).await);
        let tasks = running(&cell, &session, 5).await;
        assert_eq!(tasks.len(), 5);
        let barrier = barrier.clone();
        asking.push(tokio::spawn(async move {
            barrier.wait().await;
            let mut taken = Vec::new();
            for task in &tasks {
                let call = call(task, "hotels");
                match ask(&session, &call).await {
                    PermitAnswer::Taken => taken.push(call),
                    answer => assert_eq!(answer, BUSY),
                }
            }
            (session, taken)
        }));
    }
    let mut taken = Vec::new();
    for asked in asking {
        let (session, calls) = asked.await.unwrap();
        taken.extend(calls.into_iter().map(|call| (session.clone(), call)));
    }
    assert_eq!(taken.len(), 1);
    assert_eq!(held(&cell, "hotels").await, (1, 0));
    cell.assert_sound().await;
    release(&taken[0].0, &taken[0].1).await;
    assert_eq!(held(&cell, "hotels").await, (0, 0));
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_second_release_is_nothing_and_an_old_one_takes_no_later_permit() {
    let cell = Cell::new().await;
    limit(&cell, "hotels", json!({"max_in_flight": 2})).await;
    let session = cell.session(4).await;
    let tasks = running(&cell, &session, 2).await;
    let (first, other) = (call(&tasks[0], "hotels"), call(&tasks[1], "hotels"));
    assert_eq!(ask(&session, &first).await, PermitAnswer::Taken);
    assert_eq!(ask(&session, &first).await, PermitAnswer::Taken, "the same call asks again, since an answer was lost");
    assert_eq!(ask(&session, &other).await, PermitAnswer::Taken);
    for _ in 0..3 {
        release(&session, &first).await;
        assert_eq!(held(&cell, "hotels").await, (1, 0));
    }
    // One transaction that gives back and takes anew.
    let again = call(&tasks[0], "hotels");
    assert_eq!(ask(&session, &again).await, PermitAnswer::Taken);
    let third = call(&tasks[0], "flights");
    let answers = session.permits(&[again, first.clone()], std::slice::from_ref(&third)).await.unwrap();
    assert_eq!(answers, [PermitAnswer::Taken]);
    release(&session, &first).await;
    assert_eq!((held(&cell, "hotels").await, held(&cell, "flights").await), ((1, 0), (1, 0)));
    cell.assert_sound().await;
}

#[tokio::test]
async fn the_end_of_a_lease_gives_back_what_its_calls_held_however_it_ends() {
    let cell = Cell::new().await;
    limit(&cell, "hotels", json!({"max_in_flight": 1, "max_wait_ms": 5000})).await;
    let session = cell.session(8).await;
    for ending in
        [Ending::Completed, FAILED, Ending::HandedBack, Ending::Cancelled, Ending::Snoozed { after_ms: 60_000 }]
    {
        let tasks = running(&cell, &session, 2).await;
        let calls = [call(&tasks[0], "hotels"), call(&tasks[1], "hotels")];
        let answers = session.permits(&[], &calls).await.unwrap();
        assert_eq!(answers, [PermitAnswer::Taken, WAITS]);
        assert_eq!(held(&cell, "hotels").await, (1, 1));
        // The one that waits ends as well as the one that holds.
        let reports = [report(&tasks[0], ending), report(&tasks[1], ending)];
        let settled = session.turn(&reports, 0).await.unwrap().settled;
        assert!(settled.iter().all(|settled| *settled != Settled::LeaseLost), "{settled:?}");
        assert_eq!(held(&cell, "hotels").await, (0, 0), "{ending:?}");
        assert_eq!(ask(&session, &calls[0]).await, PermitAnswer::Lost);
        cell.assert_sound().await;
    }
}

#[tokio::test]
async fn a_reaped_lease_gives_its_permits_back_and_its_session_gets_no_more() {
    let cell = Cell::new().await;
    limit(&cell, "hotels", json!({"max_in_flight": 1})).await;
    let session = cell.session_with(4, Duration::from_secs(1)).await;
    let tasks = running(&cell, &session, 2).await;
    let first = call(&tasks[0], "hotels");
    assert_eq!(ask(&session, &first).await, PermitAnswer::Taken);
    cell.db.connect().await.execute("UPDATE tidegate.heartbeat SET expires_ms = 1").await.unwrap();
    let late = call(&tasks[1], "hotels");
    let refused = session.permits(std::slice::from_ref(&first), &[late]).await;
    assert!(matches!(refused, Err(StoreError::SessionLost)), "{refused:?}");
    assert_eq!(cell.store.reap_lost(true).await.unwrap(), 2);
    assert_eq!(held(&cell, "hotels").await, (0, 0));
    cell.assert_sound().await;
    // The worker that was only frozen says so once more, through a session that lives.
    let living = cell.session(4).await;
    release(&living, &first).await;
    assert_eq!(ask(&living, &first).await, PermitAnswer::Lost);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_task_that_holds_any_permit_is_busy_for_every_other() {
    let cell = Cell::new().await;
    limit(&cell, "hotels", json!({"max_wait_ms": 5000})).await;
    let session = cell.session(4).await;
    let tasks = running(&cell, &session, 1).await;
    let first = call(&tasks[0], "flights");
    assert_eq!(ask(&session, &first).await, PermitAnswer::Taken);
    for name in ["hotels", "flights"] {
        assert_eq!(ask(&session, &call(&tasks[0], name)).await, BUSY);
    }
    release(&session, &first).await;
    assert_eq!(ask(&session, &call(&tasks[0], "hotels")).await, PermitAnswer::Taken);
    // One whose submission names a peer holds that one's permit by its lease.
    let mut submission = cell.submission();
    submission.peer = Some(peer("trains"));
    cell.add(submission).await;
    let task = cell.claim(&session).await;
    for name in ["trains", "hotels"] {
        assert_eq!(ask(&session, &call(&task, name)).await, BUSY);
    }
    assert_eq!((held(&cell, "trains").await, held(&cell, "hotels").await), ((1, 0), (1, 0)));
    cell.assert_sound().await;
}

#[tokio::test]
async fn calls_wait_within_the_room_that_the_peers_queue_leaves_them_and_go_before_it() {
    let cell = Cell::new().await;
    limit(&cell, "hotels", json!({"max_in_flight": 1, "max_waiting": 2, "max_wait_ms": 5000})).await;
    let session = cell.session(8).await;
    let tasks = running(&cell, &session, 4).await;
    let calls: Vec<_> = tasks.iter().map(|task| call(task, "hotels")).collect();
    assert_eq!(ask(&session, &calls[0]).await, PermitAnswer::Taken);
    let mut submission = cell.submission();
    submission.peer = Some(peer("hotels"));
    let queued = cell.add(submission.clone()).await;
    assert_eq!(cell.status(queued).await, (Status::Queued, None));
    assert_eq!(ask(&session, &calls[1]).await, WAITS);
    assert_eq!(ask(&session, &calls[1]).await, WAITS, "it is counted once");
    assert_eq!(ask(&session, &calls[2]).await, BUSY, "a task and a call wait");
    submission.id = cell.store.next_id();
    let refused = submission.id;
    cell.admit(submission).await;
    let told = poll_until(Duration::from_secs(10), "the record of the refusal", async || {
        cell.store.task(&tenant(), refused).await.unwrap()
    })
    .await;
    assert_eq!((told.status, told.reason), (Status::Rejected, Some(Reason::BulkheadFull)));
    assert_eq!(held(&cell, "hotels").await, (1, 2));
    cell.assert_sound().await;
    assert!(!session.permit_room(&[peer("hotels")]).await.unwrap());
    release(&session, &calls[0]).await;
    assert!(session.permit_room(&[peer("hotels")]).await.unwrap());
    // The room is kept for the call that waits: neither a task nor a call that comes later gets it.
    assert_eq!(session.turn(&[], 4).await.unwrap().claimed, []);
    assert_eq!(ask(&session, &calls[3]).await, BUSY);
    assert_eq!(ask(&session, &calls[1]).await, PermitAnswer::Taken);
    cell.assert_sound().await;
    release(&session, &calls[1]).await;
    let turn = session.turn(&[], 4).await.unwrap();
    assert_eq!(turn.claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [queued]);
    assert_eq!(held(&cell, "hotels").await, (1, 0));
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_call_draws_one_request_of_the_minute() {
    let cell = Cell::new().await;
    limit(&cell, "hotels", json!({"requests_per_minute": 60})).await;
    let session = cell.session(4).await;
    let tasks = running(&cell, &session, 2).await;
    let first = call(&tasks[0], "hotels");
    assert_eq!(ask(&session, &first).await, PermitAnswer::Taken);
    release(&session, &first).await;
    match ask(&session, &call(&tasks[1], "hotels")).await {
        PermitAnswer::Busy { retry_after: Some(after) } => assert!(after <= Duration::from_secs(1), "{after:?}"),
        other => panic!("{other:?}"),
    }
    // Another kind of taking: a claim meets the same bucket.
    let mut submission = cell.submission();
    submission.peer = Some(peer("hotels"));
    cell.add(submission).await;
    assert_eq!(session.turn(&[], 1).await.unwrap().claimed, []);
    cell.assert_sound().await;
}

#[tokio::test]
async fn the_door_reserves_no_slot_for_a_peer_that_is_at_its_rate() {
    let cell = Cell::new().await;
    limit(&cell, "hotels", json!({"requests_per_minute": 60, "tokens_per_minute": 6_000})).await;
    let session = cell.session(4).await;
    let to_hotels = |tokens| {
        let mut submission = cell.submission();
        submission.peer = Some(peer("hotels"));
        submission.cost.tokens = tokens;
        submission
    };
    let decided = async |submission| match cell.admit(submission).await {
        Admission::Decided { id, decision } => (id, decision.status),
        other => panic!("{other:?}"),
    };
    let refill = async || {
        let sql = "UPDATE tidegate.usage SET rate_full_ns = 0, tokens_full_ns = 0 WHERE scope = 3";
        cell.db.connect().await.execute(sql).await.unwrap();
    };
    let (first, status) = decided(to_hotels(10)).await;
    assert_eq!(status, Status::Admitted);
    let (second, status) = decided(to_hotels(10)).await;
    assert_eq!(status, Status::Queued, "the request of this second is the first one's, who has not started");
    assert_eq!(cell.claim(&session).await.id, first);
    assert_eq!(decided(cell.submission()).await.1, Status::Admitted, "what waits for the rate is before nobody else");
    assert_eq!(session.turn(&[], 4).await.unwrap().claimed.len(), 1);
    refill().await;
    assert_eq!(decided(to_hotels(10)).await.1, Status::Queued, "behind what waits and may start now");
    assert_eq!(cell.claim(&session).await.id, second);
    cell.assert_sound().await;
}

#[tokio::test]
async fn the_audit_finds_a_permit_that_nobody_owns_and_one_that_is_not_counted() {
    let cell = Cell::new().await;
    let session = cell.session(4).await;
    let tasks = running(&cell, &session, 1).await;
    assert_eq!(ask(&session, &call(&tasks[0], "hotels")).await, PermitAnswer::Taken);
    cell.assert_sound().await;
    let mut db = cell.db.connect().await;
    db.execute("UPDATE tidegate.permit SET fence = 7").await.unwrap();
    let drifts = cell.store.audit().await.unwrap();
    assert!(drifts.iter().any(|drift| drift.what.ends_with("without its lease")), "{drifts:?}");
    db.execute("DELETE FROM tidegate.permit").await.unwrap();
    let drifts = cell.store.audit().await.unwrap();
    assert_eq!(drifts.iter().map(|drift| drift.what.as_str()).collect::<Vec<_>>(), ["usage 3 hotels"]);
}

#[tokio::test]
async fn what_waits_too_long_for_its_peer_ends_rejected_and_nothing_else_does() {
    let cell = Cell::new().await;
    limit(&cell, "hotels", json!({"max_in_flight": 1, "max_wait_ms": 10_000})).await;
    limit(&cell, "flights", json!({"max_in_flight": 1})).await;
    let session = cell.session(4).await;
    let to = |name: &str, tenant: &str, value: i64| {
        let mut submission = cell.submission();
        submission.peer = Some(peer(name));
        submission.tenant = TenantId::parse(tenant).unwrap();
        submission.priority = crate::priority(value);
        submission
    };
    // One of each runs, so that the others wait; one came back from a run.
    cell.add(to("hotels", "default", 50)).await;
    let first = cell.claim(&session).await;
    assert_eq!(cell.settle(&session, &first, Ending::HandedBack).await, Settled::Returned(Reason::HandedBack));
    let running = cell.add(to("flights", "default", 50)).await;
    assert_eq!(cell.claim(&session).await.id, running);
    let ids = [
        cell.add(to("hotels", "default", 50)).await,
        cell.add(to("hotels", "acme", 60)).await,
        cell.add(to("hotels", "acme", 61)).await,
        cell.add(to("hotels", "acme", 40)).await,
        cell.add(to("flights", "default", 50)).await,
    ];
    assert_eq!(cell.store.promote_due(Default::default()).await.unwrap().0, 1);
    let sweep = async || cell.store.reject_overdue(Default::default()).await.unwrap().0;
    assert_eq!(sweep().await, 0);
    let mut db = cell.db.connect().await;
    // All but one of acme's have waited for longer than that.
    let age = "UPDATE tidegate.ready SET enqueued_ms = enqueued_ms - 11000, rank = rank - 11000 WHERE task_id <> $1; ";
    sqlx::query(age).bind(ids[1].0).execute(&mut db).await.unwrap();
    db.execute("UPDATE tidegate.flow_usage SET low_rank = low_rank - 11000 WHERE low_rank > 0").await.unwrap();
    assert_eq!(sweep().await, 3);
    assert_eq!(sweep().await, 0);
    let overdue = (Status::Rejected, Some(Reason::BulkheadFull));
    let tenants = ["default", "acme", "acme", "acme", "default"];
    for ((id, tenant), wanted) in ids.iter().zip(tenants).zip([true, false, true, true, false]) {
        let tenant = TenantId::parse(tenant).unwrap();
        let task = cell.store.task(&tenant, *id).await.unwrap().unwrap();
        assert_eq!((task.status, task.reason) == overdue, wanted, "{task:?}");
    }
    assert_eq!(cell.status(first.id).await, (Status::Queued, None), "nobody knows since when it waits");
    assert_eq!(held(&cell, "hotels").await, (0, 2));
    cell.assert_sound().await;
    let turn = session.turn(&[], 4).await.unwrap();
    assert_eq!(turn.claimed.len(), 1, "the rest can still be reached");
}
