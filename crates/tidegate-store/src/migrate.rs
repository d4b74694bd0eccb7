//! Bringing the tables to this version.

use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::{ConnectOptions, Connection, Executor, PgConnection};

use crate::connection::connect_options;
use crate::error::StoreError;

static MIGRATOR: Migrator = sqlx::migrate!("../../migrations");

/// Our schema, and the table in it that says which migrations were applied. Both are named in full everywhere: with the
/// usual search path (`"$user", public`) and a user called like our schema, an unqualified table would be another one
/// before and after the schema exists.
const SCHEMA: &str = "tidegate";
const APPLIED: &str = "tidegate.migration";

/// The key of the lock that lets one process migrate at a time: "tidegate" in ASCII.
const LOCK_KEY: i64 = 0x7469_6465_6761_7465;
/// How long a process waits for another that migrates.
const LOCK_TIMEOUT: Duration = Duration::from_secs(120);

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The versions that were missing and are there now, in order.
    pub applied: Vec<i64>,
    /// The version of the tables: the newest migration, even if a newer program made it.
    pub version: i64,
}

/// Migrates the database to this version. Any number of processes may do so at once: one works, the others wait for
/// it and find nothing left to do. The lock ends with its transaction, so it cannot stay behind in a pooled session.
pub async fn migrate(url: &str) -> Result<Migrated, StoreError> {
    let options = connect_options(url)?;
    let mut lock = options.connect().await?;
    let mut lock = lock.begin().await?;
    let set = format!("SET LOCAL lock_timeout = {}", LOCK_TIMEOUT.as_millis());
    (&mut *lock).execute(sqlx::AssertSqlSafe(set)).await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK_KEY).execute(&mut *lock).await?;
    let mut conn = options.connect().await?;
    let before = applied(&mut conn).await?;
    let mut migrator = Migrator { migrations: MIGRATOR.migrations.clone(), ..Migrator::DEFAULT };
    migrator.set_locking(false);
    // A newer program may have gone before, in a rolling deployment: its migrations only add.
    migrator.set_ignore_missing(true);
    migrator.create_schema(SCHEMA);
    migrator.dangerous_set_table_name(APPLIED);
    migrator.run(&mut conn).await.map_err(|error| StoreError::Schema(error.to_string()))?;
    let after = applied(&mut conn).await?;
    lock.commit().await?;
    conn.close().await?;
    let version = after.last().copied().unwrap_or_default();
    Ok(Migrated { applied: after.into_iter().filter(|version| !before.contains(version)).collect(), version })
}

/// The versions of the migrations that were applied, in order.
async fn applied(conn: &mut PgConnection) -> Result<Vec<i64>, StoreError> {
    let there: bool =
        sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL").bind(APPLIED).fetch_one(&mut *conn).await?;
    if !there {
        return Ok(Vec::new());
    }
    let versions = "SELECT version FROM tidegate.migration WHERE success ORDER BY version";
    Ok(sqlx::query_scalar(versions).fetch_all(conn).await?)
}

/// How the database's tables stand to this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaState {
    /// Nothing of ours is there.
    Empty,
    /// Migrations are missing.
    Behind,
    /// All migrations that this program knows were applied.
    Current,
    /// A newer program migrated it.
    Ahead,
}

/// Tells how the database's tables stand to this program, changing nothing.
pub async fn schema_state(url: &str) -> Result<SchemaState, StoreError> {
    let mut conn = connect_options(url)?.connect().await?;
    let applied = applied(&mut conn).await?.last().copied();
    conn.close().await?;
    let known = MIGRATOR.iter().map(|migration| migration.version).max();
    Ok(match applied {
        None => SchemaState::Empty,
        applied if applied < known => SchemaState::Behind,
        applied if applied == known => SchemaState::Current,
        _ => SchemaState::Ahead,
    })
}
