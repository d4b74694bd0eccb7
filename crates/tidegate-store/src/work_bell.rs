//! The doorbell of an idle worker, and the list of those who want theirs rung.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection::call;
use crate::error::StoreError;
use crate::store::StoreInner;

/// How long a process stays on the list of those who wait, and how long it relies on being there.
const LISTED_FOR: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(7));

/// The doorbell of an idle worker.
pub struct WorkBell {
    pub(crate) heard: tokio::sync::watch::Receiver<u64>,
    pub(crate) listed: Option<Instant>,
    pub(crate) store: Arc<StoreInner>,
}

impl WorkBell {
    /// Waits until there may be work: the bell rang, or `max` is over. The first call returns as soon as this process
    /// is on the list of those who wait: look once more, for what came before that.
    pub async fn wait(&mut self, max: Duration) {
        let listed = self.listed.is_some_and(|at| at.elapsed() < LISTED_FOR.1);
        if !listed {
            let now = Instant::now();
            if self.store.list_waiting(0, LISTED_FOR.0).await.is_ok() {
                self.listed = Some(now);
                return;
            }
        }
        let _over = tokio::time::timeout(max, self.heard.changed()).await;
    }
}

impl StoreInner {
    /// Puts this process on the list of those who want a bell rung.
    pub(crate) async fn list_waiting(&self, role: i16, listed_for: Duration) -> Result<(), StoreError> {
        let sql = "INSERT INTO tidegate.waiting (process, role, until_ms) VALUES ($1, $2, tidegate.now_ms() + $3) \
            ON CONFLICT (process, role) DO UPDATE SET until_ms = excluded.until_ms";
        let mut conn = self.connections.get().await?;
        let query = sqlx::query(sql).bind(self.process).bind(role).bind(listed_for.as_millis() as i64);
        call(self.connections.call_timeout(), query.execute(&mut *conn)).await?;
        conn.release();
        Ok(())
    }
}
