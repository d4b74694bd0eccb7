//! Refusals are remembered for a while, so that the id of a refused submission answers. They are written in batches
//! outside every lock; when the buffer is full they are dropped and counted, because a refusal must stay cheap.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::PeerName;
use tidegate_core::admission::Decision;
use tidegate_core::submission::Submission;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::connection::call;
use crate::error::StoreError;
use crate::gather::{Flush, GatherLimits, Weighted, gather};
use crate::store::StoreInner;

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

impl Weighted for Refusal {
    fn weight(&self) -> usize {
        1
    }
}

/// Remembers refusals.
#[derive(Clone)]
pub(crate) struct Refusals {
    sender: mpsc::Sender<Refusal>,
}

impl Refusals {
    pub(crate) fn start(store: Arc<StoreInner>) -> Self {
        let limits = GatherLimits { items: MAX_BATCH, weight: MAX_BATCH, waiting: MAX_WAITING };
        let closed = store.closed.clone();
        Self { sender: gather(limits, Recorder { store }, closed) }
    }

    /// Remembers one, without its payload. False where it was dropped instead.
    pub(crate) fn record(&self, submission: &Submission, decision: &Decision) -> bool {
        let submission = submission.without_payload();
        let kept = self.sender.try_send(Refusal { submission, decision: *decision }).is_ok();
        if !kept {
            metrics::counter!("tidegate_refusals_dropped_total").increment(1);
        }
        kept
    }
}

struct Recorder {
    store: Arc<StoreInner>,
}

impl Flush<Refusal> for Recorder {
    async fn flush(&mut self, batch: Vec<Refusal>) {
        if let Err(error) = self.write(&batch).await {
            tracing::debug!(%error, refusals = batch.len(), "refusals could not be recorded");
            metrics::counter!("tidegate_refusals_dropped_total").increment(batch.len() as u64);
        }
        // Refusals may come by the thousand: let them gather.
        sleep(GATHER).await;
    }
}

impl Recorder {
    async fn write(&self, batch: &[Refusal]) -> Result<(), StoreError> {
        macro_rules! column {
            (|$submission:ident, $decision:ident| $value:expr) => {
                batch.iter().map(|Refusal { submission: $submission, decision: $decision }| $value).collect::<Vec<_>>()
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
            .bind(column!(|_s, d| d.reason.map_or("queue_full", |reason| reason.as_str())))
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
