//! Tasks that completed with nothing to tell but their result, as most that end do: fewer columns, and where many end in
//! one turn a statement of their own, which runs while the turn chooses what starts.

use tidegate_core::submission::Cost;
use tidegate_core::{EpochMs, Status};
use uuid::Uuid;

use super::{CHANGES_PLAIN, Changes, End, tell_missing};
use crate::connection::{PgQuery, Tx};
use crate::error::StoreError;

const COMPLETE: &str = include_str!("../complete.sql");
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
    ends.iter().all(End::is_plain)
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
        .bind(end!(|e| e.worker.as_deref()))
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
        self.unready.is_empty() && !self.ledger.wakes() && all_plain(&self.ends)
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
            .bind(start!(|s| s.session))
            .bind(start!(|s| s.charged_ms))
            .bind(start!(|s| s.charged_in.code()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statement without its comments, each parameter by the order in which it comes first.
    fn shape(sql: &str) -> String {
        let code: Vec<&str> = sql.lines().map(str::trim).filter(|line| !line.starts_with("--")).collect();
        let mut places = Vec::new();
        let mut pieces = code.join(" ").split('$').map(str::to_owned).collect::<Vec<_>>().into_iter();
        let mut shape = pieces.next().unwrap_or_default();
        for piece in pieces {
            let end = piece.find(|c: char| !c.is_ascii_digit()).unwrap_or(piece.len());
            let (number, rest) = piece.split_at(end);
            let at = places.iter().position(|known| known == number).unwrap_or(places.len());
            if at == places.len() {
                places.push(number.to_owned());
            }
            shape.push_str(&format!("${at}{rest}"));
        }
        shape
    }

    #[test]
    fn what_is_written_early_is_what_would_have_been_written_with_the_rest() {
        let plain = include_str!("../changes_plain.sql");
        let (ended, _) = plain.split_once("RETURNING 1").unwrap();
        let (_, ended) = ended.split_once("ended AS (").unwrap();
        assert_eq!(shape(ended).trim(), shape(COMPLETE).trim());
    }
}
