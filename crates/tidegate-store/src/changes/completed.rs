//! Tasks that completed with nothing to tell but their result, as most that end do: fewer columns, and where many end in
//! one turn a statement of their own, which runs while the turn chooses what starts.

use tidegate_core::submission::Cost;
use tidegate_core::{EpochMs, Status};
use uuid::Uuid;

use super::{Changes, End, tell_missing};
use crate::connection::{PgQuery, Tx};
use crate::error::StoreError;

const COMPLETE: &str = include_str!("../complete.sql");
/// Everything of a turn in one statement.
const CHANGES_PLAIN: &str = concat!(include_str!("../ledger.sql"), include_str!("../changes_plain.sql"));
/// Ends from which on they are written by a statement of their own: for fewer, one statement more costs more than is won.
const WRITTEN_EARLY_FROM: usize = 50;
/// Stands for a number that is not known, where numbers are not negative.
const UNKNOWN: i64 = -1;

impl End {
    /// Whether it is the end of a completed attempt of which nothing is told but its result and its usage.
    fn is_plain(&self) -> bool {
        self.status == Status::Completed.as_str()
            && self.attempt.is_some()
            && self.leavings.result.is_some()
            && self.leavings.error.is_none()
            && self.detail.is_none()
            && self.delivered_ms.is_none()
            && !self.cancelled
    }
}

/// Whether the form with fewer columns can say all of it.
fn all_plain(ends: &[End]) -> bool {
    let worker = ends.first().map(|end| &end.worker);
    ends.iter().all(|end| end.is_plain() && Some(&end.worker) == worker)
}

/// Binds the parameters of the ends, but when it was.
fn bind_ends(query: PgQuery, ends: &[End]) -> PgQuery {
    macro_rules! end {
        (|$end:ident| $value:expr) => {
            ends.iter().map(|$end| $value).collect::<Vec<_>>()
        };
    }
    let attempt = |end: &End| end.attempt.unwrap_or_default();
    let usage = |end: &End, get: fn(Cost) -> u64| end.leavings.usage.map_or(UNKNOWN, |usage| get(usage) as i64);
    query
        .bind(end!(|e| e.id))
        .bind(end!(|e| e.leavings.result.as_deref()))
        .bind(end!(|e| attempt(e).0))
        .bind(end!(|e| attempt(e).1))
        .bind(end!(|e| attempt(e).2))
        .bind(end!(|e| attempt(e).3))
        .bind(end!(|e| usage(e, |usage| usage.tokens)))
        .bind(end!(|e| usage(e, |usage| usage.usd_micros)))
        .bind(ends.first().and_then(|end| end.worker.as_deref()))
}

/// Ends that are written before everything else of their turn.
pub(crate) struct Completed(Vec<End>);

impl Completed {
    /// Writes the outcomes into the records.
    pub(crate) async fn write(self, tx: &mut Tx, now: EpochMs) -> Result<(), StoreError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let query = bind_ends(sqlx::query(COMPLETE), &self.0).bind(now);
        let written = tx.call(|conn| query.execute(conn)).await?.rows_affected();
        tell_missing(self.0.len() as i64 - written as i64);
        Ok(())
    }
}

impl Changes {
    /// Takes the ends out, where there are enough of them and all have completed, to be written early. Their counters stay.
    pub(crate) fn take_completed(&mut self) -> Completed {
        if self.ends.len() < WRITTEN_EARLY_FROM || !all_plain(&self.ends) {
            return Completed(Vec::new());
        }
        self.written_ends = self.ends.len();
        Completed(std::mem::take(&mut self.ends))
    }

    /// Whether [`CHANGES_PLAIN`] can say all of it.
    pub(super) fn is_plain(&self) -> bool {
        self.unready.is_empty() && all_plain(&self.ends)
    }

    pub(super) fn bind_plain(&self, now: EpochMs, process: Uuid) -> PgQuery {
        macro_rules! start {
            (|$start:ident| $value:expr) => {
                self.starts.iter().map(|$start| $value).collect::<Vec<_>>()
            };
        }
        bind_ends(self.ledger.bind(CHANGES_PLAIN, now, process), &self.ends)
            .bind(start!(|s| s.place.id.0))
            .bind(start!(|s| s.place.flow))
            .bind(start!(|s| s.place.rank))
            .bind(start!(|s| s.effects.code()))
            .bind(self.session)
            .bind(start!(|s| s.charged_ms))
            .bind(start!(|s| s.charged_in.code()))
    }
}
