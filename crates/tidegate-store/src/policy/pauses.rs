//! Pauses: made, listed, ended. One that has run out is gone for every reader, and its row goes with the next change.

use serde_json::{Value, json};
use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::EpochMs;
use tidegate_core::merge_patch::BadValue;
use tidegate_core::pause::{MAX_REASON_BYTES, Pause, PauseMode, PauseTarget};
use uuid::Uuid;

use crate::admin_audit::Change;
use crate::bell::Topic;
use crate::connection::Tx;
use crate::error::{PolicyError, StoreError};
use crate::policy::stored::pause_of;
use crate::store::Store;

/// Most pauses at once: every submission and every claim is held against all of them.
pub const MAX_PAUSES: usize = 1_000;

const PRUNE: &str = "DELETE FROM tidegate.pause WHERE until_ms <= (SELECT tidegate.now_ms())";
const COUNT: &str = "SELECT count(*) AS n, tidegate.now_ms() AS now_ms FROM tidegate.pause";
const MAKE: &str = "INSERT INTO tidegate.pause (id, target, value, mode, until_ms, reason, created_ms) VALUES ($1, $2, $3, $4, $5, $6, $7)";
const LIST: &str = "SELECT * FROM tidegate.pause p WHERE p.until_ms IS NULL OR p.until_ms > (SELECT tidegate.now_ms()) \
    ORDER BY p.created_ms, p.id";
const END: &str = "DELETE FROM tidegate.pause WHERE id = $1 RETURNING *";

impl Store {
    /// Makes a pause, until an instant of the database's clock or until it is ended.
    pub async fn create_pause(
        &self,
        target: PauseTarget,
        mode: PauseMode,
        until: Option<EpochMs>,
        reason: Option<String>,
    ) -> Result<Pause, PolicyError> {
        if reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON_BYTES) {
            return Err(bad("/reason", format!("must be at most {MAX_REASON_BYTES} bytes")));
        }
        let mut tx = self.inner_ref().connections.begin(true).await?;
        let pause = Pause { id: Uuid::now_v7(), target, mode, until, reason, created: 0 };
        match make(&mut tx, pause).await {
            Ok(pause) => {
                let id = pause.id.to_string();
                let after = Some(told(&pause));
                let change = Change { action: "pause.create", target: Some(&id), before: None, after };
                self.write_down(change, &mut tx).await?;
                self.inner_ref().publish(tx).await?;
                Ok(pause)
            }
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }

    /// The pauses that are in effect, oldest first: at most [`MAX_PAUSES`].
    pub async fn list_pauses(&self) -> Result<Vec<Pause>, StoreError> {
        let rows = self.ask(|| sqlx::query(LIST)).await?;
        rows.iter().map(pause_in).collect()
    }

    /// Ends a pause. Tells whether there was one.
    pub async fn delete_pause(&self, id: Uuid) -> Result<bool, StoreError> {
        let mut tx = self.inner_ref().connections.begin(true).await?;
        tx.call(|conn| sqlx::query(PRUNE).execute(conn)).await?;
        let Some(row) = tx.call(|conn| sqlx::query(END).bind(id).fetch_optional(conn)).await? else {
            tx.rollback().await;
            return Ok(false);
        };
        let (target, before) = (id.to_string(), Some(told(&pause_in(&row)?)));
        let change = Change { action: "pause.delete", target: Some(&target), before, after: None };
        self.write_down(change, &mut tx).await?;
        self.inner_ref().publish(tx).await?;
        // What it held may run, in other processes too.
        self.inner_ref().bells.ring(Topic::Work, true);
        Ok(true)
    }
}

async fn make(tx: &mut Tx, mut pause: Pause) -> Result<Pause, PolicyError> {
    tx.call(|conn| sqlx::query(PRUNE).execute(conn)).await?;
    let row = tx.call(|conn| sqlx::query(COUNT).fetch_one(conn)).await?;
    let (count, now): (i64, EpochMs) =
        (row.try_get("n").map_err(StoreError::from)?, row.try_get("now_ms").map_err(StoreError::from)?);
    pause.created = now;
    if count >= MAX_PAUSES as i64 {
        return Err(bad("", format!("would exceed the {MAX_PAUSES} pauses that there may be")));
    }
    if !pause.in_effect(now) {
        return Err(bad("/until", "must be in the future"));
    }
    let (target, value) = pause.target.parts();
    let query = sqlx::query(MAKE)
        .bind(pause.id)
        .bind(target)
        .bind(value.to_owned())
        .bind(pause.mode.as_str())
        .bind(pause.until)
        .bind(pause.reason.clone())
        .bind(pause.created);
    tx.call(|conn| query.execute(conn)).await?;
    Ok(pause)
}

fn pause_in(row: &PgRow) -> Result<Pause, StoreError> {
    let rest = (row.try_get("until_ms")?, row.try_get("reason")?, row.try_get("created_ms")?);
    let parts = (row.try_get("target")?, row.try_get("value")?, row.try_get("mode")?);
    pause_of(row.try_get("id")?, parts.0, parts.1, parts.2, rest)
}

/// A pause as it is written down.
fn told(pause: &Pause) -> Value {
    let (member, value) = pause.target.parts();
    json!({ member: value, "mode": pause.mode, "until_ms": pause.until, "reason": pause.reason })
}

fn bad(pointer: &str, problem: impl Into<String>) -> PolicyError {
    PolicyError::Bad(BadValue::new(pointer, problem))
}
