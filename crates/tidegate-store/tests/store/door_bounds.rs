//! Bounds: what may run at once, how fast a tenant may submit, and what may be held, at every level.

use std::time::{Duration, Instant};

use serde_json::json;
use tidegate_core::limits::{ClassLimits, Limits};
use tidegate_core::settlement::Ending;
use tidegate_core::submission::{Cost, Idempotency, OnFull, Submission};
use tidegate_core::{PeerName, Reason, Status, TenantId};
use tidegate_store::{Admission, AdmitError, Admitter, AdmitterOptions, Report, Store, StoreOptions, TaskFilter};
use tidegate_testkit::{Fault, FaultProxy};
use tokio::task::JoinSet;

use crate::door::{Replica, decided, open_limits, stands};
use crate::{Cell, priority, report, tenant};

fn acme() -> TenantId {
    TenantId::parse("acme").unwrap()
}

fn peer(name: &str) -> Option<PeerName> {
    Some(PeerName::parse(name).unwrap())
}

/// Posts many at once, half of them at each of two replicas, and returns how many were let in and the refusals.
async fn race(cell: &Cell, replica: &Replica, posts: Vec<Submission>) -> (usize, Vec<(Status, Option<Reason>)>) {
    let mut racing = JoinSet::new();
    for (n, submission) in posts.into_iter().enumerate() {
        let admitter = if n % 2 == 0 { cell.admitter.clone() } else { replica.admitter.clone() };
        racing.spawn(async move { stands(&decided(admitter.admit(submission, Instant::now()).await.unwrap()).1) });
    }
    let (refused, accepted): (Vec<_>, Vec<_>) =
        racing.join_all().await.into_iter().partition(|(status, _)| status.is_final());
    (accepted.len(), refused)
}

#[tokio::test]
async fn a_class_takes_no_more_than_its_share_and_leaves_what_is_kept_for_others() {
    let mut limits = open_limits();
    limits.classes.background.max_share = 0.5;
    limits.classes.critical.reserve = 0.3;
    let cell = Cell::with(limits).await;
    for value in [10, 50, 95] {
        for _ in 0..10 {
            cell.add(cell.of_priority(value)).await;
        }
    }
    // Of ten slots three are kept for critical work, and background gets five at most.
    let sessions = [cell.session(6).await, cell.session(4).await];
    let (first, second) = tokio::join!(cell.claim_all(&sessions[0], 6), cell.claim_all(&sessions[1], 4));
    let started = [first, second].concat();
    let critical = cell.store.gauges().await.unwrap().classes[0].1.running;
    assert_eq!((started.len(), critical), (10, 10), "the most important first, up to the last slot");
    for task in &started {
        let session = if cell.settle(&sessions[0], task, Ending::Completed).await == tidegate_store::Settled::LeaseLost
        {
            &sessions[1]
        } else {
            continue;
        };
        cell.settle(session, task, Ending::Completed).await;
    }
    let (first, second) = tokio::join!(cell.claim_all(&sessions[0], 6), cell.claim_all(&sessions[1], 4));
    let running = cell.store.gauges().await.unwrap().classes.map_running();
    assert_eq!((first.len() + second.len(), running), (7, [0, 7, 0]), "three slots wait for what is critical");
    cell.assert_sound().await;
}

trait MapRunning {
    fn map_running(&self) -> [i64; 3];
}

impl MapRunning for Vec<(tidegate_core::Class, tidegate_store::ClassGauges)> {
    fn map_running(&self) -> [i64; 3] {
        [self[0].1.running, self[1].1.running, self[2].1.running]
    }
}

#[tokio::test]
async fn background_is_admitted_and_claimed_up_to_half_of_the_slots() {
    let mut limits = open_limits();
    limits.classes.background.max_share = 0.5;
    let cell = Cell::with(limits).await;
    let session = cell.session(4).await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(cell.decide(cell.of_priority(10)).await.1.status);
    }
    assert_eq!(statuses, [Status::Admitted, Status::Admitted, Status::Queued, Status::Queued]);
    assert_eq!(cell.claim_all(&session, 4).await.len(), 2);
    assert_eq!(cell.claim_all(&session, 2).await, []);
    assert_eq!(cell.decide(cell.submission()).await.1.status, Status::Admitted, "the other half is free");
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_saturated_peer_with_two_thousand_waiting_hides_nobody_and_is_never_overrun() {
    let cell = Cell::with(open_limits()).await;
    cell.store.patch_peer(&PeerName::parse("hotels").unwrap(), &json!({"max_in_flight": 3})).await.unwrap();
    let mut posts = JoinSet::new();
    for _ in 0..2_000 {
        let submission = Submission { peer: peer("hotels"), ..cell.of_priority(60) };
        let admitter = cell.admitter.clone();
        posts.spawn(async move { admitter.admit(submission, Instant::now()).await.unwrap() });
    }
    assert_eq!(posts.join_all().await.len(), 2_000);
    for _ in 0..10 {
        cell.add(Submission { peer: peer("trains"), ..cell.submission() }).await;
    }
    let sessions = [cell.session(8).await, cell.session(12).await];
    let (first, second) = tokio::join!(cell.claim_all(&sessions[0], 8), cell.claim_all(&sessions[1], 12));
    let mut started = [first, second].concat();
    while let (more, true) = (cell.claim_all(&sessions[1], 12).await, started.len() < 13) {
        assert!(!more.is_empty(), "{} of 13 started, and no more", started.len());
        started.extend(more);
    }
    let of = |name: &str| started.iter().filter(|task| task.peer == peer(name)).count();
    assert_eq!((of("hotels"), of("trains")), (3, 10));
    // A place that is given back is filled again, by one.
    for _ in 0..3 {
        let at = started.iter().position(|task| task.peer == peer("hotels")).unwrap();
        let done = started.remove(at);
        let mut turns = Vec::new();
        for session in &sessions {
            turns.push(session.turn(&[report(&done, Ending::Completed)], 5).await.unwrap().claimed);
        }
        let claimed = turns.concat();
        assert_eq!(claimed.len(), 1);
        started.extend(claimed);
    }
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_tenant_and_its_classes_run_no_more_than_they_may_and_others_go_on() {
    let cell = Cell::with(open_limits()).await;
    let change = json!({"max_running": 3, "classes": {"background": {"max_running": 1}}});
    cell.store.patch_tenant(&acme(), &change).await.unwrap();
    let session = cell.session(10).await;
    let of_acme = |value| Submission { tenant: acme(), ..cell.of_priority(value) };
    let admitted = async |submission| cell.decide(submission).await.1.status == Status::Admitted;
    assert!(admitted(of_acme(10)).await && !admitted(of_acme(10)).await, "one of background");
    assert!(admitted(of_acme(50)).await && admitted(of_acme(50)).await, "three in all");
    assert!(!admitted(of_acme(50)).await && !admitted(of_acme(95)).await, "and never a refusal");
    assert!(admitted(cell.submission()).await, "somebody else");
    cell.assert_sound().await;
    let claimed = cell.claim_all(&session, 10).await;
    let own = claimed.iter().filter(|task| task.tenant == acme()).count();
    assert_eq!((claimed.len(), own), (4, 3));
    assert_eq!(cell.claim_all(&session, 6).await, []);
    // One ends: one starts, the critical one.
    let done = claimed.iter().find(|task| task.tenant == acme()).unwrap();
    let turn = session.turn(&[report(done, Ending::Completed)], 6).await.unwrap();
    assert_eq!(turn.claimed.len(), 1);
    // A limit that falls stops no run and starts none.
    cell.store.patch_tenant(&acme(), &json!({"max_running": 1})).await.unwrap();
    let turn = session.turn(&[report(&turn.claimed[0], Ending::Completed)], 6).await.unwrap();
    assert_eq!(turn.claimed, []);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_tenants_rate_is_exact_over_two_replicas_and_the_refused_use_up_nothing() {
    let cell = Cell::with(open_limits()).await;
    // So slow that nothing flows in while the test runs.
    cell.store.patch_tenant(&acme(), &json!({"rate_per_minute": 1, "burst": 10, "max_bytes": 1_000})).await.unwrap();
    let replica = Replica::of(&cell);
    let of_acme = || Submission { tenant: acme(), ..cell.submission() };
    // Refused for another reason: the bucket stays full.
    let large = Submission { payload: format!("\"{}\"", "x".repeat(2_000)), ..of_acme() };
    assert_eq!(stands(&cell.decide(large).await.1), (Status::Rejected, Some(Reason::TenantBytes)));
    let (accepted, refused) = race(&cell, &replica, (0..40).map(|_| of_acme()).collect()).await;
    assert_eq!((accepted, refused), (10, vec![(Status::Rejected, Some(Reason::TenantRate)); 30]));
    let decision = replica.decide(of_acme()).await.1;
    let quota = decision.quota.unwrap();
    assert_eq!((quota.name, quota.limit, quota.remaining, quota.window_s), ("rate", 1, 0, Some(60)));
    assert!((1..=90_000).contains(&decision.retry_after_ms.unwrap()), "{decision:?}");
    assert_eq!(cell.decide(cell.submission()).await.1.status, Status::Queued, "another tenant");
    cell.assert_sound().await;
}

/// C35: a limit that was read first and used up later was passed six-fold.
#[tokio::test]
async fn fifty_parallel_tasks_of_a_thousand_tokens_get_what_a_minute_brings_and_use_is_made_good_at_the_end() {
    let cell = Cell::with(open_limits()).await;
    cell.store.patch_tenant(&acme(), &json!({"tokens_per_minute": 10_000})).await.unwrap();
    let replica = Replica::of(&cell);
    let post = |tokens| Submission { tenant: acme(), cost: Cost { tokens, usd_micros: 0 }, ..cell.submission() };
    let began = Instant::now();
    // A thousand tokens flow in within six seconds.
    let flowed = |since: Instant| since.elapsed().as_secs() as usize / 6;
    let (accepted, refused) = race(&cell, &replica, (0..50).map(|_| post(1_000)).collect()).await;
    assert!((10..=10 + flowed(began)).contains(&accepted), "{accepted}");
    assert!(refused.iter().all(|why| *why == (Status::Rejected, Some(Reason::TenantTokens))), "{refused:?}");
    // Larger than the bucket: never, and nobody is told to come again.
    let decision = cell.decide(post(10_001)).await.1;
    assert_eq!((stands(&decision).1, decision.retry_after_ms), (Some(Reason::TenantTokens), None));
    let session = cell.session(20).await;
    let claimed = cell.claim_all(&session, 20).await;
    assert_eq!(claimed.len(), accepted);
    let used = |tokens| Some(Cost { tokens, usd_micros: 0 });
    let reports: Vec<Report> =
        claimed.iter().map(|task| Report { usage: used(100), ..report(task, Ending::Completed) }).collect();
    session.turn(&reports, 0).await.unwrap();
    let task = cell.store.task(&acme(), claimed[0].id).await.unwrap().unwrap();
    assert_eq!((task.estimated.tokens, task.actual.map(|actual| actual.tokens)), (1_000, Some(100)), "both are kept");
    // What was not used is there again: at least 9,000.
    let (accepted, _) = race(&cell, &replica, (0..50).map(|_| post(1_000)).collect()).await;
    assert!((9..=10 + flowed(began)).contains(&accepted), "{accepted}");
    // What was used beyond the estimate is owed.
    let claimed = cell.claim_all(&session, 20).await;
    let reports: Vec<Report> =
        claimed.iter().map(|task| Report { usage: used(9_000), ..report(task, Ending::Completed) }).collect();
    session.turn(&reports, 0).await.unwrap();
    let decision = cell.decide(post(1)).await.1;
    assert_eq!(stands(&decision).1, Some(Reason::TenantTokens));
    assert!(decision.retry_after_ms.unwrap() > 60_000, "minutes of it: {decision:?}");
    cell.assert_sound().await;
}

/// A bound, how many small tasks fit in it, and the answer to one more.
type Bound = (&'static str, serde_json::Value, Option<serde_json::Value>, usize, Reason);

/// Holds each bound, in a cell of its own, against twelve posts that race at two replicas.
async fn each_lets_in_what_fits(bounds: Vec<Bound>) {
    for (what, limits, tenant_limits, fits, reason) in bounds {
        let cell = Cell::with(open_limits()).await;
        let replica = Replica::of(&cell);
        cell.store.patch_limits(&limits).await.unwrap();
        if let Some(change) = tenant_limits {
            cell.store.patch_tenant(&tenant(), &change).await.unwrap();
        }
        cell.store.patch_peer(&PeerName::parse("hotels").unwrap(), &json!({"max_waiting": 3})).await.unwrap();
        let post = || Submission {
            cost: Cost { tokens: 100, usd_micros: 50 },
            peer: if what == "peer" { peer("hotels") } else { None },
            ..cell.submission()
        };
        let (accepted, refused) = race(&cell, &replica, (0..12).map(|_| post()).collect()).await;
        assert_eq!((accepted, refused), (fits, vec![(Status::Rejected, Some(reason)); 12 - fits]), "{what}");
        cell.assert_sound().await;
        // What ends gives back what it held, once.
        let session = cell.session(1).await;
        let task = cell.claim(&session).await;
        cell.settle(&session, &task, Ending::Completed).await;
        session.close().await.unwrap();
        // What has a key is never refused from memory, which may not know yet of the place.
        let keyed = |n: u8| Submission {
            idempotency: Some(Idempotency { key: format!("again-{n}"), body_sha256: [n; 32] }),
            ..post()
        };
        let (accepted, _) = race(&cell, &replica, (0..6).map(keyed).collect()).await;
        assert_eq!(accepted, 1, "{what}: the place of the one that ended");
        cell.assert_sound().await;
    }
}

// Each task: 100 tokens, 50 micros, 7 bytes.

#[tokio::test]
async fn every_bound_of_cell_and_class_lets_in_what_fits_and_no_more_from_two_replicas() {
    let of_class = |change: serde_json::Value| json!({"classes": {"standard": change}});
    each_lets_in_what_fits(vec![
        ("queued", json!({"max_queued": 3}), None, 3, Reason::QueueFull),
        ("in flight", json!({"max_in_flight": 4}), None, 4, Reason::QueueFull),
        ("tokens", json!({"max_tokens": 250}), None, 2, Reason::TokenBudget),
        ("money", json!({"max_usd_micros": 250}), None, 5, Reason::CostBudget),
        ("bytes", json!({"max_bytes": 30}), None, 4, Reason::ByteBudget),
        ("class", of_class(json!({"max_queued": 2})), None, 2, Reason::ClassQueueLimit),
        ("class's tokens", of_class(json!({"max_tokens": 300})), None, 3, Reason::TokenBudget),
        ("class's bytes", of_class(json!({"max_bytes": 20})), None, 2, Reason::ByteBudget),
    ])
    .await;
}

#[tokio::test]
async fn every_bound_of_tenant_and_peer_lets_in_what_fits_and_no_more_from_two_replicas() {
    let of_class = json!({"classes": {"standard": {"max_queued": 1}}});
    each_lets_in_what_fits(vec![
        ("tenant", json!({}), Some(json!({"max_queued": 4})), 4, Reason::TenantQueueLimit),
        ("tenant's class", json!({}), Some(of_class), 1, Reason::TenantQueueLimit),
        ("tenant's tokens", json!({}), Some(json!({"max_tokens": 399})), 3, Reason::TenantTokens),
        ("tenant's bytes", json!({}), Some(json!({"max_bytes": 14})), 2, Reason::TenantBytes),
        ("tenant's money", json!({}), Some(json!({"max_usd_micros": 100})), 2, Reason::TenantCost),
        ("peer", json!({}), None, 3, Reason::BulkheadFull),
    ])
    .await;
}

#[tokio::test]
async fn bytes_are_bounded_for_the_deferred_too_however_they_come_in() {
    let cell = Cell::with(Limits { max_bytes: 20, ..open_limits() }).await;
    let defer = || Submission { on_full: OnFull::Defer, ..cell.submission() };
    let mut later = cell.submission();
    later.timing.start = tidegate_core::submission::Start::After(60_000);
    assert_eq!(stands(&cell.decide(later.clone()).await.1), (Status::Deferred, Some(Reason::Scheduled)));
    assert_eq!(stands(&cell.decide(defer()).await.1), (Status::Queued, None));
    // 14 bytes are held: to wait among the deferred makes no room for 7 more.
    assert_eq!(stands(&cell.decide(defer()).await.1), (Status::Rejected, Some(Reason::ByteBudget)));
    later.id = cell.store.next_id();
    assert_eq!(stands(&cell.decide(later).await.1), (Status::Rejected, Some(Reason::ByteBudget)));
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_limit_that_another_replica_patched_holds_in_the_next_admission() {
    let cell = Cell::with(open_limits()).await;
    let replica = Replica::of(&cell);
    cell.add(cell.submission()).await;
    replica.store.patch_limits(&json!({"max_queued": 1})).await.unwrap();
    assert_eq!(stands(&cell.decide(cell.submission()).await.1), (Status::Rejected, Some(Reason::QueueFull)));
    replica.store.patch_tenant(&acme(), &json!({"rate_per_minute": 1, "burst": 1})).await.unwrap();
    replica.store.patch_limits(&json!({"max_queued": 10})).await.unwrap();
    // A replica may refuse from memory what it saw a tenth of a second ago, and no longer.
    tidegate_testkit::poll_until(Duration::from_secs(5), "the higher limit", async || {
        (cell.decide(cell.submission()).await.1.status == Status::Queued).then_some(())
    })
    .await;
    let of_acme = || Submission { tenant: acme(), priority: priority(60), ..cell.submission() };
    assert_eq!(cell.decide(of_acme()).await.1.status, Status::Queued);
    assert_eq!(stands(&cell.decide(of_acme()).await.1), (Status::Rejected, Some(Reason::TenantRate)));
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_class_runs_no_more_than_its_own_number() {
    let mut limits = open_limits();
    limits.classes.standard = ClassLimits { max_running: Some(2), ..limits.classes.standard };
    let cell = Cell::with(limits).await;
    for _ in 0..5 {
        cell.add(cell.submission()).await;
    }
    let sessions = [cell.session(4).await, cell.session(4).await];
    let (first, second) = tokio::join!(cell.claim_all(&sessions[0], 4), cell.claim_all(&sessions[1], 4));
    assert_eq!(first.len() + second.len(), 2);
    cell.assert_sound().await;
}

/// A database that writes batch after batch, only slowly, is not out of reach.
#[tokio::test]
async fn who_comes_too_late_behind_others_is_told_that_too_many_wait() {
    const SUBMISSIONS: usize = 6;
    let cell = Cell::with(open_limits()).await;
    let (proxy, url) = FaultProxy::for_database(cell.db.url()).await;
    let store = Store::open(StoreOptions::new(&url)).unwrap();
    let door = Admitter::start(&store, AdmitterOptions { batch_tasks: 1, ..AdmitterOptions::default() }).unwrap();
    door.admit(cell.submission(), Instant::now()).await.unwrap();
    proxy.set(Fault::Delay(Duration::from_millis(60)));
    let all = futures_util::future::join_all((0..SUBMISSIONS).map(|_| door.admit(cell.submission(), Instant::now())));
    let answers = all.await;
    let count = |wanted: fn(&Result<Admission, AdmitError>) -> bool| answers.iter().filter(|one| wanted(one)).count();
    let (accepted, late) = (count(Result::is_ok), count(|one| matches!(one, Err(AdmitError::Overloaded))));
    assert!(accepted > 0 && late > 0 && accepted + late == SUBMISSIONS, "{answers:?}");
    let tasks = cell.store.tasks(&tenant(), &TaskFilter { limit: 200, ..TaskFilter::default() }).await.unwrap().tasks;
    assert_eq!(tasks.len(), 1 + accepted);
    // Nothing is written any more.
    proxy.set(Fault::Blackhole);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let out_of_reach = door.admit(cell.submission(), Instant::now()).await;
    assert!(matches!(out_of_reach, Err(AdmitError::Unavailable)), "{out_of_reach:?}");
}
