//! What the store is measured against: the same work in plain SQL, competently done and without what the store
//! promises (no counters, no events, no results, no order between flows). Used by `tidegate bench` alone, and kept
//! here because this is the only crate that knows SQL.
//!
//! Everything lives in a schema of its own, `tidegate_yardstick`.

mod held;
mod narrow;
mod plain;

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{ConnectOptions, Executor, Row};

use crate::connection::{call, connect_options};
use crate::error::StoreError;

pub use held::HeldSnapshot;
pub use narrow::NarrowTable;
pub use plain::{Job, PlainQueue};

/// The longest that any statement of a measurement is waited for: a checkpoint on a slow disk fits in.
const LONGEST: Duration = Duration::from_secs(120);

/// How long a session may keep what it counted to itself.
const STATISTICS_LAG: Duration = Duration::from_millis(1_500);
const DEADLOCKS: &str = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";

/// The settings that decide how fast Postgres may be, and how safe it is.
const SETTINGS: [&str; 10] = [
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_compression",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "wal_buffers",
    "max_connections",
    "jit",
];

const EMPTY: &str = "SELECT NOT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%')";
/// What a row of ours takes before its task has run, as the raw one is padded to. A sample is enough: they are alike.
const RECORD_BYTES: &str = "SELECT coalesce((SELECT avg(pg_column_size(t.*)) FROM (SELECT * FROM tidegate.task WHERE status IS NULL LIMIT 10000) t), \
    (SELECT avg(pg_column_size(t.*)) FROM (SELECT * FROM tidegate.task LIMIT 10000) t))::float8";
const KEPT: &str = "SELECT (SELECT count(*) FROM tidegate.task WHERE status = 'COMPLETED' AND result IS NOT NULL) AS completed, \
    (SELECT count(*) FROM tidegate.task) AS tasks, \
    (SELECT coalesce(sum(cardinality(task_ids)), 0)::bigint FROM tidegate.event) AS transitions";

/// What a database is, for the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its version, as in `15.18 (Debian 15.18-0+deb12u1)`.
    pub version: String,
    /// Settings by name, as it shows them.
    pub settings: Vec<(&'static str, String)>,
}

/// What is left of the tasks that were run: nothing may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Records of tasks.
    pub tasks: i64,
    /// Those that are COMPLETED and have a result.
    pub completed: i64,
    /// Transitions in the outbox: each task that went from one state to another counts once.
    pub transitions: i64,
}

/// Whether nothing but Postgres's own lives in a database.
pub async fn is_empty(url: &str) -> Result<bool, StoreError> {
    let mut conn = connect(url).await?;
    call(LONGEST, sqlx::query_scalar(EMPTY).fetch_one(&mut conn)).await
}

/// Removes all that measuring made: the tables of the store too.
pub async fn sweep_away(url: &str) -> Result<(), StoreError> {
    let mut conn = connect(url).await?;
    run(&mut conn, "DROP SCHEMA IF EXISTS tidegate_yardstick CASCADE").await?;
    run(&mut conn, "DROP SCHEMA IF EXISTS tidegate CASCADE; DROP TABLE IF EXISTS _sqlx_migrations").await
}

/// Asks a database what it is.
pub async fn facts(url: &str) -> Result<Facts, StoreError> {
    let mut conn = connect(url).await?;
    let version = call(LONGEST, sqlx::query_scalar("SHOW server_version").fetch_one(&mut conn)).await?;
    let mut settings = Vec::new();
    for name in SETTINGS {
        let query = sqlx::query_scalar("SELECT current_setting($1, true)").bind(name);
        let value: Option<String> = call(LONGEST, query.fetch_one(&mut conn)).await?;
        settings.extend(value.map(|value| (name, value)));
    }
    Ok(Facts { version, settings })
}

/// Deadlocks that the server has ended in this database so far, as its statistics say: they lag by a second at most.
pub async fn deadlocks(url: &str) -> Result<i64, StoreError> {
    let mut conn = connect(url).await?;
    tokio::time::sleep(STATISTICS_LAG).await;
    call(LONGEST, sqlx::query_scalar(DEADLOCKS).fetch_one(&mut conn)).await
}

/// The average size of the records of tasks that wait, as Postgres stores them.
pub async fn record_bytes(url: &str) -> Result<f64, StoreError> {
    let mut conn = connect(url).await?;
    let average: Option<f64> = call(LONGEST, sqlx::query_scalar(RECORD_BYTES).fetch_one(&mut conn)).await?;
    average.ok_or_else(|| StoreError::Schema("no task waits whose record could be measured".into()))
}

/// Counts what the store kept of the tasks that it ran.
pub async fn kept(url: &str) -> Result<Kept, StoreError> {
    let mut conn = connect(url).await?;
    let row = call(LONGEST, sqlx::query(KEPT).fetch_one(&mut conn)).await?;
    Ok(Kept {
        tasks: row.try_get("tasks")?,
        completed: row.try_get("completed")?,
        transitions: row.try_get("transitions")?,
    })
}

async fn connect(url: &str) -> Result<PgConnection, StoreError> {
    let options = connect_options(url)?;
    call(LONGEST, options.connect()).await
}

async fn run(conn: &mut PgConnection, sql: &'static str) -> Result<(), StoreError> {
    call(LONGEST, conn.execute(sqlx::raw_sql(sql))).await.map(drop)
}
