//! Records that are written before the cell's row is held. Where more waits at the door than one transaction takes, the
//! records of the next batch are written while the batch before has its turn: they are half of what an admission costs,
//! and nobody reads them before they are committed. What is decided under the lock must be what was written; where it is
//! not, the records go again and the batch is written as any other.

use std::sync::atomic::Ordering;

use tidegate_core::EpochMs;
use tidegate_core::admission::Decision;
use tidegate_core::policy::Policy;
use tokio::sync::oneshot;

use crate::admit::Item;
use crate::admit_write::distinct;
use crate::connection::Tx;
use crate::door::{Decided, Door, correct_ids, flow_key, is_ordinary, is_plain};
use crate::error::StoreError;

const RECORD: &str = include_str!("record_early.sql");
/// Asks for the cell's row for a shorter time than the keeper waits for a table while it has the row (50 ms), so that
/// neither is in the other's way for good.
const LOCK: &str = "SELECT set_config('lock_timeout', '40', true); SELECT 1 FROM tidegate.cell WHERE id = 1 FOR UPDATE";
/// Rounds in which no records are written early after the row was waited for in vain.
const ROUNDS_WITHOUT: u32 = 64;
/// Submissions in a batch from which on it pays to write its records early.
pub(crate) const EARLY_FROM: usize = 200;

/// A batch's place among those that the door has in hand.
#[derive(Default)]
pub(crate) struct Turn {
    /// Tells the batch behind that this one has the cell's row.
    opens: Option<oneshot::Sender<()>>,
    /// Tells that the batch before has the cell's row, or never will: meanwhile the records of this one are written.
    pub(crate) behind: Option<oneshot::Receiver<()>>,
}

impl Turn {
    /// The turns of two batches, one behind the other.
    pub(crate) fn two() -> (Self, Self) {
        let (opens, opened) = oneshot::channel();
        (Self { opens: Some(opens), behind: None }, Self { opens: None, behind: Some(opened) })
    }

    /// The cell's row is held.
    pub(crate) fn has_the_row(&mut self) {
        if let Some(opens) = self.opens.take() {
            // An error means that there is no batch behind.
            let _alone = opens.send(());
        }
    }
}

/// A batch whose records have been written, in its order.
pub(crate) struct Early {
    /// When, by the database's clock: it is decided as if it were then.
    pub(crate) now: EpochMs,
    /// What was written: for how long each had waited, and what its decision has to say.
    drafts: Vec<(u64, Decision)>,
}

impl Early {
    /// How long the `n`th submission had waited.
    pub(crate) fn waited_ms(&self, n: usize) -> u64 {
        self.drafts.get(n).map_or(0, |(waited_ms, _)| *waited_ms)
    }

    /// Whether every submission was let into the queue as its record says.
    pub(crate) fn holds(&self, decided: &[Decided<'_>]) -> bool {
        let same = |(decided, (_, draft)): (&Decided<'_>, &(u64, Decision))| {
            let decision = &decided.verdict.decision;
            is_plain(decided.submission, decision)
                && (decision.class, decision.rank, decision.times, decision.depth)
                    == (draft.class, draft.rank, draft.times, draft.depth)
        };
        decided.len() == self.drafts.len() && decided.iter().zip(&self.drafts).all(same)
    }
}

/// Whether the records of a batch can be written before it is decided.
pub(crate) fn may_be_early(batch: &[Item]) -> bool {
    batch.len() >= EARLY_FROM && batch.iter().all(|item| !item.parked && is_ordinary(&item.submission))
}

impl Door {
    /// Begins the transaction of a batch and writes its records; then, once the batch before has the cell's row or never
    /// will, asks for that. Nothing where something in it has its time still to come.
    pub(crate) async fn begin_early(
        &self,
        policy: &Policy,
        batch: &mut [Item],
        before: oneshot::Receiver<()>,
    ) -> Result<Option<(Tx, Early)>, StoreError> {
        let (mut tx, now) = self.connections.begin_at().await?;
        correct_ids(batch, now, self.store.cell);
        let drafts = batch.iter().map(|item| {
            let waited_ms = item.arrived.elapsed().as_millis() as u64;
            (waited_ms, Decision::draft(policy, &item.submission, now, waited_ms))
        });
        let early = Early { now, drafts: drafts.collect() };
        if early.drafts.iter().any(|(_, draft)| draft.times.not_before.is_some()) {
            tx.rollback().await;
            return Ok(None);
        }
        self.record(policy, batch, &early, &mut tx).await?;
        // An error means that it will not come to ask.
        let _never = before.await;
        match tx.call(|conn| sqlx::raw_sql(LOCK).execute(conn)).await {
            Ok(_) => Ok(Some((tx, early))),
            Err(error) => {
                self.crowded.store(ROUNDS_WITHOUT, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    async fn record(&self, policy: &Policy, batch: &[Item], early: &Early, tx: &mut Tx) -> Result<(), StoreError> {
        macro_rules! column {
            (|$submission:ident, $draft:ident| $value:expr) => {
                batch
                    .iter()
                    .zip(&early.drafts)
                    .map(|(item, (_, $draft))| {
                        let $submission = &item.submission;
                        $value
                    })
                    .collect::<Vec<_>>()
            };
        }
        let keys: Vec<_> = batch.iter().map(|item| flow_key(policy, &item.submission)).collect();
        let (flows, flow_of) = distinct(keys.iter());
        let flows = self.store.directory.resolve(&self.connections, &flows).await?;
        let query = sqlx::query(RECORD)
            .bind(column!(|s, _d| s.id.0))
            .bind(flow_of.into_iter().map(|flow| flows[flow]).collect::<Vec<_>>())
            .bind(column!(|_s, d| d.rank))
            .bind(column!(|_s, d| d.times.arrived))
            .bind(column!(|_s, d| d.times.deadline))
            .bind(column!(|s, _d| s.min_useful_ms as i64))
            .bind(column!(|s, _d| s.attempt_timeout_ms.map(|ms| ms as i64)))
            .bind(column!(|s, _d| s.max_attempts as i16))
            .bind(column!(|s, _d| i16::from(s.priority.get())))
            .bind(column!(|s, _d| s.cost.tokens as i64))
            .bind(column!(|s, _d| s.cost.usd_micros as i64))
            .bind(column!(|_s, d| (early.now - d.times.arrived) as i32))
            .bind(column!(|s, _d| s.payload.as_str()))
            .bind(column!(|_s, d| d.depth as i32))
            .bind(column!(|s, _d| s.fanout as i32));
        tx.call(|conn| query.execute(conn)).await.map(drop)
    }

    /// Takes the records of a batch away again.
    pub(crate) async fn unrecord(&self, batch: &[Item], tx: &mut Tx) -> Result<(), StoreError> {
        metrics::counter!("tidegate_early_records_undone_total").increment(batch.len() as u64);
        let ids: Vec<_> = batch.iter().map(|item| item.submission.id.0).collect();
        let sql = "DELETE FROM tidegate.task WHERE id = ANY($1)";
        tx.call(|conn| sqlx::query(sql).bind(ids).execute(conn)).await.map(drop)
    }
}
