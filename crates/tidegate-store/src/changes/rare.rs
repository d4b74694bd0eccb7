//! The parts of a transaction's changes that most transactions do not have, each a statement of its own.

use tidegate_core::{EpochMs, Reason};
use uuid::Uuid;

use super::Changes;
use crate::connection::Tx;
use crate::directory::FlowKey;
use crate::error::StoreError;
use crate::hold;
use crate::store::StoreInner;

const ATTEMPTS: &str = "INSERT INTO tidegate.attempt (task_id, fence, number, worker, started_ms, ended_ms, outcome, reason, \
    error_type, error_message, error_retryable, result) \
    SELECT task_id, fence, number, worker, started_ms, $12, outcome, reason, error_type, error_message, error_retryable, result \
    FROM unnest($1::uuid[], $2::int[], $3::smallint[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::boolean[], $11::text[]) \
    AS d(task_id, fence, number, worker, started_ms, outcome, reason, error_type, error_message, error_retryable, result) ON CONFLICT DO NOTHING";
const REQUEST: &str = "WITH d AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[]) AS d(task_id, session_id, reason, detail)), \
    asked AS (INSERT INTO tidegate.cancel_request (task_id, session_id, reason, requested_ms) \
        SELECT task_id, session_id, reason, $5 FROM d ON CONFLICT DO NOTHING) \
    UPDATE tidegate.task t SET cancel_requested_ms = coalesce(t.cancel_requested_ms, $5), detail = coalesce(t.detail, d.detail) \
    FROM d WHERE t.id = d.task_id AND t.status IS NULL";

impl Changes {
    pub(super) async fn write_rare(&self, store: &StoreInner, tx: &mut Tx, now: EpochMs) -> Result<(), StoreError> {
        if !self.undeferred.is_empty() {
            let sql = "DELETE FROM tidegate.deferred WHERE task_id = ANY($1)";
            tx.call(|conn| sqlx::query(sql).bind(self.undeferred.clone()).execute(conn)).await?;
        }
        if !self.promoted.is_empty() {
            let sql = include_str!("../promote.sql");
            tx.call(|conn| sqlx::query(sql).bind(self.promoted.clone()).execute(conn)).await?;
        }
        if !self.readmitted.is_empty() {
            let query = sqlx::query(include_str!("../readmit.sql"))
                .bind(self.readmitted.iter().map(|(place, ..)| place.id.0).collect::<Vec<_>>())
                .bind(self.readmitted.iter().map(|(place, ..)| place.flow).collect::<Vec<_>>())
                .bind(self.readmitted.iter().map(|(place, ..)| place.rank).collect::<Vec<_>>())
                .bind(self.readmitted.iter().map(|(_, to, _)| *to).collect::<Vec<_>>())
                .bind(self.readmitted.iter().map(|(.., queued)| *queued).collect::<Vec<_>>())
                .bind(now);
            let moved = tx.call(|conn| query.execute(conn)).await?.rows_affected();
            if moved != self.readmitted.len() as u64 {
                return Err(StoreError::Busy(sqlx::Error::RowNotFound));
            }
        }
        if !self.parked.is_empty() || !self.moved.is_empty() {
            self.write_lines(tx).await?;
        }
        if !self.returns.is_empty() {
            self.write_returns(store, tx).await?;
        }
        if !self.attempts.is_empty() {
            self.write_attempts(tx, now).await?;
        }
        if !self.requests.is_empty() {
            let tasks: Vec<Uuid> = self.requests.iter().map(|request| request.0).collect();
            let sessions: Vec<Uuid> = self.requests.iter().map(|request| request.1).collect();
            let reasons: Vec<&str> = self.requests.iter().map(|request| request.2.as_str()).collect();
            let details: Vec<Option<String>> = self.requests.iter().map(|request| request.3.clone()).collect();
            tx.call(|conn| {
                sqlx::query(REQUEST).bind(tasks).bind(sessions).bind(reasons).bind(details).bind(now).execute(conn)
            })
            .await?;
        }
        if !self.quarantined.is_empty() {
            hold::write(&self.quarantined, store.hold_ms, now, tx).await?;
        }
        if !self.settled_cancels.is_empty() {
            let sql = "DELETE FROM tidegate.cancel_request WHERE task_id = ANY($1)";
            tx.call(|conn| sqlx::query(sql).bind(self.settled_cancels.clone()).execute(conn)).await?;
        }
        Ok(())
    }

    async fn write_lines(&self, tx: &mut Tx) -> Result<(), StoreError> {
        let (flows, turns): (Vec<i64>, Vec<i64>) = self.moved.iter().copied().unzip();
        let sql = "WITH moved AS (UPDATE tidegate.active_flow a SET turn = d.turn FROM unnest($1::bigint[], $2::bigint[]) AS d(flow_id, turn) \
            WHERE a.flow_id = d.flow_id AND NOT a.flow_id = ANY($3)) \
            UPDATE tidegate.active_flow SET parked = true WHERE flow_id = ANY($3)";
        let parked = self.parked.clone();
        tx.call(|conn| sqlx::query(sql).bind(flows).bind(turns).bind(parked).execute(conn)).await?;
        Ok(())
    }

    async fn write_returns(&self, store: &StoreInner, tx: &mut Tx) -> Result<(), StoreError> {
        let keys: Vec<FlowKey> = self.returns.iter().map(|back| back.key.clone()).collect();
        let flows = store.directory.resolve_in(tx, &keys).await?;
        macro_rules! column {
            (|$back:ident| $value:expr) => {
                self.returns.iter().map(|$back| $value).collect::<Vec<_>>()
            };
        }
        let query = sqlx::query(include_str!("../return.sql"))
            .bind(column!(|b| b.released.id.0))
            .bind(flows)
            .bind(column!(|b| b.released.rank))
            .bind(column!(|b| b.eligible))
            .bind(column!(|b| b.reason.as_str()))
            .bind(column!(|b| b.released.running.deadline))
            .bind(column!(|b| b.released.running.min_useful_ms as i64))
            .bind(column!(|b| b.released.running.attempt_timeout_ms.map(|ms| ms as i64)))
            .bind(column!(|b| b.released.holding.tokens))
            .bind(column!(|b| b.released.holding.usd_micros))
            .bind(column!(|b| b.released.holding.bytes as i32))
            .bind(column!(|b| b.released.deliveries))
            .bind(column!(|b| b.failures as i16))
            .bind(column!(|b| b.losses as i16))
            .bind(column!(|b| b.released.running.max_attempts as i16))
            .bind(column!(|b| b.released.running.started))
            .bind(column!(|b| b.released.worker.clone()))
            .bind(column!(|b| b.error.as_ref().map(|error| error.kind.clone())))
            .bind(column!(|b| b.error.as_ref().map(|error| error.message.clone())))
            .bind(column!(|b| b.error.as_ref().map(|error| error.retryable)))
            .bind(column!(|b| b.released.running.failures as i16 + 1))
            .bind(column!(|b| b.released.enqueued));
        tx.call(|conn| query.execute(conn)).await?;
        Ok(())
    }

    async fn write_attempts(&self, tx: &mut Tx, now: EpochMs) -> Result<(), StoreError> {
        macro_rules! column {
            (|$attempt:ident| $value:expr) => {
                self.attempts.iter().map(|$attempt| $value).collect::<Vec<_>>()
            };
        }
        let query = sqlx::query(ATTEMPTS)
            .bind(column!(|a| a.released.id.0))
            .bind(column!(|a| a.released.deliveries))
            .bind(column!(|a| a.released.running.failures as i16 + 1))
            .bind(column!(|a| a.released.worker.clone()))
            .bind(column!(|a| a.released.running.started))
            .bind(column!(|a| a.outcome))
            .bind(column!(|a| a.reason.map(Reason::as_str)))
            .bind(column!(|a| a.leavings.error.as_ref().map(|error| error.kind.clone())))
            .bind(column!(|a| a.leavings.error.as_ref().map(|error| error.message.clone())))
            .bind(column!(|a| a.leavings.error.as_ref().map(|error| error.retryable)))
            .bind(column!(|a| a.leavings.result.clone()))
            .bind(now);
        tx.call(|conn| query.execute(conn)).await?;
        Ok(())
    }
}
