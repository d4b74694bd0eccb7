//! Turns that are made together. Where many sessions wait for the cell's lock, each for a turn of its own, a session writes
//! down what it asks for and waits for whoever gets the lock next of those who did the same: that one makes the turns of
//! all of them as one, and leaves them their answers. This is flat combining, with the database as the common memory.

use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::backoff::BackoffPolicy;
use tidegate_core::settlement::Ending;
use tidegate_core::submission::Cost;
use tidegate_core::{Fence, Reason, Status, TaskId};
use uuid::Uuid;

use crate::changes::flow_of;
use crate::claim::Claim;
use crate::connection::{LOCK, Tx};
use crate::error::StoreError;
use crate::question::{Opening, Question, Value};
use crate::records::fill;
use crate::seen::{Terms, claimed_of};
use crate::session::{Late, Session};
use crate::store::Store;
use crate::types::{Report, SessionSpec, Settled, Turn};

const POST: Opening = Opening { name: "tidegate_turn_post", sql: include_str!("turn_post.sql") };
const COLLECT: Opening = Opening { name: "tidegate_turn_collect", sql: include_str!("turn_collect.sql") };
const ANSWER: Opening = Opening { name: "tidegate_turn_answer", sql: include_str!("turn_answer.sql") };
const TELL: &str = include_str!("turn_tell.sql");
/// Takes the combiner's part, to the end of the transaction, if nobody has it; otherwise waits until whoever has it is done,
/// and does not take it. Tells which. Each combiner has a gate of its own, so that none waits for those who have passed the
/// one before and have not gone yet.
const WAIT: Opening = Opening {
    name: "tidegate_turn_wait",
    sql: "SELECT CASE WHEN pg_try_advisory_xact_lock(7235419582290411844) \
        THEN pg_advisory_xact_lock(1684632165, (nextval('tidegate.turn_gate') % 1000000000)::int) IS NOT NULL \
        ELSE pg_advisory_lock_shared(1684632165, g.n) IS NOT NULL AND NOT pg_advisory_unlock_shared(1684632165, g.n) END \
        FROM (SELECT (last_value % 1000000000)::int AS n FROM tidegate.turn_gate) g",
};
/// Takes a request back. Whoever is about to serve it is waited for.
const WITHDRAW: Opening = Opening {
    name: "tidegate_turn_withdraw",
    sql: "DELETE FROM tidegate.turn_request WHERE id = $1::uuid RETURNING true",
};
/// A request that never was served, or an answer that nobody took.
const FORGET: &str =
    "WITH r AS (DELETE FROM tidegate.turn_request WHERE id = $1) DELETE FROM tidegate.turn_answer WHERE id = $1";

/// What sessions that died have asked, and answers that nobody took.
const FORGET_OLD: &str = "WITH r AS (DELETE FROM tidegate.turn_request WHERE posted_ms < (SELECT tidegate.now_ms()) - $1 RETURNING 1), \
    a AS (DELETE FROM tidegate.turn_answer WHERE answered_ms < (SELECT tidegate.now_ms()) - $1 RETURNING 1) \
    SELECT (SELECT count(*) FROM r) + (SELECT count(*) FROM a)";
/// How old those are: nobody who lives waits so long.
const OLD_MS: i64 = 60_000;

/// The form of requests and answers: sessions of programs with another form are served apart.
const FORM: u8 = 1;
/// Most tasks that turns made together settle, and start.
const MOST: usize = 500;
/// Most tasks that one request settles or wants, and most bytes of its results. Larger turns are worth a lock of their own.
const MOST_OF_ONE: usize = 100;
const MOST_BYTES: usize = 16 * 1_024;
/// How old a request may be: whoever asked has given up by then, or is dead.
const FRESH_MS: i64 = 1_000;
/// From the so manyth time on that a session was alone, it asks again as seldom: every sixteenth time.
const MAX_ALONE: u32 = 4;
/// How long somebody waits for others before it goes by itself.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// What another session asked for, and who it is.
pub(crate) struct Guest {
    id: Uuid,
    pub(crate) session: Uuid,
    pub(crate) worker: String,
    pub(crate) want: usize,
    /// Whether slots of it are reserved.
    reserved: bool,
    pub(crate) reports: Vec<Report>,
}

/// Whether a session asks others to make its turns.
#[derive(Debug, Default)]
pub(crate) struct Contended {
    pub(crate) asks: bool,
    /// How many of its turns that waited long are made by itself all the same: it asked, and was alone. Whoever it waits for
    /// then is not another session.
    alone: u32,
    skips: u32,
}

impl Contended {
    /// A turn that was made by itself waited long, or did not.
    pub(crate) fn waited(&mut self, long: bool) {
        self.asks = long && self.skips == 0;
        self.skips = self.skips.saturating_sub(long.into());
    }

    /// A turn was made that others might have joined.
    fn led(&mut self, alone: bool) {
        self.asks = !alone;
        self.alone = if alone { (self.alone + 1).min(MAX_ALONE) } else { 0 };
        self.skips = (1 << self.alone) - 1;
    }
}

/// What a session waits for.
enum Said {
    /// To be the one who makes the turns.
    Leads,
    /// Its turn was made.
    Served(Vec<PgRow>),
    /// Somebody made turns, but not this one.
    Waits,
}

/// A number that is equal for sessions whose turns may be made together: they run the same kinds in the same way. None
/// for a session that counts what it runs of a kind.
pub(crate) fn alike(spec: &SessionSpec) -> Option<i64> {
    if !spec.at_once.is_empty() {
        return None;
    }
    let mut kinds: Vec<_> = spec.kinds.iter().map(|(kind, effects)| (kind.as_str(), effects.code())).collect();
    kinds.sort_unstable();
    let mut hash = Sha256::new();
    hash.update([FORM]);
    hash.update(spec.least_left_ms().to_be_bytes());
    for (kind, effects) in kinds {
        hash.update(kind.as_bytes());
        hash.update([0]);
        hash.update(effects.to_be_bytes());
    }
    hash.finalize().first_chunk().copied().map(i64::from_be_bytes)
}

/// Whether a request can say all of a report.
fn is_plain(report: &Report) -> bool {
    report.ending == Ending::Completed && report.result.is_some() && report.error.is_none()
}

impl Session {
    /// What this turn asks of others. None where it must be made by itself.
    fn request(&self, id: Uuid, reports: &[&Report], want: usize) -> Option<Question> {
        let alike = self.alike?;
        let bytes: usize = reports.iter().filter_map(|report| report.result.as_ref()).map(String::len).sum();
        let small = reports.len() <= MOST_OF_ONE && want <= MOST_OF_ONE && bytes <= MOST_BYTES;
        if !small || !reports.iter().all(|report| is_plain(report)) {
            return None;
        }
        let usage = |get: fn(Cost) -> u64| {
            Value::Numbers(reports.iter().map(|report| report.usage.map_or(-1, |usage| get(usage) as i64)).collect())
        };
        let results = reports.iter().filter_map(|report| report.result.clone()).collect();
        let values = [
            Value::Id(id),
            Value::Id(self.heart.session),
            Value::Number(alike),
            Value::Number(want as i64),
            Value::Number(self.held_beside(reports.len()) as i64),
            Value::Ids(reports.iter().map(|report| report.id.0).collect()),
            Value::Numbers(reports.iter().map(|report| report.fence.0).collect()),
            Value::Texts(results),
            usage(|usage| usage.tokens),
            usage(|usage| usage.usd_micros),
        ];
        Some(Question::new(&POST, values))
    }

    /// A turn that is made together with those of others who wait: by one of them, or by this session for them. None where
    /// that is not possible, or nobody came to it: then it must be made by itself, once what was asked is withdrawn.
    pub(crate) async fn turn_together(
        &self,
        reports: &[Report],
        want: usize,
        late: &mut Late<'_>,
    ) -> Result<Option<Turn>, StoreError> {
        let began = Instant::now();
        late.gather();
        let want = if want > 0 { want + late.told.len() } else { 0 };
        let id = Uuid::now_v7();
        let all: Vec<&Report> = reports.iter().chain(&late.told).collect();
        let Some(request) = self.request(id, &all, want) else { return Ok(None) };
        let wait = Question::new(&WAIT, []);
        let answer = Question::new(&ANSWER, [Value::Id(id), Value::Id(self.heart.session)]);
        // From here on, until it is known how it went, there may be leases that nobody here knows of.
        self.posts(Some(id));
        let Some((mut tx, mut rows)) = self.connections.begin_behind(&request, &[&wait, &answer]).await? else {
            self.posts(None);
            return Ok(None);
        };
        loop {
            match said(rows)? {
                Said::Served(rows) => return self.served(began, &all, &rows, tx).await.map(Some),
                Said::Leads => return self.lead(id, began, reports, want, late, tx).await.map(Some),
                Said::Waits if began.elapsed() < MAX_WAIT => rows = tx.run(&[&wait, &answer]).await?,
                Said::Waits => break,
            }
        }
        if tx.run(&[&Question::new(&WITHDRAW, [Value::Id(id)])]).await?.is_empty() {
            // It was served after all.
            let rows = tx.run(&[&answer]).await?;
            return self.served(began, &all, &rows, tx).await.map(Some);
        }
        tx.commit().await?;
        self.posts(None);
        Ok(None)
    }

    /// Makes this turn and those that wait. What ended while it came to its lock joins it.
    async fn lead(
        &self,
        id: Uuid,
        began: Instant,
        reports: &[Report],
        mut want: usize,
        late: &mut Late<'_>,
        mut tx: Tx,
    ) -> Result<Turn, StoreError> {
        let room = MOST.saturating_sub(want.max(reports.len() + late.told.len()));
        let alike = Value::Number(self.alike.unwrap_or_default());
        let collect = [Value::Id(id), alike, Value::Number(room as i64), Value::Number(FRESH_MS)];
        let rows = tx.run(&[&Question::new(&LOCK, []), &Question::new(&COLLECT, collect)]).await?;
        // The lock's row comes first.
        let guests = rows.iter().skip(1).map(guest).collect::<Result<Vec<_>, StoreError>>()?;
        let told = late.told.len();
        late.gather();
        if want > 0 {
            want += late.told.len() - told;
        }
        let own: Vec<&Report> = reports.iter().chain(&late.told).collect();
        let alone = guests.is_empty();
        let turn = self.turn_under(tx, Vec::new(), began, &own, want, Some(guests)).await?;
        self.state().contended.led(alone);
        Ok(turn)
    }

    /// Takes what another has made of this turn.
    async fn served(
        &self,
        began: Instant,
        reports: &[&Report],
        rows: &[PgRow],
        mut tx: Tx,
    ) -> Result<Turn, StoreError> {
        let first = rows.first().ok_or_else(|| StoreError::Schema("an answer without rows".into()))?;
        let settled: Vec<String> = first.try_get("settled")?;
        let settled = settled.iter().map(|settled| settled_of(settled)).collect::<Result<Vec<_>, StoreError>>()?;
        let again_in: Option<i64> = first.try_get("again_in_ms")?;
        let again_in = again_in.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
        let (more, now) = (first.try_get("more")?, first.try_get("now_ms")?);
        let reserved: bool = first.try_get("reserved")?;
        let mut flow_ids = Vec::new();
        for row in rows {
            flow_ids.extend(row.try_get::<Option<i64>, _>(4)?);
        }
        flow_ids.dedup();
        let flows = self.store.directory.describe(&mut tx, flow_ids.into_iter()).await?;
        let (mut claimed, mut found) = (Vec::new(), Vec::new());
        for row in rows {
            let Some(flow) = row.try_get::<Option<i64>, _>(4)? else { continue };
            let (id, terms) = (TaskId(row.try_get(5)?), Terms::at(row, 6)?);
            let mut task = claimed_of(&terms, id, &*flow_of(&flows, flow)?, terms.deliveries, now)?;
            found.push(row.try_get::<Option<Uuid>, _>(14)?.is_some() && fill(&mut task, row, 15).is_ok());
            claimed.push(task);
        }
        // What was made stands already; only the answer is taken away with this.
        if let Err(error) = tx.commit().await {
            tracing::debug!(%error, "an answer could not be taken away");
        }
        let claimed = self.runnable(claimed, Ok(found)).await?;
        self.let_go(reports);
        metrics::histogram!("tidegate_turn_seconds").record(began.elapsed().as_secs_f64());
        self.holds(&claimed);
        self.posts(None);
        // Only a turn of its own fills slots that are reserved.
        self.state().contended.asks = !reserved;
        Ok(Turn { settled, claimed, more, again_in })
    }

    /// Remembers what is asked of others, and that there may be leases nobody knows of; or that it is known how it went.
    pub(crate) fn posts(&self, id: Option<Uuid>) {
        let mut state = self.state();
        state.posted = id;
        state.unsure = id.is_some();
    }

    /// Takes back what was asked of others and has not been answered, in a transaction that holds the cell's row: from then
    /// on nobody makes that turn. Whether somebody has made it, the leases tell.
    pub(crate) async fn withdraw(&self, tx: &mut Tx) -> Result<(), StoreError> {
        let posted = self.state().posted;
        if let Some(id) = posted {
            tx.call(|conn| sqlx::query(FORGET).bind(id).execute(conn)).await?;
        }
        Ok(())
    }
}

impl Store {
    /// Forgets what sessions that died have asked of others, and answers that nobody took. Returns how many.
    pub async fn forget_turns(&self) -> Result<i64, StoreError> {
        let rows = self.read(sqlx::query(FORGET_OLD).bind(OLD_MS)).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(0))
    }
}

/// Leaves guests their answers.
pub(crate) async fn tell(guests: &[Guest], settled: &[Settled], claim: &Claim, tx: &mut Tx) -> Result<(), StoreError> {
    if guests.is_empty() {
        return Ok(());
    }
    let mut rest = settled;
    let mut texts = Vec::with_capacity(guests.len());
    for guest in guests {
        let (own, others) = rest.split_at(guest.reports.len().min(rest.len()));
        rest = others;
        texts.push(format!("{{{}}}", own.iter().map(text_of).collect::<Vec<_>>().join(",")));
    }
    let none = Vec::new();
    let claimed = (0..guests.len()).map(|guest| {
        let ids: Vec<String> = claim.of_guests.get(guest).unwrap_or(&none).iter().map(Uuid::to_string).collect();
        format!("{{{}}}", ids.join(","))
    });
    let query = sqlx::query(TELL)
        .bind(guests.iter().map(|guest| guest.id).collect::<Vec<_>>())
        .bind(texts)
        .bind(claimed.collect::<Vec<_>>())
        .bind(guests.iter().map(|guest| guest.reserved).collect::<Vec<_>>())
        .bind(claim.more)
        .bind(claim.again_in.map(|again_in| again_in.as_millis() as i64));
    tx.call(|conn| query.execute(conn)).await.map(drop)
}

/// What the rows of [`WAIT`] and [`ANSWER`] say.
fn said(mut rows: Vec<PgRow>) -> Result<Said, StoreError> {
    let leads: bool = rows.first().ok_or_else(|| StoreError::Schema("no word of a turn".into()))?.try_get(0)?;
    drop(rows.drain(..1));
    Ok(match (leads, rows.is_empty()) {
        // It may have been served just before it came to lead.
        (_, false) => Said::Served(rows),
        (true, true) => Said::Leads,
        (false, true) => Said::Waits,
    })
}

fn guest(row: &PgRow) -> Result<Guest, StoreError> {
    let (ids, fences): (Vec<Uuid>, Vec<i64>) = (row.try_get("task_ids")?, row.try_get("fences")?);
    let results: Vec<String> = row.try_get("results")?;
    let (tokens, usd): (Vec<i64>, Vec<i64>) = (row.try_get("tokens")?, row.try_get("usd_micros")?);
    let used = tokens.into_iter().zip(usd).map(|(tokens, usd_micros)| {
        Some(Cost { tokens: u64::try_from(tokens).ok()?, usd_micros: u64::try_from(usd_micros).ok()? })
    });
    let reports = ids.into_iter().zip(fences).zip(results).zip(used).map(|(((id, fence), result), usage)| Report {
        id: TaskId(id),
        fence: Fence(fence),
        ending: Ending::Completed,
        result: Some(result),
        error: None,
        usage,
        backoff: BackoffPolicy::default(),
    });
    let want: i64 = row.try_get("may")?;
    Ok(Guest {
        id: row.try_get("id")?,
        session: row.try_get("session_id")?,
        worker: row.try_get("worker")?,
        reserved: row.try_get("reserved")?,
        want: usize::try_from(want).unwrap_or(0),
        reports: reports.collect(),
    })
}

/// How an answer spells what became of a report.
fn text_of(settled: &Settled) -> String {
    match settled {
        Settled::Ended(status) => status.as_str().to_owned(),
        Settled::Returned(reason) => format!("returned:{}", reason.as_str()),
        Settled::LeaseLost => "lease_lost".to_owned(),
    }
}

fn settled_of(text: &str) -> Result<Settled, StoreError> {
    let known = match (text, text.strip_prefix("returned:")) {
        ("lease_lost", _) => Some(Settled::LeaseLost),
        (_, Some(reason)) => Reason::parse(reason).map(Settled::Returned),
        _ => Status::parse(text).map(Settled::Ended),
    };
    known.ok_or_else(|| StoreError::Schema(format!("an answer that says {text}")))
}

#[cfg(test)]
mod tests {
    use tidegate_core::Kind;
    use tidegate_core::kind_policy::Effects;

    use super::*;

    fn spec(kinds: &[(&str, Effects)]) -> SessionSpec {
        let kinds = kinds.iter().map(|(name, effects)| (Kind::parse(name).expect("a kind"), *effects)).collect();
        SessionSpec {
            worker: "w".into(),
            kinds,
            at_once: Default::default(),
            slots: 4,
            lease: Duration::from_secs(15),
            settle_reserve: Duration::from_millis(50),
        }
    }

    #[test]
    fn answers_say_what_became_of_every_report() {
        let all = Status::ALL.into_iter().map(Settled::Ended);
        let all = all.chain(Reason::ALL.iter().copied().map(Settled::Returned)).chain([Settled::LeaseLost]);
        for settled in all {
            assert_eq!(settled_of(&text_of(&settled)).expect("known"), settled);
        }
        for bad in ["", "completed", "returned:", "returned:COMPLETED", "LEASE_LOST"] {
            assert!(settled_of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn whoever_asks_and_is_alone_asks_ever_more_seldom() {
        let mut contended = Contended::default();
        let asked: Vec<usize> = (0..60)
            .filter(|_| {
                let asks = contended.asks;
                if asks {
                    contended.led(true)
                } else {
                    contended.waited(true)
                }
                asks
            })
            .collect();
        assert_eq!(asked, [1, 4, 9, 18, 35, 52]);
        contended.led(false);
        assert!(contended.asks && contended.skips == 0);
        contended.waited(false);
        assert!(!contended.asks);
        contended.waited(true);
        assert!(contended.asks);
    }

    #[test]
    fn sessions_are_alike_that_run_the_same_kinds_in_the_same_way() {
        let one = spec(&[("a", Effects::None), ("b", Effects::Once)]);
        let same = spec(&[("b", Effects::Once), ("a", Effects::None)]);
        assert!(alike(&one).is_some());
        assert_eq!(alike(&one), alike(&SessionSpec { worker: "other".into(), slots: 64, ..same }));
        for other in [
            spec(&[("a", Effects::None)]),
            spec(&[("a", Effects::None), ("b", Effects::None)]),
            spec(&[("ab", Effects::None), ("b", Effects::Once)]),
            SessionSpec { settle_reserve: Duration::from_millis(51), ..one.clone() },
        ] {
            assert_ne!(alike(&one), alike(&other), "{other:?}");
        }
        let at_once = [(Kind::parse("a").expect("a kind"), 1)].into();
        assert_eq!(alike(&SessionSpec { at_once, ..one }), None);
    }
}
