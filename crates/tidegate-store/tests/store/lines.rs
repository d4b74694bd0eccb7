//! The lines in which flows stand: nobody is overlooked, however a session remembers where they begin.

use tidegate_core::pause::{PauseMode, PauseTarget};
use tidegate_core::settlement::Ending;
use tidegate_core::submission::Submission;
use tidegate_core::{TaskId, TenantId};
use tidegate_store::{Claimed, Session};

use crate::door::open_limits;
use crate::{Cell, report};

impl Cell {
    /// Adds a task of a tenant.
    async fn add_of(&self, tenant: &str) -> TaskId {
        self.add(Submission { tenant: TenantId::parse(tenant).unwrap(), ..self.submission() }).await
    }
}

/// Settles these tasks and claims at most so many.
async fn settle_and_claim(session: &Session, ended: &[&Claimed], want: usize) -> Vec<Claimed> {
    let reports: Vec<_> = ended.iter().map(|task| report(task, Ending::Completed)).collect();
    session.turn(&reports, want).await.unwrap().claimed
}

fn ids(claimed: &[Claimed]) -> Vec<TaskId> {
    let mut ids: Vec<_> = claimed.iter().map(|task| task.id).collect();
    ids.sort();
    ids
}

/// A tenant comes back after so many starts, each of which raises the floor by a tenth of a second: who comes meanwhile
/// stands behind where its flow ran empty.
async fn wakes_after(starts: usize) {
    let cell = Cell::with(open_limits()).await;
    cell.add_of("first").await;
    let session = cell.session(starts as u32).await;
    let mut running = settle_and_claim(&session, &[], 1).await;
    while running.len() < starts {
        cell.add_of("first").await;
        let more = settle_and_claim(&session, &[], 1).await;
        assert_eq!(more.len(), 1);
        running.extend(more);
    }
    cell.add_of("other").await;
    let waits = cell.add_of("other").await;
    let third = settle_and_claim(&session, &[&running[0]], 1).await;
    assert_eq!(third.len(), 1);
    let back = cell.add_of("first").await;
    let last = settle_and_claim(&session, &[&running[1], &third[0]], 2).await;
    assert_eq!(ids(&last), [waits, back]);
}

#[tokio::test]
async fn a_flow_that_ran_empty_is_met_again_when_it_wakes() {
    wakes_after(2).await;
}

#[tokio::test]
async fn a_flow_that_ran_empty_is_met_again_however_far_the_others_came() {
    wakes_after(30).await;
}

#[tokio::test]
async fn what_a_pause_held_is_met_again_when_it_is_over() {
    let cell = Cell::with(open_limits()).await;
    let held = cell.add_of("held").await;
    cell.add_of("first").await;
    let target = PauseTarget::Tenant(TenantId::parse("held").unwrap());
    let pause = cell.store.create_pause(target, PauseMode::Hold, None, None).await.unwrap();
    let session = cell.session(2).await;
    let one = settle_and_claim(&session, &[], 1).await;
    cell.add_of("first").await;
    let two = settle_and_claim(&session, &[], 1).await;
    cell.add_of("other").await;
    let waits = cell.add_of("other").await;
    let three = settle_and_claim(&session, &[&one[0]], 1).await;
    assert_eq!((one.len(), two.len(), three.len()), (1, 1, 1));
    assert!(cell.store.delete_pause(pause.id).await.unwrap());
    let last = settle_and_claim(&session, &[&two[0], &three[0]], 2).await;
    assert_eq!(ids(&last), [held, waits]);
}
