//! The keeper's statements: expire what waits past its deadline, promote what is due, reap the leases of dead
//! sessions. Each is a transaction under the cell's row that any number of keepers may try.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::backoff::BackoffPolicy;
use tidegate_core::order::{Waiting, doom};
use tidegate_core::settlement::Ending;
use tidegate_core::{EpochMs, Status, TaskId};
use uuid::Uuid;

use crate::bell::Topic;
use crate::changes::{Changes, Leavings, Place, Released, flow_of, holding_of};
use crate::connection::Tx;
use crate::error::StoreError;
use crate::ledger::Rings;
use crate::permits::end_with_leases;
use crate::store::Store;
use crate::types::TaskError;

/// Most tasks that one sweep changes: it holds the cell's row meanwhile.
pub const SWEEP: usize = 500;
/// The lease time of a session whose row is gone.
const UNKNOWN_LEASE: Duration = Duration::from_secs(15);

// What was claimed leaves dead entries in the index of deadlines, nearly all of them in the future: the look goes from
// the last sweep to now, and never on to find the next.
const DUE: &str = "SELECT n.now_ms, \
    EXISTS (SELECT FROM tidegate.ready r WHERE r.deadline_ms > $1 AND r.deadline_ms <= n.now_ms) \
        OR EXISTS (SELECT FROM tidegate.deferred d WHERE d.deadline_ms > $1 AND d.deadline_ms <= n.now_ms) AS late, \
    (SELECT d.eligible_ms FROM tidegate.deferred d WHERE d.eligible_ms >= $2 ORDER BY d.eligible_ms LIMIT 1) AS eligible, \
    EXISTS (SELECT FROM tidegate.flow f JOIN tidegate.active_flow a ON a.flow_id = f.id \
        CROSS JOIN LATERAL (SELECT u.queued FROM tidegate.flow_usage u WHERE u.flow_id = f.id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1) u \
        WHERE f.lane = 0 AND u.queued > 0) AS reserved, \
    EXISTS (SELECT FROM tidegate.cancel_parent) OR EXISTS (SELECT FROM tidegate.cancel_group) AS cancels \
    FROM (SELECT tidegate.now_ms() AS now_ms) n";
const ANY_EXPIRED: &str =
    "SELECT EXISTS (SELECT FROM tidegate.heartbeat h WHERE h.expires_ms <= (SELECT tidegate.now_ms()))";
const ANY_LOST: &str = "SELECT EXISTS (SELECT FROM tidegate.lease l WHERE NOT EXISTS \
    (SELECT FROM tidegate.heartbeat h WHERE h.session_id = l.session_id AND h.expires_ms > (SELECT tidegate.now_ms())))";
const FORGET_EXPIRED: &str = "DELETE FROM tidegate.heartbeat h WHERE h.expires_ms <= (SELECT tidegate.now_ms()) \
    AND NOT EXISTS (SELECT FROM tidegate.lease l WHERE l.session_id = h.session_id)";
// The clock is told where nothing is late too, and the second look uses that of the first: up to there, and not a moment
// further, all is seen.
const LATE_QUEUED: &str = "SELECT n.now_ms, r.* FROM (SELECT tidegate.now_ms() AS now_ms) n \
    LEFT JOIN LATERAL (SELECT r.* FROM tidegate.ready r \
        WHERE r.deadline_ms > $1 AND r.deadline_ms <= n.now_ms ORDER BY r.deadline_ms LIMIT $2) r ON true";
const LATE_DEFERRED: &str = "SELECT d.* FROM tidegate.deferred d \
    WHERE d.deadline_ms > $1 AND d.deadline_ms <= $3 ORDER BY d.deadline_ms LIMIT $2";

/// When something is due next, by the database's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Due {
    /// The database's clock.
    pub now: EpochMs,
    /// Whether some waiting task's deadline has passed.
    pub late: bool,
    /// The next instant at which a deferred task may run.
    pub eligible: Option<EpochMs>,
    /// Whether slots are reserved for tasks.
    pub reserved: bool,
    /// Whether cancels are under way that a process may have left half done.
    pub cancels: bool,
}

/// How far a keeper has swept: what was due before then is gone, so no sweep walks its dead entries again. Every
/// deadline, and every instant of eligibility, that comes in later lies after it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Deadlines up to here.
    pub deadline: EpochMs,
    /// Instants of eligibility before here.
    pub eligible: EpochMs,
    /// Behind which of the due tasks to go on, in their order: those up to there have no room now.
    pub(crate) passed: Option<(EpochMs, i64, Uuid)>,
    /// Behind which flow to go on looking for what has waited too long for its peer.
    pub(crate) flow: i64,
}

impl Swept {
    /// Whether a look at what is due stopped before its end.
    pub fn has_more(&self) -> bool {
        self.passed.is_some()
    }
}

impl Store {
    /// When something is due next, seen without a lock.
    pub async fn due(&self, swept: Swept) -> Result<Due, StoreError> {
        let rows = self.read(sqlx::query(DUE).bind(swept.deadline).bind(swept.eligible)).await?;
        let Some(row) = rows.first() else { return Ok(Due::default()) };
        Ok(Due {
            now: row.try_get("now_ms")?,
            late: row.try_get("late")?,
            eligible: row.try_get("eligible")?,
            reserved: row.try_get("reserved")?,
            cancels: row.try_get("cancels")?,
        })
    }

    /// Ends waiting tasks whose deadline has passed. Returns how many, and how far it swept; fewer than [`SWEEP`] means
    /// that none is left.
    pub async fn expire_waiting(&self, swept: Swept) -> Result<(usize, Swept), StoreError> {
        let mut tx = self.inner_ref().connections.begin(true).await?;
        let (from, most) = (swept.deadline, SWEEP as i64);
        let mut queued = tx.call(|conn| sqlx::query(LATE_QUEUED).bind(from).bind(most).fetch_all(conn)).await?;
        let now: EpochMs = queued.first().map(|row| row.try_get("now_ms")).transpose()?.unwrap_or(from);
        // Where none is late there is a row with the clock alone.
        queued.retain(|row| row.try_get::<Uuid, _>("task_id").is_ok());
        let deferred =
            tx.call(|conn| sqlx::query(LATE_DEFERRED).bind(from).bind(most).bind(now).fetch_all(conn)).await?;
        let mut changes = Changes::default();
        for (rows, from) in [(&queued, Status::Queued), (&deferred, Status::Deferred)] {
            for row in rows {
                self.end_late(row, from, now, &mut changes, &mut tx).await?;
            }
        }
        let count = queued.len() + deferred.len();
        if changes.is_empty() {
            tx.rollback().await;
            return Ok((0, swept));
        }
        self.finish(changes, tx, now).await?;
        let complete = queued.len() < SWEEP && deferred.len() < SWEEP;
        Ok((count, if complete { Swept { deadline: now, ..swept } } else { swept }))
    }

    async fn end_late(
        &self,
        row: &PgRow,
        from: Status,
        now: EpochMs,
        changes: &mut Changes,
        tx: &mut Tx,
    ) -> Result<(), StoreError> {
        let place = place_of(row, from)?;
        let flows = self.inner_ref().directory.describe(tx, [place.flow].into_iter()).await?;
        let waiting = waiting_of(row, place)?;
        if let Some(reason) = doom(&waiting, now) {
            changes.end_waiting(
                place,
                &*flow_of(&flows, place.flow)?,
                from,
                Status::Expired,
                reason,
                holding_of(row)?,
                None,
                false,
            );
        }
        Ok(())
    }

    /// Settles the attempts of sessions that died. Returns how many; fewer than [`SWEEP`] means that none is left.
    ///
    /// Leases are looked through only where some session has expired, or with `thorough`, which also finds those whose
    /// session was removed altogether: the table is small, but under an old snapshot full of dead rows.
    pub async fn reap_lost(&self, thorough: bool) -> Result<usize, StoreError> {
        let any = async |sql: &'static str| -> Result<bool, StoreError> {
            let rows = self.read(sqlx::query(sql)).await?;
            Ok(rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false))
        };
        let expired = any(ANY_EXPIRED).await?;
        if !(expired || thorough) {
            return Ok(0);
        }
        if !any(ANY_LOST).await? {
            if expired {
                self.read(sqlx::query(FORGET_EXPIRED)).await?;
            }
            return Ok(0);
        }
        let mut tx = self.inner_ref().connections.begin(true).await?;
        let sql = include_str!("reap.sql");
        let rows = tx
            .call(|conn| sqlx::query(sql).bind(UNKNOWN_LEASE.as_millis() as i64).bind(SWEEP as i64).fetch_all(conn))
            .await?;
        let (mut changes, mut now, mut permits) = (Changes::default(), 0, Vec::new());
        for row in &rows {
            now = row.try_get("now_ms")?;
            let released = Released::from_row(row)?;
            permits.extend(released.permit_owner());
            let flows = self.inner_ref().directory.describe(&mut tx, [released.flow].into_iter()).await?;
            let key = flow_of(&flows, released.flow)?;
            let error = TaskError {
                kind: "worker_lost".into(),
                message: "the worker's lease ended without a word from it".into(),
                retryable: true,
            };
            let leavings = Leavings { error: Some(error), ..Leavings::default() };
            let weight = self.inner_ref().policy().tenant(&key.tenant).weight;
            changes.correct(&released, &key, weight, now);
            changes.settle(released, &key, Ending::Lost, leavings, None, BackoffPolicy::default(), now, 0.0);
        }
        if rows.is_empty() {
            tx.rollback().await;
            return Ok(0);
        }
        end_with_leases(permits, &mut changes, &mut tx).await?;
        self.finish(changes, tx, now).await?;
        self.inner_ref().bells.ring(Topic::Returned, false);
        Ok(rows.len())
    }

    pub(crate) async fn finish(&self, changes: Changes, mut tx: Tx, now: EpochMs) -> Result<(), StoreError> {
        let written = changes.write(self.inner_ref(), &mut tx, now).await;
        if let Err(StoreError::Busy(_)) = &written {
            self.inner_ref().directory.forget();
        }
        let Rings { workers, readers, peers, .. } = written?;
        tx.commit().await?;
        if peers {
            self.inner_ref().bells.ring(Topic::Permit, false);
        }
        self.inner_ref().bells.ring(Topic::Work, workers);
        self.inner_ref().bells.ring(Topic::Ended, readers);
        Ok(())
    }

    /// A bell that is rung inside this process when a task came back to wait.
    pub fn returned_bell(&self) -> tokio::sync::watch::Receiver<u64> {
        self.inner_ref().bells.hear(Topic::Returned)
    }
}

/// Where a task waits, from its row in `ready` or `deferred`.
pub(crate) fn place_of(row: &PgRow, from: Status) -> Result<Place, StoreError> {
    let reserved = if from == Status::Queued { row.try_get("session_id")? } else { None };
    let id = TaskId(row.try_get("task_id")?);
    Ok(Place { flow: row.try_get("flow_id")?, rank: row.try_get("rank")?, id, reserved })
}

pub(crate) fn waiting_of(row: &PgRow, place: Place) -> Result<Waiting, StoreError> {
    Ok(Waiting {
        id: place.id,
        rank: place.rank,
        enqueued: row.try_get("enqueued_ms")?,
        deadline: row.try_get("deadline_ms")?,
        min_useful_ms: row.try_get("min_useful_ms")?,
        tokens: 0,
    })
}
