//! What has waited for its peer for longer than the peer's `max_wait_ms`: it is ended, and makes room for others.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::policy::Policy;
use tidegate_core::{EpochMs, Reason, Status};

use crate::changes::{Changes, flow_of, holding_of};
use crate::error::StoreError;
use crate::keep::{SWEEP, Swept, place_of};
use crate::store::Store;

const OVERDUE: &str = include_str!("overdue.sql");
/// Flows of peers, from one on; whether their peer has such a limit is known here.
const FLOWS: &str = "SELECT a.flow_id, a.peer FROM tidegate.active_flow a WHERE a.peer <> '' AND a.lane <> 0 AND a.flow_id > $1 \
    ORDER BY a.flow_id LIMIT $2";
/// Flows that one sweep looks at; the next goes on behind them.
const FLOWS_AT_ONCE: i64 = 512;
/// Most tasks of a flow that one sweep looks at. The overdue stand in front, but for those of a higher priority.
const TASKS_OF_FLOW: i64 = 2_000;
const DETAIL: &str = "it waited for its peer for longer than the peer's max_wait_ms";

impl Store {
    /// Ends QUEUED tasks that have waited for longer than their peer's `max_wait_ms`: REJECTED `bulkhead_full`. Returns
    /// how many, and where to go on; [`SWEEP`] means that more are left. It costs nothing where no peer has such a limit,
    /// and no lock where nothing is overdue.
    pub async fn reject_overdue(&self, swept: Swept) -> Result<(usize, Swept), StoreError> {
        let policy = self.policy();
        if policy.peers.values().all(|peer| peer.max_wait_ms.is_none()) {
            return Ok((0, swept));
        }
        let flows = self.read(sqlx::query(FLOWS).bind(swept.flow).bind(FLOWS_AT_ONCE)).await?;
        let last = flows.last().filter(|_| flows.len() as i64 == FLOWS_AT_ONCE);
        let next = Swept { flow: last.map(|row| row.try_get(0)).transpose()?.unwrap_or(0), ..swept };
        let bounded = bounded(&flows, &policy)?;
        if bounded.0.is_empty() || self.read(overdue(&bounded, 1)).await?.is_empty() {
            return Ok((0, next));
        }
        let ended = self.end_overdue(&bounded, policy.revision).await?;
        Ok((ended, if ended < SWEEP { next } else { swept }))
    }

    async fn end_overdue(&self, flows: &(Vec<i64>, Vec<i64>), revision: i64) -> Result<usize, StoreError> {
        let mut tx = self.inner_ref().connections.begin(true).await?;
        let rows = tx.call(|conn| overdue(flows, SWEEP as i64).fetch_all(conn)).await?;
        let current = rows.first().map(|row| row.try_get::<i64, _>("revision")).transpose()?;
        if current != Some(revision) {
            // Nothing is left, or the limits have changed meanwhile: the next sweep knows them.
            tx.rollback().await;
            return Ok(0);
        }
        let ids = rows.iter().map(|row| row.try_get("flow_id")).collect::<Result<Vec<i64>, _>>()?;
        let keys = self.inner_ref().directory.describe(&mut tx, ids.into_iter()).await?;
        let (mut changes, mut now) = (Changes::default(), EpochMs::MIN);
        let mut in_front: HashMap<i64, i64> = HashMap::new();
        for row in &rows {
            now = row.try_get("now_ms")?;
            let place = place_of(row, Status::Queued)?;
            let key = flow_of(&keys, place.flow)?;
            // In order as long as everything before it in its flow goes as well.
            let gone = in_front.entry(place.flow).or_default();
            let in_order = row.try_get::<i64, _>("before")? == *gone;
            *gone += i64::from(in_order);
            let (status, reason, detail) = (Status::Rejected, Reason::BulkheadFull, Some(DETAIL.to_owned()));
            changes.end_waiting(place, &key, Status::Queued, status, reason, holding_of(row)?, detail, in_order);
        }
        self.finish(changes, tx, now).await?;
        Ok(rows.len())
    }
}

/// The flows whose peer lets nobody wait for ever, and what it lets them.
fn bounded(flows: &[PgRow], policy: &Policy) -> Result<(Vec<i64>, Vec<i64>), StoreError> {
    let mut bounded = (Vec::new(), Vec::new());
    for row in flows {
        let Some(max_ms) = policy.peer(row.try_get(1)?).and_then(|peer| peer.max_wait_ms) else { continue };
        bounded.0.push(row.try_get(0)?);
        bounded.1.push(i64::try_from(max_ms).unwrap_or(i64::MAX));
    }
    Ok(bounded)
}

fn overdue(
    (flows, waits): &(Vec<i64>, Vec<i64>),
    limit: i64,
) -> sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments> {
    sqlx::query(OVERDUE).bind(flows.clone()).bind(waits.clone()).bind(TASKS_OF_FLOW).bind(limit)
}
