//! The records of claimed tasks: what a handler is given.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::backoff::BackoffPolicy;
use tidegate_core::settlement::Ending;
use tidegate_core::submission::Cost;
use tidegate_core::{EpochMs, Reason};
use uuid::Uuid;

use crate::connection::{PgQuery, call};
use crate::error::StoreError;
use crate::hold;
use crate::session::{Late, Session};
use crate::types::{Claimed, Report, TaskError};

/// Those that arrived at about the same time.
const NEAR: &str = include_str!("records.sql");
/// The partition of each id by itself.
const ANYWHERE: &str = "SELECT t.id, t.payload, t.traceparent, t.depth, t.fanout, t.tokens, t.usd_micros FROM unnest($1::uuid[]) AS d(id) \
    JOIN tidegate.task t ON t.id = d.id";
/// The longest time between the arrivals of the first and the last of some tasks for which the first way pays: no more
/// than two partitions are between them, each of which is looked through for all.
const NEAR_MS: EpochMs = 1_800_000;
/// How often the records of claimed tasks are asked for before the session is given up.
const MAX_TRIES: u32 = 3;

fn query(claimed: &[Claimed]) -> PgQuery {
    let ids: Vec<Uuid> = claimed.iter().map(|task| task.id.0).collect();
    match (claimed.iter().map(|task| task.id).min(), claimed.iter().map(|task| task.id).max()) {
        (Some(first), Some(last)) if last.arrived_ms() - first.arrived_ms() <= NEAR_MS => {
            sqlx::query(NEAR).bind(ids).bind(first.0).bind(last.0)
        }
        _ => sqlx::query(ANYWHERE).bind(ids),
    }
}

/// Fills a claimed task in from its record: six columns next to each other, from this one on.
pub(crate) fn fill(task: &mut Claimed, row: &PgRow, first: usize) -> Result<(), sqlx::Error> {
    task.payload = row.try_get(first)?;
    task.traceparent = row.try_get(first + 1)?;
    task.depth = row.try_get::<i32, _>(first + 2)? as u32;
    task.fanout = row.try_get::<i32, _>(first + 3)? as u32;
    let cost = |column| row.try_get::<i64, _>(column).map(|value| value as u64);
    task.estimated = Cost { tokens: cost(first + 4)?, usd_micros: cost(first + 5)? };
    Ok(())
}

impl Session {
    /// Reads the records of claimed tasks, outside every lock, and fills them in. Tells for each whether it was there.
    pub(crate) async fn fill(&self, claimed: &mut [Claimed]) -> Result<Vec<bool>, StoreError> {
        if claimed.is_empty() {
            return Ok(Vec::new());
        }
        let query = query(claimed);
        let connections = &self.store.connections;
        let mut conn = connections.get().await?;
        let rows = call(connections.call_timeout(), query.fetch_all(&mut *conn)).await?;
        conn.release();
        let mut records: HashMap<Uuid, PgRow> = HashMap::with_capacity(rows.len());
        for row in rows {
            records.insert(row.try_get(0)?, row);
        }
        let found =
            claimed.iter_mut().map(|task| records.get(&task.id.0).is_some_and(|row| fill(task, row, 1).is_ok()));
        Ok(found.collect())
    }

    /// Those of the claimed that may run, once they are committed. Their records were asked for before.
    pub(crate) async fn runnable(
        &self,
        mut claimed: Vec<Claimed>,
        first: Result<Vec<bool>, StoreError>,
    ) -> Result<Vec<Claimed>, StoreError> {
        let mut found = first;
        for _ in 1..MAX_TRIES {
            match &found {
                Err(error) if error.is_transient() => found = self.fill(&mut claimed).await,
                _ => break,
            }
        }
        let found = found?;
        let mut runnable = Vec::with_capacity(claimed.len());
        for (task, found) in claimed.into_iter().zip(found) {
            if !found {
                self.give_up(&task, "record_missing", "the record is gone".into(), None).await;
            } else if self.is_held(&task) {
                // It was held while it waited, and the sweep over what waits has not come to it.
                let message = "the input is held: it has cost several workers".into();
                self.give_up(&task, "quarantined", message, Some(Reason::Quarantined)).await;
            } else {
                runnable.push(task);
            }
        }
        Ok(runnable)
    }

    /// Whether a claimed task's input is held.
    fn is_held(&self, task: &Claimed) -> bool {
        let now = task.deadline_ms - task.remaining.as_millis() as i64;
        hold::is_held(&self.store.policy(), task.kind.as_str(), task.tenant.as_str(), &task.payload, now)
    }

    /// A claimed task that cannot be run, or must not: its lease and what it holds are given back.
    async fn give_up(&self, task: &Claimed, kind: &str, message: String, reason: Option<Reason>) {
        let error = TaskError { kind: kind.to_owned(), message, retryable: false };
        let report = Report {
            id: task.id,
            fence: task.fence,
            ending: Ending::Failed { retryable: false, retry_after_ms: None, reason },
            result: None,
            error: Some(error),
            usage: None,
            backoff: BackoffPolicy::default(),
        };
        if let Err(error) = Box::pin(self.try_turn(&[report], 0, &mut Late::none())).await {
            tracing::error!(task.id = %task.id, %error, "a task without a record could not be given up");
        }
    }
}
