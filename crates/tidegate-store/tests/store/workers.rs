//! The registry of workers, and draining one of them.

use std::time::Duration;

use tidegate_core::Status;
use tidegate_core::settlement::Ending;
use uuid::Uuid;

use crate::{Cell, report};

#[tokio::test]
async fn live_sessions_are_listed_with_what_runs_on_them() {
    let cell = Cell::new().await;
    assert_eq!(cell.store.workers(None, 10).await.unwrap().workers, []);
    let (first, second) = (cell.session(3).await, cell.session(2).await);
    let id = cell.add(cell.submission()).await;
    let mut claimed = first.turn(&[], 1).await.unwrap().claimed;
    if claimed.is_empty() {
        claimed = second.turn(&[], 1).await.unwrap().claimed;
    }
    assert_eq!(claimed.len(), 1, "{:?}", cell.store.task(&crate::tenant(), id).await);
    let page = cell.store.workers(None, 1).await.unwrap();
    let rest = cell.store.workers(page.next, 10).await.unwrap();
    let listed = [page.workers, rest.workers].concat();
    assert_eq!(listed.iter().map(|worker| worker.id).collect::<Vec<_>>(), [first.id().0, second.id().0]);
    assert_eq!(listed.iter().map(|worker| worker.running).sum::<i64>(), 1);
    let told = &listed[0];
    assert_eq!((&*told.worker, told.slots, &*told.kinds, told.draining), ("w1", 3, &["echo".to_owned()][..], false));
    assert!(told.lease_ms == 15_000 && told.expires_ms >= told.started_ms + 15_000, "{told:?}");
    // Who has left, or whose lease is over, is not there any more.
    second.close().await.unwrap();
    let mut connection = cell.db.connect().await;
    sqlx::query("UPDATE tidegate.heartbeat SET expires_ms = 1").execute(&mut connection).await.unwrap();
    assert_eq!(cell.store.workers(None, 10).await.unwrap().workers, []);
    assert_eq!(cell.store.drain_worker(first.id().0).await.unwrap(), None);
}

#[tokio::test]
async fn a_draining_session_takes_nothing_more_and_hears_of_it_with_its_next_heartbeat() {
    let cell = Cell::new().await;
    let session = cell.session(4).await;
    let running = cell.add(cell.submission()).await;
    let task = cell.claim(&session).await;
    assert!(!session.heart().beat(&[]).await.unwrap().draining);
    assert_eq!(cell.store.drain_worker(Uuid::from_u128(7)).await.unwrap(), None);
    let mut bell = cell.store.cancel_bell();
    bell.mark_unchanged();
    let drained = cell.store.drain_worker(session.id().0).await.unwrap().unwrap();
    assert_eq!((drained.draining, drained.running), (true, 1));
    // It is asked for a heartbeat at once.
    tokio::time::timeout(Duration::from_secs(5), bell.changed()).await.unwrap().unwrap();
    assert_eq!(cell.store.drain_worker(session.id().0).await.unwrap().unwrap(), drained);
    assert_eq!(cell.store.gauges().await.unwrap().slots, 0);

    // Before it has heard: no slot of it is reserved, and its claims bring nothing.
    let waits = cell.add(cell.submission()).await;
    assert_eq!(cell.status(waits).await.0, Status::Queued);
    assert_eq!(session.turn(&[], 4).await.unwrap().claimed, []);
    let told = cell.store.explain(&crate::tenant(), waits).await.unwrap().unwrap().explanation;
    assert!(told.summary.contains("no live worker runs the kind echo"), "{}", told.summary);
    assert!(session.heart().beat(&[(task.id, task.fence)]).await.unwrap().draining);

    // What it runs it may still settle, and gets nothing in exchange.
    let turn = session.turn(&[report(&task, Ending::Completed)], 4).await.unwrap();
    assert_eq!((turn.settled.len(), turn.claimed.len()), (1, 0));
    assert_eq!(cell.status(running).await.0, Status::Completed);
    let other = cell.session(1).await;
    assert_eq!(cell.claim(&other).await.id, waits);
}

#[tokio::test]
async fn what_was_reserved_on_a_session_that_drains_goes_to_another() {
    let cell = Cell::new().await;
    let session = cell.session(1).await;
    let id = cell.add(cell.submission()).await;
    assert_eq!(cell.status(id).await.0, Status::Admitted);
    cell.store.drain_worker(session.id().0).await.unwrap().unwrap();
    assert_eq!(session.turn(&[], 1).await.unwrap().claimed, []);
    tidegate_testkit::poll_until(Duration::from_secs(10), "the slot to be taken back", async || {
        (cell.store.take_back_reserved().await.unwrap() > 0).then_some(())
    })
    .await;
    let other = cell.session(1).await;
    assert_eq!(cell.claim(&other).await.id, id);
    session.close().await.unwrap();
    cell.assert_sound().await;
}
