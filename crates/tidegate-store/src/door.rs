//! The door: decides a batch in core over what was read under the lock, and writes it in one transaction. Keeps the
//! callers that wait for room.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::admission::{Candidate, Decision, Facts, MAX_DISPLACED, Verdict, decide, shed_flags};
use tidegate_core::policy::Policy;
use tidegate_core::slots::SlotCaps;
use tidegate_core::submission::Submission;
use tidegate_core::{Class, EpochMs, Lane, Reason, Status, TaskId};
use tokio::runtime::Handle;
use tokio::time::{timeout, timeout_at};

use crate::admit::{AdmitterOptions, DOOR_TIMEOUT, Item, Memory, jittered};
use crate::bell::Topic;
use crate::changes::Changes;
use crate::connection::{Connections, Tx};
use crate::directory::FlowKey;
use crate::error::{AdmitError, StoreError};
use crate::facts::{self, PaceWindow, Wanted};
use crate::gather::{FlushAhead, Progress, Weighted};
use crate::hold;
use crate::ledger::{Holding, Rings};
use crate::refusal::Refusals;
use crate::store::StoreInner;
use crate::types::Admission;

/// The least that must be left of the door's time-out when it takes a submission.
const LEAST_LEFT: Duration = Duration::from_millis(300);
/// The furthest that an id's time may be from the database's clock.
const MAX_SKEW_MS: i64 = 3_600_000;
/// How often those who wait for room are looked at, where nobody else comes to the door.
const LOOK_AT_WAITING: Duration = Duration::from_millis(25);
/// The longest that anybody waits for room.
const MAX_WAIT_MS: i64 = 60_000;

pub(crate) struct Door {
    pub(crate) store: Arc<StoreInner>,
    connections: Connections,
    refusals: Refusals,
    memory: Memory,
    pace: PaceWindow,
    pub(crate) options: AdmitterOptions,
    /// The runtime in which callers wait.
    callers: Handle,
    /// Callers that wait for room, first come first.
    waiting: Mutex<Vec<Item>>,
}

/// A submission that was let in, and what was decided.
pub(crate) struct Decided<'a> {
    pub(crate) submission: &'a Submission,
    pub(crate) verdict: Verdict,
    /// Its flow, by position in those of the batch.
    pub(crate) flow: usize,
}

impl Decided<'_> {
    /// Its lane in the flow.
    pub(crate) fn lane(&self) -> Lane {
        if self.verdict.decision.status == Status::Admitted { Lane::Admitted } else { Lane::Fresh }
    }
}

/// The flows of a batch, and in which of them each submission would wait. Names are compared once for each submission:
/// they lie all over the memory.
pub(crate) struct Flows {
    pub(crate) keys: Vec<FlowKey>,
    of: Vec<usize>,
}

impl Flows {
    fn of(policy: &Policy, batch: &[Item]) -> Self {
        let mut keys = Vec::new();
        let mut places = HashMap::new();
        let of = batch.iter().map(|item| {
            let submission = &*item.submission;
            let class = policy.limits.class_of(submission.priority);
            let (tenant, kind) = (submission.tenant.as_str(), submission.kind.as_str());
            let peer = submission.peer.as_ref().map_or("", |peer| peer.as_str());
            *places.entry((class, tenant, kind, peer)).or_insert_with(|| {
                let (tenant, kind, peer) = (tenant.to_owned(), kind.to_owned(), peer.to_owned());
                keys.push(FlowKey { class, tenant, kind, peer, lane: Lane::Fresh });
                keys.len() - 1
            })
        });
        let of = of.collect();
        Self { keys, of }
    }
}

/// What becomes of one of a batch.
enum Answer {
    Now(Box<Admission>),
    Wait,
}

/// A batch that is decided and written, but not committed.
struct Prepared {
    tx: Tx,
    answers: Vec<Answer>,
    rings: Rings,
    displaced: bool,
    policy: Arc<Policy>,
    facts: Facts,
    read: Instant,
}

impl FlushAhead<Item> for Arc<Door> {
    fn flush(&mut self, batch: Vec<Item>, progress: Progress) -> impl Future<Output = ()> + Send + 'static {
        let door = self.clone();
        async move { door.carry(batch, progress).await }
    }

    fn again(&self) -> Option<Duration> {
        (!self.waiting().is_empty()).then_some(LOOK_AT_WAITING)
    }
}

impl Door {
    fn waiting(&self) -> MutexGuard<'_, Vec<Item>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what its caller has not given up, and what can still be answered in time.
    fn take(&self, batch: Vec<Item>) -> Vec<Item> {
        let mut taken = Vec::with_capacity(batch.len());
        let (now, mut late) = (Instant::now(), 0);
        for item in batch {
            if item.taken.swap(true, Ordering::AcqRel) {
                late += 1;
            } else if now.saturating_duration_since(item.came) + LEAST_LEFT > DOOR_TIMEOUT {
                late += 1;
                let _gone = item.reply.send(Err(self.memory.too_late()));
            } else {
                taken.push(item);
            }
        }
        if late > 0 {
            tracing::warn!(tasks = late, "submissions waited too long for the door");
        }
        taken
    }

    /// Decides what arrived, together with who waits, and answers.
    async fn carry(&self, batch: Vec<Item>, progress: Progress) {
        let mut arrivals = self.take(batch);
        // Who waits was here first. One that left frees its place at once.
        let mut all: Vec<Item> = std::mem::take(&mut *self.waiting());
        all.retain(|item| !item.reply.is_closed());
        all.append(&mut arrivals);
        // The more important of those that are decided together is decided first, so that nobody is refused for a
        // place that a less important one has just taken.
        let policy = self.store.policy();
        all.sort_by_key(|item| policy.limits.class_of(item.submission.priority));
        let mut batches = vec![all];
        while let Some(mut batch) = batches.pop().filter(|batch| !batch.is_empty()) {
            metrics::histogram!("tidegate_admission_batch_tasks").record(batch.len() as f64);
            let started = Instant::now();
            match self.admit(&mut batch, &progress).await {
                Ok(answers) => {
                    metrics::histogram!("tidegate_admission_seconds").record(started.elapsed().as_secs_f64());
                    let mut told = Vec::with_capacity(batch.len());
                    for (mut item, answer) in batch.into_iter().zip(answers) {
                        match answer {
                            Answer::Now(answer) => told.push((item, answer)),
                            Answer::Wait => {
                                item.parked = true;
                                self.waiting().push(item);
                            }
                        }
                    }
                    self.tell(told);
                }
                Err(StoreError::Data(error)) if batch.len() == 1 => {
                    tracing::warn!(%error, "the database refused a submission");
                    batch.into_iter().for_each(|item| drop(item.reply.send(Err(AdmitError::Invalid))));
                }
                Err(StoreError::Data(_)) => {
                    // One of them holds what the database refuses: halve until it stands alone.
                    let mut first = batch;
                    let second = first.split_off(first.len() / 2);
                    batches.extend([second, first]);
                }
                Err(StoreError::OutcomeUnknown(error)) => {
                    tracing::warn!(?error, tasks = batch.len(), "the connection broke while committing submissions");
                    for item in batch {
                        let _gone = item.reply.send(Err(AdmitError::OutcomeUnknown(item.submission.id)));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, tasks = batch.len(), "submissions could not be decided");
                    let in_no_time = matches!(error, StoreError::Unavailable(None));
                    for item in batch {
                        let why = if in_no_time { self.memory.too_late() } else { AdmitError::Unavailable };
                        let _gone = item.reply.send(Err(why));
                    }
                }
            }
        }
        metrics::gauge!("tidegate_admission_waiting_callers").set(self.waiting().len() as f64);
    }

    /// Answers callers where they wait. Each answer that crosses threads takes the lock of their runtime's common queue,
    /// so the answers of a batch cross once, together, and the door goes on to the next.
    fn tell(&self, told: Vec<(Item, Box<Admission>)>) {
        if told.is_empty() {
            return;
        }
        self.callers.spawn(async move {
            for (item, answer) in told {
                // A caller that left does not undo its task.
                drop(item.reply.send(Ok(*answer)));
            }
        });
    }

    pub(crate) fn new(
        store: Arc<StoreInner>,
        connections: Connections,
        refusals: Refusals,
        memory: Memory,
        pace: PaceWindow,
        options: AdmitterOptions,
    ) -> Self {
        let callers = Handle::current();
        Self { store, connections, refusals, memory, pace, options, callers, waiting: Mutex::default() }
    }

    async fn admit(&self, batch: &mut [Item], progress: &Progress) -> Result<Vec<Answer>, StoreError> {
        // Whoever came first has waited longest: nobody is kept past the door's time-out by a slow database.
        let newcomers = batch.iter().filter(|item| !item.parked).map(|item| item.came);
        let until = newcomers.min().unwrap_or_else(Instant::now) + DOOR_TIMEOUT;
        let mut tries = self.store.tries();
        let prepared = loop {
            let preparing = timeout_at(until.into(), self.prepare(batch, progress)).await;
            match preparing.unwrap_or(Err(StoreError::Unavailable(None))) {
                Err(error) if tries.again(&error) => {}
                prepared => break prepared?,
            }
        };
        let Prepared { tx, answers, rings, displaced, policy, facts, read } = prepared;
        timeout(DOOR_TIMEOUT, tx.commit()).await.unwrap_or(Err(StoreError::OutcomeUnknown(None)))?;
        self.memory.wrote();
        self.store.bells.ring(Topic::Work, rings.workers);
        if displaced {
            self.store.bells.ring(Topic::Ended, rings.readers);
        }
        progress.let_next_decide().await;
        self.memory.remember(read, policy, facts);
        self.refuse(batch, &answers);
        Ok(answers)
    }

    /// Everything but the commit.
    async fn prepare(&self, batch: &mut [Item], progress: &Progress) -> Result<Prepared, StoreError> {
        let policy = self.store.policy();
        let mut flows = Flows::of(&policy, batch);
        // Flows are made before the lock is taken where they are new; mostly they are remembered.
        let ids = self.store.directory.resolve(&self.connections, &flows.keys).await?;
        let wanted = Wanted::of(&flows.keys, ids, batch.iter().map(|item| &*item.submission));
        let held = held_inputs(&policy, batch);
        let (mut tx, rows) = self.connections.begin_asking(&facts::question(&wanted)).await?;
        let read_at = Instant::now();
        let read = facts::read_of(&self.store, &wanted, &self.pace, &rows, &mut tx).await?;
        let seen = policy;
        let policy = self.store.policy_at(read.revision, &mut tx).await?;
        let mut behind = read.all_wait;
        if !Arc::ptr_eq(&seen, &policy) {
            flows = Flows::of(&policy, batch);
            behind = false;
        }
        let now = read.facts.now;
        let mut facts = read.facts;
        facts.typical_run_ms = self.store.runs.typical();
        correct_ids(batch, now, self.store.cell);
        facts.held = held.into_iter().map(|n| batch[n].submission.id).collect();
        self.look_further(&policy, &mut facts, batch, &mut tx).await?;
        let before = facts.shedding;
        facts.shedding = shed_flags(&policy, &facts, now);
        let (answers, decided) = self.decide(batch, &flows, &policy, &mut facts, read.known, now);
        // Who waits for room goes before those who come later, so then there is no next batch yet.
        if !answers.iter().any(|answer| matches!(answer, Answer::Wait)) {
            progress.decided();
        }
        let displaced: Vec<Candidate> =
            decided.iter().flat_map(|decided| decided.verdict.displaced.iter().cloned()).collect();
        self.displace(&displaced, now, &mut tx).await?;
        let behind = behind && displaced.is_empty();
        let rings = self.write(&decided, &flows, behind, now, &mut tx).await?;
        facts.shedding = shed_flags(&policy, &facts, now);
        self.write_flags(before, facts.shedding, &mut tx).await?;
        Ok(Prepared { tx, answers, rings, displaced: !displaced.is_empty(), policy, facts, read: read_at })
    }

    /// Reads which flows wait, where the decision may turn on it, and whose place a newcomer could take.
    async fn look_further(
        &self,
        policy: &Policy,
        facts: &mut Facts,
        batch: &[Item],
        tx: &mut Tx,
    ) -> Result<(), StoreError> {
        let waits = facts.cell.queued > 0;
        let limits = &policy.limits;
        let best = batch.iter().map(|item| limits.class_of(item.submission.priority)).min();
        let more = batch.len() as i64;
        let load: (i64, i64, i64) = batch.iter().fold((0, 0, 0), |sum, item| {
            let cost = item.submission.cost;
            (sum.0 + cost.tokens as i64, sum.1 + cost.usd_micros as i64, sum.2 + item.submission.payload.len() as i64)
        });
        let over = |used: i64, more: i64, limit: Option<u64>| limit.is_some_and(|limit| used + more > limit as i64);
        let cell = &facts.cell;
        let full = over(cell.queued + cell.due, more, Some(u64::from(limits.max_queued)))
            || over(cell.in_flight() + cell.due, more, limits.max_in_flight.map(u64::from))
            || over(cell.tokens + cell.due_tokens, load.0, limits.max_tokens)
            || over(cell.usd_micros + cell.due_usd_micros, load.1, limits.max_usd_micros)
            || over(cell.bytes, load.2, Some(limits.max_bytes));
        let below = best.filter(|best| {
            let lower = Class::ALL.into_iter().filter(|class| class > best);
            full && lower.map(|class| facts.classes[class as usize].queued).sum::<i64>() > 0
        });
        let slot = !facts.sessions.is_empty();
        let caps = SlotCaps::of(limits, facts.live_slots);
        let slow = facts.pace.rate(caps.total).is_some_and(|rate| {
            // Where the wait could matter to anybody.
            cell.queued as f64 / rate > f64::from(limits.max_expected_wait_ms).min(1_000.0) * 0.5
        });
        let limited = policy.can_hold_back();
        if waits && (below.is_some() || slot || slow || limited) {
            let candidates = batch.len().saturating_mul(MAX_DISPLACED).min(self.options.batch_tasks);
            facts::read_backlog(&self.store, policy, facts, below, candidates, tx).await?;
        }
        facts::read_reserved(policy, facts, tx).await
    }

    fn decide<'a>(
        &self,
        batch: &'a [Item],
        flows: &Flows,
        policy: &Policy,
        facts: &mut Facts,
        mut known: HashMap<(String, String), (Vec<u8>, TaskId)>,
        now: EpochMs,
    ) -> (Vec<Answer>, Vec<Decided<'a>>) {
        let mut decided = Vec::with_capacity(batch.len());
        let mut answers = Vec::with_capacity(batch.len());
        let (mut parked, mut weight) = (0, 0);
        let clock = Instant::now();
        for (item, flow) in batch.iter().zip(&flows.of) {
            let submission = &item.submission;
            let key = submission
                .idempotency
                .as_ref()
                .map(|idempotency| (submission.tenant.as_str().to_owned(), idempotency.key.clone()));
            if let (Some(key), Some(idempotency)) = (&key, &submission.idempotency)
                && let Some((body, id)) = known.get(key)
            {
                let same = body.as_slice() == idempotency.body_sha256;
                let answer = if same { Admission::Replayed { id: *id } } else { Admission::KeyReused { id: *id } };
                answers.push(Answer::Now(Box::new(answer)));
                continue;
            }
            // Those who waited may be more than one transaction holds: the rest is next.
            if item.parked && (decided.len() >= self.options.batch_tasks || weight > self.options.batch_bytes) {
                parked += 1;
                answers.push(Answer::Wait);
                continue;
            }
            let waited_ms = clock.saturating_duration_since(item.arrived).as_millis() as u64;
            let mut verdict = decide(policy, facts, submission, now, waited_ms);
            let waits = |until: EpochMs| until.min(verdict.decision.times.arrived + MAX_WAIT_MS) > now;
            if verdict.wait_until.is_some_and(waits) && !item.reply.is_closed() {
                if parked < policy.limits.max_waiting_callers as usize {
                    parked += 1;
                    answers.push(Answer::Wait);
                    continue;
                }
                verdict.decision.reason = Some(Reason::WaitersFull);
            }
            verdict.decision.retry_after_ms = verdict.decision.retry_after_ms.map(jittered);
            facts.take(submission, &verdict);
            let decision = verdict.decision;
            if !decision.status.is_final() {
                weight += item.weight();
                if let (Some(key), Some(idempotency)) = (key, &submission.idempotency) {
                    known.insert(key, (idempotency.body_sha256.to_vec(), submission.id));
                }
                decided.push(Decided { submission, verdict, flow: *flow });
            }
            answers.push(Answer::Now(Box::new(Admission::Decided { id: submission.id, decision })));
        }
        (answers, decided)
    }

    /// Ends the tasks whose place is taken.
    async fn displace(&self, displaced: &[Candidate], now: EpochMs, tx: &mut Tx) -> Result<(), StoreError> {
        if displaced.is_empty() {
            return Ok(());
        }
        let flows = self.store.directory.describe(tx, displaced.iter().map(|candidate| candidate.flow)).await?;
        let mut changes = Changes::default();
        for lost in displaced {
            changes.displace(lost, &*crate::changes::flow_of(&flows, lost.flow)?);
        }
        changes.write(&self.store, tx, now).await.map(drop)
    }

    async fn write_flags(&self, before: [bool; 3], after: [bool; 3], tx: &mut Tx) -> Result<(), StoreError> {
        for class in Class::ALL {
            let flag = after[class as usize];
            if before[class as usize] == flag {
                continue;
            }
            // Every generation: only the newest is read, and there are two at most.
            let sql = "UPDATE tidegate.usage SET shedding = $2 WHERE scope = 1 AND key = $1";
            tx.call(|conn| sqlx::query(sql).bind(class.as_str()).bind(flag).execute(conn)).await?;
            tracing::info!(class = class.as_str(), shedding = flag, "a class's shedding changed");
        }
        Ok(())
    }

    /// Hands the refused to the recorder, so that their ids answer.
    fn refuse(&self, batch: &[Item], answers: &[Answer]) {
        let mut admissions: BTreeMap<(Class, &'static str), u64> = BTreeMap::new();
        for (item, answer) in batch.iter().zip(answers) {
            let Answer::Now(answer) = answer else { continue };
            let Admission::Decided { decision, .. } = &**answer else { continue };
            *admissions.entry((decision.class, decision.status.as_str())).or_default() += 1;
            if decision.status.is_final() {
                self.refusals.record(&item.submission, decision);
            }
        }
        for ((class, status), count) in admissions {
            metrics::counter!("tidegate_admissions_total", "class" => class.as_str(), "status" => status)
                .increment(count);
        }
    }
}

/// Which of a batch have an input that is held, by position. Asked before the lock is taken: it may read a lot.
fn held_inputs(policy: &Policy, batch: &[Item]) -> Vec<usize> {
    if policy.holds.is_empty() {
        return Vec::new();
    }
    let now = chrono::Utc::now().timestamp_millis();
    let is_held = |item: &Item| {
        let submission = &item.submission;
        hold::is_held(policy, submission.kind.as_str(), submission.tenant.as_str(), &submission.payload, now)
    };
    batch.iter().enumerate().filter(|(_, item)| is_held(item)).map(|(n, _)| n).collect()
}

/// Ids carry the time of arrival, by which records are partitioned and dropped: one by a clock that is far from the
/// database's would fall into the wrong partition, so it is made again.
fn correct_ids(batch: &mut [Item], now: EpochMs, cell: u8) {
    for item in batch {
        if !item.parked && (item.submission.id.arrived_ms() - now).abs() > MAX_SKEW_MS {
            item.submission.id = TaskId::new(now, rand::random(), cell);
        }
    }
}

/// What a decision holds against the limits.
pub(crate) fn holding(submission: &Submission) -> Holding {
    Holding {
        tokens: submission.cost.tokens as i64,
        usd_micros: submission.cost.usd_micros as i64,
        bytes: submission.payload.len() as i64,
    }
}

/// Whether a task may run at once and has nothing but the ordinary columns.
pub(crate) fn is_plain(submission: &Submission, decision: &Decision) -> bool {
    decision.status == Status::Queued
        && decision.times.not_before.is_none()
        && submission.idempotency.is_none()
        && submission.parent_id.is_none()
        && submission.cancellation_token.is_none()
        && submission.workflow_id.is_none()
        && submission.traceparent.is_none()
        && submission.labels.is_none()
        && submission.priority_notes.is_empty()
}
