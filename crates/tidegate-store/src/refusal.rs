//! Refusals are remembered for a while, so that the id of a refused submission answers. They are written in batches
//! outside every lock; when the buffer is full they are dropped and counted, because a refusal must stay cheap. Until one is
//! written, its id is answered from the memory of the process that refused it: callers read it back at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::admission::Decision;
use tidegate_core::submission::Submission;
use tidegate_core::{PeerName, Reason, TaskId, TenantId};
use tokio::sync::mpsc;
use tokio::time::sleep;
use uuid::Uuid;

use crate::connection::call;
use crate::error::StoreError;
use crate::gather::{Flush, GatherLimits, Weighted, gatherer};
use crate::store::StoreInner;
use crate::types::{TaskFilter, TaskRecord};

/// Most refusals that wait to be written. Beyond it they are dropped and counted.
const MAX_WAITING: usize = 10_000;
/// Most refusals in one statement.
const MAX_BATCH: usize = 1_000;
/// How long refusals are gathered: well under the second within which they must be readable.
const GATHER: Duration = Duration::from_millis(100);

const RECORD: &str = "INSERT INTO tidegate.refusal (id, tenant, kind, peer, class, priority, status, reason, refused_ms, deadline_ms, not_before_ms, \
    max_attempts, tokens, usd_micros, admission_wait_ms, parent_id, cancellation_token, workflow_id, labels) \
    SELECT id, tenant, kind, peer, class, priority, status, reason, refused_ms, deadline_ms, not_before_ms, \
    max_attempts, tokens, usd_micros, admission_wait_ms, parent_id, cancellation_token, workflow_id, labels::jsonb \
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::smallint[], $7::text[], $8::text[], $9::bigint[], $10::bigint[], \
    $11::smallint[], $12::bigint[], $13::bigint[], $14::int[], $15::uuid[], $16::text[], $17::text[], $18::text[], $19::bigint[]) \
    AS d(id, tenant, kind, peer, class, priority, status, reason, deadline_ms, not_before_ms, max_attempts, tokens, usd_micros, admission_wait_ms, \
    parent_id, cancellation_token, workflow_id, labels, refused_ms) ON CONFLICT DO NOTHING";

/// What is kept of a refused submission: all but its payload.
struct Refusal {
    submission: Submission,
    decision: Decision,
}

impl Refusal {
    fn reason(&self) -> Reason {
        self.decision.reason.unwrap_or(Reason::QueueFull)
    }

    /// Whether a listing with this filter shows it, by the rules of its statement.
    fn passes(&self, filter: &TaskFilter) -> bool {
        let Self { submission, decision } = self;
        let labels = || -> BTreeMap<String, String> {
            submission.labels.as_deref().and_then(|labels| serde_json::from_str(labels).ok()).unwrap_or_default()
        };
        filter.status.is_none_or(|status| status == decision.status)
            && filter.kind.as_ref().is_none_or(|kind| *kind == submission.kind)
            && filter.class.is_none_or(|class| class == decision.class)
            && (filter.peer.is_none() || filter.peer == submission.peer)
            && (filter.workflow_id.is_none() || filter.workflow_id == submission.workflow_id)
            && (filter.labels.is_empty() || {
                let own = labels();
                filter.labels.iter().all(|(name, value)| own.get(name) == Some(value))
            })
    }

    /// What a read of the database will tell of it.
    fn record(&self) -> TaskRecord {
        let Self { submission, decision } = self;
        let (tenant, kind) = (submission.tenant.clone(), submission.kind.clone());
        TaskRecord {
            peer: submission.peer.clone(),
            class: decision.class,
            priority: submission.priority.get(),
            reason: Some(self.reason()),
            enqueued_ms: decision.times.arrived,
            not_before_ms: decision.times.not_before,
            deadline_ms: decision.times.deadline,
            admission_wait_ms: decision.decided - decision.times.arrived,
            max_attempts: submission.max_attempts.into(),
            estimated: submission.cost,
            labels: submission.labels.clone(),
            workflow_id: submission.workflow_id.clone(),
            parent_id: submission.parent_id,
            cancellation_token: submission.cancellation_token.clone(),
            ..TaskRecord::refused(submission.id, tenant, kind, decision.status, decision.decided)
        }
    }
}

/// The refusals of this process that are not written yet: as many as wait, and a batch.
#[derive(Default)]
pub(crate) struct Unwritten(Mutex<HashMap<TaskId, Arc<Refusal>>>);

impl Unwritten {
    /// A tenant's refusal, where it is among them. To be asked before the database is: it leaves once it is there.
    pub(crate) fn find(&self, tenant: &TenantId, id: TaskId) -> Option<TaskRecord> {
        let refusal = self.all().get(&id).cloned()?;
        (refusal.submission.tenant == *tenant).then(|| refusal.record())
    }

    /// Those of a tenant that a listing shows, newest first, `most` of them. What was written meanwhile may be among them.
    pub(crate) fn list(&self, tenant: &TenantId, filter: &TaskFilter, ids: Range<Uuid>, most: u16) -> Vec<TaskRecord> {
        let shown = |refusal: &&Arc<Refusal>| {
            let submission = &refusal.submission;
            submission.tenant == *tenant && ids.contains(&submission.id.0) && refusal.passes(filter)
        };
        let mut found: Vec<_> = self.all().values().filter(shown).cloned().collect();
        found.sort_unstable_by_key(|refusal| Reverse(refusal.submission.id));
        found.iter().take(most.into()).map(|refusal| refusal.record()).collect()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<TaskId, Arc<Refusal>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets a batch when it is dropped: it is written, or never will be.
struct Forget<'a> {
    unwritten: &'a Unwritten,
    batch: &'a [Arc<Refusal>],
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut all = self.unwritten.all();
        for refusal in self.batch {
            all.remove(&refusal.submission.id);
        }
    }
}

impl Weighted for Arc<Refusal> {
    fn weight(&self) -> usize {
        1
    }
}

/// Remembers refusals.
#[derive(Clone)]
pub(crate) struct Refusals {
    sender: mpsc::Sender<Arc<Refusal>>,
    store: Arc<StoreInner>,
}

impl Refusals {
    pub(crate) fn start(store: Arc<StoreInner>) -> Self {
        let limits = GatherLimits { items: MAX_BATCH, weight: MAX_BATCH, waiting: MAX_WAITING };
        let closed = store.closed.clone();
        let recorder = Recorder { store: store.clone() };
        // What was refused last, such as by a server that drains, is written before the store takes its leave.
        let (sender, gathering) = gatherer(limits, recorder, closed);
        store.tasks.spawn(gathering);
        Self { sender, store }
    }

    /// Remembers one, without its payload. False where it was dropped instead.
    pub(crate) fn record(&self, submission: &Submission, decision: &Decision) -> bool {
        let unwritten = &self.store.unwritten;
        let id = submission.id;
        let Ok(permit) = self.sender.try_reserve() else {
            metrics::counter!("tidegate_refusals_dropped_total").increment(1);
            return false;
        };
        let refusal = Arc::new(Refusal { submission: submission.without_payload(), decision: *decision });
        // Before it can be written, and so before it can be forgotten.
        unwritten.all().insert(id, refusal.clone());
        permit.send(refusal);
        true
    }
}

struct Recorder {
    store: Arc<StoreInner>,
}

impl Flush<Arc<Refusal>> for Recorder {
    async fn flush(&mut self, batch: Vec<Arc<Refusal>>) {
        let forget = Forget { unwritten: &self.store.unwritten, batch: &batch };
        if let Err(error) = self.write(&batch).await {
            tracing::debug!(%error, refusals = batch.len(), "refusals could not be recorded");
            metrics::counter!("tidegate_refusals_dropped_total").increment(batch.len() as u64);
        }
        drop(forget);
        // Refusals may come by the thousand: let them gather.
        self.store.closed.run_until_cancelled(sleep(GATHER)).await;
    }
}

impl Recorder {
    async fn write(&self, batch: &[Arc<Refusal>]) -> Result<(), StoreError> {
        macro_rules! column {
            (|$submission:ident, $decision:ident| $value:expr) => {
                batch
                    .iter()
                    .map(|refusal| {
                        let Refusal { submission: $submission, decision: $decision } = &**refusal;
                        $value
                    })
                    .collect::<Vec<_>>()
            };
        }
        let query = sqlx::query(RECORD)
            .bind(column!(|s, _d| s.id.0))
            .bind(column!(|s, _d| s.tenant.as_str()))
            .bind(column!(|s, _d| s.kind.as_str()))
            .bind(column!(|s, _d| s.peer.as_ref().map(PeerName::as_str)))
            .bind(column!(|_s, d| d.class.code()))
            .bind(column!(|s, _d| i16::from(s.priority.get())))
            .bind(column!(|_s, d| d.status.as_str()))
            .bind(batch.iter().map(|refusal| refusal.reason().as_str()).collect::<Vec<_>>())
            .bind(column!(|_s, d| d.times.deadline))
            .bind(column!(|_s, d| d.times.not_before))
            .bind(column!(|s, _d| s.max_attempts as i16))
            .bind(column!(|s, _d| s.cost.tokens as i64))
            .bind(column!(|s, _d| s.cost.usd_micros as i64))
            .bind(column!(|_s, d| (d.decided - d.times.arrived) as i32))
            .bind(column!(|s, _d| s.parent_id.map(|id| id.0)))
            .bind(column!(|s, _d| s.cancellation_token.as_deref()))
            .bind(column!(|s, _d| s.workflow_id.as_deref()))
            .bind(column!(|s, _d| s.labels.as_deref()))
            // When it was decided, not when it comes to be written: what arrived is not dated later.
            .bind(column!(|_s, d| d.decided));
        let mut conn = self.store.connections.get().await?;
        call(self.store.connections.call_timeout(), query.execute(&mut *conn)).await?;
        conn.release();
        Ok(())
    }
}
