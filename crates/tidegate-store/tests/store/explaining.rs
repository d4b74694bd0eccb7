//! Why a task stands where it stands, told from the tables.

use std::time::Duration;

use serde_json::json;
use sqlx::AssertSqlSafe;
use tidegate_core::explain::Blocker;
use tidegate_core::pause::{PauseMode, PauseTarget};
use tidegate_core::settlement::Ending;
use tidegate_core::submission::{Cost, Start};
use tidegate_core::{PeerName, Reason, Status, TaskId, TenantId};
use tidegate_store::{Explained, SessionSpec};

use crate::{Cell, FAILED, kind, priority, tenant};

impl Cell {
    async fn explain(&self, id: TaskId) -> Explained {
        self.store.explain(&tenant(), id).await.unwrap().expect("the task")
    }

    /// What a task waits for besides its turn.
    async fn blockers(&self, id: TaskId) -> Vec<(&'static str, Option<String>, Option<i64>, Option<i64>)> {
        let told = |blocker: Blocker| (blocker.kind.as_str(), blocker.name, blocker.in_use, blocker.limit);
        let blockers = self.explain(id).await.explanation.blockers;
        blockers.into_iter().map(told).filter(|told| told.0 != "queue_position").collect()
    }
}

fn named(
    name: &str,
    kind: &'static str,
    in_use: i64,
    limit: i64,
) -> (&'static str, Option<String>, Option<i64>, Option<i64>) {
    (kind, Some(name.to_owned()), Some(in_use), Some(limit))
}

#[tokio::test]
async fn what_nobody_runs_waits_for_a_worker_and_then_for_a_slot_and_its_turn() {
    let cell = Cell::new().await;
    let first = cell.add(cell.submission()).await;
    let second = cell.add(cell.submission()).await;
    let told = cell.explain(second).await;
    let kinds: Vec<_> = told.explanation.blockers.iter().map(|blocker| blocker.kind.as_str()).collect();
    assert_eq!(
        (told.status, told.queue_position, &*kinds),
        (Status::Queued, Some(2), &["no_worker", "no_slots", "queue_position"][..])
    );
    let session = cell.session(1).await;
    assert_eq!(cell.blockers(second).await, []);
    assert_eq!(cell.claim(&session).await.id, first);
    let full = [("no_slots", None, Some(1), Some(1))];
    assert_eq!(cell.blockers(second).await, full);
    assert_eq!(cell.explain(second).await.queue_position, Some(1));
    // A free slot on a worker that does not run the kind is of no use.
    let spec = SessionSpec {
        worker: "other".into(),
        kinds: vec![(kind("other"), Default::default())],
        at_once: Default::default(),
        slots: 7,
        lease: Duration::from_secs(15),
        settle_reserve: Duration::ZERO,
    };
    let other = cell.store.open_session(spec).await.unwrap();
    assert_eq!(cell.blockers(second).await, full);
    let running = cell.explain(first).await;
    assert_eq!((running.status, running.explanation.blockers.len()), (Status::Running, 0));
    assert!(running.explanation.summary.starts_with("Running on w1 for "), "{}", running.explanation.summary);
    other.close().await.unwrap();
}

#[tokio::test]
async fn the_limits_of_tenant_class_and_peer_are_told_with_what_is_in_use() {
    let cell = Cell::new().await;
    let session = cell.session(4).await;
    let of_peer = || {
        let mut submission = cell.submission();
        submission.peer = Some(PeerName::parse("hotels").unwrap());
        submission.cost = Cost { tokens: 40, usd_micros: 0 };
        submission
    };
    cell.add(of_peer()).await;
    cell.claim(&session).await;
    let waits = cell.add(of_peer()).await;
    // Whatever the door did with it, a pause puts it into the queue.
    let (peer, own) = (PeerName::parse("hotels").unwrap(), tenant());
    cell.store.patch_peer(&peer, &json!({"max_in_flight": 1, "tokens_per_minute": 60})).await.unwrap();
    let limits = json!({"max_running": 1, "classes": {"standard": {"max_running": 1}}});
    cell.store.patch_tenant(&own, &limits).await.unwrap();
    let class = json!({"classes": {"standard": {"max_running": 1}}});
    cell.store.patch_limits(&class).await.unwrap();
    let target = PauseTarget::Kind(kind("echo"));
    let pause = cell.store.create_pause(target, PauseMode::Hold, None, Some("upkeep".into())).await.unwrap();
    if cell.explain(waits).await.status == Status::Admitted {
        cell.store.take_back_reserved().await.unwrap();
    }
    let mut connection = cell.db.connect().await;
    let drained = "UPDATE tidegate.usage SET tokens_full_ns = (tidegate.now_ms() + 60000) * 1000000 WHERE scope = 3 AND key = 'hotels'";
    sqlx::query(AssertSqlSafe(drained)).execute(&mut connection).await.unwrap();
    let blockers = cell.blockers(waits).await;
    let (rate, rest): (Vec<_>, Vec<_>) = blockers.into_iter().partition(|told| told.0 == "peer_rate");
    assert_eq!(rate[0].1.as_deref(), Some("peers.hotels.tokens_per_minute"));
    assert_eq!(
        rest,
        [
            ("pause", Some("kind echo".to_owned()), None, None),
            named("peers.hotels.max_in_flight", "peer_limit", 1, 1),
            named("tenants.default.max_running", "tenant_limit", 1, 1),
            named("tenants.default.classes.standard.max_running", "tenant_class_limit", 1, 1),
            named("limits.classes.standard.max_running", "class_limit", 1, 1),
        ]
    );
    let told = cell.explain(waits).await.explanation;
    assert_eq!(told.blockers[0].pause, Some(pause.id));
    assert!(told.summary.contains("kind echo is paused (upkeep)"), "{}", told.summary);
    assert!(told.waiting_ms.is_some_and(|ms| ms >= 0));
}

#[tokio::test]
async fn a_deferred_task_tells_when_it_may_start_and_a_due_one_what_has_no_room() {
    let cell = Cell::new().await;
    let mut later = cell.submission();
    later.timing.start = Start::After(3_600_000);
    let later = cell.add(later).await;
    let told = cell.explain(later).await;
    assert_eq!((told.status, told.reason), (Status::Deferred, Some(Reason::Scheduled)));
    let blocker = &told.explanation.blockers[0];
    assert_eq!((blocker.kind.as_str(), blocker.until), ("deferred_until", told.explanation.eligible));
    cell.store.patch_limits(&json!({"max_queued": 0})).await.unwrap();
    let mut connection = cell.db.connect().await;
    sqlx::query("UPDATE tidegate.deferred SET eligible_ms = 1").execute(&mut connection).await.unwrap();
    assert_eq!(cell.blockers(later).await, [named("limits.max_queued", "queue_full", 0, 0)]);
    cell.store.patch_limits(&json!({"max_queued": 9})).await.unwrap();
    assert_eq!(cell.blockers(later).await, [("promotion", None, None, None)]);
}

#[tokio::test]
async fn a_reserved_slot_an_ending_and_a_refusal_are_told() {
    let cell = Cell::new().await;
    let session = cell.session(1).await;
    let id = cell.add(cell.submission()).await;
    let told = cell.explain(id).await;
    let blocker = &told.explanation.blockers[0];
    assert_eq!(
        (told.status, blocker.kind.as_str(), blocker.until.is_some()),
        (Status::Admitted, "reserved_slot", true)
    );
    assert!(blocker.detail.contains("worker w1"), "{}", blocker.detail);
    // A task that came back waits since its latest run ended, not since it arrived.
    let task = cell.claim(&session).await;
    let arrived = cell.store.task(&tenant(), id).await.unwrap().unwrap().enqueued_ms;
    cell.settle(&session, &task, FAILED).await;
    let back = cell.explain(id).await;
    assert_eq!((back.status, back.reason), (Status::Deferred, Some(Reason::RetryBackoff)));
    assert!(back.explanation.since >= arrived && back.explanation.eligible.is_some());
    let mut urgent = cell.submission();
    urgent.priority = priority(60);
    let done = cell.add(urgent).await;
    let task = cell.claim(&session).await;
    assert_eq!(task.id, done);
    cell.settle(&session, &task, Ending::Completed).await;
    let told = cell.explain(done).await;
    assert_eq!(
        (told.status, told.explanation.blockers.len(), told.explanation.waiting_ms),
        (Status::Completed, 0, None)
    );
    assert!(told.explanation.summary.starts_with("Ended COMPLETED "), "{}", told.explanation.summary);

    cell.store.patch_limits(&json!({"max_queued": 0})).await.unwrap();
    let foreign = TenantId::parse("other").unwrap();
    assert_eq!(cell.store.explain(&foreign, done).await.unwrap(), None);
    let mut late = cell.submission();
    late.timing.deadline = Some(1);
    let tidegate_store::Admission::Decided { id: refused, .. } = cell.admit(late).await else { panic!() };
    let told = tidegate_testkit::poll_until(Duration::from_secs(5), "the refusal", async || {
        cell.store.explain(&tenant(), refused).await.unwrap()
    })
    .await;
    assert_eq!((told.status, told.reason), (Status::Expired, Some(Reason::DeadlinePassed)));
    assert!(told.explanation.summary.contains("deadline_passed"), "{}", told.explanation.summary);
}

#[tokio::test]
async fn a_held_input_is_told_until_a_keeper_ends_the_task() {
    let cell = Cell::new().await;
    let id = cell.add(cell.submission()).await;
    let mut other = cell.submission();
    other.payload = "{\"n\":2}".into();
    let other = cell.add(other).await;
    let mut connection = cell.db.connect().await;
    let print = tidegate_core::quarantine::fingerprint("echo", "{\"n\": 1}");
    let hold = "INSERT INTO tidegate.hold (fingerprint, tenant, kind, reason, task_id, held_ms, until_ms) \
        VALUES ($1, 'default', 'echo', 'quarantined', $2, tidegate.now_ms(), tidegate.now_ms() + 60000)";
    sqlx::query(hold).bind(print.to_vec()).bind(id.0).execute(&mut connection).await.unwrap();
    sqlx::query("UPDATE tidegate.policy_revision SET n = n + 1").execute(&mut connection).await.unwrap();
    let told = cell.explain(id).await.explanation;
    assert_eq!((told.blockers[0].kind.as_str(), told.blockers[0].until.is_some()), ("quarantine", true));
    assert!(!cell.blockers(other).await.iter().any(|told| told.0 == "quarantine"));
}
