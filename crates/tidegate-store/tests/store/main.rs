//! The store against a real Postgres, a database for each test.

#![allow(clippy::unwrap_used, reason = "tests")]

mod admission;
mod auditing;
mod breaking;
mod cancelling;
mod children;
mod door;
mod door_bounds;
mod door_full;
mod door_rules;
mod door_upkeep;
mod explaining;
mod groups;
mod head_of_line;
mod inspecting;
mod keeping;
mod lifecycle;
mod lines;
mod literals;
mod permits;
mod planned;
mod plans;
mod policy;
mod pooled;
mod quarantine;
mod reading;
mod refilled;
mod snapshots;
mod sweeping;
mod together;
mod workers;

use std::time::{Duration, Instant};

use tidegate_core::limits::Limits;
use tidegate_core::settlement::Ending;
use tidegate_core::submission::Submission;
use tidegate_core::{Kind, Priority, Reason, Status, TaskId, TenantId};
use tidegate_store::{
    Admission, Admitter, AdmitterOptions, Canceller, Claimed, Report, Session, SessionSpec, Settled, Store,
    StoreOptions,
};
use tidegate_testkit::TestDb;

/// A store on a database of its own.
struct Cell {
    store: Store,
    admitter: Admitter,
    canceller: Canceller,
    db: TestDb,
}

impl Cell {
    async fn new() -> Self {
        Self::with(Limits::default()).await
    }

    async fn with(limits: Limits) -> Self {
        let db = TestDb::migrated().await;
        let store = Store::open(StoreOptions::new(db.url())).unwrap();
        store.seed_policy(&limits, &Default::default(), &Default::default()).await.unwrap();
        let admitter = Admitter::start(&store, AdmitterOptions::default()).unwrap();
        let canceller = Canceller::start(&store).unwrap();
        Self { store, admitter, canceller, db }
    }

    fn submission(&self) -> Submission {
        Submission::new(self.store.next_id(), tenant(), kind("echo"), "{\"n\":1}".into())
    }

    async fn admit(&self, submission: Submission) -> Admission {
        self.admitter.admit(submission, Instant::now()).await.unwrap()
    }

    /// Admits one task that is expected to be let in.
    async fn add(&self, submission: Submission) -> TaskId {
        match self.admit(submission).await {
            Admission::Decided { id, decision } if !decision.status.is_final() => id,
            other => panic!("{other:?}"),
        }
    }

    async fn session(&self, slots: u32) -> Session {
        self.session_with(slots, Duration::from_secs(15)).await
    }

    async fn session_with(&self, slots: u32, lease: Duration) -> Session {
        self.session_of(&self.store, slots, lease).await
    }

    /// A session of another replica.
    async fn session_of(&self, store: &Store, slots: u32, lease: Duration) -> Session {
        let kinds = vec![(kind("echo"), Default::default())];
        let settle_reserve = Duration::from_millis(50);
        store
            .open_session(SessionSpec {
                worker: "w1".into(),
                kinds,
                slots,
                lease,
                settle_reserve,
                at_once: Default::default(),
            })
            .await
            .unwrap()
    }

    /// Claims one task that is expected to be there.
    async fn claim(&self, session: &Session) -> Claimed {
        let mut turn = session.turn(&[], 1).await.unwrap();
        turn.claimed.pop().expect("a task to claim")
    }

    async fn settle(&self, session: &Session, task: &Claimed, ending: Ending) -> Settled {
        session.turn(&[report(task, ending)], 0).await.unwrap().settled[0]
    }

    async fn status(&self, id: TaskId) -> (Status, Option<Reason>) {
        let task = self.store.task(&tenant(), id).await.unwrap().expect("the task");
        (task.status, task.reason)
    }

    /// Every counter says what the rows say, and nothing is left running or open.
    async fn assert_sound(&self) {
        assert_eq!(self.store.audit_records().await.unwrap(), []);
    }
}

fn tenant() -> TenantId {
    TenantId::default_tenant()
}

fn kind(name: &str) -> Kind {
    Kind::parse(name).unwrap()
}

fn priority(value: i64) -> Priority {
    Priority::new(value).unwrap()
}

fn report(task: &Claimed, ending: Ending) -> Report {
    let result = (ending == Ending::Completed).then(|| "{\"ok\":true}".to_owned());
    Report { id: task.id, fence: task.fence, ending, result, error: None, usage: None, backoff: Default::default() }
}

const FAILED: Ending = Ending::Failed { retryable: true, retry_after_ms: None, reason: None };
