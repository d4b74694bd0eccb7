//! What a turn sees of the queue before it chooses, and on which connection it looks.

use std::time::Duration;

use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::changes::Changes;
use crate::claim::{Claim, Claiming};
use crate::claim_room::{Limited, Line, Open};
use crate::connection::Tx;
use crate::error::StoreError;
use crate::question::Question;
use crate::session::Session;

const LOOK: &str = include_str!("look.sql");
/// Most lines whose first virtual time a session remembers.
const MAX_LINES_REMEMBERED: usize = 4_096;
/// What a look reads of what is wanted, over all flows: some more, since nobody knows from which flows it will come.
const READ_PERCENT: i64 = 125;
/// The most that a look reads of what is wanted, where flows are of very different age.
const MAX_READ_PERCENT: i64 = 2_000;
/// Reports from which on a turn looks for work on a second connection while their leases are taken away: for fewer, to
/// begin another transaction costs more than is won.
const LOOK_BESIDE_FROM: usize = 50;
/// The longest that such a look is waited for, since nobody else has a turn meanwhile.
const LOOK_BESIDE_LIMIT: Duration = Duration::from_millis(500);

/// Another session for which a turn claims.
pub(crate) struct Claimant {
    pub(crate) session: Uuid,
    pub(crate) want: usize,
}

/// What a turn may claim, before it is known what waits.
pub(crate) struct Aim {
    /// How much, with what its guests want.
    pub(crate) want: usize,
    pub(crate) guests: Vec<Claimant>,
    /// How many reports the turn settles.
    pub(crate) reports: usize,
    /// How many tasks the session holds beside those.
    pub(crate) held: usize,
    /// What the worker may still run of the kinds that it limits, and those of which it may run no more.
    pub(crate) of_kinds: Vec<(String, i64)>,
    pub(crate) full: Vec<String>,
    /// Whether it may take a task that was lost twice.
    pub(crate) suspects: bool,
}

impl Aim {
    /// How much the session wants for itself.
    pub(crate) fn own(&self) -> usize {
        self.want.saturating_sub(self.guests.iter().map(|guest| guest.want).sum())
    }

    /// The most tasks that it takes of those that only it may run, which must leave its guests what they want.
    pub(crate) fn of_its_own(&self) -> usize {
        if self.guests.is_empty() { usize::MAX } else { self.own() }
    }
}

/// Whether it pays for a turn that settles and wants so many.
pub(crate) fn looks_beside(want: usize, reports: usize) -> bool {
    want > 0 && reports >= LOOK_BESIDE_FROM
}

/// What was seen.
pub(crate) struct Sight {
    limited: Limited,
    open: Open,
    rows: Vec<PgRow>,
}

/// What was seen on a second connection, and the transaction there, which still stands.
pub(crate) type Beside = (Sight, Tx);

/// Ends the transaction of a look.
pub(crate) async fn end_looking(beside: Option<Beside>) {
    if let Some((_, tx)) = beside {
        tx.rollback().await;
    }
}

impl Session {
    /// Looks in a transaction of its own while this turn's holds the cell's row and takes leases away. It sees what a look
    /// in the turn's would: counters and where tasks wait change under that row alone, whoever held it before has
    /// committed where its snapshots are taken, and leases are not among what it reads. Were the row lost meanwhile, the
    /// turn could not commit. Nothing where no connection is at hand, or it fails: then the turn looks itself.
    pub(crate) async fn look_beside(&self, aim: &Aim) -> Option<Beside> {
        let looking = async {
            let (mut tx, room) = self.store.connections.begin_at_hand(&self.room(aim.held)).await?;
            Some((self.look(aim, &room, &mut tx).await.ok()?, tx))
        };
        tokio::time::timeout(LOOK_BESIDE_LIMIT, looking).await.ok()?
    }

    /// Chooses among what was seen.
    pub(crate) async fn claim_of(
        &self,
        aim: &Aim,
        Sight { limited, open, rows }: &Sight,
        changes: &mut Changes,
        tx: &mut Tx,
    ) -> Result<Claim, StoreError> {
        let claiming = Claiming { session: self, aim, limited, open };
        claiming.claim(rows, changes, tx).await
    }

    /// Asks what may still run, by a worker that holds so many tasks beside those that it reports.
    pub(crate) fn room(&self, held: usize) -> Question {
        Limited::question(&self.kinds(), self.heart.session, held)
    }

    /// Looks at what waits where that has room, by the answer to [`room`](Self::room).
    pub(crate) async fn look(&self, aim: &Aim, room: &[PgRow], tx: &mut Tx) -> Result<Sight, StoreError> {
        let limited = Limited::of(&self.store, room, tx).await?;
        let from = self.state().lines_from;
        let open = limited.open(aim.want, aim.reports, &aim.full, aim.suspects, from);
        let rows = self.heads(aim.want, &open, tx).await?;
        Ok(Sight { limited, open, rows })
    }

    /// The first tasks of the flows that a look visits.
    async fn heads(&self, want: usize, open: &Open, tx: &mut Tx) -> Result<Vec<PgRow>, StoreError> {
        let (kinds, session) = (self.kinds(), self.heart.session);
        let (percent, first): (i64, Vec<i64>) = {
            let mut state = self.state();
            state.lines_from = state.lines_from.wrapping_add(open.lines.len());
            let first = open.lines.iter().map(|line| state.first_in.get(line).copied().unwrap_or(i64::MIN));
            (READ_PERCENT + state.read_more, first.collect())
        };
        tx.call(|conn| {
            sqlx::query(LOOK)
                .bind(session)
                .bind(kinds)
                .bind(want as i64)
                .bind(percent)
                .bind(open.flows as i32)
                .bind(open.lines.iter().map(|line| line.class.code()).collect::<Vec<_>>())
                .bind(open.lines.iter().map(|line| line.kind.clone()).collect::<Vec<_>>())
                .bind(open.lines.iter().map(|line| line.peer.clone()).collect::<Vec<_>>())
                .bind(first)
                .bind(open.paused.clone())
                .bind(open.suspects)
                .bind(open.reserved.clone())
                .fetch_all(conn)
        })
        .await
    }

    /// Remembers below which virtual time nothing stands in each line, where that is known.
    pub(crate) fn remember_lines(&self, lines: &[Line], first: impl Fn(usize) -> Option<i64>) {
        let mut state = self.state();
        if state.first_in.len() + lines.len() > MAX_LINES_REMEMBERED {
            state.first_in.clear();
        }
        for (n, line) in lines.iter().enumerate() {
            if let Some(first) = first(n) {
                state.first_in.insert(line.clone(), first);
            }
        }
    }

    /// Reads more next time where this look stopped short, and slowly less again where it did not.
    pub(crate) fn learn(&self, stopped_short: bool) {
        let mut state = self.state();
        state.read_more = match stopped_short {
            true => (2 * (READ_PERCENT + state.read_more)).min(MAX_READ_PERCENT) - READ_PERCENT,
            false => state.read_more * 7 / 8,
        };
    }
}
