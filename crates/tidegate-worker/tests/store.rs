//! The worker over a real Postgres.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up should stop")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::{Connection, PgConnection};
use tidegate_core::submission::{Submission, Timing};
use tidegate_core::{Fence, Kind, PeerName, Reason, Status, TaskId, TenantId};
use tidegate_store::{
    Admission, Admitter, AdmitterOptions, CancelOutcome, Canceller, Group, GroupCancelled, Store, StoreOptions,
    TaskRecord,
};
use tidegate_testkit::{Fault, FaultProxy, TestDb, poll_until};
use tidegate_worker::{
    Context, Drained, Handler, HandlerError, KindOptions, Registry, StorePort, Worker, WorkerOptions, builtin, typed,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const LIMIT: Duration = Duration::from_secs(30);

/// Counts its runs, and ends when it is told to stop.
struct Counting(Arc<AtomicUsize>);

impl Handler for Counting {
    type Input = Value;
    type Output = ();

    async fn run(&self, ctx: Context, _: Value) -> Result<(), HandlerError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        ctx.cancelled().await;
        Ok(ctx.checkpoint()?)
    }
}

/// A database, a door and a way to cancel.
struct Cell {
    store: Store,
    admitter: Admitter,
    canceller: Canceller,
    runs: Arc<AtomicUsize>,
    db: TestDb,
}

impl Cell {
    async fn new() -> Self {
        let db = TestDb::migrated().await;
        let store = Store::open(StoreOptions::new(db.url())).unwrap();
        let admitter = Admitter::start(&store, AdmitterOptions::default()).unwrap();
        let canceller = Canceller::start(&store).unwrap();
        Self { store, admitter, canceller, runs: Arc::default(), db }
    }

    async fn submit(&self, kind: &str, payload: &str, timeout_ms: Option<u64>) -> TaskId {
        let id = self.store.next_id();
        let kind = Kind::parse(kind).unwrap();
        let mut submission = Submission::new(id, TenantId::default_tenant(), kind, payload.to_owned());
        submission.timing = Timing { timeout_ms, ..Timing::default() };
        let admission = self.admitter.admit(submission, Instant::now()).await.unwrap();
        assert!(matches!(admission, Admission::Decided { .. }), "{admission:?}");
        id
    }

    async fn task(&self, id: TaskId) -> TaskRecord {
        self.store.task(&TenantId::default_tenant(), id).await.unwrap().unwrap()
    }

    async fn until(&self, id: TaskId, status: Status) -> TaskRecord {
        poll_until(LIMIT, &format!("{id} to be {status}"), async || {
            Some(self.task(id).await).filter(|task| task.status == status)
        })
        .await
    }

    /// Waits until the handler of `count` has been called so often. RUNNING comes earlier: with the claim.
    async fn until_run(&self, runs: usize) {
        poll_until(LIMIT, &format!("run {runs}"), async || {
            self.store.promote_due(Default::default()).await.unwrap();
            (self.runs.load(Ordering::SeqCst) == runs).then_some(())
        })
        .await;
    }

    fn worker(&self, options: WorkerOptions) -> Running {
        self.worker_through(self.store.clone(), options)
    }

    fn worker_through(&self, store: Store, options: WorkerOptions) -> Running {
        let mut registry = Registry::new();
        let counting = typed(Counting(self.runs.clone()));
        for (kind, executor) in
            [("echo", builtin::echo()), ("sleep", builtin::sleep()), ("fail", builtin::fail()), ("count", counting)]
        {
            registry.register(Kind::parse(kind).unwrap(), KindOptions::default(), executor);
        }
        let worker = Worker::new(Arc::new(StorePort::new(store)), registry, options).unwrap();
        let shutdown = CancellationToken::new();
        Running { life: tokio::spawn(worker.run(shutdown.clone())), shutdown }
    }

    /// What the tables of the hot path hold: leases, sessions, heartbeats.
    async fn left(&self) -> (i64, i64, i64) {
        let count = "SELECT (SELECT count(*) FROM tidegate.lease), (SELECT count(*) FROM tidegate.session), \
            (SELECT count(*) FROM tidegate.heartbeat)";
        sqlx::query_as(count).fetch_one(&mut self.db.connect().await).await.unwrap()
    }
}

struct Running {
    life: JoinHandle<Drained>,
    shutdown: CancellationToken,
}

impl Running {
    async fn shut_down(self) {
        self.shutdown.cancel();
        assert_eq!(self.life.await.unwrap(), Drained::default());
    }
}

fn options() -> WorkerOptions {
    WorkerOptions { slots: 8, ..WorkerOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_end_as_their_handlers_say_and_nothing_is_left() {
    let cell = Cell::new().await;
    let worker = cell.worker(options());
    let echo = cell.submit("echo", "{\"b\":1.50, \"a\":[1e400]}", None).await;
    let bad = cell.submit("sleep", "{}", None).await;
    let failed = cell.submit("fail", r#"{"permanent":true}"#, None).await;
    let late = cell.submit("count", "null", Some(400)).await;
    let echo = cell.until(echo, Status::Completed).await;
    assert_eq!(echo.result.as_deref(), Some("{\"b\":1.50, \"a\":[1e400]}"));
    assert_eq!((echo.attempt, echo.fence, echo.deliveries), (1, Fence(1), 1));
    for (id, kind) in [(bad, "bad_input"), (failed, "fail")] {
        let task = cell.until(id, Status::Failed).await;
        assert_eq!(
            (task.reason, task.error.map(|error| error.kind)),
            (Some(Reason::PermanentError), Some(kind.into()))
        );
    }
    let late = cell.until(late, Status::TimedOut).await;
    assert_eq!(late.reason, Some(Reason::DeadlinePassed));
    assert!(late.finished_ms.is_some_and(|at| at <= late.deadline_ms), "stopped in time to say so: {late:?}");
    worker.shut_down().await;
    assert_eq!(cell.left().await, (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_requested_delivered_and_acknowledged_within_a_moment() {
    let cell = Cell::new().await;
    let worker = cell.worker(options());
    let id = cell.submit("count", "null", None).await;
    cell.until(id, Status::Running).await;
    let asked = Instant::now();
    let outcome = cell.canceller.cancel(&TenantId::default_tenant(), id, None).await.unwrap();
    assert_eq!(outcome, CancelOutcome::Requested);
    let task = cell.until(id, Status::Cancelled).await;
    // A third of the lease, 5 s, would pass without the bell.
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    assert_eq!(task.reason, Some(Reason::CancelRequested));
    assert!(task.cancel_requested_ms <= task.cancel_delivered_ms, "{task:?}");
    assert!(task.cancel_delivered_ms <= task.cancel_acknowledged_ms && task.cancel_delivered_ms.is_some(), "{task:?}");
    worker.shut_down().await;
    assert_eq!(cell.left().await, (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_token_stops_what_runs_and_what_that_started() {
    let cell = Cell::new().await;
    let worker = cell.worker(options());
    let submission = |parent_id, cancellation_token: Option<&str>| {
        let (id, kind) = (cell.store.next_id(), Kind::parse("count").unwrap());
        let submission = Submission::new(id, TenantId::default_tenant(), kind, "null".to_owned());
        Submission { parent_id, cancellation_token: cancellation_token.map(str::to_owned), ..submission }
    };
    let run = async |submission: Submission| {
        let id = submission.id;
        cell.admitter.admit(submission, Instant::now()).await.unwrap();
        cell.until(id, Status::Running).await;
        id
    };
    let parent = run(submission(None, Some("trip-42"))).await;
    let child = run(submission(Some(parent), None)).await;
    cell.until_run(2).await;
    let asked = Instant::now();
    let group = Group::Token("trip-42".into());
    let reached = cell.canceller.cancel_group(&TenantId::default_tenant(), group).await.unwrap();
    assert_eq!(reached, GroupCancelled { cancelled: 0, requested: 1 });
    for (id, reason) in [(parent, Reason::TokenCancelled), (child, Reason::ParentCancelled)] {
        let task = cell.until(id, Status::Cancelled).await;
        assert_eq!(task.reason, Some(reason));
        assert!(task.cancel_delivered_ms <= task.cancel_acknowledged_ms && task.cancel_delivered_ms.is_some());
    }
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    worker.shut_down().await;
    assert_eq!(cell.left().await, (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_session_is_replaced_and_its_task_runs_again_under_a_larger_fence() {
    let cell = Cell::new().await;
    let lease = Duration::from_millis(900);
    let worker = cell.worker(WorkerOptions { lease, ..options() });
    let id = cell.submit("count", "null", None).await;
    cell.until_run(1).await;
    sqlx::query("DELETE FROM tidegate.heartbeat").execute(&mut cell.db.connect().await).await.unwrap();
    poll_until(LIMIT, "the loss to be found", async || (cell.store.reap_lost(true).await.unwrap() == 1).then_some(()))
        .await;
    cell.until_run(2).await;
    let task = cell.task(id).await;
    assert_eq!((task.status, task.fence, task.attempt), (Status::Running, Fence(2), 1));
    let outcome = cell.canceller.cancel(&TenantId::default_tenant(), id, None).await.unwrap();
    assert_eq!(outcome, CancelOutcome::Requested);
    cell.until(id, Status::Cancelled).await;
    worker.shut_down().await;
    assert_eq!(cell.left().await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_hands_back_without_penalty_and_the_next_one_goes_on() {
    let cell = Cell::new().await;
    let first = cell.worker(WorkerOptions { shutdown_grace: Duration::from_millis(100), ..options() });
    let id = cell.submit("count", "null", None).await;
    cell.until_run(1).await;
    first.shut_down().await;
    assert_eq!(cell.left().await, (0, 0, 0));
    let task = cell.task(id).await;
    assert!(matches!(task.status, Status::Queued | Status::Deferred), "{task:?}");
    let second = cell.worker(options());
    cell.until_run(2).await;
    let task = cell.task(id).await;
    assert_eq!((task.attempt, task.fence), (1, Fence(2)), "handed back, not failed");
    cell.canceller.cancel(&TenantId::default_tenant(), id, None).await.unwrap();
    cell.until(id, Status::Cancelled).await;
    second.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_shorter_than_the_lease_loses_nothing_and_runs_nothing_twice() {
    let cell = Cell::new().await;
    let (proxy, url) = FaultProxy::for_database(cell.db.url()).await;
    let store = Store::open(StoreOptions::new(url)).unwrap();
    let worker = cell.worker_through(store, WorkerOptions { lease: Duration::from_secs(10), ..options() });
    let mut ids = Vec::new();
    for ms in [200, 400, 600, 800] {
        ids.push(cell.submit("sleep", &format!(r#"{{"ms":{ms}}}"#), None).await);
    }
    for id in &ids {
        poll_until(LIMIT, "the start", async || (cell.task(*id).await.fence == Fence(1)).then_some(())).await;
    }
    proxy.set(Fault::Refuse);
    proxy.cut_all();
    tokio::time::sleep(Duration::from_secs(2)).await;
    proxy.set(Fault::None);
    for id in ids {
        let task = cell.until(id, Status::Completed).await;
        assert_eq!((task.fence, task.deliveries), (Fence(1), 1));
    }
    worker.shut_down().await;
    assert_eq!(cell.left().await, (0, 0, 0));
}

/// Nothing that a worker does outside of a turn waits for the lock of the cell.
#[tokio::test(flavor = "multi_thread")]
async fn a_held_lock_stops_no_heartbeat() {
    let cell = Cell::new().await;
    let lease = Duration::from_millis(900);
    let worker = cell.worker(WorkerOptions { lease, ..options() });
    let id = cell.submit("sleep", r#"{"ms":4000}"#, None).await;
    cell.until(id, Status::Running).await;
    let mut holder: PgConnection = cell.db.connect().await;
    let mut held = holder.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM tidegate.cell FOR UPDATE").execute(&mut *held).await.unwrap();
    tokio::time::sleep(lease * 3).await;
    held.rollback().await.unwrap();
    let task = cell.until(id, Status::Completed).await;
    assert_eq!((task.fence, task.deliveries), (Fence(1), 1), "no lease was lost");
    worker.shut_down().await;
}

/// Says how far it has come, and ends when it is told to stop.
struct Telling;

impl Handler for Telling {
    type Input = Value;
    type Output = ();

    async fn run(&self, ctx: Context, said: Value) -> Result<(), HandlerError> {
        ctx.progress(&said).map_err(|error| HandlerError::permanent("progress", error.to_string()))?;
        ctx.cancelled().await;
        Ok(ctx.checkpoint()?)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_says_of_its_progress_can_be_read_while_it_runs() {
    let cell = Cell::new().await;
    let mut registry = Registry::new();
    registry.register(Kind::parse("tell").unwrap(), KindOptions::default(), typed(Telling));
    let options = WorkerOptions { lease: Duration::from_secs(1), stop_grace: LIMIT, ..options() };
    let worker = Worker::new(Arc::new(StorePort::new(cell.store.clone())), registry, options).unwrap();
    let shutdown = CancellationToken::new();
    let worker = Running { life: tokio::spawn(worker.run(shutdown.clone())), shutdown };
    let told = cell.submit("tell", r#"{"half":"way"}"#, None).await;
    let task =
        poll_until(LIMIT, "progress", async || Some(cell.task(told).await).filter(|task| task.progress.is_some()))
            .await;
    assert_eq!((task.status, task.progress.as_deref()), (Status::Running, Some(r#"{"half":"way"}"#)));
    cell.canceller.cancel(&TenantId::default_tenant(), told, None).await.unwrap();
    cell.until(told, Status::Cancelled).await;
    worker.shut_down().await;
}

/// Calls a peer beside its own work: counts how many do so at once.
struct Calling {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Handler for Calling {
    type Input = Value;
    type Output = ();

    async fn run(&self, ctx: Context, _: Value) -> Result<(), HandlerError> {
        let permit = ctx.permit(&PeerName::parse("hotels").unwrap()).await?;
        self.most.fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        drop(permit);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_two_workers_share_the_one_permit_of_a_peer_and_none_is_lost() {
    let cell = Cell::new().await;
    let limits = serde_json::json!({"max_in_flight": 1, "max_wait_ms": 25_000});
    cell.store.patch_peer(&PeerName::parse("hotels").unwrap(), &limits).await.unwrap();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut workers = Vec::new();
    for _ in 0..2 {
        let store = Store::open(StoreOptions::new(cell.db.url())).unwrap();
        let mut registry = Registry::new();
        let calling = typed(Calling { now: now.clone(), most: most.clone() });
        registry.register(Kind::parse("calling").unwrap(), KindOptions::default(), calling);
        let worker = Worker::new(Arc::new(StorePort::new(store)), registry, options()).unwrap();
        let shutdown = CancellationToken::new();
        workers.push(Running { life: tokio::spawn(worker.run(shutdown.clone())), shutdown });
    }
    let mut ids = Vec::new();
    for _ in 0..24 {
        ids.push(cell.submit("calling", "null", None).await);
    }
    for id in ids {
        cell.until(id, Status::Completed).await;
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
    poll_until(LIMIT, "all permits to be back", async || {
        let peer = cell.store.peer(&PeerName::parse("hotels").unwrap()).await.unwrap().unwrap();
        (peer.held.running == 0 && peer.held.queued == 0).then_some(())
    })
    .await;
    for worker in workers {
        worker.shut_down().await;
    }
    assert_eq!(cell.store.audit_records().await.unwrap(), []);
}
