//! The Admitter: gathers submissions while the batch before is committing, decides each in core over what the cell
//! holds, and writes the batch in one transaction.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::admission::{Decision, Room, decide};
use tidegate_core::limits::Limits;
use tidegate_core::submission::Submission;
use tidegate_core::{EpochMs, Lane, Reason, Status, TaskId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::background::supervise;
use crate::bell::Topic;
use crate::connection::{Connections, Tx, call};
use crate::directory::FlowKey;
use crate::error::{AdmitError, StoreError};
use crate::gather::{Flush, GatherLimits, Weighted, gather_on_thread};
use crate::ledger::{Holding, Ledger, Rings};
use crate::refusal::Refusals;
use crate::store::{Store, StoreInner};
use crate::types::Admission;

const ADMIT: &str = concat!(include_str!("ledger.sql"), include_str!("admit.sql"));
const ADMIT_PLAIN: &str = concat!(include_str!("ledger.sql"), include_str!("admit_plain.sql"));
const ROOM: &str = include_str!("room.sql");
const KEYS: &str = "SELECT i.tenant, i.key, i.body_sha256, i.task_id FROM unnest($1::text[], $2::text[]) AS d(tenant, key) \
    JOIN tidegate.idempotency i USING (tenant, key) WHERE i.expires_ms > $3";

/// The longest that a submission waits for its answer before the commit: what is slower is "store unavailable".
const DOOR_TIMEOUT: Duration = Duration::from_millis(1_800);
/// The least that must be left of it when the door takes a submission.
const LEAST_LEFT: Duration = Duration::from_millis(300);
/// How often the pressure is read where nobody comes to the door.
const PRESSURE_EVERY: Duration = Duration::from_secs(1);
/// How often a batch that another transaction was in the way of is tried again.
const MAX_TRIES: u32 = 5;

/// The furthest that an id's time may be from the database's clock.
const MAX_SKEW_MS: i64 = 3_600_000;

/// How the door works.
#[derive(Debug, Clone)]
pub struct AdmitterOptions {
    /// The bounds of the cell.
    pub limits: Limits,
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
        Self {
            limits: Limits::default(),
            batch_tasks: 500,
            batch_bytes: 4 << 20,
            waiting: 10_000,
            key_retention: Duration::from_secs(86_400),
        }
    }
}

/// Decides submissions. Cheap to clone; all clones share one door.
#[derive(Clone)]
pub struct Admitter {
    sender: mpsc::Sender<Item>,
    refusals: Refusals,
    limits: Arc<Limits>,
    pressure: Arc<AtomicU64>,
    closing: CancellationToken,
}

struct Item {
    submission: Submission,
    arrived: Instant,
    /// When it came to the door, with all of its body: the door's time-out counts from here.
    came: Instant,
    /// Set once, by whoever is first: the door that takes it, or its caller that gives up.
    taken: Arc<AtomicBool>,
    reply: oneshot::Sender<Result<Admission, AdmitError>>,
}

impl Weighted for Item {
    fn weight(&self) -> usize {
        self.submission.payload.len()
    }
}

impl Admitter {
    /// Opens the door.
    pub fn start(store: &Store, options: AdmitterOptions) -> Result<Self, StoreError> {
        let pressure = Arc::new(AtomicU64::new(0));
        let closing = CancellationToken::new();
        let limits = GatherLimits { items: options.batch_tasks, weight: options.batch_bytes, waiting: options.waiting };
        let refusals = Refusals::start(store.inner());
        let bounds = Arc::new(options.limits.clone());
        let door = Door {
            store: store.inner(),
            connections: Connections::new(store.options(), 1)?,
            refusals: refusals.clone(),
            pressure: pressure.clone(),
            options,
        };
        let (inner, seen) = (store.inner(), (bounds.clone(), pressure.clone()));
        let watched = move || watch_pressure(inner.clone(), seen.0.clone(), seen.1.clone());
        tokio::spawn(supervise("watch of the pressure", closing.clone(), watched));
        let sender = gather_on_thread("tidegate-door", limits, door, closing.clone())
            .map_err(|error| StoreError::Unavailable(Some(error.into())))?;
        Ok(Self { sender, refusals, limits: bounds, pressure, closing })
    }

    /// Remembers a submission that was refused before it came to the door, as REJECTED. Tells whether it will be
    /// readable; where too many are being remembered already it is not.
    pub fn refuse(&self, submission: &Submission, reason: Reason, arrived: Instant) -> bool {
        // Nothing is decided by this clock: it only dates the record.
        let now = chrono::Utc::now().timestamp_millis();
        let waited_ms = u64::try_from(arrived.elapsed().as_millis()).unwrap_or(0);
        let decision = Decision {
            status: Status::Rejected,
            reason: Some(reason),
            class: self.limits.class_of(submission.priority),
            rank: 0,
            times: submission.timing.resolve(&self.limits, now, waited_ms),
            decided: now,
        };
        self.refusals.record(submission, &decision)
    }

    /// Decides one submission that arrived at `arrived`. Once the door has taken it, the decision is made, and kept,
    /// even if the caller goes away. What the door could not take in time is not let in.
    pub async fn admit(&self, submission: Submission, arrived: Instant) -> Result<Admission, AdmitError> {
        if self.closing.is_cancelled() {
            return Err(AdmitError::Draining);
        }
        let id = submission.id;
        let (reply, mut answer) = oneshot::channel();
        let taken = Arc::new(AtomicBool::new(false));
        let came = Instant::now();
        let item = Item { submission, arrived, came, taken: taken.clone(), reply };
        self.sender.try_send(item).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => AdmitError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => AdmitError::Draining,
        })?;
        let answer = match timeout_at((came + DOOR_TIMEOUT).into(), &mut answer).await {
            Ok(answer) => answer,
            Err(_) if !taken.swap(true, Ordering::AcqRel) => return Err(AdmitError::Unavailable),
            Err(_) => answer.await,
        };
        answer.unwrap_or(Err(AdmitError::OutcomeUnknown(id)))
    }

    /// How full the queue was when last looked at, 0 to 1.
    pub fn pressure(&self) -> f64 {
        f64::from_bits(self.pressure.load(Ordering::Relaxed))
    }

    /// Lets nobody in any more; who is waiting is still decided.
    pub fn close(&self) {
        self.closing.cancel();
    }
}

struct Door {
    store: Arc<StoreInner>,
    connections: Connections,
    refusals: Refusals,
    pressure: Arc<AtomicU64>,
    options: AdmitterOptions,
}

impl Flush<Item> for Door {
    async fn flush(&mut self, batch: Vec<Item>) {
        let mut batches = vec![take(batch)];
        while let Some(mut batch) = batches.pop().filter(|batch| !batch.is_empty()) {
            metrics::histogram!("tidegate_admission_batch_tasks").record(batch.len() as f64);
            let started = Instant::now();
            match self.admit(&mut batch).await {
                Ok(answers) => {
                    metrics::histogram!("tidegate_admission_seconds").record(started.elapsed().as_secs_f64());
                    for (item, answer) in batch.into_iter().zip(answers) {
                        // A caller that left does not undo its task.
                        let _gone = item.reply.send(Ok(answer));
                    }
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
                    batch.into_iter().for_each(|item| drop(item.reply.send(Err(AdmitError::Unavailable))));
                }
            }
        }
    }
}

/// Takes what its caller has not given up, and what can still be answered in time.
fn take(batch: Vec<Item>) -> Vec<Item> {
    let mut taken = Vec::with_capacity(batch.len());
    for item in batch {
        if item.taken.swap(true, Ordering::AcqRel) {
            continue;
        }
        if item.came.elapsed() + LEAST_LEFT > DOOR_TIMEOUT {
            let _gone = item.reply.send(Err(AdmitError::Unavailable));
        } else {
            taken.push(item);
        }
    }
    taken
}

/// Keeps the pressure true where nobody comes to the door.
async fn watch_pressure(store: Arc<StoreInner>, limits: Arc<Limits>, pressure: Arc<AtomicU64>) {
    loop {
        sleep(PRESSURE_EVERY).await;
        let read = async {
            let mut conn = store.connections.get().await?;
            let row = call(store.connections.call_timeout(), sqlx::query(ROOM).fetch_one(&mut *conn)).await?;
            conn.release();
            room_of(&row)
        };
        if let Ok(room) = read.await {
            pressure.store(room.pressure(&limits).to_bits(), Ordering::Relaxed);
        }
    }
}

/// A submission and what was decided, by its place in the batch.
struct Decided {
    flow: usize,
    decision: Decision,
}

impl Door {
    async fn admit(&self, batch: &mut [Item]) -> Result<Vec<Admission>, StoreError> {
        // Whoever came first has waited longest: nobody is kept past the door's time-out by a slow database.
        let oldest = batch.iter().map(|item| item.came).min().unwrap_or_else(Instant::now);
        let until = oldest + DOOR_TIMEOUT;
        let mut tries = 0;
        loop {
            tries += 1;
            let prepared = timeout_at(until.into(), self.prepare(batch)).await;
            let (tx, answers, rings) = match prepared {
                Ok(Ok(prepared)) => prepared,
                Ok(Err(StoreError::Busy(error))) if tries < MAX_TRIES => {
                    tracing::debug!(%error, "a batch of submissions is tried again");
                    self.store.directory.forget();
                    continue;
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(StoreError::Unavailable(None)),
            };
            timeout(DOOR_TIMEOUT, tx.commit()).await.unwrap_or(Err(StoreError::OutcomeUnknown(None)))?;
            self.refuse(batch, &answers);
            self.store.bells.ring(Topic::Work, rings.workers);
            return Ok(answers);
        }
    }

    /// Everything but the commit.
    async fn prepare(&self, batch: &mut [Item]) -> Result<(Tx, Vec<Admission>, Rings), StoreError> {
        let (keys, flow_of) = self.flow_keys(batch);
        let flows = self.store.directory.resolve(&self.connections, &keys).await?;
        let (mut tx, room) = self.connections.begin_reading(ROOM).await?;
        let now: EpochMs = room.try_get("now_ms")?;
        correct_ids(batch, now, self.store.cell);
        let known = self.known_keys(batch, now, &mut tx).await?;
        let room = room_of(&room)?;
        let (answers, decided) = self.decide(batch, &flow_of, room, known, now);
        let (row, ledger) = self.write(batch, &decided, &keys, &flows, now, &mut tx).await?;
        let rings = ledger.close(&row, &mut tx).await?;
        Ok((tx, answers, rings))
    }

    /// The distinct flows of the batch, and which of them each submission belongs to.
    fn flow_keys(&self, batch: &[Item]) -> (Vec<FlowKey>, Vec<usize>) {
        let mut keys: Vec<FlowKey> = Vec::new();
        let mut places: HashMap<FlowKey, usize> = HashMap::new();
        let place = batch.iter().map(|item| {
            let submission = &item.submission;
            let key = FlowKey {
                class: self.options.limits.class_of(submission.priority),
                tenant: submission.tenant.as_str().to_owned(),
                kind: submission.kind.as_str().to_owned(),
                peer: submission.peer.as_ref().map(|peer| peer.as_str().to_owned()).unwrap_or_default(),
                lane: Lane::Fresh,
            };
            *places.entry(key).or_insert_with_key(|key| {
                keys.push(key.clone());
                keys.len() - 1
            })
        });
        let place = place.collect();
        (keys, place)
    }

    /// The idempotency keys of the batch that are known, read under the lock.
    async fn known_keys(&self, batch: &[Item], now: EpochMs, tx: &mut Tx) -> Result<Known, StoreError> {
        let keyed = batch.iter().filter_map(|item| {
            Some((item.submission.tenant.as_str(), item.submission.idempotency.as_ref()?.key.as_str()))
        });
        let (tenants, keys): (Vec<String>, Vec<String>) =
            keyed.map(|(tenant, key)| (tenant.to_owned(), key.to_owned())).unzip();
        if keys.is_empty() {
            return Ok(Known::new());
        }
        let rows = tx.call(|conn| sqlx::query(KEYS).bind(tenants).bind(keys).bind(now).fetch_all(conn)).await?;
        rows.iter()
            .map(|row| {
                let body: Vec<u8> = row.try_get(2)?;
                Ok(((row.try_get(0)?, row.try_get(1)?), (body, TaskId(row.try_get(3)?))))
            })
            .collect()
    }

    fn decide(
        &self,
        batch: &[Item],
        flow_of: &[usize],
        mut room: Room,
        mut known: Known,
        now: EpochMs,
    ) -> (Vec<Admission>, BTreeMap<usize, Decided>) {
        let mut decided = BTreeMap::new();
        let mut answers = Vec::with_capacity(batch.len());
        for (n, item) in batch.iter().enumerate() {
            let submission = &item.submission;
            let key = submission
                .idempotency
                .as_ref()
                .map(|idempotency| (submission.tenant.as_str().to_owned(), idempotency.key.clone()));
            if let (Some(key), Some(idempotency)) = (&key, &submission.idempotency)
                && let Some((body, id)) = known.get(key)
            {
                let same = body.as_slice() == idempotency.body_sha256;
                answers.push(if same { Admission::Replayed { id: *id } } else { Admission::KeyReused { id: *id } });
                continue;
            }
            let waited_ms = item.arrived.elapsed().as_millis() as u64;
            let decision = decide(&self.options.limits, &room, submission, now, waited_ms);
            room.take(&decision, submission.bytes());
            if !decision.status.is_final() {
                if let (Some(key), Some(idempotency)) = (key, &submission.idempotency) {
                    known.insert(key, (idempotency.body_sha256.to_vec(), submission.id));
                }
                decided.insert(n, Decided { flow: flow_of[n], decision });
            }
            answers.push(Admission::Decided { id: submission.id, decision });
        }
        self.pressure.store(room.pressure(&self.options.limits).to_bits(), Ordering::Relaxed);
        (answers, decided)
    }

    async fn write(
        &self,
        batch: &[Item],
        decided: &BTreeMap<usize, Decided>,
        keys: &[FlowKey],
        flows: &[i64],
        now: EpochMs,
        tx: &mut Tx,
    ) -> Result<(PgRow, Ledger), StoreError> {
        let mut ledger = Ledger::default();
        for (n, Decided { flow, decision }) in decided {
            let submission = &batch[*n].submission;
            ledger.transition(&keys[*flow], submission.id, None, decision.status, decision.reason, holding(submission));
            if decision.status == Status::Queued {
                ledger.enters(flows[*flow], decision.rank, submission.id);
            }
        }
        let rows: Vec<_> = decided.iter().map(|(n, decided)| (&batch[*n].submission, decided)).collect();
        macro_rules! column {
            (|$submission:ident, $decided:ident| $value:expr) => {
                rows.iter().map(|($submission, $decided)| $value).collect::<Vec<_>>()
            };
        }
        let plain = rows.iter().all(|(submission, decided)| is_plain(submission, &decided.decision));
        let query = ledger
            .bind(if plain { ADMIT_PLAIN } else { ADMIT }, now, self.store.process)
            .bind(column!(|s, _d| s.id.0))
            .bind(column!(|_s, d| flows[d.flow]))
            .bind(column!(|_s, d| d.decision.rank))
            .bind(column!(|_s, d| d.decision.times.arrived))
            .bind(column!(|_s, d| d.decision.times.deadline))
            .bind(column!(|s, _d| s.min_useful_ms as i64))
            .bind(column!(|s, _d| s.attempt_timeout_ms.map(|ms| ms as i64)))
            .bind(column!(|s, _d| s.max_attempts as i16))
            .bind(column!(|s, _d| i16::from(s.priority.get())))
            .bind(column!(|s, _d| s.cost.tokens as i64))
            .bind(column!(|s, _d| s.cost.usd_micros as i64))
            .bind(column!(|_s, d| (now - d.decision.times.arrived) as i32))
            .bind(column!(|s, _d| s.payload.as_str()))
            .bind(column!(|s, _d| s.depth as i32))
            .bind(column!(|s, _d| s.fanout as i32));
        if plain {
            let row = tx.call(|conn| query.fetch_one(conn)).await?;
            return Ok((row, ledger));
        }
        let keyed: Vec<_> = rows.iter().filter_map(|(s, _)| Some((s, s.idempotency.as_ref()?))).collect();
        let query = query
            .bind(column!(|_s, d| d.decision.times.not_before))
            .bind(column!(|_s, d| d.decision.reason.map(|reason| reason.as_str())))
            .bind(column!(|s, _d| s.parent_id.map(|id| id.0)))
            .bind(column!(|s, _d| s.cancellation_token.as_deref()))
            .bind(column!(|s, _d| s.workflow_id.as_deref()))
            .bind(column!(|s, _d| s.idempotency.as_ref().map(|idempotency| idempotency.key.as_str())))
            .bind(column!(|s, _d| s.traceparent.as_deref()))
            .bind(column!(|s, _d| s.labels.as_deref()))
            .bind(column!(|s, _d| (!s.priority_notes.is_empty()).then(|| s.priority_notes.join("\n"))))
            .bind(keyed.iter().map(|(s, _)| s.tenant.as_str()).collect::<Vec<_>>())
            .bind(keyed.iter().map(|(_, idempotency)| idempotency.key.as_str()).collect::<Vec<_>>())
            .bind(keyed.iter().map(|(_, idempotency)| idempotency.body_sha256.as_slice()).collect::<Vec<_>>())
            .bind(keyed.iter().map(|(s, _)| s.id.0).collect::<Vec<Uuid>>())
            .bind(self.options.key_retention.as_millis() as i64);
        let row = tx.call(|conn| query.fetch_one(conn)).await?;
        Ok((row, ledger))
    }

    /// Hands the refused to the recorder, so that their ids answer.
    fn refuse(&self, batch: &[Item], answers: &[Admission]) {
        for (item, answer) in batch.iter().zip(answers) {
            if let Admission::Decided { decision, .. } = answer {
                metrics::counter!("tidegate_admissions_total", "class" => decision.class.as_str(), "status" => decision.status.as_str()).increment(1);
                if decision.status.is_final() {
                    self.refusals.record(&item.submission, decision);
                }
            }
        }
    }
}

type Known = HashMap<(String, String), (Vec<u8>, TaskId)>;

/// Ids carry the time of arrival, by which records are partitioned and dropped: one by a clock that is far from the
/// database's would fall into the wrong partition, so it is made again.
fn correct_ids(batch: &mut [Item], now: EpochMs, cell: u8) {
    for item in batch {
        if (item.submission.id.arrived_ms() - now).abs() > MAX_SKEW_MS {
            item.submission.id = TaskId::new(now, rand::random(), cell);
        }
    }
}

/// Whether a task may run at once and has nothing but the ordinary columns.
fn is_plain(submission: &Submission, decision: &Decision) -> bool {
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

fn room_of(row: &PgRow) -> Result<Room, StoreError> {
    Ok(Room {
        queued: row.try_get("queued")?,
        running: row.try_get("running")?,
        deferred: row.try_get("deferred")?,
        due_deferred: row.try_get("due_deferred")?,
        bytes: row.try_get("bytes")?,
    })
}

fn holding(submission: &Submission) -> Holding {
    Holding {
        tokens: submission.cost.tokens as i64,
        usd_micros: submission.cost.usd_micros as i64,
        bytes: submission.payload.len() as i64,
    }
}
