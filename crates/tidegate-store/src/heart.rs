//! The heartbeat of a session: one row of its own, and what comes back with it.

use std::time::Duration;

use sqlx::Row;
use tidegate_core::{Fence, TaskId};
use uuid::Uuid;

use crate::connection::{Connections, call};
use crate::error::StoreError;
use crate::types::Beat;

const BEAT: &str = "WITH beat AS ( \
        UPDATE tidegate.heartbeat SET expires_ms = tidegate.now_ms() + $2 WHERE session_id = $1 AND expires_ms > tidegate.now_ms() RETURNING 1 \
    ), delivered AS ( \
        UPDATE tidegate.cancel_request SET delivered_ms = tidegate.now_ms() WHERE session_id = $1 AND delivered_ms IS NULL \
    ) SELECT EXISTS (SELECT FROM beat), \
        ARRAY(SELECT c.task_id FROM tidegate.cancel_request c WHERE c.session_id = $1), \
        ARRAY(SELECT d.task_id FROM unnest($3::uuid[], $4::int[]) AS d(task_id, fence) \
            WHERE NOT EXISTS (SELECT FROM tidegate.lease l WHERE l.task_id = d.task_id AND l.deliveries = d.fence)), \
        EXISTS (SELECT FROM tidegate.session s WHERE s.id = $1 AND s.draining)";
/// Rows that are being settled at this moment are passed over: their progress is over, and waiting for them might close
/// a circle with the settlement's own locks.
const PROGRESS: &str = "WITH held AS MATERIALIZED ( \
        SELECT t.id, d.progress FROM unnest($2::uuid[], $3::int[], $4::text[]) AS d(task_id, fence, progress) \
        JOIN tidegate.lease l ON l.task_id = d.task_id AND l.deliveries = d.fence AND l.session_id = $1 \
        JOIN tidegate.task t ON t.id = d.task_id ORDER BY t.id FOR UPDATE OF t SKIP LOCKED \
    ) UPDATE tidegate.task t SET progress = h.progress FROM held h WHERE t.id = h.id";

/// The heartbeat of a session, with a connection of its own. Use it from one runtime only.
#[derive(Clone)]
pub struct Heart {
    pub(crate) connections: Connections,
    pub(crate) session: Uuid,
    pub(crate) lease: Duration,
}

impl Heart {
    /// How long a lease lives after a beat that was sent.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Keeps the session's leases alive for another lease time, counted by the database from when it gets there, and
    /// brings back which tasks to cancel, which of the `held` are not the session's any more, and whether to drain.
    pub async fn beat(&self, held: &[(TaskId, Fence)]) -> Result<Beat, StoreError> {
        let ids: Vec<Uuid> = held.iter().map(|(id, _)| id.0).collect();
        let fences: Vec<i32> = held.iter().map(|(_, fence)| i32::try_from(fence.0).unwrap_or(-1)).collect();
        let lease_ms = self.lease.as_millis() as i64;
        let mut conn = self.connections.get().await?;
        let query = sqlx::query(BEAT).bind(self.session).bind(lease_ms).bind(ids).bind(fences);
        let row = call(self.connections.call_timeout(), query.fetch_one(&mut *conn)).await?;
        conn.release();
        if !row.try_get::<bool, _>(0)? {
            return Err(StoreError::SessionLost);
        }
        let tasks = |ids: Vec<Uuid>| ids.into_iter().map(TaskId).collect();
        Ok(Beat { cancel: tasks(row.try_get(1)?), lost: tasks(row.try_get(2)?), draining: row.try_get(3)? })
    }

    /// Keeps what handlers said of their progress, as JSON text, with the tasks that are still this session's.
    pub async fn report_progress(&self, said: &[(TaskId, Fence, &str)]) -> Result<(), StoreError> {
        let ids: Vec<Uuid> = said.iter().map(|(id, ..)| id.0).collect();
        let fences: Vec<i32> = said.iter().map(|(_, fence, _)| i32::try_from(fence.0).unwrap_or(-1)).collect();
        let texts: Vec<&str> = said.iter().map(|(.., progress)| *progress).collect();
        let mut conn = self.connections.get().await?;
        let query = sqlx::query(PROGRESS).bind(self.session).bind(ids).bind(fences).bind(texts);
        call(self.connections.call_timeout(), query.execute(&mut *conn)).await?;
        conn.release();
        Ok(())
    }
}
