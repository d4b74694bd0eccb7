//! Retry budgets, suspects kept apart, and inputs that are held.

use std::time::Duration;

use tidegate_core::limits::Limits;
use tidegate_core::settlement::Ending;
use tidegate_core::{Reason, Status, TenantId};
use tidegate_store::{Admission, Session, Settled};

use crate::{Cell, FAILED, kind, report, tenant};

impl Cell {
    /// The worker is gone: what it held is settled as lost, and waits again or has ended.
    pub(crate) async fn crash(&self, session: Session, held: usize) {
        session.close().await.unwrap();
        tidegate_testkit::poll_until(Duration::from_secs(20), "the leases to be reaped", async || {
            (self.store.reap_lost(true).await.unwrap() == held).then_some(())
        })
        .await;
        self.store.promote_due(Default::default()).await.unwrap();
    }

    /// Three workers die of the oldest task.
    async fn lose_three_times(&self) {
        for _ in 0..3 {
            let session = self.session(1).await;
            self.claim(&session).await;
            self.crash(session, 1).await;
        }
    }

    /// What is known of holds is read within a second; this waits until it is.
    async fn until_held(&self, holds: usize) {
        tidegate_testkit::poll_until(Duration::from_secs(10), "the hold to be known", async || {
            (self.store.policy().holds.len() == holds).then_some(())
        })
        .await;
    }
}

/// A cell in which standard work may take every slot.
async fn without_reserve() -> Cell {
    let mut limits = Limits::default();
    limits.classes.critical.reserve = 0.0;
    Cell::with(limits).await
}

/// Without the budget all thirty would be tried again.
#[tokio::test]
async fn a_retry_needs_a_token_of_the_fleets_budget_and_first_attempts_earn_them() {
    let cell = without_reserve().await;
    let session = cell.session(30).await;
    for _ in 0..30 {
        cell.add(cell.submission()).await;
    }
    let claimed = session.turn(&[], 30).await.unwrap().claimed;
    let reports: Vec<_> = claimed.iter().map(|task| report(task, FAILED)).collect();
    let settled = session.turn(&reports, 0).await.unwrap().settled;
    let count = |wanted: Settled| settled.iter().filter(|settled| **settled == wanted).count();
    assert_eq!(count(Settled::Returned(Reason::RetryBackoff)), 10, "{settled:?}");
    assert_eq!(count(Settled::Ended(Status::Failed)), 20);
    let refused = claimed.iter().zip(&settled).find(|(_, settled)| matches!(settled, Settled::Ended(_))).unwrap().0;
    assert_eq!(cell.status(refused.id).await, (Status::Failed, Some(Reason::RetryBudget)));
    // Ten first attempts earn one retry more, whichever worker makes them.
    session.close().await.unwrap();
    let other = cell.session(12).await;
    for _ in 0..12 {
        cell.add(cell.submission()).await;
    }
    let claimed = other.turn(&[], 12).await.unwrap().claimed;
    assert_eq!(claimed.len(), 12);
    let reports: Vec<_> = claimed.iter().take(2).map(|task| report(task, FAILED)).collect();
    let settled = other.turn(&reports, 0).await.unwrap().settled;
    assert_eq!(settled, [Settled::Returned(Reason::RetryBackoff), Settled::Ended(Status::Failed)]);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_crasher_does_not_condemn_its_fifteen_neighbours() {
    let cell = without_reserve().await;
    let mut ids = Vec::new();
    for n in 0..15 {
        let mut submission = cell.submission();
        submission.payload = format!("{{\"n\":{n}}}");
        ids.push(cell.add(submission).await);
    }
    let mut bad = cell.submission();
    bad.payload = "\"crash\"".into();
    let crasher = cell.add(bad).await;
    // Twice it takes all of them along.
    for _ in 0..2 {
        let session = cell.session(16).await;
        assert_eq!(session.turn(&[], 16).await.unwrap().claimed.len(), 16);
        cell.crash(session, 16).await;
    }
    // From now on no worker runs two of them at once.
    let mut session = cell.session(16).await;
    let mut completed = 0;
    loop {
        let claimed = session.turn(&[], 16).await.unwrap().claimed;
        let Some(task) = claimed.first() else { break };
        assert_eq!(claimed.len(), 1);
        if task.id == crasher {
            cell.crash(session, 1).await;
            session = cell.session(16).await;
        } else {
            assert_eq!(cell.settle(&session, task, Ending::Completed).await, Settled::Ended(Status::Completed));
            completed += 1;
        }
    }
    assert_eq!(completed, 15);
    assert_eq!(cell.status(crasher).await, (Status::Failed, Some(Reason::Quarantined)));
    for id in ids {
        assert_eq!(cell.status(id).await, (Status::Completed, None));
    }
    cell.assert_sound().await;
}

#[tokio::test]
async fn an_input_that_cost_three_workers_is_held_for_its_tenant_and_then_for_all() {
    let cell = Cell::new().await;
    let lost = cell.add(cell.submission()).await;
    let mut waiting = Vec::new();
    for payload in ["{ \"n\" : 1 }", "{\"n\":2}"] {
        let mut submission = cell.submission();
        submission.payload = payload.into();
        waiting.push(cell.add(submission).await);
    }
    cell.lose_three_times().await;
    assert_eq!(cell.status(lost).await, (Status::Failed, Some(Reason::Quarantined)));
    cell.until_held(1).await;
    // The same input is refused, however it is written; another input, kind or tenant is not.
    let decided = async |payload: &str, of: &str, who: &TenantId| {
        let mut submission = cell.submission();
        (submission.payload, submission.kind, submission.tenant) = (payload.into(), kind(of), who.clone());
        match cell.admit(submission).await {
            Admission::Decided { decision, .. } => (decision.status, decision.reason),
            other => panic!("{other:?}"),
        }
    };
    let refused = (Status::Rejected, Some(Reason::Quarantined));
    let other = TenantId::parse("other").unwrap();
    assert_eq!(decided("{\"n\": 1}", "echo", &tenant()).await, refused);
    assert_eq!(decided("{\"n\":3}", "echo", &tenant()).await.1, None);
    assert_eq!(decided("{\"n\":1}", "elsewhere", &tenant()).await.1, None);
    // What waits with it ends; what waits with another input does not.
    assert_eq!(cell.store.end_held().await.unwrap(), 1);
    assert_eq!(cell.status(waiting[0]).await, refused);
    assert_eq!(cell.status(waiting[1]).await, (Status::Queued, None));
    assert_eq!(cell.store.end_held().await.unwrap(), 0);
    // A second tenant loses three workers of the same: from then on it is held for everybody.
    let session = cell.session(2).await;
    assert_eq!(session.turn(&[], 2).await.unwrap().claimed.len(), 2);
    assert_eq!(decided("{\"n\":1}", "echo", &other).await.1, None);
    cell.lose_three_times().await;
    cell.until_held(3).await;
    assert_eq!(decided("{\"n\":1}", "echo", &TenantId::parse("third").unwrap()).await, refused);
    cell.assert_sound().await;
}

/// What a sweep has not found is found by the claim: its payload is read anyway.
#[tokio::test]
async fn a_claim_runs_nothing_that_is_held() {
    let cell = Cell::new().await;
    cell.add(cell.submission()).await;
    let same = cell.add(cell.submission()).await;
    cell.lose_three_times().await;
    cell.until_held(1).await;
    let session = cell.session(4).await;
    assert_eq!(session.turn(&[], 4).await.unwrap().claimed, []);
    assert_eq!(cell.status(same).await, (Status::Failed, Some(Reason::Quarantined)));
    cell.assert_sound().await;
}
