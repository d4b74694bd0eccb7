//! A worker's session: one boot of one process, its turns (settle and claim in one transaction) and its heartbeat.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::PgRow;
use tidegate_core::kind_policy::Effects;
use tidegate_core::{EpochMs, Fence, Kind, TaskId};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::bell::Topic;
use crate::changes::{Changes, Released};
use crate::claim::Claim;
use crate::claim_room::Line;
use crate::connection::{Connections, Tx, call};
use crate::error::StoreError;
use crate::heart::Heart;
use crate::ledger::Rings;
use crate::look::{Aim, Beside, Claimant, end_looking, looks_beside};
use crate::settle::Reported;
use crate::store::{Store, StoreInner};
use crate::together::{Contended, Guest, alike, tell};
use crate::types::{Claimed, Report, SessionId, SessionSpec, Settled, Turn};
use crate::work_bell::WorkBell;

const ANY_WORK: &str = "SELECT coalesce((SELECT u.running > $3 FROM tidegate.usage u \
        WHERE u.scope = 5 AND u.key = ($2::uuid)::text ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1), false) \
    OR EXISTS (SELECT FROM tidegate.active_flow a \
        CROSS JOIN LATERAL (SELECT u.queued FROM tidegate.flow_usage u WHERE u.flow_id = a.flow_id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1) u \
        WHERE a.kind = ANY($1) AND NOT a.parked AND a.lane <> 0 AND u.queued > 0)";
/// How many times longer than its own part a turn has waited for the lock where turns are made together from then on.
const CONTENDED_FROM: u32 = 3;

/// A worker's session. Dropping it lets its leases run out; [`Session::close`] ends it at once.
pub struct Session {
    pub(crate) store: Arc<StoreInner>,
    /// Turns have a connection of their own.
    pub(crate) connections: Connections,
    /// And so have the permits of calls.
    pub(crate) calls: Connections,
    pub(crate) heart: Heart,
    pub(crate) spec: SessionSpec,
    pub(crate) effects: HashMap<String, Effects>,
    /// Equal for sessions whose turns may be made together with this one's.
    pub(crate) alike: Option<i64>,
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
    guests: Option<Vec<Guest>>,
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
    pub(crate) told: Vec<Report>,
}

impl Late<'_> {
    pub(crate) fn none() -> Self {
        Self { ask: None, told: Vec::new() }
    }

    pub(crate) fn gather(&mut self) {
        if let Some(ask) = self.ask {
            self.told.append(&mut ask());
        }
    }
}

/// A lease that this process knows to hold.
pub(crate) struct Held {
    kind: Kind,
    suspect: bool,
    /// What it will be when it is taken away; nothing where it was found again.
    pub(crate) lease: Option<Released>,
}

#[derive(Default)]
pub(crate) struct State {
    /// What this process knows to hold.
    pub(crate) held: HashMap<(TaskId, Fence), Held>,
    /// A transaction broke while committing, or its records could not be read: there may be leases nobody knows of.
    pub(crate) unsure: bool,
    /// What was asked of whoever makes turns together, while it is not known how that went.
    pub(crate) posted: Option<Uuid>,
    /// Whether so many wait for the cell's lock that turns are made together.
    pub(crate) contended: Contended,
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
        // The door does not count what a session runs of a kind: it reserves no slot where that is limited.
        let limited = |kind: &Kind| spec.at_once.get(kind).is_some_and(|most| *most < spec.slots);
        let reservable = spec.kinds.iter().filter(|(kind, _)| !limited(kind));
        let reservable: Vec<String> = reservable.map(|(kind, _)| kind.as_str().to_owned()).collect();
        let open = "WITH n AS MATERIALIZED (SELECT tidegate.now_ms() AS now_ms), s AS (INSERT INTO tidegate.session (id, worker, kinds, slots, lease_ms, reservable, started_ms) \
            SELECT $1, $2, $3, $4, $5, $6, now_ms FROM n) \
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
            .bind(lease_ms)
            .bind(reservable);
        call(connections.call_timeout(), query.execute(&mut *conn)).await?;
        conn.release();
        let heart = Heart { connections: Connections::new(self.options(), 1)?, session, lease: spec.lease };
        let effects = spec.kinds.iter().map(|(kind, effects)| (kind.as_str().to_owned(), *effects)).collect();
        let calls = Connections::new(self.options(), 1)?;
        let alike = alike(&spec);
        Ok(Session { store: self.inner(), connections, calls, heart, spec, effects, alike, state: Mutex::default() })
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
        let mut claimed = Vec::new();
        let mut tries = self.store.tries();
        let turned = loop {
            if self.state().unsure {
                match self.recover().await {
                    Ok(mut found) => claimed.append(&mut found),
                    Err(error) => break Err(error),
                }
            }
            let want = want.saturating_sub(claimed.len());
            let together = self.state().contended.asks && !reports.is_empty();
            if together {
                match self.turn_together(reports, want, late).await {
                    Ok(Some(turn)) => break Ok(turn),
                    Ok(None) => {}
                    Err(error) => tracing::debug!(%error, "a turn is made by itself"),
                }
                self.state().contended.asks = false;
                continue;
            }
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
        let (tx, room) = match want > 0 && !looks_beside(want, known) {
            // What it ends gives room back only when its changes are written: the room is the same before and behind.
            true => self.connections.begin_asking(&self.room(self.held_beside(known))).await?,
            false => (self.connections.begin(true).await?, Vec::new()),
        };
        let waited = began.elapsed();
        late.gather();
        let want = if want > 0 { want + late.told.len() } else { 0 };
        let reports: Vec<&Report> = reports.iter().chain(&late.told).collect();
        let turn = self.turn_under(tx, room, began, &reports, want, None).await?;
        let took = began.elapsed().saturating_sub(waited);
        if self.alike.is_some() {
            self.state().contended.waited(waited > took * CONTENDED_FROM);
        }
        Ok(turn)
    }

    /// The turn itself, in a transaction that holds the cell's row, and with it those of the guests.
    pub(crate) async fn turn_under(
        &self,
        mut tx: Tx,
        room: Vec<PgRow>,
        began: Instant,
        own: &[&Report],
        want: usize,
        guests: Option<Vec<Guest>>,
    ) -> Result<Turn, StoreError> {
        let with = guests.as_deref().unwrap_or_default();
        let (reports, workers) = self.all_reports(own, with);
        let mut aim = self.aim(want, own);
        aim.reports = reports.len();
        aim.guests = with.iter().map(|guest| Claimant { session: guest.session, want: guest.want }).collect();
        aim.want += aim.guests.iter().map(|guest| guest.want).sum::<usize>();
        let mut settled = vec![Settled::LeaseLost; reports.len()];
        let reported = Reported { reports: &reports, workers: &workers };
        let Done { mut changes, mut now, claim, beside } =
            match room.is_empty() && looks_beside(aim.want, reports.len()) {
                true => self.settle_and_claim(&aim, reported, &mut settled, &mut tx).await?,
                false => {
                    let mut done = Done::default();
                    if !reports.is_empty() {
                        done.now = self.settle(reported, &mut settled, &mut done.changes, &mut tx).await?;
                    }
                    done
                }
            };
        let claim = match claim {
            Some(claim) => claim,
            None if aim.want > 0 => {
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
        self.finish(tx, Finish { began, reports: own, settled, changes, claim, now, beside, guests }).await
    }

    /// What a turn settles, and who ran each: its own first, then its guests'.
    fn all_reports<'a>(&'a self, own: &[&'a Report], guests: &'a [Guest]) -> (Vec<&'a Report>, Vec<&'a str>) {
        let mut reports = own.to_vec();
        let mut workers = vec![self.spec.worker.as_str(); own.len()];
        for guest in guests {
            reports.extend(&guest.reports);
            workers.resize(reports.len(), &guest.worker);
        }
        (reports, workers)
    }

    /// A large turn, in two hands: one takes leases away, decides what became of each, and at once writes the records of
    /// what completed; the other looks at what waits, and chooses what starts once it is decided what ended. No claim where
    /// no look beside was possible.
    async fn settle_and_claim(
        &self,
        aim: &Aim,
        reports: Reported<'_>,
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
        let Finish { began, reports, mut settled, changes, mut claim, now, beside, guests } = turn;
        let mut claimed = std::mem::take(&mut claim.tasks);
        let leases = std::mem::take(&mut claim.leases);
        let (more, again_in) = (claim.more, claim.again_in);
        let ended = settled.iter().any(|settled| matches!(settled, Settled::Ended(_)));
        let nothing = now.is_none() || changes.is_empty();
        if nothing && guests.is_none() {
            tokio::join!(tx.rollback(), end_looking(beside));
            self.let_go(reports);
            return Ok(Turn { settled, claimed: Vec::new(), more, again_in });
        }
        let now = now.unwrap_or_default();
        let written = async {
            let rings = match nothing {
                true => Rings::default(),
                false => changes.write(&self.store, &mut tx, now).await?,
            };
            let of_guests = settled.get(reports.len()..).unwrap_or_default();
            tell(guests.as_deref().unwrap_or_default(), of_guests, &claim, &mut tx).await?;
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
        let started = claimed.len() + claim.of_guests.iter().map(Vec::len).sum::<usize>();
        metrics::histogram!("tidegate_turn_sessions").record(guests.as_ref().map_or(0, Vec::len) as f64 + 1.0);
        metrics::histogram!("tidegate_turn_settled_tasks").record(settled.len() as f64);
        metrics::histogram!("tidegate_turn_claimed_tasks").record(started as f64);
        settled.truncate(reports.len());
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
        (state.unsure, state.posted) = (false, None);
        Ok(Turn { settled, claimed, more, again_in })
    }

    /// Tasks are held from now on that another has claimed for this session, or that were found again.
    pub(crate) fn holds(&self, claimed: &[Claimed]) {
        self.state().held.extend(claimed.iter().map(held_of));
    }

    /// What was reported is held no more, whatever became of it.
    pub(crate) fn let_go(&self, reports: &[&Report]) {
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
    pub(crate) fn held_beside(&self, reports: usize) -> usize {
        self.state().held.len().saturating_sub(reports)
    }

    /// What a turn with these reports may claim, before it is known what waits.
    fn aim(&self, want: usize, reports: &[&Report]) -> Aim {
        let of_kinds = self.left_of_kinds(reports);
        let full = of_kinds.iter().filter(|(_, left)| *left <= 0).map(|(kind, _)| kind.clone()).collect();
        let held = self.held_beside(reports.len());
        let suspects = self.may_take_suspect(reports);
        Aim { want, guests: Vec::new(), reports: reports.len(), held, of_kinds, full, suspects }
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
