//! The Admitter: gathers submissions while the batch before is committing, and hands each batch to the door. What is
//! certain to be refused is refused from memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::admission::{Decision, Facts, cell_pressure, decide};
use tidegate_core::policy::Policy;
use tidegate_core::submission::{OnFull, Submission};
use tidegate_core::{Class, Reason, Status};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::background::supervise;
use crate::connection::{Connections, call};
use crate::door::Door;
use crate::error::{AdmitError, StoreError};
use crate::facts::{self, PaceWindow, Wanted};
use crate::gather::{GatherLimits, Weighted, gather_on_thread};
use crate::refusal::Refusals;
use crate::store::{Store, StoreInner};
use crate::types::Admission;

/// The longest that a submission waits for its answer before the commit: what is slower is "store unavailable".
pub(crate) const DOOR_TIMEOUT: Duration = Duration::from_millis(1_800);
/// The longest that a caller waits who did not say how long: more than anybody waits for room.
const LONGEST: Duration = Duration::from_secs(90);
/// How often the facts are read where nobody comes to the door.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long ago the last batch may have been written for the database to be slow rather than out of reach. Shorter than the
/// door's time-out: nobody who came after the last one is told so.
const WRITES: Duration = Duration::from_secs(1);
/// The age up to which what was read decides a refusal from memory.
const MEMORY: Duration = Duration::from_millis(100);

/// How the door works.
#[derive(Debug, Clone)]
pub struct AdmitterOptions {
    /// Most submissions in one transaction.
    pub batch_tasks: usize,
    /// Most bytes of payload in one transaction; a larger task goes alone.
    pub batch_bytes: usize,
    /// Most submissions that wait for their decision in this process.
    pub waiting: usize,
    /// How long an idempotency key is remembered.
    pub key_retention: Duration,
}

impl Default for AdmitterOptions {
    fn default() -> Self {
        Self { batch_tasks: 500, batch_bytes: 4 << 20, waiting: 10_000, key_retention: Duration::from_secs(86_400) }
    }
}

/// Decides submissions. Cheap to clone; all clones share one door.
#[derive(Clone)]
pub struct Admitter {
    sender: mpsc::Sender<Item>,
    refusals: Refusals,
    store: Arc<StoreInner>,
    memory: Memory,
    closing: CancellationToken,
}

/// A submission at the door.
pub(crate) struct Item {
    /// Boxed, since it is handed on several times.
    pub(crate) submission: Box<Submission>,
    pub(crate) arrived: Instant,
    /// When it came to the door, with all of its body: the door's time-out counts from here.
    pub(crate) came: Instant,
    /// Set once, by whoever is first: the door that takes it, or its caller that gives up.
    pub(crate) taken: Arc<AtomicBool>,
    /// Whether it has been told to wait before.
    pub(crate) parked: bool,
    pub(crate) reply: oneshot::Sender<Result<Admission, AdmitError>>,
}

impl Weighted for Item {
    fn weight(&self) -> usize {
        self.submission.payload.len()
    }
}

/// When it was read, and what.
type Remembered = (Instant, Arc<Policy>, Arc<Facts>);

/// What was last read under the lock.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    last: Arc<Mutex<Option<Remembered>>>,
    pressure: Arc<AtomicU64>,
    /// When a batch was last committed.
    wrote: Arc<Mutex<Option<Instant>>>,
}

impl Memory {
    /// Remembers the facts as they stand now.
    pub(crate) fn remember(&self, read: Instant, policy: Arc<Policy>, facts: Facts) {
        self.pressure.store(cell_pressure(&policy, &facts, facts.now).to_bits(), Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((read, policy, Arc::new(facts)));
    }

    /// A batch was committed.
    pub(crate) fn wrote(&self) {
        *self.wrote.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Why a submission could not be taken in time: too many were before it, or the database does not answer.
    pub(crate) fn too_late(&self) -> AdmitError {
        let wrote = *self.wrote.lock().unwrap_or_else(PoisonError::into_inner);
        if wrote.is_some_and(|at| at.elapsed() < WRITES) { AdmitError::Overloaded } else { AdmitError::Unavailable }
    }

    fn recall(&self, at_most: Duration) -> Option<(Duration, Arc<Policy>, Arc<Facts>)> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (read, policy, facts) = last?;
        let age = read.elapsed();
        (age <= at_most).then_some((age, policy, facts))
    }
}

impl Admitter {
    /// Opens the door.
    pub fn start(store: &Store, options: AdmitterOptions) -> Result<Self, StoreError> {
        let closing = CancellationToken::new();
        let limits = GatherLimits { items: options.batch_tasks, weight: options.batch_bytes, waiting: options.waiting };
        let refusals = Refusals::start(store.inner());
        let (memory, pace) = (Memory::default(), PaceWindow::default());
        let connections = Connections::new(store.options(), 1)?;
        let door =
            Arc::new(Door::new(store.inner(), connections, refusals.clone(), memory.clone(), pace.clone(), options));
        let (inner, seen) = (store.inner(), memory.clone());
        let watched = move || watch(inner.clone(), seen.clone(), pace.clone());
        tokio::spawn(supervise("watch of the door", closing.clone(), watched));
        let sender = gather_on_thread("tidegate-door", limits, door, closing.clone())
            .map_err(|error| StoreError::Unavailable(Some(error.into())))?;
        Ok(Self { sender, refusals, store: store.inner(), memory, closing })
    }

    /// Remembers a submission that was refused before it came to the door, as REJECTED. Tells whether it will be
    /// readable; where too many are being remembered already it is not.
    pub fn refuse(&self, submission: &Submission, reason: Reason, arrived: Instant) -> bool {
        // Nothing is decided by this clock: it only dates the record.
        let now = chrono::Utc::now().timestamp_millis();
        let waited_ms = u64::try_from(arrived.elapsed().as_millis()).unwrap_or(0);
        let policy = self.store.policy();
        let decision = Decision {
            status: Status::Rejected,
            reason: Some(reason),
            class: policy.limits.class_of(submission.priority),
            rank: 0,
            times: submission.timing.resolve(&policy.limits, now, waited_ms),
            decided: now,
            depth: submission.depth,
            session: None,
            retry_after_ms: None,
            expected_wait_ms: None,
            queue_position: None,
            quota: None,
        };
        self.refusals.record(submission, &decision)
    }

    /// Decides one submission that arrived at `arrived`. Once the door has taken it, the decision is made, and kept,
    /// even if the caller goes away; only a caller that waits for room takes its submission along. What the door could
    /// not take in time is not let in.
    pub async fn admit(&self, submission: Submission, arrived: Instant) -> Result<Admission, AdmitError> {
        self.admit_within(submission, arrived, LONGEST).await
    }

    /// The same within `at_most`: after that nobody waits any more for what the door has taken, and its outcome is
    /// unknown.
    pub async fn admit_within(
        &self,
        submission: Submission,
        arrived: Instant,
        at_most: Duration,
    ) -> Result<Admission, AdmitError> {
        if self.closing.is_cancelled() {
            return Err(AdmitError::Draining);
        }
        if let Some(decision) = self.refused_from_memory(&submission, arrived) {
            return Ok(Admission::Decided { id: submission.id, decision });
        }
        let id = submission.id;
        let (reply, mut answer) = oneshot::channel();
        let taken = Arc::new(AtomicBool::new(false));
        let came = Instant::now();
        let submission = Box::new(submission);
        let item = Item { submission, arrived, came, taken: taken.clone(), parked: false, reply };
        self.sender.try_send(item).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => AdmitError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => AdmitError::Draining,
        })?;
        // One timer at a time: each takes a lock that all requests share.
        let until = came + at_most;
        let answer = match timeout_at(until.min(came + DOOR_TIMEOUT).into(), &mut answer).await {
            Ok(answer) => answer,
            Err(_) if !taken.swap(true, Ordering::AcqRel) => return Err(self.memory.too_late()),
            Err(_) => timeout_at(until.into(), answer).await.unwrap_or(Ok(Err(AdmitError::OutcomeUnknown(id)))),
        };
        answer.unwrap_or(Err(AdmitError::OutcomeUnknown(id)))
    }

    /// The refusal of a submission where it is certain from what was read a moment ago: a class that is being shed, or
    /// a full queue in which it could displace nobody. Whatever has a key, a token or a parent goes to the door.
    fn refused_from_memory(&self, submission: &Submission, arrived: Instant) -> Option<Decision> {
        let bound = submission.idempotency.is_some()
            || submission.cancellation_token.is_some()
            || submission.parent_id.is_some()
            || submission.on_full != OnFull::Reject;
        if bound {
            return None;
        }
        let (age, policy, facts) = self.memory.recall(MEMORY)?;
        let known = facts.tenants.contains_key(submission.tenant.as_str())
            && submission.peer.as_ref().is_none_or(|peer| facts.peers.contains_key(peer.as_str()));
        let class = policy.limits.class_of(submission.priority);
        let below: i64 =
            Class::ALL.iter().filter(|below| **below > class).map(|below| facts.classes[*below as usize].queued).sum();
        if !known || below > 0 {
            return None;
        }
        let now = facts.now.saturating_add_unsigned(age.as_millis() as u64);
        let waited_ms = arrived.elapsed().as_millis() as u64;
        let mut decision = decide(&policy, &facts, submission, now, waited_ms).decision;
        if !matches!(decision.reason, Some(Reason::LowPriority | Reason::QueueFull)) {
            return None;
        }
        decision.retry_after_ms = decision.retry_after_ms.map(jittered);
        self.refusals.record(submission, &decision);
        metrics::counter!("tidegate_admissions_total", "class" => decision.class.as_str(), "status" => decision.status.as_str()).increment(1);
        metrics::counter!("tidegate_refusals_from_memory_total").increment(1);
        Some(decision)
    }

    /// How full the queue was when last looked at, 0 to 1.
    pub fn pressure(&self) -> f64 {
        f64::from_bits(self.memory.pressure.load(Ordering::Relaxed))
    }

    /// What was last read, where that is not too long ago, with the policy that it was read under.
    pub fn facts(&self) -> Option<(Arc<Policy>, Arc<Facts>)> {
        self.memory.recall(4 * LOOK_EVERY).map(|(_, policy, facts)| (policy, facts))
    }

    /// Lets nobody in any more; who is waiting is still decided.
    pub fn close(&self) {
        self.closing.cancel();
    }
}

/// A time to come again with jitter: from the time itself to half as much more, so that those who were refused
/// together do not return together.
pub(crate) fn jittered(retry_ms: u64) -> u64 {
    retry_ms + (retry_ms as f64 * rand::random_range(0.0..0.5)) as u64
}

/// Keeps what is remembered true where nobody comes to the door.
async fn watch(store: Arc<StoreInner>, memory: Memory, pace: PaceWindow) {
    loop {
        sleep(LOOK_EVERY).await;
        if memory.recall(LOOK_EVERY / 2).is_some() {
            continue;
        }
        let began = Instant::now();
        let policy = store.policy();
        let wanted = Wanted::default();
        let read = async {
            let mut conn = store.connections.get().await?;
            let rows =
                call(store.connections.call_timeout(), facts::question(&wanted).query().fetch_all(&mut *conn)).await?;
            conn.release();
            let mut read = facts::parse(&wanted, &pace, &rows)?;
            if read.facts.cell.queued > 0 {
                // What waits counts for the pressure only where it may run: that is told by its flows.
                let mut tx = store.connections.begin(false).await?;
                facts::read_backlog(&store, &policy, &mut read.facts, None, 0, &mut tx).await?;
                tx.rollback().await;
            }
            Ok::<_, StoreError>(read)
        };
        match read.await {
            Ok(read) => memory.remember(began, policy, read.facts),
            Err(error) => tracing::debug!(%error, "the door's facts could not be read"),
        }
    }
}
