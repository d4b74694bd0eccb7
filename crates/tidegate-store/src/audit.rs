//! The auditor: counts the rows and holds them against the counters, and gauges for metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::Row;
use tidegate_core::Class;

use crate::error::StoreError;
use crate::store::Store;
use crate::types::{ClassGauges, Gauges, PeerGauges};

const GAUGES: &str = include_str!("gauges.sql");
const AUDIT: &str = include_str!("audit.sql");
const PEERS: &str = "SELECT w.peer, u.running FROM unnest($1::text[]) AS w(peer) \
    CROSS JOIN LATERAL (SELECT u.running FROM tidegate.usage u \
        WHERE u.scope = 3 AND u.key = w.peer ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1) u";
/// Most peers that are told of one by one: each is two series of every replica.
const MAX_PEER_GAUGES: usize = 1_000;
/// Undoes what every transaction of ours forbids the planner, since this one reads tables whole.
const WHOLE_TABLES: &str = "SELECT set_config('enable_seqscan', 'on', true), set_config('enable_hashjoin', 'on', true), \
    set_config('plan_cache_mode', 'force_custom_plan', true), set_config('statement_timeout', '60000', true)";
/// The longest that an audit may take: a little more than the server lets it.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(65);

/// A counter that does not say what the rows say, or a task that is in no place or in two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// What is out of step, such as `usage 2 acme` or `flow 17`.
    pub what: String,
    /// What the counters say: queued, running, deferred, tokens, money, bytes.
    pub counted: Vec<i64>,
    /// What the rows say.
    pub found: Vec<i64>,
}

impl Store {
    /// Numbers for metrics and health.
    pub async fn gauges(&self) -> Result<Gauges, StoreError> {
        let rows = self.ask(|| sqlx::query(GAUGES)).await?;
        let row = rows.first().ok_or_else(|| StoreError::Schema("no gauges".into()))?;
        let mut classes = Vec::new();
        for class in Class::ALL {
            let get = |what: &str| row.try_get::<Option<i64>, _>(format!("{}_{what}", class.as_str()).as_str());
            let gauges = ClassGauges {
                queued: get("queued")?.unwrap_or(0),
                running: get("running")?.unwrap_or(0),
                deferred: get("deferred")?.unwrap_or(0),
            };
            classes.push((class, gauges));
        }
        Ok(Gauges {
            classes,
            peers: self.peer_gauges().await?,
            bytes: row.try_get::<Option<i64>, _>("bytes")?.unwrap_or(0),
            oldest_queued_ms: row.try_get("oldest_queued_ms")?,
            oldest_due_ms: row.try_get("oldest_due_ms")?,
            oldest_running_ms: row.try_get("oldest_running_ms")?,
            sessions: row.try_get("sessions")?,
            slots: row.try_get("slots")?,
            leases: row.try_get("leases")?,
        })
    }

    /// What uses the peers that somebody configured, the first [`MAX_PEER_GAUGES`] by name, beside their limits.
    async fn peer_gauges(&self) -> Result<Vec<PeerGauges>, StoreError> {
        let policy = self.policy();
        let names: Vec<String> = policy.peers.keys().take(MAX_PEER_GAUGES).cloned().collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.ask(|| sqlx::query(PEERS).bind(names.clone())).await?;
        let used = rows.iter().map(|row| Ok((row.try_get::<String, _>(0)?, row.try_get::<i64, _>(1)?)));
        let used = used.collect::<Result<BTreeMap<_, _>, sqlx::Error>>()?;
        let gauges = names.into_iter().map(|name| PeerGauges {
            in_flight: used.get(&name).copied().unwrap_or(0),
            max_in_flight: policy.peer(&name).and_then(|peer| peer.max_in_flight),
            name,
        });
        Ok(gauges.collect())
    }

    /// Holds every counter against the rows it counts, and looks for tasks that are lost to every claim. One statement
    /// sees one snapshot, in which every transaction has moved both or neither, so it needs no lock. Nothing found is
    /// the only good answer. It reads the hot tables whole: with a million waiting it takes seconds.
    pub async fn audit(&self) -> Result<Vec<Drift>, StoreError> {
        self.compare(false).await
    }

    /// The same, and every record against the places where tasks are kept: each living task in exactly one, none that
    /// has ended. It reads all that retention keeps: for tests and for a database in doubt.
    pub async fn audit_records(&self) -> Result<Vec<Drift>, StoreError> {
        self.compare(true).await
    }

    async fn compare(&self, records: bool) -> Result<Vec<Drift>, StoreError> {
        let mut tx = self.inner_ref().connections.begin(false).await?;
        tx.call(|conn| sqlx::query(WHOLE_TABLES).execute(conn)).await?;
        let rows = tx.call_within(AUDIT_TIMEOUT, |conn| sqlx::query(AUDIT).bind(records).fetch_all(conn)).await?;
        tx.rollback().await;
        let mut drifts = BTreeMap::new();
        for row in rows {
            let what: String = row.try_get("what")?;
            drifts.insert(what.clone(), Drift { what, counted: row.try_get("counted")?, found: row.try_get("found")? });
        }
        Ok(drifts.into_values().collect())
    }
}
