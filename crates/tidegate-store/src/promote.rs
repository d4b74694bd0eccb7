//! Into the queue by another way than the door: deferred tasks whose time has come, and tasks whose reserved slot nobody
//! claimed. Both ask the door's own rules.

use std::collections::BTreeSet;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::admission::{Ask, Facts, MAX_DISPLACED, promote, readmit};
use tidegate_core::order::doom;
use tidegate_core::policy::Policy;
use tidegate_core::{Class, EpochMs, Lane, Status};

use uuid::Uuid;

use crate::changes::{Changes, flow_of, holding_of};
use crate::connection::Tx;
use crate::directory::FlowKey;
use crate::error::StoreError;
use crate::facts::{self, PaceWindow, Wanted};
use crate::keep::{SWEEP, Swept, place_of, waiting_of};
use crate::ledger::Holding;
use crate::store::Store;

/// How long a reserved slot waits for its worker.
pub(crate) const RESERVED_MS: i64 = 1_000;

// One clock for what is found and for what is told of it: up to there, and not a moment further, all is seen.
const DUE_DEFERRED: &str = "WITH n AS MATERIALIZED (SELECT tidegate.now_ms() AS now_ms) \
    SELECT (SELECT n.now_ms FROM n) AS now_ms, d.* FROM tidegate.deferred d \
    WHERE d.eligible_ms >= $1 AND (d.eligible_ms, d.rank, d.task_id) > ($1, $3, $4) AND d.eligible_ms <= (SELECT n.now_ms FROM n) \
    ORDER BY d.eligible_ms, d.rank, d.task_id LIMIT $2";
const RESERVED: &str = "SELECT tidegate.now_ms() AS now_ms, r.* FROM tidegate.flow f \
    JOIN tidegate.active_flow a ON a.flow_id = f.id \
    CROSS JOIN LATERAL (SELECT u.queued, u.low_rank, u.low_id FROM tidegate.flow_usage u \
        WHERE u.flow_id = f.id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1) u \
    CROSS JOIN LATERAL (SELECT r.* FROM tidegate.ready r \
        WHERE r.flow_id = f.id AND (r.rank, r.task_id) >= (u.low_rank, u.low_id) ORDER BY r.flow_id, r.rank, r.task_id LIMIT $1) r \
    WHERE f.lane = 0 AND u.queued > 0 LIMIT $1";

impl Store {
    /// Moves deferred tasks whose time has come to the queue, as far as every limit has room; those with too little time
    /// left end. It looks at [`SWEEP`] of them, and passes over those without room: others may have it. Returns how many
    /// moved or ended, and how far it swept.
    pub async fn promote_due(&self, swept: Swept) -> Result<(usize, Swept), StoreError> {
        let mut tx = self.inner_ref().connections.begin(true).await?;
        let (eligible, rank, id) = swept.passed.unwrap_or((swept.eligible, i64::MIN, Uuid::nil()));
        let due = sqlx::query(DUE_DEFERRED).bind(eligible).bind(SWEEP as i64).bind(rank).bind(id);
        let rows = tx.call(|conn| due.fetch_all(conn)).await?;
        let Some((policy, mut facts, keys)) = self.facts_of(&rows, &mut tx).await? else {
            tx.rollback().await;
            return Ok((0, Swept { passed: None, ..swept }));
        };
        self.find_candidates(&policy, &mut facts, &keys, &mut tx).await?;
        let (mut changes, mut count, now) = (Changes::default(), 0, facts.now);
        let displaceable: BTreeSet<i64> = facts.candidates.iter().flatten().map(|candidate| candidate.flow).collect();
        let flows = self.inner_ref().directory.describe(&mut tx, displaceable.into_iter()).await?;
        for (row, key) in rows.iter().zip(&keys) {
            let (place, holding) = (place_of(row, Status::Deferred)?, holding_of(row)?);
            if let Some(reason) = doom(&waiting_of(row, place)?, now) {
                changes.end_waiting(place, key, Status::Deferred, Status::Expired, reason, holding, None, false);
                count += 1;
                continue;
            }
            let ask = ask_of(key, holding);
            let Some(displaced) = promote(&policy, &facts, &ask) else { continue };
            for lost in &displaced {
                changes.displace(lost, &*flow_of(&flows, lost.flow)?);
            }
            facts.promoted(&ask, &displaced);
            changes.promote(place, key, holding);
            count += 1;
        }
        let last = rows.last().filter(|_| rows.len() == SWEEP);
        let passed = last.map(|row| {
            Ok::<_, sqlx::Error>((row.try_get("eligible_ms")?, row.try_get("rank")?, row.try_get("task_id")?))
        });
        let passed = passed.transpose()?;
        if count == 0 {
            tx.rollback().await;
        } else {
            self.finish(changes, tx, now).await?;
        }
        let complete = swept.passed.is_none() && passed.is_none() && count == rows.len();
        // The facts were read a moment later, when more may have been due than was looked at.
        let looked = rows.first().filter(|_| complete).map(|row| row.try_get("now_ms")).transpose()?;
        let eligible = looked.unwrap_or(swept.eligible);
        Ok((count, Swept { eligible, passed, ..swept }))
    }

    /// Takes back slots that were reserved for tasks which nobody claimed within a second, or whose work is paused: the
    /// tasks go to the queue where every limit has room, else among the deferred. Returns how many.
    pub async fn take_back_reserved(&self) -> Result<usize, StoreError> {
        let mut tx = self.inner_ref().connections.begin(true).await?;
        let rows = tx.call(|conn| sqlx::query(RESERVED).bind(SWEEP as i64).fetch_all(conn)).await?;
        let Some((policy, mut facts, keys)) = self.facts_of(&rows, &mut tx).await? else {
            tx.rollback().await;
            return Ok(0);
        };
        let now = facts.now;
        let mut unclaimed = Vec::new();
        for (row, key) in rows.iter().zip(&keys) {
            if is_unclaimed(row, key, &policy, now)? {
                unclaimed.push((row, key));
            }
        }
        if unclaimed.is_empty() {
            tx.rollback().await;
            return Ok(0);
        }
        let fresh: Vec<FlowKey> =
            unclaimed.iter().map(|(_, key)| FlowKey { lane: Lane::Fresh, ..(*key).clone() }).collect();
        let to = self.inner_ref().directory.resolve_in(&mut tx, &fresh).await?;
        let mut changes = Changes::default();
        for ((row, key), to) in unclaimed.iter().zip(to) {
            let (place, holding) = (place_of(row, Status::Queued)?, holding_of(row)?);
            let ask = ask_of(key, holding);
            let queued = readmit(&policy, &facts, &ask);
            if queued {
                facts.readmitted(&ask);
            }
            changes.readmit(place, key, to, queued, holding);
        }
        self.finish(changes, tx, now).await?;
        Ok(unclaimed.len())
    }

    /// The policy, what is held at the levels of the rows' tasks, and the rows' flows.
    async fn facts_of(
        &self,
        rows: &[PgRow],
        tx: &mut Tx,
    ) -> Result<Option<(std::sync::Arc<Policy>, Facts, Vec<FlowKey>)>, StoreError> {
        if rows.is_empty() {
            return Ok(None);
        }
        let store = self.inner_ref();
        let ids = rows.iter().map(|row| row.try_get("flow_id")).collect::<Result<Vec<i64>, _>>()?;
        let flows = store.directory.describe(tx, ids.iter().copied()).await?;
        let keys =
            ids.iter().map(|id| flow_of(&flows, *id).map(|key| (*key).clone())).collect::<Result<Vec<_>, _>>()?;
        let mut wanted = Wanted::default();
        for key in &keys {
            wanted.tenants.insert(key.tenant.clone());
            if !key.peer.is_empty() {
                wanted.peers.insert(key.peer.clone());
            }
        }
        let read = facts::read(store, &wanted, &PaceWindow::default(), tx).await?;
        let policy = store.policy_at(read.revision, tx).await?;
        Ok(Some((policy, read.facts, keys)))
    }

    /// Reads whose place the deferred could take, where the queue is full.
    async fn find_candidates(
        &self,
        policy: &Policy,
        facts: &mut Facts,
        keys: &[FlowKey],
        tx: &mut Tx,
    ) -> Result<(), StoreError> {
        let best = keys.iter().map(|key| key.class).min().unwrap_or(Class::Background);
        let waits = |class: Class| facts.classes[class as usize].queued > 0;
        let lower = Class::ALL.into_iter().any(|class| class > best && waits(class));
        let full = facts.cell.queued + keys.len() as i64 > i64::from(policy.limits.max_queued)
            || policy.limits.max_in_flight.is_some()
            || policy.limits.max_tokens.is_some()
            || policy.limits.max_usd_micros.is_some();
        if lower && full {
            facts::read_backlog(self.inner_ref(), policy, facts, Some(best), MAX_DISPLACED * keys.len().min(60), tx)
                .await?;
        }
        Ok(())
    }
}

fn ask_of(key: &FlowKey, holding: Holding) -> Ask<'_> {
    Ask::inside(key.class, &key.tenant, &key.kind, &key.peer, holding)
}

fn is_unclaimed(row: &PgRow, key: &FlowKey, policy: &Policy, now: EpochMs) -> Result<bool, StoreError> {
    let reserved_ms: Option<i64> = row.try_get("reserved_ms")?;
    let peer = (!key.peer.is_empty()).then_some(key.peer.as_str());
    Ok(reserved_ms.is_none_or(|at| at + RESERVED_MS <= now)
        || policy.held(&key.kind, key.class, &key.tenant, peer, now).is_some())
}
