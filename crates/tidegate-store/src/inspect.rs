//! What a database says about itself, for whoever wants to know whether it is fit before anything runs on it.

use std::time::Duration;

use sqlx::{ConnectOptions, Connection, PgConnection, Row};
use tidegate_core::EpochMs;
use tokio::time::timeout;

use crate::connection::connect_options;
use crate::error::StoreError;
use crate::migrate::{SchemaState, schema_state};

const INSPECT: &str = include_str!("inspect.sql");
const WORK: &str = include_str!("inspect_work.sql");
/// Most flows that a look counts: where more wait, what it tells is a part of it, and as telling.
const MAX_FLOWS: i32 = 10_000;
/// Most kinds that are named: a sentence holds no more.
const MAX_KINDS: i32 = 5;

/// The longest that a look may take, from the first packet to the last: a database that is slower is not fit.
const LONGEST: Duration = Duration::from_secs(10);

/// What a database says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The version as a number: 150018 is 15.18.
    pub version: i32,
    /// Whether it takes reads alone: a standby.
    pub read_only: bool,
    /// `fsync`: without it nothing survives a crash of the machine.
    pub fsync: bool,
    /// `full_page_writes`: without it a crash may tear pages.
    pub full_page_writes: bool,
    /// `synchronous_commit` as the server has it; our own transactions ask for `on`.
    pub synchronous_commit: String,
    /// Connections that it takes, without those kept for superusers.
    pub max_connections: i64,
    /// Connections that are open, of everybody's.
    pub connections: i64,
    /// Whether this user may make our schema.
    pub may_create: bool,
    /// How long the oldest transaction that holds a snapshot has been open: what it sees cannot be cleaned up.
    pub oldest_snapshot_ms: Option<i64>,
    /// Its clock.
    pub now_ms: EpochMs,
    /// How its tables stand to this program.
    pub schema: SchemaState,
    /// Who works there, where the tables are as this program knows them.
    pub work: Option<Work>,
}

/// Who works in a cell, and what waits that nobody works on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Work {
    /// Live sessions of workers that take work.
    pub sessions: i64,
    /// Their slots.
    pub slots: i64,
    /// Tasks that wait.
    pub queued: i64,
    /// Those of them whose kind none of the sessions runs.
    pub unserved: i64,
    /// How many kinds those have.
    pub unserved_kinds: i64,
    /// Some of those kinds, with most waiting first.
    pub kinds: Vec<String>,
}

/// Asks a database about itself, changing nothing.
pub async fn inspect(url: &str) -> Result<Inspection, StoreError> {
    let schema = schema_state(url);
    let facts = async {
        let mut conn = connect_options(url)?.connect().await?;
        let row = sqlx::query(INSPECT).fetch_one(&mut conn).await?;
        let schema = schema.await?;
        let work = match schema {
            SchemaState::Current => Some(work(&mut conn).await?),
            _ => None,
        };
        conn.close().await?;
        Ok::<_, StoreError>((row, schema, work))
    };
    let (row, schema, work) = timeout(LONGEST, facts).await.map_err(|_| StoreError::Unavailable(None))??;
    Ok(Inspection {
        version: row.try_get("version")?,
        read_only: row.try_get("read_only")?,
        fsync: row.try_get("fsync")?,
        full_page_writes: row.try_get("full_page_writes")?,
        synchronous_commit: row.try_get("synchronous_commit")?,
        max_connections: row.try_get("max_connections")?,
        connections: row.try_get("connections")?,
        may_create: row.try_get("may_create")?,
        oldest_snapshot_ms: row.try_get("oldest_snapshot_ms")?,
        now_ms: row.try_get("now_ms")?,
        schema,
        work,
    })
}

async fn work(conn: &mut PgConnection) -> Result<Work, StoreError> {
    let row = sqlx::query(WORK).bind(MAX_FLOWS).bind(MAX_KINDS).fetch_one(conn).await?;
    Ok(Work {
        sessions: row.try_get("sessions")?,
        slots: row.try_get("slots")?,
        queued: row.try_get("queued")?,
        unserved: row.try_get("unserved")?,
        unserved_kinds: row.try_get("unserved_kinds")?,
        kinds: row.try_get("kinds")?,
    })
}
