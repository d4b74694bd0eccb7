//! The ids of flows, remembered by this process, and the counter rows that must exist before they are moved.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::Row;
use tidegate_core::{Class, Lane};

use crate::connection::{Connections, Tx};
use crate::error::StoreError;
use crate::ledger::class_of;

/// Most flows and counter rows remembered: beyond it everything is forgotten and looked up again.
const MAX_REMEMBERED: usize = 20_000;

/// What makes a flow.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    pub(crate) class: Class,
    pub(crate) tenant: String,
    pub(crate) kind: String,
    /// Empty where there is no peer.
    pub(crate) peer: String,
    pub(crate) lane: Lane,
}

impl FlowKey {
    /// The counter rows that a task of this flow moves.
    fn usage_keys(&self) -> impl Iterator<Item = (i16, String)> {
        // What retries may cost is kept with the peer, or with the kind where there is none.
        let peer = if self.peer.is_empty() { (6, self.kind.clone()) } else { (3, self.peer.clone()) };
        let of_class = Class::ALL.into_iter().map(|class| (4, format!("{}:{}", class.as_str(), self.tenant)));
        [(2, self.tenant.clone()), peer].into_iter().chain(of_class)
    }
}

#[derive(Default)]
struct Known {
    flows: HashMap<FlowKey, i64>,
    by_id: HashMap<i64, Arc<FlowKey>>,
    usage: HashSet<(i16, String)>,
}

/// What this process knows to exist.
#[derive(Default)]
pub(crate) struct Directory {
    known: Mutex<Known>,
}

impl Directory {
    /// The ids of these flows, in order. Flows and counter rows that are not there yet are made, in a transaction of
    /// their own; the caller must not hold the cell's lock.
    pub(crate) async fn resolve(&self, connections: &Connections, keys: &[FlowKey]) -> Result<Vec<i64>, StoreError> {
        if let Some(ids) = self.remembered(keys) {
            return Ok(ids);
        }
        let mut tx = connections.begin(true).await?;
        let ids = self.make(&mut tx, keys).await?;
        tx.commit().await?;
        Ok(ids)
    }

    /// The same inside a transaction that holds the cell's lock. If it rolls back, what is remembered of it is found
    /// missing by the ledger, and forgotten.
    pub(crate) async fn resolve_in(&self, tx: &mut Tx, keys: &[FlowKey]) -> Result<Vec<i64>, StoreError> {
        match self.remembered(keys) {
            Some(ids) => Ok(ids),
            None => self.make(tx, keys).await,
        }
    }

    /// What the flows with these ids are.
    pub(crate) async fn describe(
        &self,
        tx: &mut Tx,
        ids: impl Iterator<Item = i64>,
    ) -> Result<HashMap<i64, Arc<FlowKey>>, StoreError> {
        let wanted: HashSet<i64> = ids.collect();
        let mut described: HashMap<_, _> = {
            let known = self.lock();
            wanted.iter().filter_map(|id| Some((*id, known.by_id.get(id)?.clone()))).collect()
        };
        let missing: Vec<i64> = wanted.into_iter().filter(|id| !described.contains_key(id)).collect();
        if !missing.is_empty() {
            let sql = "SELECT id, class, tenant, kind, peer, lane FROM tidegate.flow WHERE id = ANY($1)";
            for row in tx.call(|conn| sqlx::query(sql).bind(missing).fetch_all(conn)).await? {
                let key = FlowKey {
                    class: class_of(row.try_get(1)?)?,
                    tenant: row.try_get(2)?,
                    kind: row.try_get(3)?,
                    peer: row.try_get(4)?,
                    lane: Lane::from_code(row.try_get(5)?).ok_or_else(|| StoreError::Schema("lane".into()))?,
                };
                self.remember(&[(row.try_get(0)?, key.clone())]);
                described.insert(row.try_get(0)?, Arc::new(key));
            }
        }
        Ok(described)
    }

    async fn make(&self, tx: &mut Tx, keys: &[FlowKey]) -> Result<Vec<i64>, StoreError> {
        let usage: HashSet<_> = keys.iter().flat_map(FlowKey::usage_keys).collect();
        let (scopes, names): (Vec<i16>, Vec<String>) = usage.iter().cloned().unzip();
        let ensure_usage = "INSERT INTO tidegate.usage (scope, key) SELECT d.scope, d.key FROM unnest($1::smallint[], $2::text[]) AS d(scope, key) \
            WHERE NOT EXISTS (SELECT FROM tidegate.usage u WHERE u.scope = d.scope AND u.key = d.key)";
        tx.call(|conn| sqlx::query(ensure_usage).bind(scopes).bind(names).execute(conn)).await?;
        let classes: Vec<i16> = keys.iter().map(|key| key.class.code()).collect();
        let lanes: Vec<i16> = keys.iter().map(|key| key.lane.code()).collect();
        let text = |get: fn(&FlowKey) -> &String| keys.iter().map(get).cloned().collect::<Vec<_>>();
        let bound = |sql: &'static str| {
            sqlx::query(sql)
                .bind(classes.clone())
                .bind(text(|k| &k.tenant))
                .bind(text(|k| &k.kind))
                .bind(text(|k| &k.peer))
                .bind(lanes.clone())
        };
        let make = "INSERT INTO tidegate.flow (class, tenant, kind, peer, lane) \
            SELECT DISTINCT * FROM unnest($1::smallint[], $2::text[], $3::text[], $4::text[], $5::smallint[]) ON CONFLICT DO NOTHING";
        tx.call(|conn| bound(make).execute(conn)).await?;
        let find = "SELECT f.id FROM unnest($1::smallint[], $2::text[], $3::text[], $4::text[], $5::smallint[]) \
            WITH ORDINALITY AS d(class, tenant, kind, peer, lane, n) JOIN tidegate.flow f USING (class, tenant, kind, peer, lane) ORDER BY d.n";
        let rows = tx.call(|conn| bound(find).fetch_all(conn)).await?;
        let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        if ids.len() != keys.len() {
            return Err(StoreError::Schema("a flow could not be made".into()));
        }
        let ensure_flow_usage = "INSERT INTO tidegate.flow_usage (flow_id) SELECT DISTINCT d.id FROM unnest($1::bigint[]) AS d(id) \
            WHERE NOT EXISTS (SELECT FROM tidegate.flow_usage u WHERE u.flow_id = d.id)";
        tx.call(|conn| sqlx::query(ensure_flow_usage).bind(ids.clone()).execute(conn)).await?;
        let flows: Vec<_> = ids.iter().copied().zip(keys.iter().cloned()).collect();
        self.remember(&flows);
        self.lock().usage.extend(usage);
        Ok(ids)
    }

    fn remember(&self, flows: &[(i64, FlowKey)]) {
        let mut known = self.lock();
        if known.flows.len() + known.usage.len() + known.by_id.len() + flows.len() > MAX_REMEMBERED {
            *known = Known::default();
        }
        for (id, key) in flows {
            known.flows.insert(key.clone(), *id);
            known.by_id.insert(*id, Arc::new(key.clone()));
        }
    }

    /// Forgets everything: something that was known is gone.
    pub(crate) fn forget(&self) {
        *self.lock() = Known::default();
    }

    fn remembered(&self, keys: &[FlowKey]) -> Option<Vec<i64>> {
        let known = self.lock();
        let there = keys.iter().flat_map(FlowKey::usage_keys).all(|key| known.usage.contains(&key));
        if there { keys.iter().map(|key| known.flows.get(key).copied()).collect() } else { None }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
