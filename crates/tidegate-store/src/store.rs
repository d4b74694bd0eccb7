//! The handle to one cell's database, shared by everything in a process.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::TaskId;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::admin_audit::Actor;
use crate::background::supervise;
use crate::bell::Bells;
use crate::connection::{Connections, StoreOptions};
use crate::directory::Directory;
use crate::error::StoreError;
use crate::hold::HeldSwept;
use crate::migrate::{SchemaState, schema_state};
use crate::policy::{Remembered, keep_remembered};
use crate::refusal::Unwritten;
use crate::runs::RunTimes;
use crate::watch::Watch;

/// The longest that taking leave of the database may take.
pub const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// A cell's database. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<StoreInner>,
    options: Arc<StoreOptions>,
    watch: Arc<Watch>,
    /// To whom changes are put down.
    pub(crate) actor: Actor,
    _closed: Arc<DropGuard>,
}

pub(crate) struct StoreInner {
    /// For reads, upkeep and what is rare.
    pub(crate) connections: Connections,
    pub(crate) directory: Directory,
    pub(crate) policy: Remembered,
    pub(crate) runs: RunTimes,
    pub(crate) bells: Arc<Bells>,
    /// This process, in the table of those who wait.
    pub(crate) process: Uuid,
    /// The number of the cell, in every id.
    pub(crate) cell: u8,
    pub(crate) closed: CancellationToken,
    /// What works in the background until then.
    pub(crate) tasks: TaskTracker,
    /// Flows that were empty when last looked at.
    empty_flows: Mutex<HashSet<i64>>,
    /// How long inputs are held.
    pub(crate) hold_ms: i64,
    held_swept: Mutex<HeldSwept>,
    /// What was refused here a moment ago.
    pub(crate) unwritten: Unwritten,
}

/// How often a transaction that another was in the way of is tried again.
const MAX_TRIES: u32 = 5;

/// Counts the tries of a transaction.
pub(crate) struct Tries<'a> {
    store: &'a StoreInner,
    made: u32,
}

impl Tries<'_> {
    /// Whether to try again after this error: while another transaction is in the way. What is remembered of flows is
    /// forgotten then: it may be of rows that are gone.
    pub(crate) fn again(&mut self, error: &StoreError) -> bool {
        self.made += 1;
        let again = matches!(error, StoreError::Busy(_)) && self.made < MAX_TRIES;
        if again {
            tracing::debug!(%error, "a transaction is tried again");
            self.store.directory.forget();
        }
        again
    }
}

impl StoreInner {
    /// The tries of a transaction, none made yet.
    pub(crate) fn tries(&self) -> Tries<'_> {
        Tries { store: self, made: 0 }
    }

    pub(crate) fn held_swept(&self) -> std::sync::MutexGuard<'_, HeldSwept> {
        self.held_swept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn empty_flows(&self) -> std::sync::MutexGuard<'_, HashSet<i64>> {
        self.empty_flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// A handle to the database. Nothing is connected yet but the doorbell's listener, which tries until it succeeds;
    /// must be called inside a tokio runtime.
    pub fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let (closed, tasks) = (CancellationToken::new(), TaskTracker::new());
        let direct_url = options.direct_url.clone().unwrap_or_else(|| options.url.clone());
        let inner = StoreInner {
            connections: Connections::new(&options, options.connections)?,
            directory: Directory::default(),
            policy: Remembered::default(),
            runs: RunTimes::default(),
            bells: Bells::hang(&direct_url, &closed, &tasks)?,
            process: Uuid::now_v7(),
            cell: 0,
            closed: closed.clone(),
            tasks,
            empty_flows: Mutex::default(),
            hold_ms: i64::try_from(options.quarantine_hold.as_millis()).unwrap_or(i64::MAX),
            held_swept: Mutex::default(),
            unwritten: Unwritten::default(),
        };
        let inner = Arc::new(inner);
        let watch = Arc::new(Watch::start(inner.clone()));
        let policy = inner.clone();
        inner.tasks.spawn(supervise("watch of the policy", closed.clone(), move || keep_remembered(policy.clone())));
        let actor = Actor::local();
        Ok(Self { inner, options: Arc::new(options), watch, actor, _closed: Arc::new(closed.drop_guard()) })
    }

    /// Ends what works in the background and takes leave of the database, for as long as [`CLOSE_LIMIT`] at most. For all
    /// clones; what is still used fails or goes without the doorbell. Dropping the last clone does the same, unobserved.
    pub async fn close(&self) {
        self.inner.closed.cancel();
        self.inner.tasks.close();
        let closing = async {
            self.inner.tasks.wait().await;
            self.inner.connections.close_idle().await;
        };
        if timeout(CLOSE_LIMIT, closing).await.is_err() {
            tracing::debug!("the database did not take leave in time");
        }
    }

    /// A new id for a task that arrives now.
    pub fn next_id(&self) -> TaskId {
        // The uuid crate keeps a counter within the millisecond, so ids of one process ascend.
        let uuid = Uuid::now_v7();
        let mut random = [0; 10];
        random.copy_from_slice(&uuid.as_bytes()[6..]);
        TaskId::new(TaskId(uuid).arrived_ms(), random, self.inner.cell)
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let asked = self.inner.connections.ask(|| sqlx::query("SELECT 1 FROM tidegate.cell WHERE id = 1"));
        timeout(Duration::from_secs(1), asked).await.map_err(|_| StoreError::Unavailable(None))??;
        Ok(())
    }

    /// How the database's tables stand to this program.
    pub async fn schema_state(&self) -> Result<SchemaState, StoreError> {
        schema_state(&self.options.url).await
    }

    pub(crate) fn inner(&self) -> Arc<StoreInner> {
        self.inner.clone()
    }

    pub(crate) fn inner_ref(&self) -> &StoreInner {
        &self.inner
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    pub(crate) fn options(&self) -> &StoreOptions {
        &self.options
    }
}
