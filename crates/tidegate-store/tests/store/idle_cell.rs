//! What cannot run keeps nobody out: it waits beside free slots, and is not before anybody.

use std::time::Duration;

use tidegate_core::submission::{Submission, Timing};
use tidegate_core::{PeerName, Status, TenantId};
use tidegate_store::Admission;

use crate::{Cell, kind, priority};

impl Cell {
    /// What a task is told that could run at once but has little time.
    async fn told(&self, submission: Submission) -> (Status, Option<&'static str>) {
        let timing = Timing { timeout_ms: Some(700), ..Timing::default() };
        match self.admit(Submission { timing, tenant: TenantId::parse("other").unwrap(), ..submission }).await {
            Admission::Decided { decision, .. } => (decision.status, decision.reason.map(|reason| reason.as_str())),
            other => panic!("{other:?}"),
        }
    }

    /// The pace of service is known, and slow: one run of some 50 ms on few slots.
    async fn with_pace(&self, session: &tidegate_store::Session) {
        for _ in 0..3 {
            self.add(self.submission()).await;
            let task = self.claim(session).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.settle(session, &task, tidegate_core::settlement::Ending::Completed).await;
        }
    }
}

/// Six hundred tasks that no worker runs would be twenty seconds of work if they were before the others.
#[tokio::test]
async fn work_of_a_kind_that_nobody_runs_keeps_nobody_out() {
    let cell = Cell::new().await;
    let session = cell.session(2).await;
    cell.with_pace(&session).await;
    let unknown = || Submission { kind: kind("nobody"), ..cell.submission() };
    futures_util::future::join_all((0..600).map(|_| cell.add(unknown()))).await;
    assert_eq!(cell.told(cell.submission()).await.1, None);
    let low = Submission { priority: priority(0), ..cell.submission() };
    assert_eq!(cell.told(low).await.1, None);
}

#[tokio::test]
async fn work_that_waits_for_the_rate_of_its_peer_keeps_nobody_out() {
    let cell = Cell::new().await;
    let slow = PeerName::parse("slow").unwrap();
    cell.store.patch_peer(&slow, &serde_json::json!({"requests_per_minute": 1})).await.unwrap();
    let session = cell.session(2).await;
    cell.with_pace(&session).await;
    let waits = || Submission { peer: Some(slow.clone()), ..cell.submission() };
    futures_util::future::join_all((0..100).map(|_| cell.add(waits()))).await;
    cell.store.take_back_reserved().await.unwrap();
    assert_eq!(cell.told(cell.submission()).await.1, None);
}
