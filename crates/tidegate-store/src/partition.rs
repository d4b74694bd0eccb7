//! Retention: what has ended is kept in partitions by time, and goes by dropping a partition, never row by row.
//!
//! Records, attempts and refusals are partitioned by the time in the task's id, the outbox by its own time. Before a
//! partition of records goes, those that have not ended, or ended too lately, move to the default partition, which is
//! long-lived and swept by row. DDL takes its locks in 50 ms or tries again at the next round.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Executor, Row};
use tidegate_core::{EpochMs, TaskId};
use uuid::Uuid;

use crate::admin_audit;
use crate::connection::Tx;
use crate::error::StoreError;
use crate::store::Store;

/// How long what has ended is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Finished tasks, their attempts and their events.
    pub finished: Duration,
    /// Refused submissions.
    pub refused: Duration,
    /// The span of one partition: what is kept longer than needed by at most this.
    pub partition: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        let day = Duration::from_secs(86_400);
        Self { finished: 7 * day, refused: day, partition: day }
    }
}

/// What one round of pruning did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Partitions made ahead of time.
    pub made: u32,
    /// Partitions dropped.
    pub dropped: u32,
    /// Rows moved to the default partition because they had to outlive theirs.
    pub moved: u64,
    /// Rows of other tables deleted.
    pub rows: u64,
}

/// Partitions that are there ahead of time, so that a keeper may be away for so many spans.
const AHEAD: i64 = 3;
/// Most rows that one statement of a sweep deletes.
const SWEEP_ROWS: i64 = 5_000;
/// How long a flow stays though nothing waits in it, and a dead session's row.
const EMPTY_FLOW_KEPT: Duration = Duration::from_secs(600);

/// The partitioned tables: name, whether by id, and what the partitions are stored like.
const TABLES: [(&str, bool, &str); 4] = [
    (
        "task",
        true,
        " WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 1)",
    ),
    ("attempt", true, ""),
    ("refusal", true, ""),
    ("event", false, ""),
];

struct Partition {
    name: String,
    until: EpochMs,
}

impl Store {
    /// Makes the partitions of now and of the next spans, where they are missing.
    pub async fn make_partitions(&self, retention: &Retention) -> Result<u32, StoreError> {
        let rows = self.read(sqlx::query("SELECT tidegate.now_ms()")).await?;
        let now: EpochMs = rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or_default();
        let span = retention.partition.as_millis().max(1) as i64;
        let mut made = 0;
        for (table, by_id, storage) in TABLES {
            let there = self.partitions(table, by_id).await?;
            let first = now - now.rem_euclid(span);
            for start in (0..=AHEAD).map(|n| first + n * span) {
                let covered = there.iter().any(|partition| partition.until >= start + span);
                // A span that was shortened leaves a longer partition behind: the next one starts where it ends.
                let from = there
                    .iter()
                    .map(|partition| partition.until)
                    .filter(|until| (start..start + span).contains(until))
                    .max()
                    .unwrap_or(start);
                if !covered && self.make_partition(table, by_id, storage, from, start + span).await? {
                    made += 1;
                }
            }
        }
        Ok(made)
    }

    async fn make_partition(
        &self,
        table: &str,
        by_id: bool,
        storage: &str,
        from: EpochMs,
        until: EpochMs,
    ) -> Result<bool, StoreError> {
        let name = format!("{table}_{from}");
        let (column, low, high) = if by_id {
            (
                if table == "attempt" { "task_id" } else { "id" },
                format!("'{}'", TaskId::floor(from)),
                format!("'{}'", TaskId::floor(until)),
            )
        } else {
            ("at_ms", from.to_string(), until.to_string())
        };
        // Rows that came before it, or with skewed clocks, are in the default partition: they move in before it is attached.
        // Nobody reads meanwhile: who had planned by the partitions of before would look for them where they were.
        let ddl = format!(
            "LOCK TABLE ONLY tidegate.{table} IN ACCESS EXCLUSIVE MODE; \
             CREATE TABLE tidegate.{name} (LIKE tidegate.{table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE){storage}; \
             WITH moved AS (DELETE FROM tidegate.{table}_kept WHERE {column} >= {low} AND {column} < {high} RETURNING *) \
                INSERT INTO tidegate.{name} SELECT * FROM moved; \
             ALTER TABLE tidegate.{table} ATTACH PARTITION tidegate.{name} FOR VALUES FROM ({low}) TO ({high})"
        );
        let mut tx = self.begin_ddl().await?;
        let exists = tx
            .call(|conn| {
                sqlx::query("SELECT to_regclass($1) IS NOT NULL").bind(format!("tidegate.{name}")).fetch_one(conn)
            })
            .await?;
        if exists.try_get(0)? {
            tx.rollback().await;
            return Ok(false);
        }
        tx.call(|conn| conn.execute(sqlx::raw_sql(AssertSqlSafe(ddl)))).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Drops what has been kept long enough.
    pub async fn prune(&self, retention: &Retention) -> Result<Pruned, StoreError> {
        let rows = self.read(sqlx::query("SELECT tidegate.now_ms()")).await?;
        let now: EpochMs = rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or_default();
        let kept_since = |kept: Duration| now - kept.as_millis() as i64;
        let mut pruned = Pruned { made: self.make_partitions(retention).await?, ..Pruned::default() };
        for partition in self.partitions("task", true).await? {
            if partition.until <= kept_since(retention.finished)
                && let Some(moved) = self.drop_records(&partition, kept_since(retention.finished)).await?
            {
                pruned.dropped += 2;
                pruned.moved += moved;
            }
        }
        for (table, by_id, kept) in [("refusal", true, retention.refused), ("event", false, retention.finished)] {
            for partition in self.partitions(table, by_id).await? {
                if partition.until <= kept_since(kept) && self.drop_partition(&partition).await? {
                    pruned.dropped += 1;
                }
            }
        }
        pruned.rows = self.prune_rows(now, retention).await?;
        Ok(pruned)
    }

    /// Deletes by row what is not partitioned, or outlived its partition.
    async fn prune_rows(&self, now: EpochMs, retention: &Retention) -> Result<u64, StoreError> {
        let before = |kept: Duration| now - kept.as_millis() as i64;
        let sweeps: [(&'static str, i64); 11] = [
            (admin_audit::PRUNE, before(admin_audit::KEPT)),
            ("DELETE FROM tidegate.hold WHERE until_ms < $1 AND $2 > 0", now),
            (
                "DELETE FROM tidegate.idempotency WHERE (tenant, key) IN \
                (SELECT tenant, key FROM tidegate.idempotency WHERE expires_ms < $1 ORDER BY expires_ms LIMIT $2)",
                now,
            ),
            (
                "DELETE FROM tidegate.cancelled_token WHERE (tenant, token) IN \
                (SELECT tenant, token FROM tidegate.cancelled_token WHERE expires_ms < $1 ORDER BY expires_ms LIMIT $2)",
                now,
            ),
            (
                "DELETE FROM tidegate.task_kept WHERE id IN (SELECT id FROM tidegate.task_kept WHERE finished_ms < $1 LIMIT $2)",
                before(retention.finished),
            ),
            (
                "DELETE FROM tidegate.attempt_kept WHERE (task_id, fence) IN (SELECT a.task_id, a.fence FROM tidegate.attempt_kept a \
                WHERE a.ended_ms < $1 AND NOT EXISTS (SELECT FROM tidegate.task t WHERE t.id = a.task_id) LIMIT $2)",
                before(retention.finished),
            ),
            (
                "DELETE FROM tidegate.refusal_kept WHERE id IN (SELECT id FROM tidegate.refusal_kept WHERE refused_ms < $1 LIMIT $2)",
                before(retention.refused),
            ),
            (
                "DELETE FROM tidegate.event_kept WHERE ctid IN (SELECT ctid FROM tidegate.event_kept WHERE at_ms < $1 LIMIT $2)",
                before(retention.finished),
            ),
            (
                "DELETE FROM tidegate.waiting WHERE ctid IN (SELECT ctid FROM tidegate.waiting WHERE until_ms < $1 LIMIT $2)",
                before(Duration::from_secs(60)),
            ),
            (
                "DELETE FROM tidegate.heartbeat WHERE session_id IN (SELECT session_id FROM tidegate.heartbeat WHERE expires_ms < $1 LIMIT $2)",
                before(EMPTY_FLOW_KEPT),
            ),
            (
                "DELETE FROM tidegate.session s WHERE s.id IN (SELECT s.id FROM tidegate.session s WHERE s.started_ms < $1 \
                AND NOT EXISTS (SELECT FROM tidegate.heartbeat h WHERE h.session_id = s.id) \
                AND NOT EXISTS (SELECT FROM tidegate.lease l WHERE l.session_id = s.id) LIMIT $2)",
                before(EMPTY_FLOW_KEPT),
            ),
        ];
        let mut rows = 0;
        let connections = &self.inner_ref().connections;
        for (sql, limit) in sweeps {
            let mut conn = connections.get().await?;
            let query = sqlx::query(sql).bind(limit).bind(SWEEP_ROWS);
            rows +=
                crate::connection::call(connections.call_timeout(), query.execute(&mut *conn)).await?.rows_affected();
            conn.release();
        }
        const SESSIONS: &str = "DELETE FROM tidegate.usage u WHERE u.scope = 5 AND u.running = 0 \
            AND NOT EXISTS (SELECT FROM tidegate.heartbeat h WHERE h.session_id = u.key::uuid)";
        let mut tx = connections.begin(true).await?;
        rows += tx.call(|conn| sqlx::query(SESSIONS).execute(conn)).await?.rows_affected();
        tx.commit().await?;
        Ok(rows + self.prune_flows().await?)
    }

    /// Removes flows that are empty. The empty ones are found without a lock and looked at again under it.
    async fn prune_flows(&self) -> Result<u64, StoreError> {
        const EMPTY: &str = "SELECT DISTINCT u.flow_id FROM tidegate.flow_usage u WHERE u.queued = 0 \
            AND NOT EXISTS (SELECT FROM tidegate.lease l WHERE l.flow_id = u.flow_id) \
            AND NOT EXISTS (SELECT FROM tidegate.deferred d WHERE d.flow_id = u.flow_id) LIMIT $1";
        const SLEEP: &str = "DELETE FROM tidegate.active_flow a WHERE a.flow_id = ANY($1) \
            AND NOT EXISTS (SELECT FROM tidegate.flow_usage u WHERE u.flow_id = a.flow_id AND u.queued > 0)";
        let rows = self.read(sqlx::query(EMPTY).bind(SWEEP_ROWS)).await?;
        let empty = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        // Those that were empty at the last round as well go; the others get a round of grace, because a busy flow
        // runs empty again and again.
        let gone: Vec<i64> = {
            let mut before = self.inner_ref().empty_flows();
            let gone = empty.iter().copied().filter(|flow| before.contains(flow)).collect();
            *before = empty.into_iter().collect();
            gone
        };
        if gone.is_empty() {
            return Ok(0);
        }
        let mut tx = self.inner_ref().connections.begin(true).await?;
        tx.call(|conn| sqlx::query(SLEEP).bind(gone.clone()).execute(conn)).await?;
        const REMOVE: &str = "WITH gone AS (DELETE FROM tidegate.flow_usage u WHERE u.flow_id = ANY($1) AND u.queued = 0 \
                AND NOT EXISTS (SELECT FROM tidegate.lease l WHERE l.flow_id = u.flow_id) \
                AND NOT EXISTS (SELECT FROM tidegate.deferred d WHERE d.flow_id = u.flow_id) RETURNING u.flow_id) \
            DELETE FROM tidegate.flow f USING gone WHERE f.id = gone.flow_id";
        let removed = tx.call(|conn| sqlx::query(REMOVE).bind(gone).execute(conn)).await?.rows_affected();
        tx.commit().await?;
        self.inner_ref().directory.forget();
        Ok(removed)
    }

    /// Drops a partition of records, and that of their attempts, after moving what must stay. Nothing where its locks
    /// were not to be had.
    async fn drop_records(&self, partition: &Partition, finished_before: EpochMs) -> Result<Option<u64>, StoreError> {
        let name = &partition.name;
        let attempts = name.replacen("task", "attempt", 1);
        // Nothing comes into so old a partition any more, so this can only shrink until the lock is held.
        let stay =
            format!("SELECT id FROM tidegate.{name} WHERE finished_ms IS NULL OR finished_ms >= {finished_before}");
        let mut conn = self.inner_ref().connections.get().await?;
        let rows =
            crate::connection::call(SCAN_TIMEOUT, sqlx::query(AssertSqlSafe(stay)).fetch_all(&mut *conn)).await?;
        conn.release();
        let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<Uuid>, _>>()?;
        let moved = ids.len() as u64;
        let mut tx = match self.begin_ddl().await {
            Ok(tx) => tx,
            Err(StoreError::Busy(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut statements = vec![format!("ALTER TABLE tidegate.task DETACH PARTITION tidegate.{name}")];
        statements.push(format!("INSERT INTO tidegate.task SELECT * FROM tidegate.{name} WHERE id = ANY($1)"));
        statements.push(format!("DROP TABLE tidegate.{name}"));
        let twin = tx
            .call(|conn| {
                sqlx::query("SELECT to_regclass($1) IS NOT NULL").bind(format!("tidegate.{attempts}")).fetch_one(conn)
            })
            .await?;
        if twin.try_get(0)? {
            statements.push(format!("ALTER TABLE tidegate.attempt DETACH PARTITION tidegate.{attempts}"));
            statements.push(format!(
                "INSERT INTO tidegate.attempt SELECT * FROM tidegate.{attempts} WHERE task_id = ANY($1)"
            ));
            statements.push(format!("DROP TABLE tidegate.{attempts}"));
        }
        for statement in statements {
            let query = sqlx::query(AssertSqlSafe(statement.clone()));
            let query = if statement.contains("$1") { query.bind(ids.clone()) } else { query };
            match tx.call(|conn| query.persistent(false).execute(conn)).await {
                Ok(_) => {}
                Err(StoreError::Busy(_)) => {
                    tx.rollback().await;
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        tx.commit().await?;
        Ok(Some(moved))
    }

    async fn drop_partition(&self, partition: &Partition) -> Result<bool, StoreError> {
        let mut tx = match self.begin_ddl().await {
            Ok(tx) => tx,
            Err(StoreError::Busy(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        let ddl = format!("DROP TABLE tidegate.{}", partition.name);
        match tx.call(|conn| conn.execute(sqlx::raw_sql(AssertSqlSafe(ddl)))).await {
            Ok(_) => tx.commit().await.map(|()| true),
            Err(StoreError::Busy(_)) => {
                tx.rollback().await;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// A transaction that holds the cell's row, so that no writer is half-way, and waits at most 50 ms for readers.
    async fn begin_ddl(&self) -> Result<Tx, StoreError> {
        let mut tx = self.inner_ref().connections.begin(true).await?;
        tx.call(|conn| {
            conn.execute("SELECT set_config('lock_timeout', '50', true), set_config('enable_seqscan', 'on', true)")
        })
        .await?;
        Ok(tx)
    }

    /// The partitions of a table but the default one, and when each ends.
    async fn partitions(&self, table: &str, by_id: bool) -> Result<Vec<Partition>, StoreError> {
        let sql = "SELECT c.relname::text, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
            WHERE i.inhparent = to_regclass($1) ORDER BY c.relname";
        let rows = self.read(sqlx::query(sql).bind(format!("tidegate.{table}"))).await?;
        let mut partitions = Vec::new();
        for row in rows {
            let (name, bound): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            // FOR VALUES FROM ('low') TO ('high')
            let Some(high) = bound.split('\'').nth(3) else { continue };
            let until = if by_id { high.parse().ok().map(|id| TaskId(id).arrived_ms()) } else { high.parse().ok() };
            partitions.push(Partition { name, until: until.ok_or_else(|| StoreError::Schema(bound.clone()))? });
        }
        Ok(partitions)
    }
}

/// The longest that a look through an old partition may take.
const SCAN_TIMEOUT: Duration = Duration::from_secs(120);
