//! What a session does where it does not know which leases it holds.

use sqlx::Row;
use tidegate_core::{Fence, TaskId};

use crate::changes::flow_of;
use crate::error::StoreError;
use crate::seen::{Terms, claimed_of};
use crate::session::Session;
use crate::types::Claimed;

const HELD: &str = "SELECT tidegate.now_ms() AS now_ms, l.flow_id, l.task_id, l.deadline_ms, l.attempt_timeout_ms, l.tokens, l.usd_micros, l.bytes, \
    l.deliveries, l.failures, l.max_attempts FROM tidegate.lease l WHERE l.session_id = $1";

impl Session {
    /// Finds leases of this session that nobody here knows of, after a commit whose end was not seen.
    pub(crate) async fn recover(&self) -> Result<Vec<Claimed>, StoreError> {
        let mut tx = self.connections.begin(true).await?;
        self.withdraw(&mut tx).await?;
        let rows = tx.call(|conn| sqlx::query(HELD).bind(self.heart.session).fetch_all(conn)).await?;
        let mut flow_ids = Vec::new();
        for row in &rows {
            flow_ids.push(row.try_get::<i64, _>(1)?);
        }
        let flows = self.store.directory.describe(&mut tx, flow_ids.into_iter()).await?;
        tx.commit().await?;
        let mut found = Vec::new();
        for row in &rows {
            let (id, terms) = (TaskId(row.try_get(2)?), Terms::at(row, 3)?);
            if !self.state().held.contains_key(&(id, Fence(i64::from(terms.deliveries)))) {
                let key = flow_of(&flows, row.try_get(1)?)?;
                found.push(claimed_of(&terms, id, &key, terms.deliveries, row.try_get(0)?)?);
            }
        }
        let records = self.fill(&mut found).await;
        let found = self.runnable(found, records).await?;
        self.holds(&found);
        self.posts(None);
        Ok(found)
    }

    pub(crate) fn forget(&self, claimed: Vec<Claimed>, error: StoreError) -> StoreError {
        let mut state = self.state();
        for task in &claimed {
            state.held.remove(&(task.id, task.fence));
        }
        state.unsure = true;
        error
    }
}
