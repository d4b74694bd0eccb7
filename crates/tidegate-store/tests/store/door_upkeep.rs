//! What must not pile up behind the door: dead reserved rows, tasks without room, estimates given back twice.

use std::time::Duration;

use serde_json::json;
use sqlx::Row;
use tidegate_core::settlement::Ending;
use tidegate_core::submission::{Cost, OnFull, Submission};
use tidegate_core::{Reason, Status, TenantId};
use tidegate_store::{Report, SWEEP, Swept};

use crate::door::{open_limits, stands};
use crate::{Cell, FAILED, report};

/// The lower bounds of the flows in which slots are reserved, beside the ranks that were claimed from there.
#[tokio::test]
async fn claims_move_the_bound_past_reserved_rows_that_they_took() {
    let cell = Cell::with(open_limits()).await;
    let first = cell.session(2).await;
    let mut conn = cell.db.connect().await;
    let mut bound = async || -> i64 {
        let sql = "SELECT u.low_rank FROM tidegate.flow_usage u JOIN tidegate.flow f ON f.id = u.flow_id \
            WHERE f.lane = 0 ORDER BY u.generation DESC LIMIT 1";
        sqlx::query(sql).fetch_one(&mut conn).await.unwrap().get(0)
    };
    for _ in 0..3 {
        let (_, decision) = cell.decide(cell.submission()).await;
        assert_eq!(stands(&decision), (Status::Admitted, None));
        let task = cell.claim(&first).await;
        cell.settle(&first, &task, Ending::Completed).await;
        assert_eq!(bound().await, decision.rank, "the next claim would walk over what this one took");
    }
    // What another session's slot is reserved for stays above the bound until that session took it.
    let second = cell.session(1).await;
    for _ in 0..3 {
        cell.decide(cell.submission()).await;
    }
    assert_eq!(cell.claim_all(&first, 2).await.len(), 2);
    // The audit looks for what is below a bound.
    cell.assert_sound().await;
    assert_eq!(cell.claim_all(&second, 1).await.len(), 1);
    cell.assert_sound().await;
}

/// A tenant with more due tasks than one look holds, and no room for them, hides nobody.
#[tokio::test]
async fn due_tasks_without_room_are_passed_over() {
    let cell = Cell::with(open_limits()).await;
    let full = TenantId::parse("full").unwrap();
    let deferred = |tenant: TenantId| Submission { tenant, on_full: OnFull::Defer, ..cell.submission() };
    // The cell itself is full, so that all of them are deferred; then it has room, and one tenant has not.
    cell.store.patch_limits(&json!({"max_queued": 1})).await.unwrap();
    cell.decide(cell.submission()).await;
    for _ in 0..SWEEP + 5 {
        let (_, decision) = cell.decide(deferred(full.clone())).await;
        assert_eq!(stands(&decision), (Status::Deferred, Some(Reason::Overload)));
    }
    let (last, _) = cell.decide(deferred(TenantId::default_tenant())).await;
    cell.store.patch_tenant(&full, &json!({"max_queued": 0})).await.unwrap();
    cell.store.patch_limits(&json!({"max_queued": 100_000})).await.unwrap();
    let (moved, swept) = cell.store.promote_due(Swept::default()).await.unwrap();
    assert_eq!((moved, swept.has_more()), (0, true));
    let (moved, swept) = cell.store.promote_due(swept).await.unwrap();
    assert_eq!((moved, swept.has_more()), (1, false));
    assert_eq!(cell.status(last).await, (Status::Queued, None));
    // What was passed over is looked at again from the front.
    cell.store.patch_tenant(&full, &json!({"max_queued": null})).await.unwrap();
    assert_eq!(cell.store.promote_due(swept).await.unwrap().0, SWEEP);
    cell.assert_sound().await;
}

/// The estimate is taken once, at the door, however often the task runs.
#[tokio::test]
async fn a_task_that_runs_twice_pays_for_both_runs() {
    let cell = Cell::with(open_limits()).await;
    let acme = TenantId::parse("acme").unwrap();
    cell.store.patch_tenant(&acme, &json!({"tokens_per_minute": 10_000})).await.unwrap();
    let post = |tokens| Submission { tenant: acme.clone(), cost: Cost { tokens, usd_micros: 0 }, ..cell.submission() };
    cell.decide(post(5_000)).await;
    let session = cell.session(1).await;
    let used = Some(Cost { tokens: 4_500, usd_micros: 0 });
    for ending in [FAILED, Ending::Completed] {
        let task = tidegate_testkit::poll_until(Duration::from_secs(30), "the task", async || {
            cell.store.promote_due(Swept::default()).await.unwrap();
            session.turn(&[], 1).await.unwrap().claimed.pop()
        })
        .await;
        session.turn(&[Report { usage: used, ..report(&task, ending) }], 0).await.unwrap();
    }
    // 9,000 of 10,000 were used, and a thousand flow in within six seconds: not 4,000 for nothing.
    let (_, decision) = cell.decide(post(4_000)).await;
    assert_eq!(stands(&decision), (Status::Rejected, Some(Reason::TenantTokens)));
    cell.assert_sound().await;
}
