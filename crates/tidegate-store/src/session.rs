//! A worker's session: one boot of one process, its turns (settle and claim in one transaction) and its heartbeat.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::Row;
use tidegate_core::admission::tokens_bucket;
use tidegate_core::kind_policy::Effects;
use tidegate_core::peer::PeerLimits;
use tidegate_core::settlement::Ending;
use tidegate_core::{EpochMs, Fence, Kind, TaskId};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::bell::Topic;
use crate::changes::{Changes, Leavings, Released, flow_of};
use crate::claim::Claim;
use crate::claim_room::Line;
use crate::connection::{Connections, Tx, call};
use crate::error::StoreError;
use crate::heart::Heart;
use crate::ledger::Rings;
use crate::look::{Aim, Beside, end_looking, looks_beside};
use crate::permits::end_with_leases;
use crate::released::{REPORT, REPORT_OF_KNOWN, token_shift};
use crate::seen::{Terms, claimed_of};
use crate::store::{Store, StoreInner};
use crate::types::{Claimed, Report, SessionId, SessionSpec, Settled, Turn};
use crate::work_bell::WorkBell;

const RELEASE: &str = include_str!("release.sql");
const RELEASE_KNOWN: &str = include_str!("release_known.sql");
const ANY_WORK: &str = "SELECT coalesce((SELECT u.running > $3 FROM tidegate.usage u \
        WHERE u.scope = 5 AND u.key = ($2::uuid)::text ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1), false) \
    OR EXISTS (SELECT FROM tidegate.active_flow a \
        CROSS JOIN LATERAL (SELECT u.queued FROM tidegate.flow_usage u WHERE u.flow_id = a.flow_id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1) u \
        WHERE a.kind = ANY($1) AND NOT a.parked AND a.lane <> 0 AND u.queued > 0)";
const HELD: &str = "SELECT tidegate.now_ms() AS now_ms, l.flow_id, l.task_id, l.deadline_ms, l.attempt_timeout_ms, l.tokens, l.usd_micros, l.bytes, \
    l.deliveries, l.failures, l.max_attempts FROM tidegate.lease l WHERE l.session_id = $1";

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

/// What a turn has decided, before it is written.
struct Finish<'a> {
    began: Instant,
    reports: &'a [&'a Report],
    settled: Vec<Settled>,
    changes: Changes,
    claim: Claim,
    now: Option<EpochMs>,
    beside: Option<Beside>,
}

/// What a turn has settled, and claimed where it has looked.
#[derive(Default)]
struct Done {
    changes: Changes,
    now: Option<EpochMs>,
    claim: Option<Claim>,
    beside: Option<Beside>,
}

/// What ended while a turn waited for the cell's lock.
pub(crate) struct Late<'a> {
    ask: Option<&'a (dyn Fn() -> Vec<Report> + Sync)>,
    told: Vec<Report>,
}

impl Late<'_> {
    pub(crate) fn none() -> Self {
        Self { ask: None, told: Vec::new() }
    }

    fn gather(&mut self) {
        if let Some(ask) = self.ask {
            self.told.append(&mut ask());
        }
    }
}

/// A lease that this process knows to hold.
struct Held {
    kind: Kind,
    suspect: bool,
    /// What it will be when it is taken away; nothing where it was found again.
    lease: Option<Released>,
}

#[derive(Default)]
pub(crate) struct State {
    /// What this process knows to hold.
    held: HashMap<(TaskId, Fence), Held>,
    /// A transaction broke while committing, or its records could not be read: there may be leases nobody knows of.
    unsure: bool,
    /// The virtual time below which nothing stands in a line, as far as this session knows: what comes into a line stands
    /// no more than [`MAX_BELOW_FLOOR_US`](crate::claim_room::MAX_BELOW_FLOOR_US) below the floor of its class, and
    /// floors only rise.
    pub(crate) first_in: HashMap<Line, i64>,
    /// Which lines come first where there are more than a look visits.
    pub(crate) lines_from: usize,
    /// How much of what is wanted a look reads, above [`READ_PERCENT`]. Grows where looks stop short.
    pub(crate) read_more: i64,
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

    pub(crate) async fn try_turn(
        &self,
        reports: &[Report],
        want: usize,
        late: &mut Late<'_>,
    ) -> Result<Turn, StoreError> {
        if reports.is_empty() && late.told.is_empty() && (want == 0 || !self.any_work().await?) {
            return Ok(Turn::default());
        }
        let began = Instant::now();
        let known = reports.len() + late.told.len();
        let (mut tx, room) = match want > 0 && !looks_beside(want, known) {
            // What it ends gives room back only when its changes are written: the room is the same before and behind.
            true => self.connections.begin_asking(&self.room(self.held_beside(known))).await?,
            false => (self.connections.begin(true).await?, Vec::new()),
        };
        late.gather();
        let want = if want > 0 { want + late.told.len() } else { 0 };
        let reports: Vec<&Report> = reports.iter().chain(&late.told).collect();
        let aim = self.aim(want, &reports);
        let mut settled = vec![Settled::LeaseLost; reports.len()];
        let Done { mut changes, mut now, claim, beside } = match room.is_empty() && looks_beside(want, reports.len()) {
            true => self.settle_and_claim(&aim, &reports, &mut settled, &mut tx).await?,
            false => {
                let mut done = Done::default();
                if !reports.is_empty() {
                    done.now = self.settle(&reports, &mut settled, &mut done.changes, &mut tx).await?;
                }
                done
            }
        };
        let claim = match claim {
            Some(claim) => claim,
            None if want > 0 => {
                let room = match room.is_empty() {
                    true => tx.ask(&self.room(aim.held)).await?,
                    false => room,
                };
                let sight = self.look(&aim, &room, &mut tx).await?;
                self.claim_of(&aim, &sight, &mut changes, &mut tx).await?
            }
            None => Claim::default(),
        };
        now = now.or(claim.now);
        self.finish(tx, Finish { began, reports: &reports, settled, changes, claim, now, beside }).await
    }

    /// A large turn, in two hands: one takes leases away, decides what became of each, and at once writes the records of
    /// what completed; the other looks at what waits, and chooses what starts once it is decided what ended. No claim where
    /// no look beside was possible.
    async fn settle_and_claim(
        &self,
        aim: &Aim,
        reports: &[&Report],
        settled: &mut [Settled],
        tx: &mut Tx,
    ) -> Result<Done, StoreError> {
        let (decided, decision) = oneshot::channel();
        let settling = async {
            let mut changes = Changes::default();
            let now = self.settle(reports, settled, &mut changes, tx).await?;
            let early = changes.take_completed();
            // Only a look that broke off does not take it.
            drop(decided.send((changes, now)));
            // Whatever ended, it is known when.
            early.write(tx, now.unwrap_or_default()).await
        };
        let claiming = async {
            let mut beside = self.look_beside(aim).await;
            // If nothing was decided, the other hand says why.
            let Ok((mut changes, now)) = decision.await else { return Ok(Done::default()) };
            let claim = match &mut beside {
                Some((sight, looking)) => Some(self.claim_of(aim, sight, &mut changes, looking).await?),
                None => None,
            };
            Ok(Done { changes, now, claim, beside })
        };
        let (written, done) = tokio::join!(settling, claiming);
        written?;
        done
    }

    /// Writes and commits what a turn has decided.
    async fn finish(&self, mut tx: Tx, turn: Finish<'_>) -> Result<Turn, StoreError> {
        let Finish { began, reports, settled, changes, mut claim, now, beside } = turn;
        let mut claimed = std::mem::take(&mut claim.tasks);
        let leases = std::mem::take(&mut claim.leases);
        let (more, again_in) = (claim.more, claim.again_in);
        let ended = settled.iter().any(|settled| matches!(settled, Settled::Ended(_)));
        let (Some(now), false) = (now, changes.is_empty()) else {
            tokio::join!(tx.rollback(), end_looking(beside));
            self.let_go(reports);
            return Ok(Turn { settled, claimed: Vec::new(), more, again_in });
        };
        let written = async {
            let rings = changes.write(&self.store, &mut tx, now).await?;
            self.state().unsure = true;
            tx.commit().await.map(|()| rings)
        };
        // The records have been there since admission: they are read meanwhile, and matter only if the commit succeeds.
        let (rings, records, ()) = tokio::join!(written, self.fill(&mut claimed), end_looking(beside));
        let rings = rings?;
        let more = more || rings.unparked;
        self.ring(rings, ended, &settled);
        claim.tell();
        metrics::histogram!("tidegate_turn_seconds").record(began.elapsed().as_secs_f64());
        metrics::histogram!("tidegate_turn_settled_tasks").record(reports.len() as f64);
        metrics::histogram!("tidegate_turn_claimed_tasks").record(claimed.len() as f64);
        let claimed = self.runnable(claimed, records).await?;
        self.let_go(reports);
        let mut state = self.state();
        state.held.extend(claimed.iter().map(held_of));
        for mut lease in leases {
            let fence = Fence(i64::from(lease.deliveries));
            // Those that could not be run are given up by now.
            if let Some(held) = state.held.get_mut(&(lease.id, fence)) {
                // All that a turn writes is dated alike.
                lease.running.started = now;
                held.lease = Some(lease);
            }
        }
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

    /// How many tasks it holds beside so many that are reported: those may be settled already, by a turn whose end was not
    /// seen.
    fn held_beside(&self, reports: usize) -> usize {
        self.state().held.len().saturating_sub(reports)
    }

    /// What a turn with these reports may claim, before it is known what waits.
    fn aim(&self, want: usize, reports: &[&Report]) -> Aim {
        let of_kinds = self.left_of_kinds(reports);
        let full = of_kinds.iter().filter(|(_, left)| *left <= 0).map(|(kind, _)| kind.clone()).collect();
        let held = self.held_beside(reports.len());
        Aim { want, reports: reports.len(), held, of_kinds, full, suspects: self.may_take_suspect(reports) }
    }

    /// How many more tasks of the kinds that this worker limits it may run, once these have ended.
    fn left_of_kinds(&self, ending: &[&Report]) -> Vec<(String, i64)> {
        if self.spec.at_once.is_empty() {
            return Vec::new();
        }
        let state = self.state();
        let runs = |kind: &Kind| state.held.values().filter(|held| held.kind == *kind).count() as i64;
        let ends = |kind: &Kind| {
            let kinds = ending.iter().filter_map(|report| state.held.get(&(report.id, report.fence)));
            kinds.filter(|held| held.kind == *kind).count() as i64
        };
        let limits = self.spec.at_once.iter();
        limits.map(|(kind, most)| (kind.as_str().to_owned(), i64::from(*most) - runs(kind) + ends(kind))).collect()
    }

    /// Whether this worker may take a task that was lost twice: it runs no other, once these have ended.
    fn may_take_suspect(&self, ending: &[&Report]) -> bool {
        let state = self.state();
        !state.held.iter().any(|((id, fence), held)| {
            held.suspect && !ending.iter().any(|report| report.id == *id && report.fence == *fence)
        })
    }

    pub(crate) fn kinds(&self) -> Vec<String> {
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
        let known = self.known(reports);
        let (sql, report) = if known.is_some() { (RELEASE_KNOWN, REPORT_OF_KNOWN) } else { (RELEASE, REPORT) };
        let rows = tx.call(|conn| sqlx::query(sql).bind(ids).bind(fences).fetch_all(conn)).await?;
        let now: Option<EpochMs> = rows.first().map(|row| row.try_get(0)).transpose()?;
        let Some(at) = now else { return Ok(None) };
        let mut gone = Vec::with_capacity(rows.len());
        for row in &rows {
            let n = (row.try_get::<i64, _>(report)? - 1) as usize;
            let released = match &known {
                Some(known) => known[n].clone().told(row)?,
                None => Released::from_row(row)?,
            };
            gone.push((n, released));
        }
        let flows = self.store.directory.describe(tx, gone.iter().map(|(_, released)| released.flow)).await?;
        let policy = self.store.policy();
        let budgets = self.retry_budgets(reports, &gone, &flows, tx).await?;
        let mut permits = Vec::new();
        for (n, mut released) in gone {
            let report = &reports[n];
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
            settled[n] = changes.settle(
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
                let taken = matches!(settled[n], Settled::Ended(_)).then_some(estimated).unwrap_or(0);
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

    /// The leases of these reports, where all of them are remembered.
    fn known(&self, reports: &[&Report]) -> Option<Vec<Released>> {
        let state = self.state();
        let lease = |report: &&Report| state.held.get(&(report.id, report.fence))?.lease.clone();
        reports.iter().map(lease).collect()
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
        let records = self.fill(&mut found).await;
        let found = self.runnable(found, records).await?;
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

    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, State> {
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

fn held_of(task: &Claimed) -> ((TaskId, Fence), Held) {
    ((task.id, task.fence), Held { kind: task.kind.clone(), suspect: task.suspect, lease: None })
}
