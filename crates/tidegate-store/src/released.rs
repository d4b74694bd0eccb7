//! A lease that was taken away, as the rows of `release.sql` and `reap.sql` tell it.

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::bucket::Bucket;
use tidegate_core::kind_policy::Effects;
use tidegate_core::settlement::Running;
use tidegate_core::{Class, EpochMs, Reason, TaskId};
use uuid::Uuid;

use crate::changes::Begin;
use crate::error::StoreError;
use crate::ledger::{Holding, class_of};
use crate::seen::Terms;

/// The column of `release.sql` that counts the reports, from 1.
pub(crate) const REPORT: usize = 24;

/// The same of `release_known.sql`.
pub(crate) const REPORT_OF_KNOWN: usize = 1;

/// A lease that was taken away, and what is known of the attempt it was for.
#[derive(Debug, Clone)]
pub(crate) struct Released {
    pub(crate) id: TaskId,
    pub(crate) flow: i64,
    pub(crate) session: Uuid,
    pub(crate) rank: i64,
    pub(crate) running: Running,
    pub(crate) deliveries: i32,
    pub(crate) holding: Holding,
    pub(crate) delivered_ms: Option<EpochMs>,
    pub(crate) worker: Option<String>,
    /// Since when the task could have run.
    pub(crate) enqueued: EpochMs,
    /// What its tenant was charged for the run at its start, and in which class.
    pub(crate) charged_ms: i64,
    pub(crate) charged_in: Class,
    /// Whether calls of it hold permits, or wait for one.
    pub(crate) permits: bool,
}

impl Released {
    /// Reads a row of `release.sql` or `reap.sql`, by place: the first is the database's clock.
    pub(crate) fn from_row(row: &PgRow) -> Result<Self, StoreError> {
        let attempt_timeout_ms: Option<i64> = row.try_get(7)?;
        let cancel: Option<&str> = row.try_get(16)?;
        let running = Running {
            failures: row.try_get::<i16, _>(12)? as u16,
            losses: row.try_get::<i16, _>(13)? as u16,
            max_attempts: row.try_get::<i16, _>(14)? as u16,
            deadline: row.try_get(5)?,
            started: row.try_get(4)?,
            min_useful_ms: row.try_get::<i64, _>(6)? as u64,
            attempt_timeout_ms: attempt_timeout_ms.map(|ms| ms as u64),
            effects: Effects::from_code(row.try_get(15)?).unwrap_or_default(),
            cancel: cancel.map(cancel_reason),
            may_retry: true,
        };
        Ok(Self {
            id: TaskId(row.try_get(1)?),
            flow: row.try_get(2)?,
            rank: row.try_get(3)?,
            running,
            deliveries: row.try_get(11)?,
            holding: holding_at(row, 8)?,
            delivered_ms: row.try_get(17)?,
            worker: row.try_get(18)?,
            session: row.try_get(19)?,
            enqueued: row.try_get(20)?,
            charged_ms: row.try_get(21)?,
            charged_in: class_of(row.try_get(22)?)?,
            permits: row.try_get(23)?,
        })
    }

    /// What a lease that is taken now will be, once it is taken away.
    pub(crate) fn of_claim(begin: &Begin, terms: &Terms, enqueued: EpochMs, now: EpochMs) -> Self {
        let running = Running {
            failures: terms.failures as u16,
            losses: terms.losses as u16,
            max_attempts: terms.max_attempts as u16,
            deadline: terms.deadline_ms,
            started: now,
            min_useful_ms: terms.min_useful_ms as u64,
            attempt_timeout_ms: terms.attempt_timeout_ms.map(|ms| ms as u64),
            effects: begin.effects,
            cancel: None,
            may_retry: true,
        };
        Self {
            id: begin.place.id,
            flow: begin.place.flow,
            session: begin.session,
            rank: begin.place.rank,
            running,
            deliveries: terms.deliveries + 1,
            holding: terms.holding,
            delivered_ms: None,
            worker: None,
            enqueued,
            charged_ms: begin.charged_ms,
            charged_in: begin.charged_in,
            permits: false,
        }
    }

    /// Adds what a row of `release_known.sql` tells.
    pub(crate) fn told(mut self, row: &PgRow) -> Result<Self, StoreError> {
        self.running.cancel = row.try_get::<Option<&str>, _>(2)?.map(cancel_reason);
        self.delivered_ms = row.try_get(3)?;
        self.permits = row.try_get(4)?;
        Ok(self)
    }

    /// When the attempt started.
    pub(crate) fn started(&self) -> EpochMs {
        self.running.started
    }

    /// Who owns the permits of its calls, where there are any.
    pub(crate) fn permit_owner(&self) -> Option<(Uuid, i32)> {
        self.permits.then_some((self.id.0, self.deliveries))
    }

    /// The tokens that it reserves.
    pub(crate) fn tokens(&self) -> i64 {
        self.holding.tokens
    }
}

fn cancel_reason(stored: &str) -> Reason {
    Reason::parse(stored).unwrap_or(Reason::CancelRequested)
}

/// What a row holds against the limits.
pub(crate) fn holding_of(row: &PgRow) -> Result<Holding, StoreError> {
    let bytes: i32 = row.try_get("bytes")?;
    Ok(Holding { tokens: row.try_get("tokens")?, usd_micros: row.try_get("usd_micros")?, bytes: i64::from(bytes) })
}

/// The same where its three columns are next to each other, from this one on: names cost more than values where there
/// are many rows.
pub(crate) fn holding_at(row: &PgRow, first: usize) -> Result<Holding, StoreError> {
    let bytes: i32 = row.try_get(first + 2)?;
    Ok(Holding { tokens: row.try_get(first)?, usd_micros: row.try_get(first + 1)?, bytes: i64::from(bytes) })
}

/// How far a bucket of tokens moves where so many were used instead of those that were estimated.
pub(crate) fn token_shift(bucket: Option<Bucket>, estimated: i64, used: u64) -> i64 {
    let Some(bucket) = bucket else { return 0 };
    bucket.time_of(used).saturating_sub(bucket.time_of(estimated.unsigned_abs()))
}
