//! Inputs that are held: written when an input has cost its third worker, obeyed at the door, by claims, and by a sweep
//! over what waits already.

use std::collections::HashSet;

use sqlx::Row;
use tidegate_core::policy::Policy;
use tidegate_core::quarantine::{Hold, fingerprint};
use tidegate_core::{EpochMs, Reason, Status, TaskId};
use uuid::Uuid;

use crate::cancel::place_found;
use crate::changes::{Changes, flow_of, holding_of};
use crate::connection::Tx;
use crate::error::StoreError;
use crate::store::Store;

const INPUTS: &str = "SELECT t.id, t.tenant, t.kind, t.payload FROM tidegate.task t WHERE t.id = ANY($1)";
/// A hold for one tenant; and, where another tenant has one for the same input, a hold for all.
const HOLD: &str = "WITH d AS MATERIALIZED (SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::uuid[]) AS d(fingerprint, tenant, kind, task_id)), \
    all_of AS MATERIALIZED (SELECT d.fingerprint, '' AS tenant, d.kind, d.task_id FROM d \
        WHERE EXISTS (SELECT FROM tidegate.hold h WHERE h.fingerprint = d.fingerprint AND h.tenant <> d.tenant AND h.until_ms > $6) \
            OR EXISTS (SELECT FROM d e WHERE e.fingerprint = d.fingerprint AND e.tenant <> d.tenant)), \
    counted AS (UPDATE tidegate.policy_revision SET n = n + 1 WHERE id = 1) \
    INSERT INTO tidegate.hold (fingerprint, tenant, kind, reason, task_id, held_ms, until_ms) \
    SELECT DISTINCT ON (n.fingerprint, n.tenant) n.fingerprint, n.tenant, n.kind, $5, n.task_id, $6, $7 FROM (SELECT * FROM d UNION ALL SELECT * FROM all_of) n \
    ON CONFLICT (fingerprint, tenant) DO UPDATE SET reason = excluded.reason, task_id = excluded.task_id, held_ms = excluded.held_ms, until_ms = excluded.until_ms";
/// What waits of a kind, of one tenant or of all ('').
const WAITING: &str = "SELECT w.task_id FROM tidegate.flow f CROSS JOIN LATERAL ( \
        SELECT r.task_id FROM tidegate.ready r WHERE r.flow_id = f.id UNION ALL SELECT d.task_id FROM tidegate.deferred d WHERE d.flow_id = f.id \
    ) w WHERE f.kind = $1 AND ($2 = '' OR f.tenant = $2) LIMIT $3";
const FIND: &str = include_str!("find.sql");
/// Most waiting tasks that are looked through for one hold; what is beyond is found by the claim that takes it.
const MAX_LOOKED_THROUGH: i64 = 25_000;
/// Inputs that are read at once: they may be large.
const PAGE: usize = 200;

/// Holds the inputs of these tasks, inside the transaction in which they ended.
pub(crate) async fn write(tasks: &[Uuid], hold_ms: i64, now: EpochMs, tx: &mut Tx) -> Result<(), StoreError> {
    let rows = tx.call(|conn| sqlx::query(INPUTS).bind(tasks.to_vec()).fetch_all(conn)).await?;
    let (mut prints, mut tenants, mut kinds, mut ids) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for row in &rows {
        let kind: String = row.try_get(2)?;
        prints.push(fingerprint(&kind, row.try_get(3)?).to_vec());
        tenants.push(row.try_get::<String, _>(1)?);
        kinds.push(kind);
        ids.push(row.try_get::<Uuid, _>(0)?);
    }
    tracing::warn!(inputs = ids.len(), "inputs cost three workers each and are held");
    metrics::counter!("tidegate_inputs_held_total").increment(ids.len() as u64);
    let query = sqlx::query(HOLD)
        .bind(prints)
        .bind(tenants)
        .bind(kinds)
        .bind(ids)
        .bind(Reason::Quarantined.as_str())
        .bind(now)
        .bind(now.saturating_add(hold_ms));
    tx.call(|conn| query.execute(conn)).await?;
    Ok(())
}

/// The holds for which this process has looked through what waits: of an input there may be one for each tenant and one
/// for all, which end at different times.
#[derive(Default)]
pub(crate) struct HeldSwept(HashSet<Hold>);

impl HeldSwept {
    /// Those of these for which it has not; what is none of these is forgotten where it is more.
    fn fresh<'a>(&mut self, holds: &'a [Hold]) -> Vec<&'a Hold> {
        if self.0.len() > holds.len() {
            let still: HashSet<&Hold> = holds.iter().collect();
            self.0.retain(|swept| still.contains(swept));
        }
        holds.iter().filter(|hold| !self.0.contains(*hold)).collect()
    }

    fn done(&mut self, hold: &Hold) {
        self.0.insert(hold.clone());
    }
}

/// Whether an input is held for a tenant. The input is looked at only where something of its kind is held.
pub(crate) fn is_held(policy: &Policy, kind: &str, tenant: &str, payload: &str, now: EpochMs) -> bool {
    let mut holds = policy.holds.iter().filter(|hold| hold.concerns(kind, tenant, now)).peekable();
    if holds.peek().is_none() {
        return false;
    }
    let print = fingerprint(kind, payload);
    holds.any(|hold| hold.fingerprint == print)
}

impl Store {
    /// Ends as REJECTED what waits with an input that was held since this process last looked. Returns how many.
    pub async fn end_held(&self) -> Result<usize, StoreError> {
        let policy = self.inner_ref().policy();
        let fresh: Vec<&Hold> = self.inner_ref().held_swept().fresh(&policy.holds);
        let mut ended = 0;
        for hold in fresh {
            ended += self.end_waiting_with(hold).await?;
            self.inner_ref().held_swept().done(hold);
        }
        Ok(ended)
    }

    async fn end_waiting_with(&self, hold: &Hold) -> Result<usize, StoreError> {
        let tenant = hold.tenant.clone().unwrap_or_default();
        let waiting =
            self.read(sqlx::query(WAITING).bind(hold.kind.clone()).bind(tenant).bind(MAX_LOOKED_THROUGH)).await?;
        let ids = waiting.iter().map(|row| row.try_get(0)).collect::<Result<Vec<Uuid>, _>>()?;
        let mut ended = 0;
        for page in ids.chunks(PAGE) {
            let inputs = self.read(sqlx::query(INPUTS).bind(page.to_vec())).await?;
            let mut same: (Vec<Uuid>, Vec<String>) = Default::default();
            for row in &inputs {
                if fingerprint(&hold.kind, row.try_get(3)?) == hold.fingerprint {
                    same.0.push(row.try_get(0)?);
                    same.1.push(row.try_get(1)?);
                }
            }
            if !same.0.is_empty() {
                ended += self.reject_held(same.0, same.1).await?;
            }
        }
        Ok(ended)
    }

    async fn reject_held(&self, ids: Vec<Uuid>, tenants: Vec<String>) -> Result<usize, StoreError> {
        let mut tx = self.inner_ref().connections.begin(true).await?;
        let rows = tx.call(|conn| sqlx::query(FIND).bind(ids.clone()).bind(tenants).fetch_all(conn)).await?;
        let flow_ids = rows.iter().map(|row| row.try_get("flow_id")).collect::<Result<Vec<i64>, _>>()?;
        let flows = self.inner_ref().directory.describe(&mut tx, flow_ids.into_iter()).await?;
        let (mut changes, mut now, mut ended) = (Changes::default(), 0, 0);
        for row in &rows {
            now = row.try_get("now_ms")?;
            let n: i64 = row.try_get("n")?;
            let Some((place, from)) = place_found(row, TaskId(ids[(n - 1) as usize]))? else { continue };
            let key = flow_of(&flows, place.flow)?;
            let (to, reason) = (Status::Rejected, Reason::Quarantined);
            changes.end_waiting(place, &key, from, to, reason, holding_of(row)?, None, false);
            ended += 1;
        }
        if ended == 0 {
            tx.rollback().await;
            return Ok(0);
        }
        self.finish(changes, tx, now).await?;
        Ok(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hold_is_looked_through_once_also_where_one_input_has_several() {
        let of = |tenant: Option<&str>, until| Hold {
            fingerprint: [1; 32],
            kind: "echo".into(),
            tenant: tenant.map(str::to_owned),
            until,
        };
        let holds = [of(Some("a"), 1), of(None, 2), of(Some("b"), 2)];
        let mut swept = HeldSwept::default();
        assert_eq!(swept.fresh(&holds).len(), 3);
        holds.iter().for_each(|hold| swept.done(hold));
        assert!(swept.fresh(&holds).is_empty());
        // One that lasts longer now is another, and one that is over is forgotten.
        assert_eq!(swept.fresh(&[of(Some("a"), 9), of(None, 2)]), [&of(Some("a"), 9)]);
        assert_eq!(swept.0, HashSet::from([of(None, 2)]));
    }
}
