//! A door with no room behind it: whose place is taken, who waits, who is deferred, and who is shed.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use serde_json::json;
use tidegate_core::admission::MAX_DISPLACED;
use tidegate_core::limits::Limits;
use tidegate_core::submission::{Cost, Idempotency, OnFull, Submission};
use tidegate_core::{Reason, Status, TaskId};
use tidegate_store::{Admission, AdmitError, Swept};
use tidegate_testkit::{FaultProxy, poll_until};

use crate::door::{LIMIT, Replica, decided, open_limits, stands};
use crate::{Cell, tenant};

const QUEUED: (Status, Option<Reason>) = (Status::Queued, None);
const FULL: (Status, Option<Reason>) = (Status::Rejected, Some(Reason::QueueFull));
const DISPLACED: (Status, Option<Reason>) = (Status::Shed, Some(Reason::Displaced));
const SHED: (Status, Option<Reason>) = (Status::Shed, Some(Reason::LowPriority));

fn queue_of(max_queued: u32) -> Limits {
    Limits { max_queued, ..open_limits() }
}

fn waits(submission: Submission, max_wait_ms: u64) -> Submission {
    Submission { on_full: OnFull::Wait { max_wait_ms }, ..submission }
}

type Answering<'a> = Pin<Box<dyn Future<Output = Result<Admission, AdmitError>> + Send + 'a>>;

impl Cell {
    /// Brings a submission to the door, where it arrives before whatever is sent after this, and does not wait for the
    /// answer.
    fn send(&self, submission: Submission) -> Answering<'_> {
        let mut answering: Answering<'_> = Box::pin(self.admitter.admit(submission, Instant::now()));
        assert!(answering.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        answering
    }

    async fn cancel(&self, id: TaskId) {
        self.canceller.cancel(&tenant(), id, None).await.unwrap();
    }

    /// Whatever was sent before has been looked at once this has been refused.
    async fn refused_for(&self, reason: Reason) {
        let decision = self.decide(waits(self.of_priority(1), 0)).await.1;
        assert_eq!(stands(&decision), (Status::Rejected, Some(reason)));
    }
}

#[tokio::test]
async fn a_newcomer_takes_the_place_of_the_worst_of_the_lowest_class_and_of_no_other() {
    let cell = Cell::with(queue_of(4)).await;
    let mut keyed = cell.of_priority(5);
    keyed.idempotency = Some(Idempotency { key: "worst".into(), body_sha256: [1; 32] });
    let again = Submission { id: cell.store.next_id(), ..keyed.clone() };
    let better = cell.add(cell.of_priority(30)).await;
    let worst = cell.add(keyed).await;
    let standard = [cell.add(cell.of_priority(50)).await, cell.add(cell.of_priority(50)).await];
    let (critical, decision) = cell.decide(cell.of_priority(95)).await;
    assert_eq!(stands(&decision), QUEUED);
    assert_eq!((cell.status(worst).await, cell.status(better).await), (DISPLACED, QUEUED));
    // A 202 burns the key: the displaced task replays as what it is now.
    assert_eq!(cell.admit(again).await, Admission::Replayed { id: worst });
    cell.assert_sound().await;
    // A standard one takes the other background task's place, and then there is nobody below it.
    assert_eq!(stands(&cell.decide(cell.of_priority(89)).await.1), QUEUED);
    assert_eq!(cell.status(better).await, DISPLACED);
    assert_eq!(stands(&cell.decide(cell.of_priority(89)).await.1), FULL, "never a task of the same class");
    assert_eq!(stands(&cell.decide(cell.of_priority(1)).await.1), FULL, "nor one above");
    for id in standard {
        assert_eq!(cell.status(id).await, QUEUED);
    }
    assert_eq!(cell.status(critical).await, QUEUED);
    cell.assert_sound().await;
}

#[tokio::test]
async fn many_newcomers_at_once_from_two_replicas_displace_one_each() {
    let cell = Cell::with(queue_of(60)).await;
    for n in 0..60 {
        cell.add(cell.of_priority(n % 30)).await;
    }
    let replica = Replica::of(&cell);
    let mut posts = tokio::task::JoinSet::new();
    for n in 0..80 {
        let admitter = if n % 2 == 0 { cell.admitter.clone() } else { replica.admitter.clone() };
        let submission = cell.of_priority(if n < 40 { 95 } else { 50 });
        posts.spawn(async move { decided(admitter.admit(submission, Instant::now()).await.unwrap()).1 });
    }
    let decisions = posts.join_all().await;
    let critical = decisions.iter().filter(|decision| decision.class == tidegate_core::Class::Critical);
    assert!(critical.clone().count() == 40 && critical.clone().all(|decision| stands(decision) == QUEUED));
    let gauges = cell.store.gauges().await.unwrap();
    let queued = [0, 1, 2].map(|class| gauges.classes[class].1.queued);
    assert_eq!(queued, [40, 20, 0], "the queue is full of the most important");
    cell.assert_sound().await;
    // Whoever is displaced is the lowest by rank: nothing of background is left, and it ended once each.
    let displaced = "SELECT count(*) FROM tidegate.task WHERE status = 'SHED' AND reason = 'displaced'";
    let displaced: i64 = sqlx::query_scalar(displaced).fetch_one(&mut cell.db.connect().await).await.unwrap();
    let accepted = decisions.iter().filter(|decision| stands(decision) == QUEUED).count() as i64;
    assert_eq!(displaced, accepted, "one for each");
}

#[tokio::test]
async fn one_newcomer_displaces_eight_at_most_and_none_where_that_is_not_enough() {
    let cell = Cell::with(Limits { max_tokens: Some(10), ..open_limits() }).await;
    let of_tokens = |value, tokens| Submission { cost: Cost { tokens, usd_micros: 0 }, ..cell.of_priority(value) };
    let mut low = Vec::new();
    for _ in 0..10 {
        low.push(cell.add(of_tokens(10, 1)).await);
    }
    let (_, decision) = cell.decide(of_tokens(95, 9)).await;
    assert_eq!(stands(&decision), (Status::Rejected, Some(Reason::TokenBudget)));
    let (_, decision) = cell.decide(of_tokens(95, 11)).await;
    assert_eq!((stands(&decision).1, decision.retry_after_ms), (Some(Reason::TokenBudget), None), "it never fits");
    for id in &low {
        assert_eq!(cell.status(*id).await, QUEUED, "nobody is displaced for nothing");
    }
    assert_eq!(stands(&cell.decide(of_tokens(95, MAX_DISPLACED as u64)).await.1), QUEUED);
    let mut statuses = Vec::new();
    for id in &low {
        statuses.push(cell.status(*id).await);
    }
    // The best of the same priority came first.
    assert_eq!(statuses, [vec![QUEUED; 2], vec![DISPLACED; 8]].concat());
    cell.assert_sound().await;
}

#[tokio::test]
async fn who_waits_comes_in_first_come_first_served_as_places_get_free() {
    let cell = Cell::with(queue_of(1)).await;
    let mut inside = cell.add(cell.submission()).await;
    let mut waiting: Vec<_> = (0..3).map(|_| cell.send(waits(cell.submission(), 60_000))).collect();
    cell.refused_for(Reason::QueueFull).await;
    for n in 0..3 {
        cell.cancel(inside).await;
        let first = waiting.remove(0);
        let (id, decision) = decided(first.await.unwrap());
        assert_eq!(stands(&decision), QUEUED, "waiter {n}");
        // The next stands at the door still, and a newcomer does not get past it.
        if !waiting.is_empty() {
            cell.refused_for(Reason::QueueFull).await;
        }
        let task = cell.store.task(&tenant(), id).await.unwrap().unwrap();
        assert!(task.admission_wait_ms >= 0 && task.deadline_ms == task.enqueued_ms + 300_000, "{task:?}");
        inside = id;
    }
    cell.assert_sound().await;
}

/// Full batches are gathered while the one before is being written: but not past somebody who was told to wait.
#[tokio::test]
async fn no_flood_of_newcomers_gets_past_who_waits() {
    const NEWCOMERS: usize = 1_500;
    let cell = Cell::with(queue_of(1)).await;
    let mut inside = cell.add(cell.submission()).await;
    for round in 0..3 {
        let waiter = cell.send(waits(cell.submission(), 60_000));
        cell.refused_for(Reason::QueueFull).await;
        let flood: Vec<_> = (0..NEWCOMERS).map(|_| cell.send(waits(cell.submission(), 0))).collect();
        let ((), waited, newcomers) = tokio::join!(cell.cancel(inside), waiter, futures_util::future::join_all(flood));
        let (id, decision) = decided(waited.unwrap());
        assert_eq!(stands(&decision), QUEUED, "round {round}");
        assert!(newcomers.into_iter().all(|newcomer| stands(&decided(newcomer.unwrap()).1) == FULL), "round {round}");
        inside = id;
    }
    cell.assert_sound().await;
}

#[tokio::test]
async fn whoever_waited_as_long_as_it_agreed_to_or_a_quarter_of_its_time_is_refused() {
    let cell = Cell::with(queue_of(1)).await;
    cell.add(cell.submission()).await;
    let began = Instant::now();
    let decision = cell.decide(waits(cell.submission(), 400)).await.1;
    assert_eq!(stands(&decision), FULL);
    assert!(decision.retry_after_ms.is_some() && began.elapsed() >= Duration::from_millis(400));
    let mut short = waits(cell.submission(), 3_600_000);
    short.timing.timeout_ms = Some(2_000);
    let began = Instant::now();
    let decision = cell.decide(short).await.1;
    assert_eq!(stands(&decision), FULL, "not as late as its deadline: {:?}", began.elapsed());
    assert!(began.elapsed() >= Duration::from_millis(500));
    cell.assert_sound().await;
}

#[tokio::test]
async fn only_so_many_may_wait_and_a_caller_that_leaves_frees_its_place_at_once() {
    let cell = Cell::with(Limits { max_waiting_callers: 1, ..queue_of(1) }).await;
    let inside = cell.add(cell.submission()).await;
    let gone = cell.send(waits(cell.submission(), 60_000));
    let decision = cell.decide(waits(cell.submission(), 60_000)).await.1;
    assert_eq!(stands(&decision), (Status::Rejected, Some(Reason::WaitersFull)));
    drop(gone);
    let stays = cell.send(waits(cell.submission(), 60_000));
    let decision = cell.decide(waits(cell.submission(), 60_000)).await.1;
    assert_eq!(stands(&decision), (Status::Rejected, Some(Reason::WaitersFull)), "the next stands in its place");
    cell.cancel(inside).await;
    assert_eq!(stands(&decided(stays.await.unwrap()).1), QUEUED);
    let alive: i64 = sqlx::query_scalar("SELECT count(*) FROM tidegate.task WHERE status IS NULL")
        .fetch_one(&mut cell.db.connect().await)
        .await
        .unwrap();
    assert_eq!(alive, 1, "whoever left took its submission along");
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_more_important_newcomer_displaces_rather_than_waits_and_one_that_may_wait_for_a_tenant_does_not() {
    let cell = Cell::with(queue_of(1)).await;
    let low = cell.add(cell.of_priority(10)).await;
    assert_eq!(stands(&cell.decide(waits(cell.submission(), 60_000)).await.1), QUEUED);
    assert_eq!(cell.status(low).await, DISPLACED);
    // Over its own share nobody waits: the place of another would not help.
    cell.store.patch_tenant(&tenant(), &json!({"max_queued": 1})).await.unwrap();
    let decision = cell.decide(waits(cell.submission(), 60_000)).await.1;
    assert_eq!(stands(&decision), (Status::Rejected, Some(Reason::TenantQueueLimit)));
    cell.assert_sound().await;
}

#[tokio::test]
async fn who_agreed_to_be_deferred_comes_in_before_newcomers() {
    let cell = Cell::with(Limits { max_deferred: 1, ..queue_of(1) }).await;
    let inside = cell.add(cell.submission()).await;
    let defer = || Submission { on_full: OnFull::Defer, ..cell.submission() };
    let (deferred, decision) = cell.decide(defer()).await;
    assert_eq!(stands(&decision), (Status::Deferred, Some(Reason::Overload)));
    assert_eq!(stands(&cell.decide(defer()).await.1), (Status::Rejected, Some(Reason::DeferredFull)));
    assert_eq!(cell.store.promote_due(Swept::default()).await.unwrap().0, 0, "there is no room yet");
    cell.cancel(inside).await;
    assert_eq!(stands(&cell.decide(waits(cell.submission(), 0)).await.1), FULL, "the free place is the deferred one's");
    assert_eq!(cell.store.promote_due(Swept::default()).await.unwrap().0, 1);
    assert_eq!(cell.status(deferred).await, QUEUED);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_class_is_shed_above_its_threshold_by_every_replica_and_let_in_again_well_below() {
    let mut limits = queue_of(10);
    limits.classes.background.shed_at = Some(0.5);
    let cell = Cell::with(limits).await;
    let replica = Replica::of(&cell);
    let mut inside = Vec::new();
    for _ in 0..5 {
        inside.push(cell.add(cell.submission()).await);
    }
    let low = cell.decide(cell.of_priority(10)).await;
    assert_eq!(stands(&low.1), QUEUED, "at the threshold, not above it");
    inside.push(low.0);
    for decision in [replica.decide(cell.of_priority(10)).await.1, cell.decide(cell.of_priority(10)).await.1] {
        assert_eq!(stands(&decision), SHED);
        assert!(decision.retry_after_ms.is_some());
    }
    assert_eq!(stands(&cell.decide(cell.of_priority(50)).await.1), QUEUED, "the others are not shed");
    let flag = "SELECT bool_or(shedding) FROM tidegate.usage WHERE scope = 1 AND key = 'background'";
    let flag: bool = sqlx::query_scalar(flag).fetch_one(&mut cell.db.connect().await).await.unwrap();
    assert!(flag, "replicas agree by the row of the class");
    // Back at the threshold: not yet, for either.
    cell.cancel(inside.remove(0)).await;
    cell.cancel(inside.remove(0)).await;
    for decision in [replica.decide(cell.of_priority(10)).await.1, cell.decide(cell.of_priority(10)).await.1] {
        assert_eq!(stands(&decision), SHED);
    }
    cell.cancel(inside.remove(0)).await;
    poll_until(LIMIT, "the end of shedding", async || {
        let (id, decision) = replica.decide(cell.of_priority(10)).await;
        assert!([QUEUED, SHED].contains(&stands(&decision)), "{decision:?}");
        (stands(&decision) == QUEUED).then_some(id)
    })
    .await;
    cell.assert_sound().await;
}

#[tokio::test]
async fn what_is_certain_to_be_refused_is_refused_without_the_database() {
    let cell = Cell::with(queue_of(0)).await;
    let (proxy, url) = FaultProxy::for_database(cell.db.url()).await;
    let store = tidegate_store::Store::open(tidegate_store::StoreOptions::new(&url)).unwrap();
    let door = tidegate_store::Admitter::start(&store, Default::default()).unwrap();
    let mut tries = 0;
    // What was read may be a tenth of a second old, which on a busy machine is soon over: then it is tried again.
    let id = poll_until(LIMIT, "an answer without the database", async || {
        tries += 1;
        proxy.set(tidegate_testkit::Fault::None);
        assert_eq!(stands(&decided(door.admit(cell.submission(), Instant::now()).await.ok()?).1), FULL);
        proxy.set(tidegate_testkit::Fault::Blackhole);
        let (id, decision) = decided(door.admit(cell.submission(), Instant::now()).await.ok()?);
        assert_eq!(stands(&decision), FULL);
        Some(id)
    })
    .await;
    // Whatever has a key goes to the door, which is out of reach.
    let keyed =
        Submission { idempotency: Some(Idempotency { key: "k".into(), body_sha256: [1; 32] }), ..cell.submission() };
    assert!(matches!(door.admit(keyed, Instant::now()).await, Err(AdmitError::Unavailable)), "after {tries} tries");
    proxy.set(tidegate_testkit::Fault::None);
    let task = poll_until(LIMIT, "the record of the refusal", async || cell.store.task(&tenant(), id).await.unwrap());
    assert_eq!((task.await.status, FULL.0), (Status::Rejected, Status::Rejected));
    cell.assert_sound().await;
}
