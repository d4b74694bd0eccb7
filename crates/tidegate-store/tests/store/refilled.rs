//! A flow that ran empty by a retry in another lane of its tenant, and is filled again.

use std::time::Duration;

use tidegate_core::Status;
use tidegate_core::settlement::Ending;
use tidegate_store::Swept;
use tidegate_testkit::poll_until;

use crate::{Cell, FAILED, report};

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
