//! Flows in which nothing waits, and then something does.

use std::time::Duration;

use serde_json::json;
use tidegate_core::settlement::Ending;
use tidegate_core::{Class, Status};
use tidegate_store::{Store, StoreOptions, Swept};
use tidegate_testkit::poll_until;

use crate::{Cell, FAILED, report, tenant};

const LIMIT: Duration = Duration::from_secs(10);

/// A flow runs empty and stays where it stood, while another of the same line wakes further back and is served; then
/// something comes into the first again.
///
/// Broken by: a flow that is filled again where it stood before, in front of where its line is known to begin.
#[tokio::test]
async fn a_flow_that_ran_empty_is_found_when_something_comes_again() {
    let cell = Cell::new().await;
    for _ in 0..4 {
        cell.add(cell.submission()).await;
    }
    let session = cell.session(1).await;
    for _ in 0..3 {
        let task = cell.claim(&session).await;
        // Its tenant is charged for what it ran, so that the class's floor rises.
        tokio::time::sleep(Duration::from_millis(20)).await;
        cell.settle(&session, &task, Ending::Completed).await;
    }
    let task = cell.claim(&session).await;
    cell.settle(&session, &task, FAILED).await;
    let again = poll_until(LIMIT, "the retry", async || {
        cell.store.promote_due(Swept::default()).await.unwrap();
        session.turn(&[], 1).await.unwrap().claimed.pop()
    })
    .await;
    assert_eq!(again.id, task.id);
    // No slot is free, so that it goes where the first ones were.
    let next = cell.add(cell.submission()).await;
    assert_eq!(cell.status(next).await, (Status::Queued, None));
    cell.settle(&session, &again, Ending::Completed).await;
    let claimed = poll_until(LIMIT, "the newcomer", async || session.turn(&[], 1).await.unwrap().claimed.pop()).await;
    assert_eq!(claimed.id, next);
    session.turn(&[report(&claimed, Ending::Completed)], 0).await.unwrap();
    cell.assert_sound().await;
}

/// While a submission comes to its turn another process changes where the classes begin: it goes into a flow that nothing
/// waits in, where the one that it would have gone into has something.
///
/// Broken by: a flow taken for one in which something waits, by what was true of another.
#[tokio::test]
async fn a_flow_that_a_change_of_the_classes_leads_to_wakes() {
    let cell = Cell::new().await;
    let before = cell.add(cell.submission()).await;
    let other = Store::open(StoreOptions::new(cell.db.url())).unwrap();
    other.patch_limits(&json!({"classes": {"standard": {"from": 60}}})).await.unwrap();
    let after = cell.add(cell.submission()).await;
    let task = cell.store.task(&tenant(), after).await.unwrap().unwrap();
    assert_eq!(task.class, Class::Background);
    let session = cell.session(4).await;
    let mut claimed = session.turn(&[], 4).await.unwrap().claimed;
    claimed.sort_by_key(|task| task.id);
    assert_eq!(claimed.iter().map(|task| task.id).collect::<Vec<_>>(), [before, after]);
}
