//! The registry of live sessions, and draining one of them.

use serde_json::json;
use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::EpochMs;
use uuid::Uuid;

use crate::admin_audit::Change;
use crate::bell::Topic;
use crate::connection::Tx;
use crate::error::StoreError;
use crate::store::Store;

const PAGE: &str = concat!(include_str!("workers.sql"), "WHERE s.id > $1 ORDER BY s.id LIMIT $2");
const ONE: &str = concat!(include_str!("workers.sql"), "WHERE s.id = $1");
const DRAIN: &str = "UPDATE tidegate.session SET draining = true WHERE id = $1 AND NOT draining";

/// A live session: one boot of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRecord {
    /// The session.
    pub id: Uuid,
    /// Its name for people.
    pub worker: String,
    /// The kinds that it runs.
    pub kinds: Vec<String>,
    /// How many tasks it runs at once.
    pub slots: i64,
    /// Slots that are taken: tasks that it runs, or that a slot of it is reserved for.
    pub running: i64,
    /// Whether it was told to take nothing more, to finish and to leave.
    pub draining: bool,
    /// When it began.
    pub started_ms: EpochMs,
    /// When its lease ends unless it beats again.
    pub expires_ms: EpochMs,
    /// How long its lease lives after a heartbeat.
    pub lease_ms: i64,
}

/// A page of live sessions, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerPage {
    /// The sessions.
    pub workers: Vec<WorkerRecord>,
    /// The session after which the next page begins, if there are more.
    pub next: Option<Uuid>,
}

impl Store {
    /// A page of the live sessions, from the first after `after`.
    pub async fn workers(&self, after: Option<Uuid>, limit: u16) -> Result<WorkerPage, StoreError> {
        let (after, limit) = (after.unwrap_or(Uuid::nil()), limit.max(1));
        let rows = self.ask(|| sqlx::query(PAGE).bind(after).bind(i64::from(limit) + 1)).await?;
        let workers = rows.iter().take(limit.into()).map(worker_of).collect::<Result<Vec<_>, _>>()?;
        let more = rows.len() > workers.len();
        let next = workers.last().filter(|_| more).map(|last| last.id);
        Ok(WorkerPage { workers, next })
    }

    /// Tells a live session to take nothing more, to finish what it runs and to leave, as a shutdown of its process
    /// would. From now on its slots count no more, nothing is reserved on it and its claims bring nothing; the worker
    /// itself hears of it with its next heartbeat, which it is asked for at once. `None` where there is no such session.
    pub async fn drain_worker(&self, id: Uuid) -> Result<Option<WorkerRecord>, StoreError> {
        let mut tx = self.inner_ref().connections.begin(true).await?;
        let Some(before) = worker(&mut tx, id).await? else {
            tx.rollback().await;
            return Ok(None);
        };
        if before.draining {
            tx.rollback().await;
            return Ok(Some(before));
        }
        tx.call(|conn| sqlx::query(DRAIN).bind(id).execute(conn)).await?;
        let target = id.to_string();
        let told = |draining: bool| Some(json!({ "worker": before.worker, "draining": draining }));
        let change = Change { action: "worker.drain", target: Some(&target), before: told(false), after: told(true) };
        self.write_down(change, &mut tx).await?;
        tx.commit().await?;
        self.inner_ref().bells.ring(Topic::Cancel, true);
        Ok(Some(WorkerRecord { draining: true, ..before }))
    }
}

async fn worker(tx: &mut Tx, id: Uuid) -> Result<Option<WorkerRecord>, StoreError> {
    let row = tx.call(|conn| sqlx::query(ONE).bind(id).fetch_optional(conn)).await?;
    row.as_ref().map(worker_of).transpose()
}

fn worker_of(row: &PgRow) -> Result<WorkerRecord, StoreError> {
    Ok(WorkerRecord {
        id: row.try_get("id")?,
        worker: row.try_get("worker")?,
        kinds: row.try_get("kinds")?,
        slots: row.try_get::<i32, _>("slots")?.into(),
        running: row.try_get("running")?,
        draining: row.try_get("draining")?,
        started_ms: row.try_get("started_ms")?,
        expires_ms: row.try_get("expires_ms")?,
        lease_ms: row.try_get("lease_ms")?,
    })
}
