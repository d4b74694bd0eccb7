//! A worker's session: one boot of one process, its turns (settle and claim in one transaction) and its heartbeat.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::admission::tokens_bucket;
use tidegate_core::backoff::BackoffPolicy;
use tidegate_core::kind_policy::Effects;
use tidegate_core::peer::PeerLimits;
use tidegate_core::settlement::Ending;
use tidegate_core::{EpochMs, Fence, Kind, Reason, TaskId};
use uuid::Uuid;

use crate::bell::Topic;
use crate::changes::{Changes, Leavings, Released, flow_of};
use crate::claim::{Claim, Claiming};
use crate::claim_room::{Limited, Line, Open};
use crate::connection::{Connections, Tx, call};
use crate::error::StoreError;
use crate::heart::Heart;
use crate::hold;
use crate::ledger::Rings;
use crate::permits::end_with_leases;
use crate::released::{REPORT, token_shift};
use crate::seen::{Terms, claimed_of, fill};
use crate::store::{Store, StoreInner};
use crate::types::{Claimed, Report, SessionId, SessionSpec, Settled, TaskError, Turn};
use crate::work_bell::WorkBell;

const RELEASE: &str = include_str!("release.sql");
const LOOK: &str = include_str!("look.sql");
const ANY_WORK: &str = "SELECT coalesce((SELECT u.running > $3 FROM tidegate.usage u \
        WHERE u.scope = 5 AND u.key = ($2::uuid)::text ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1), false) \
    OR EXISTS (SELECT FROM tidegate.active_flow a \
        CROSS JOIN LATERAL (SELECT u.queued FROM tidegate.flow_usage u WHERE u.flow_id = a.flow_id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1) u \
        WHERE a.kind = ANY($1) AND NOT a.parked AND a.lane <> 0 AND u.queued > 0)";
const RECORDS: &str = "SELECT t.id, t.payload, t.traceparent, t.depth, t.fanout, t.tokens, t.usd_micros FROM unnest($1::uuid[]) AS d(id) \
    JOIN tidegate.task t ON t.id = d.id";
const HELD: &str = "SELECT tidegate.now_ms() AS now_ms, l.flow_id, l.task_id, l.deadline_ms, l.attempt_timeout_ms, l.tokens, l.usd_micros, l.bytes, \
    l.deliveries, l.failures, l.max_attempts FROM tidegate.lease l WHERE l.session_id = $1";
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
/// How often the records of claimed tasks are asked for before the session is given up.
const MAX_RECORD_TRIES: u32 = 3;

/// A worker's session. Dropping it lets its leases run out; [`Session::close`] ends it at once.
pub struct Session {
    pub(crate) store: Arc<StoreInner>,
    /// Turns have a connection of their own.
    connections: Connections,
    /// And so have the permits of calls.
    pub(crate) calls: Connections,
    pub(crate) heart: Heart,
    pub(crate) spec: SessionSpec,
    pub(crate) effects: HashMap<String, Effects>,
    state: Mutex<State>,
}

/// What ended while a turn waited for the cell's lock.
struct Late<'a> {
    ask: Option<&'a (dyn Fn() -> Vec<Report> + Sync)>,
    told: Vec<Report>,
}

impl Late<'_> {
    fn none() -> Self {
        Self { ask: None, told: Vec::new() }
    }

    fn gather(&mut self) {
        if let Some(ask) = self.ask {
            self.told.append(&mut ask());
        }
    }
}

#[derive(Default)]
struct State {
    /// What this process knows to hold, of which kind, and whether it is a suspect.
    held: HashMap<(TaskId, Fence), (Kind, bool)>,
    /// A transaction broke while committing, or its records could not be read: there may be leases nobody knows of.
    unsure: bool,
    /// The virtual time below which nothing stands in a line, as far as this session knows: what comes into a line stands
    /// no more than [`MAX_BELOW_FLOOR_US`](crate::claim_room::MAX_BELOW_FLOOR_US) below the floor of its class, and
    /// floors only rise.
    first_in: HashMap<Line, i64>,
    /// Which lines come first where there are more than a look visits.
    lines_from: usize,
    /// How much of what is wanted a look reads, above [`READ_PERCENT`]. Grows where looks stop short.
    read_more: i64,
}

impl Store {
    /// Registers a worker. Its id is new at each call, so a restarted worker never takes a dead one's place.
    pub async fn open_session(&self, spec: SessionSpec) -> Result<Session, StoreError> {
        let session = Uuid::now_v7();
        let kinds: Vec<String> = spec.kinds.iter().map(|(kind, _)| kind.as_str().to_owned()).collect();
        let open = "WITH n AS MATERIALIZED (SELECT tidegate.now_ms() AS now_ms), s AS (INSERT INTO tidegate.session (id, worker, kinds, slots, lease_ms, started_ms) \
            SELECT $1, $2, $3, $4, $5, now_ms FROM n) \
            , u AS (INSERT INTO tidegate.usage (scope, key) VALUES (5, $1::text)) \
            INSERT INTO tidegate.heartbeat (session_id, expires_ms) SELECT $1, now_ms + $5 FROM n";
        let connections = Connections::new(self.options(), 1)?;
        let mut conn = connections.get().await?;
        let lease_ms = spec.lease.as_millis() as i64;
        let query = sqlx::query(open)
            .bind(session)
            .bind(spec.worker.clone())
            .bind(kinds)
            .bind(spec.slots as i32)
            .bind(lease_ms);
        call(connections.call_timeout(), query.execute(&mut *conn)).await?;
        conn.release();
        let heart = Heart { connections: Connections::new(self.options(), 1)?, session, lease: spec.lease };
        let effects = spec.kinds.iter().map(|(kind, effects)| (kind.as_str().to_owned(), *effects)).collect();
        let calls = Connections::new(self.options(), 1)?;
        Ok(Session { store: self.inner(), connections, calls, heart, spec, effects, state: Mutex::default() })
    }

    /// Waits until there may be work to claim: the doorbell rang, or `max` is over. The first call after some time
    /// returns at once, to look again after having been put on the list of those who wait.
    pub async fn wait_for_work(&self, bell: &mut WorkBell, max: Duration) {
        bell.wait(max).await;
    }

    /// A bell that is rung when there may be work. Rings from now on are heard.
    pub fn work_bell(&self) -> WorkBell {
        WorkBell { heard: self.inner().bells.hear(Topic::Work), listed: None, store: self.inner() }
    }

    /// A bell that is rung when a cancel was asked of some running task.
    pub fn cancel_bell(&self) -> tokio::sync::watch::Receiver<u64> {
        self.inner().bells.hear(Topic::Cancel)
    }
}

impl Session {
    /// The session's id.
    pub fn id(&self) -> SessionId {
        SessionId(self.heart.session)
    }

    /// The heartbeat.
    pub fn heart(&self) -> Heart {
        self.heart.clone()
    }

    /// One transaction that settles what ended and claims at most `want` tasks. Call it again only when it returned.
    ///
    /// On an error nothing is known to have been settled: hand the same reports in again. A report whose lease is
    /// gone by then changes nothing.
    pub async fn turn(&self, reports: &[Report], want: usize) -> Result<Turn, StoreError> {
        self.turn_with(reports, want, &mut Late::none()).await
    }

    /// The same, and what ended while it came to its turn at the cell's lock: `late` is asked for that once the lock
    /// is there, and must not block. If anything is wanted, as many tasks more are claimed. What `late` gave is put
    /// behind the reports, on an error too.
    pub async fn turn_gathering(
        &self,
        reports: &mut Vec<Report>,
        want: usize,
        late: &(dyn Fn() -> Vec<Report> + Sync),
    ) -> Result<Turn, StoreError> {
        let mut late = Late { ask: Some(late), told: Vec::new() };
        let turned = self.turn_with(reports, want, &mut late).await;
        reports.append(&mut late.told);
        turned
    }

    async fn turn_with(&self, reports: &[Report], want: usize, late: &mut Late<'_>) -> Result<Turn, StoreError> {
        let mut claimed = if self.state().unsure { self.recover().await? } else { Vec::new() };
        let want = want.saturating_sub(claimed.len());
        let mut tries = self.store.tries();
        let turned = loop {
            match self.try_turn(reports, want, late).await {
                Err(error) if tries.again(&error) => {}
                turned => break turned,
            }
        };
        match turned {
            Ok(mut turn) => {
                turn.claimed.append(&mut claimed);
                Ok(turn)
            }
            Err(error) if !claimed.is_empty() => {
                // What was found again must not be lost for a failure that came after.
                tracing::warn!(%error, "a turn failed");
                Err(self.forget(claimed, error))
            }
            Err(error) => Err(error),
        }
    }

    async fn try_turn(&self, reports: &[Report], want: usize, late: &mut Late<'_>) -> Result<Turn, StoreError> {
        if reports.is_empty() && late.told.is_empty() && (want == 0 || !self.any_work().await?) {
            return Ok(Turn::default());
        }
        let began = Instant::now();
        let mut tx = self.connections.begin(true).await?;
        let kinds = self.kinds();
        // What is reported may be settled already, by a turn whose end was not seen.
        let (session, held) =
            (self.heart.session, self.state().held.len().saturating_sub(reports.len() + late.told.len()));
        let limited = match want {
            0 => None,
            _ => Some(Limited::read(&self.store, &kinds, session, held, &mut tx).await?),
        };
        late.gather();
        let want = if want > 0 { want + late.told.len() } else { 0 };
        let reports: Vec<&Report> = reports.iter().chain(&late.told).collect();
        let of_kinds = self.left_of_kinds(&reports);
        let full: Vec<String> = of_kinds.iter().filter(|(_, left)| *left <= 0).map(|(kind, _)| kind.clone()).collect();
        let suspects = self.may_take_suspect(&reports);
        let from = self.state().lines_from;
        let open = limited
            .as_ref()
            .map(|limited| limited.open(want, reports.len(), &full, suspects, from))
            .unwrap_or_default();
        let mut changes = Changes::default();
        let (mut settled, mut now) = (vec![Settled::LeaseLost; reports.len()], None);
        let mut beside = None;
        if !reports.is_empty() {
            let settling = self.settle(&reports, &mut settled, &mut changes, &mut tx);
            let (settled_at, looked) = tokio::join!(settling, self.look_beside(want, reports.len(), &open));
            (now, beside) = (settled_at?, looked);
        }
        let mut claim = Claim::default();
        if let Some(limited) = &limited {
            let looked = beside.as_mut().map(|beside| std::mem::take(&mut beside.1));
            let claiming = Claiming { session: self, want, limited, open: &open, of_kinds: &of_kinds };
            claim = claiming.claim(looked, &mut changes, &mut tx).await?;
            now = Some(now.unwrap_or(claim.now));
        }
        let claimed = std::mem::take(&mut claim.tasks);
        let (more, again_in) = (claim.more, claim.again_in);
        let ended = settled.iter().any(|settled| matches!(settled, Settled::Ended(_)));
        let (Some(now), false) = (now, changes.is_empty()) else {
            tokio::join!(tx.rollback(), end_reading(beside));
            self.let_go(&reports);
            return Ok(Turn { settled, claimed: Vec::new(), more, again_in });
        };
        let written = async {
            let rings = changes.write(&self.store, &mut tx, now).await?;
            self.state().unsure = true;
            tx.commit().await.map(|()| rings)
        };
        // The records have been there since admission: they are read meanwhile, and matter only if the commit succeeds.
        let (rings, records, ()) = tokio::join!(written, self.try_read_records(&claimed), end_reading(beside));
        let rings = rings?;
        let more = more || rings.unparked;
        self.ring(rings, ended, &settled);
        claim.tell();
        metrics::histogram!("tidegate_turn_seconds").record(began.elapsed().as_secs_f64());
        metrics::histogram!("tidegate_turn_settled_tasks").record(reports.len() as f64);
        metrics::histogram!("tidegate_turn_claimed_tasks").record(claimed.len() as f64);
        let claimed = self.read_records(claimed, records).await?;
        self.let_go(&reports);
        let mut state = self.state();
        state.held.extend(claimed.iter().map(held_of));
        state.unsure = false;
        Ok(Turn { settled, claimed, more, again_in })
    }

    /// What was reported is held no more, whatever became of it.
    fn let_go(&self, reports: &[&Report]) {
        let mut state = self.state();
        for report in reports {
            state.held.remove(&(report.id, report.fence));
        }
    }

    fn ring(&self, rings: Rings, ended: bool, settled: &[Settled]) {
        if ended {
            self.store.bells.ring(Topic::Ended, rings.readers);
        }
        if rings.peers {
            self.store.bells.ring(Topic::Permit, false);
        }
        if settled.iter().any(|settled| matches!(settled, Settled::Returned(_))) {
            self.store.bells.ring(Topic::Returned, false);
        }
    }

    /// Whether something waits that this worker runs, or slots of it are reserved, seen without a lock.
    async fn any_work(&self) -> Result<bool, StoreError> {
        let kinds = self.kinds();
        let mut conn = self.connections.get().await?;
        let held = self.state().held.len() as i64;
        let query = sqlx::query_scalar(ANY_WORK).bind(kinds).bind(self.heart.session).bind(held);
        let any = call(self.connections.call_timeout(), query.fetch_one(&mut *conn)).await;
        match any {
            Ok(any) => {
                conn.release();
                Ok(any)
            }
            // The connection may have died while it waited: the transaction will tell.
            Err(StoreError::Unavailable(_)) if conn.reused() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// How many more tasks of the kinds that this worker limits it may run, once these have ended.
    fn left_of_kinds(&self, ending: &[&Report]) -> Vec<(String, i64)> {
        if self.spec.at_once.is_empty() {
            return Vec::new();
        }
        let state = self.state();
        let runs = |kind: &Kind| state.held.values().filter(|(of, _)| of == kind).count() as i64;
        let ends = |kind: &Kind| {
            let kinds = ending.iter().filter_map(|report| state.held.get(&(report.id, report.fence)));
            kinds.filter(|(of, _)| of == kind).count() as i64
        };
        let limits = self.spec.at_once.iter();
        limits.map(|(kind, most)| (kind.as_str().to_owned(), i64::from(*most) - runs(kind) + ends(kind))).collect()
    }

    /// Whether this worker may take a task that was lost twice: it runs no other, once these have ended.
    fn may_take_suspect(&self, ending: &[&Report]) -> bool {
        let state = self.state();
        !state.held.iter().any(|((id, fence), (_, suspect))| {
            *suspect && !ending.iter().any(|report| report.id == *id && report.fence == *fence)
        })
    }

    fn kinds(&self) -> Vec<String> {
        self.spec.kinds.iter().map(|(kind, _)| kind.as_str().to_owned()).collect()
    }

    /// Takes the leases of the reports away and decides what becomes of each task.
    async fn settle(
        &self,
        reports: &[&Report],
        settled: &mut [Settled],
        changes: &mut Changes,
        tx: &mut Tx,
    ) -> Result<Option<EpochMs>, StoreError> {
        let ids: Vec<Uuid> = reports.iter().map(|report| report.id.0).collect();
        let fences: Vec<i32> = reports.iter().map(|report| i32::try_from(report.fence.0).unwrap_or(-1)).collect();
        let rows = tx.call(|conn| sqlx::query(RELEASE).bind(ids).bind(fences).fetch_all(conn)).await?;
        let flow_ids = rows.iter().map(|row| row.try_get(2)).collect::<Result<Vec<i64>, _>>()?;
        let flows = self.store.directory.describe(tx, flow_ids.into_iter()).await?;
        let policy = self.store.policy();
        let budgets = self.retry_budgets(reports, &rows, &flows, tx).await?;
        let (mut now, mut permits) = (None, Vec::new());
        for row in &rows {
            let n: i64 = row.try_get(REPORT)?;
            let at: EpochMs = row.try_get(0)?;
            now = Some(at);
            let report = &reports[(n - 1) as usize];
            let mut released = Released::from_row(row)?;
            permits.extend(released.permit_owner());
            let key = flow_of(&flows, released.flow)?;
            released.running.may_retry = budgets.has_token(&key, changes.ledger());
            changes.correct(&released, &key, policy.tenant(&key.tenant).weight, at);
            self.store.runs.charge(&key.tenant, &key.kind, at - released.started());
            let leavings = Leavings { result: report.result.clone(), error: report.error.clone(), usage: report.usage };
            let random = rand::random_range(0.0..1.0);
            if matches!(report.ending, Ending::Completed) {
                self.store.runs.record(&key.kind, at - released.started());
            }
            let estimated = released.tokens();
            settled[(n - 1) as usize] = changes.settle(
                released,
                &key,
                report.ending,
                leavings,
                Some(&self.spec.worker),
                report.backoff,
                at,
                random,
            );
            if let Some(usage) = report.usage {
                // The estimate was taken at the door, once: it is given back with the last attempt, not with each.
                let taken = matches!(settled[(n - 1) as usize], Settled::Ended(_)).then_some(estimated).unwrap_or(0);
                let shift = token_shift(tokens_bucket(policy.tenant(&key.tenant)), taken, usage.tokens);
                changes.reconcile(&key.tenant, shift);
                // A peer is sent what the attempt is expected to use, each time.
                let bucket = policy.peer(&key.peer).and_then(PeerLimits::tokens);
                changes.served().draw_peer(&key.peer, 0, token_shift(bucket, estimated, usage.tokens));
            }
        }
        end_with_leases(permits, changes, tx).await?;
        Ok(now)
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

    /// Looks in a transaction of its own while this turn's holds the cell's row and takes leases away. It sees what a look
    /// in the turn's would: where tasks wait changes under that row alone, whoever held it before has committed
    /// where its snapshot is taken, and leases are not among what it reads. Were the row lost meanwhile, the turn could
    /// not commit. Nothing where the reports are few, no connection is at hand, or it fails: then the turn looks itself.
    async fn look_beside(&self, want: usize, reports: usize, open: &Open) -> Option<(Tx, Vec<PgRow>)> {
        if want == 0 || reports < LOOK_BESIDE_FROM {
            return None;
        }
        let looking = async {
            let mut tx = self.store.connections.begin_at_hand().await?;
            let rows = self.look(want, open, &mut tx).await.ok()?;
            Some((tx, rows))
        };
        tokio::time::timeout(LOOK_BESIDE_LIMIT, looking).await.ok()?
    }

    pub(crate) async fn look(&self, want: usize, open: &Open, tx: &mut Tx) -> Result<Vec<PgRow>, StoreError> {
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

    /// Reads the payloads of claimed tasks, outside every lock.
    async fn read_records(
        &self,
        claimed: Vec<Claimed>,
        first: Result<Vec<PgRow>, StoreError>,
    ) -> Result<Vec<Claimed>, StoreError> {
        let mut rows = first;
        for _ in 1..MAX_RECORD_TRIES {
            match &rows {
                Err(error) if error.is_transient() => rows = self.try_read_records(&claimed).await,
                _ => break,
            }
        }
        let rows = rows?;
        let mut records: HashMap<Uuid, PgRow> = HashMap::with_capacity(rows.len());
        for row in rows {
            records.insert(row.try_get(0)?, row);
        }
        let mut readable = Vec::with_capacity(claimed.len());
        for mut task in claimed {
            match records.get(&task.id.0).map(|row| fill(&mut task, row)) {
                Some(Ok(())) if self.is_held(&task) => {
                    // It was held while it waited, and the sweep over what waits has not come to it.
                    let message = "the input is held: it has cost several workers".into();
                    self.give_up(&task, "quarantined", message, Some(Reason::Quarantined)).await;
                }
                Some(Ok(())) => readable.push(task),
                _ => self.give_up(&task, "record_missing", "the record is gone".into(), None).await,
            }
        }
        Ok(readable)
    }

    /// Whether a claimed task's input is held.
    fn is_held(&self, task: &Claimed) -> bool {
        let now = task.deadline_ms - task.remaining.as_millis() as i64;
        hold::is_held(&self.store.policy(), task.kind.as_str(), task.tenant.as_str(), &task.payload, now)
    }

    /// A claimed task that cannot be run, or must not: its lease and what it holds are given back.
    async fn give_up(&self, task: &Claimed, kind: &str, message: String, reason: Option<Reason>) {
        let error = TaskError { kind: kind.to_owned(), message, retryable: false };
        let report = Report {
            id: task.id,
            fence: task.fence,
            ending: Ending::Failed { retryable: false, retry_after_ms: None, reason },
            result: None,
            error: Some(error),
            usage: None,
            backoff: BackoffPolicy::default(),
        };
        if let Err(error) = Box::pin(self.try_turn(&[report], 0, &mut Late::none())).await {
            tracing::error!(task.id = %task.id, %error, "a task without a record could not be given up");
        }
    }

    async fn try_read_records(&self, claimed: &[Claimed]) -> Result<Vec<PgRow>, StoreError> {
        if claimed.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<Uuid> = claimed.iter().map(|task| task.id.0).collect();
        let connections = &self.store.connections;
        let mut conn = connections.get().await?;
        let rows = call(connections.call_timeout(), sqlx::query(RECORDS).bind(ids).fetch_all(&mut *conn)).await?;
        conn.release();
        Ok(rows)
    }

    /// Finds leases of this session that nobody here knows of, after a commit whose end was not seen.
    async fn recover(&self) -> Result<Vec<Claimed>, StoreError> {
        let mut tx = self.connections.begin(true).await?;
        let rows = tx.call(|conn| sqlx::query(HELD).bind(self.heart.session).fetch_all(conn)).await?;
        let mut flow_ids = Vec::new();
        for row in &rows {
            flow_ids.push(row.try_get::<i64, _>(1)?);
        }
        let flows = self.store.directory.describe(&mut tx, flow_ids.into_iter()).await?;
        tx.rollback().await;
        let mut found = Vec::new();
        for row in &rows {
            let (id, terms) = (TaskId(row.try_get(2)?), Terms::at(row, 3)?);
            if !self.state().held.contains_key(&(id, Fence(i64::from(terms.deliveries)))) {
                let key = flow_of(&flows, row.try_get(1)?)?;
                found.push(claimed_of(&terms, id, &key, terms.deliveries, row.try_get(0)?)?);
            }
        }
        let records = self.try_read_records(&found).await;
        let found = self.read_records(found, records).await?;
        let mut state = self.state();
        state.held.extend(found.iter().map(held_of));
        state.unsure = false;
        Ok(found)
    }

    fn forget(&self, claimed: Vec<Claimed>, error: StoreError) -> StoreError {
        let mut state = self.state();
        for task in &claimed {
            state.held.remove(&(task.id, task.fence));
        }
        state.unsure = true;
        error
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the session. What it still holds counts as lost.
    pub async fn close(&self) -> Result<(), StoreError> {
        // What it still holds is found by its expired heartbeat.
        let sql = "WITH h AS (UPDATE tidegate.heartbeat SET expires_ms = 0 WHERE session_id = $1 \
                AND EXISTS (SELECT FROM tidegate.lease l WHERE l.session_id = $1)), \
            d AS (DELETE FROM tidegate.heartbeat WHERE session_id = $1 \
                AND NOT EXISTS (SELECT FROM tidegate.lease l WHERE l.session_id = $1)), \
            w AS (DELETE FROM tidegate.waiting WHERE process = $2 AND role = 0) \
            DELETE FROM tidegate.session WHERE id = $1";
        let mut conn = self.connections.get().await?;
        let query = sqlx::query(sql).bind(self.heart.session).bind(self.store.process);
        call(self.connections.call_timeout(), query.execute(&mut *conn)).await?;
        conn.release();
        Ok(())
    }
}

fn held_of(task: &Claimed) -> ((TaskId, Fence), (Kind, bool)) {
    ((task.id, task.fence), (task.kind.clone(), task.suspect))
}

async fn end_reading(beside: Option<(Tx, Vec<PgRow>)>) {
    if let Some((tx, _)) = beside {
        tx.rollback().await;
    }
}
