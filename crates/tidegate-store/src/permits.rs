//! Permits of calls that running tasks make to further peers: taken, waited for and given back.
//!
//! A permit is a row that (task, fence) owns and that goes with that lease. The rows are counted among what uses the
//! peer, or waits for it, in the statement that makes or deletes them, under the cell's lock.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::call::{CallDecision, CallFacts, decide_call};
use tidegate_core::order::PeerRoom;
use tidegate_core::policy::Policy;
use tidegate_core::{EpochMs, Fence, PeerName, TaskId};
use uuid::Uuid;

use crate::bell::Topic;
use crate::changes::Changes;
use crate::connection::Tx;
use crate::error::StoreError;
use crate::ledger::{Ledger, ledger_sql};
use crate::session::Session;
use crate::store::Store;

const FACTS: &str = include_str!("permit_facts.sql");
const WRITE: &str = ledger_sql!("ledger_free.sql"; "permit_write.sql");
const ROOM: &str = "SELECT w.peer, u.running, u.rate_full_ns, u.tokens_full_ns, tidegate.now_ms() FROM unnest($1::text[]) AS w(peer) \
    CROSS JOIN LATERAL (SELECT u.running, u.rate_full_ns, u.tokens_full_ns FROM tidegate.usage u \
        WHERE u.scope = 3 AND u.key = w.peer ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1) u";
const END: &str = include_str!("permit_end.sql");
/// The counter rows of a peer: what uses it and waits for it, and the calls among those that wait.
const ENSURE: &str = "INSERT INTO tidegate.usage (scope, key) SELECT s.scope, w.peer \
    FROM unnest($1::text[]) AS w(peer), unnest(ARRAY[3, 7]::smallint[]) AS s(scope) \
    WHERE NOT EXISTS (SELECT FROM tidegate.usage u WHERE u.scope = s.scope AND u.key = w.peer)";

/// One call of a running task to a peer that is not its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PermitCall {
    /// The task.
    pub task: TaskId,
    /// The fence it runs under.
    pub fence: Fence,
    /// The peer that is called.
    pub peer: PeerName,
    /// The call's own number, made up by the caller: what is asked or released again with it is the same call.
    pub call: Uuid,
}

/// The answer to a call that asks for a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermitAnswer {
    /// It has its permit, now or from before.
    Taken,
    /// It is counted among those that wait: ask again, and release it to give up.
    Waits {
        /// How long it may wait, from when it was first asked.
        max: Duration,
    },
    /// There is no room, and it does not wait; or its task holds another permit.
    Busy {
        /// When a later try may work, where that is known.
        retry_after: Option<Duration>,
    },
    /// The lease is not the session's any more: nothing was changed.
    Lost,
}

impl Session {
    /// In one transaction gives back the permits of the `released` calls, or ends their waiting, and then answers those
    /// that ask, in order. Both may be repeated when nobody knows whether they were done. Fails with
    /// [`StoreError::SessionLost`] where the session has expired: its permits go with its leases.
    pub async fn permits(
        &self,
        released: &[PermitCall],
        asked: &[PermitCall],
    ) -> Result<Vec<PermitAnswer>, StoreError> {
        let mut tries = self.store.tries();
        loop {
            match self.try_permits(released, asked).await {
                Err(error) if tries.again(&error) => {}
                answered => return answered,
            }
        }
    }

    /// Whether one of these peers may have room, seen without a lock: worth asking for again.
    pub async fn permit_room(&self, peers: &[PeerName]) -> Result<bool, StoreError> {
        let names: Vec<String> = peers.iter().map(|peer| peer.as_str().to_owned()).collect();
        let rows = self.calls.ask(|| sqlx::query(ROOM).bind(names.clone())).await?;
        let policy = self.store.policy();
        // A peer without a counter row is used by nobody.
        let mut room = rows.len() < peers.len();
        for row in &rows {
            let limits = policy.peer(row.try_get(0)?);
            let peer = PeerRoom::of(limits, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
            room |= peer.ready_in_ms(row.try_get(4)?) == Some(0);
        }
        Ok(room)
    }

    async fn try_permits(
        &self,
        released: &[PermitCall],
        asked: &[PermitCall],
    ) -> Result<Vec<PermitAnswer>, StoreError> {
        let mut tx = self.calls.begin(true).await?;
        let mut desk = self.read_permits(released, asked, &mut tx).await?;
        released.iter().for_each(|call| desk.release(call));
        let answers = asked.iter().map(|call| desk.answer(call)).collect();
        if desk.moves.is_empty() {
            tx.rollback().await;
            return Ok(answers);
        }
        let Desk { moves, ledger, now, .. } = desk;
        let row = {
            let query = moves.bind(ledger.bind(WRITE, now, self.store.process));
            tx.call(|conn| query.fetch_one(conn)).await?
        };
        let rings = ledger.close(&row, &mut tx).await?;
        let counted: [i64; 3] = [row.try_get("gone")?, row.try_get("took")?, row.try_get("put")?];
        if counted != moves.counts() {
            return Err(StoreError::Busy(sqlx::Error::RowNotFound));
        }
        tx.commit().await?;
        if rings.peers {
            // What is free now may be taken by tasks that wait for the peer as well.
            self.store.bells.ring(Topic::Permit, false);
            self.store.bells.ring(Topic::Work, rings.workers);
        }
        Ok(answers)
    }

    async fn read_permits(
        &self,
        released: &[PermitCall],
        asked: &[PermitCall],
        tx: &mut Tx,
    ) -> Result<Desk, StoreError> {
        let owners: BTreeSet<Owner> = released.iter().chain(asked).map(owner_of).collect();
        let peers: BTreeSet<String> = asked.iter().map(|call| call.peer.as_str().to_owned()).collect();
        let (ids, fences): (Vec<Uuid>, Vec<i32>) = owners.into_iter().unzip();
        let names: Vec<String> = peers.into_iter().collect();
        let session = self.heart.session;
        let rows =
            tx.call(|conn| sqlx::query(FACTS).bind(session).bind(ids).bind(fences).bind(names).fetch_all(conn)).await?;
        let head = rows.first().ok_or_else(|| StoreError::Schema("no facts of calls".into()))?;
        let n: Vec<i64> = head.try_get("n")?;
        let [now, revision, alive] = n[..] else { return Err(StoreError::Schema("the facts of calls".into())) };
        if alive == 0 {
            return Err(StoreError::SessionLost);
        }
        let policy = self.store.policy_at(revision, tx).await?;
        let mut desk = Desk { policy, now, ..Desk::default() };
        for row in &rows {
            desk.read(row)?;
        }
        let new: Vec<String> =
            desk.peers.iter().filter(|(_, peer)| !peer.counted).map(|(name, _)| name.clone()).collect();
        if !new.is_empty() {
            tx.call(|conn| sqlx::query(ENSURE).bind(new).execute(conn)).await?;
        }
        Ok(desk)
    }
}

impl Store {
    /// A bell that is rung inside this process when a peer may have room for a call.
    pub fn permit_bell(&self) -> tokio::sync::watch::Receiver<u64> {
        self.inner_ref().bells.hear(Topic::Permit)
    }
}

/// Leases that ended, by task and fence, give back the permits of their calls, in the transaction that ends them.
pub(crate) async fn end_with_leases(ended: Vec<Owner>, changes: &mut Changes, tx: &mut Tx) -> Result<(), StoreError> {
    if ended.is_empty() {
        return Ok(());
    }
    let (ids, fences): (Vec<Uuid>, Vec<i32>) = ended.into_iter().unzip();
    for row in tx.call(|conn| sqlx::query(END).bind(ids).bind(fences).fetch_all(conn)).await? {
        let (taken, waited) = if row.try_get(1)? { (-1, 0) } else { (0, -1) };
        changes.served().permits(row.try_get(0)?, taken, waited);
    }
    Ok(())
}

/// Who owns a permit: a task, and the fence it runs under.
pub(crate) type Owner = (Uuid, i32);

fn owner_of(call: &PermitCall) -> Owner {
    (call.task.0, i32::try_from(call.fence.0).unwrap_or(-1))
}

/// A permit, or a call that waits for one.
struct Kept {
    call: Uuid,
    peer: String,
    taken: bool,
}

#[derive(Default, Clone, Copy)]
struct PeerState {
    running: i64,
    waiting: i64,
    rate_full_ns: i64,
    tokens_full_ns: i64,
    calls: i64,
    /// Whether it has its counter rows.
    counted: bool,
}

/// What is known and what becomes of it, while calls are answered one after the other.
#[derive(Default)]
struct Desk {
    policy: Arc<Policy>,
    now: EpochMs,
    /// The leases, and the peer that each task holds by its own.
    leases: HashMap<Owner, String>,
    kept: HashMap<Owner, Vec<Kept>>,
    peers: HashMap<String, PeerState>,
    ledger: Ledger,
    moves: Moves,
}

impl Desk {
    fn read(&mut self, row: &PgRow) -> Result<(), StoreError> {
        let n: Vec<i64> = row.try_get("n")?;
        let at = |place: usize| n.get(place).copied().unwrap_or(0);
        let owner = || -> Result<Owner, StoreError> { Ok((row.try_get("id")?, at(0) as i32)) };
        match row.try_get::<i16, _>("what")? {
            1 => {
                self.leases.insert(owner()?, row.try_get("peer")?);
            }
            2 => {
                let kept = Kept { call: row.try_get("call_id")?, peer: row.try_get("peer")?, taken: at(1) != 0 };
                self.kept.entry(owner()?).or_default().push(kept);
            }
            3 => {
                let peer = PeerState {
                    running: at(0),
                    waiting: at(1),
                    rate_full_ns: at(2),
                    tokens_full_ns: at(3),
                    calls: at(4),
                    counted: at(5) != 0,
                };
                self.peers.insert(row.try_get("peer")?, peer);
            }
            _ => {}
        }
        Ok(())
    }

    /// Counts what a peer has more, or less, of.
    fn count(&mut self, peer: &str, taken: i64, waits: i64) {
        self.ledger.permits(peer, taken, waits);
        if let Some(state) = self.peers.get_mut(peer) {
            state.running += taken;
            state.waiting += waits;
            state.calls += waits;
        }
    }

    /// Deletes the row that the call owns; nothing where it owns none.
    fn release(&mut self, call: &PermitCall) {
        let owner = owner_of(call);
        let Some(kept) = self.kept.get_mut(&owner) else { return };
        let Some(at) = kept.iter().position(|kept| kept.call == call.call) else { return };
        let Kept { call, peer, taken } = kept.swap_remove(at);
        self.moves.gone.push((owner, call));
        let (taken, waited) = if taken { (-1, 0) } else { (0, -1) };
        self.count(&peer, taken, waited);
    }

    fn answer(&mut self, call: &PermitCall) -> PermitAnswer {
        let (owner, name) = (owner_of(call), call.peer.as_str());
        let Some(own_peer) = self.leases.get(&owner) else { return PermitAnswer::Lost };
        let kept = self.kept.get(&owner).map(Vec::as_slice).unwrap_or_default();
        let mine = kept.iter().find(|kept| kept.call == call.call);
        if mine.is_some_and(|mine| mine.taken) {
            return PermitAnswer::Taken;
        }
        let waits = mine.is_some();
        let holds = !own_peer.is_empty() || kept.len() > usize::from(waits);
        let state = self.peers.get(name).copied().unwrap_or_default();
        let limits = self.policy.peer(name);
        let room = PeerRoom::of(limits, state.running, state.rate_full_ns, state.tokens_full_ns);
        let facts = CallFacts { holds, waits, room, calls: state.calls, waiting: state.waiting };
        match decide_call(limits, &facts, self.now) {
            CallDecision::Take(draw) => {
                self.take(call, waits);
                self.draw(name, draw.requests_ns);
                PermitAnswer::Taken
            }
            CallDecision::Wait { max_ms } => {
                if !waits {
                    self.put(call, false);
                    self.count(name, 0, 1);
                }
                PermitAnswer::Waits { max: Duration::from_millis(max_ms) }
            }
            CallDecision::Busy { retry_ms } => PermitAnswer::Busy { retry_after: retry_ms.map(Duration::from_millis) },
        }
    }

    fn take(&mut self, call: &PermitCall, waited: bool) {
        let owner = owner_of(call);
        match waited {
            true => {
                self.moves.took.push((owner, call.call));
                let kept = self.kept.get_mut(&owner).into_iter().flatten();
                kept.filter(|kept| kept.call == call.call).for_each(|kept| kept.taken = true);
            }
            false => self.put(call, true),
        }
        self.count(call.peer.as_str(), 1, -i64::from(waited));
    }

    fn put(&mut self, call: &PermitCall, taken: bool) {
        let owner = owner_of(call);
        self.moves.put.push((owner, call.call, call.peer.as_str().to_owned(), taken));
        let kept = Kept { call: call.call, peer: call.peer.as_str().to_owned(), taken };
        self.kept.entry(owner).or_default().push(kept);
    }

    fn draw(&mut self, peer: &str, requests_ns: i64) {
        self.ledger.draw_peer(peer, requests_ns, 0);
        if let Some(state) = self.peers.get_mut(peer).filter(|_| requests_ns != 0) {
            state.rate_full_ns = state.rate_full_ns.max(self.now.saturating_mul(1_000_000)).saturating_add(requests_ns);
        }
    }
}

/// The rows that are made, changed and deleted.
#[derive(Default)]
struct Moves {
    gone: Vec<(Owner, Uuid)>,
    took: Vec<(Owner, Uuid)>,
    put: Vec<(Owner, Uuid, String, bool)>,
}

type Query = sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments>;

impl Moves {
    fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.took.is_empty() && self.put.is_empty()
    }

    /// How many rows are deleted, changed and made.
    fn counts(&self) -> [i64; 3] {
        [self.gone.len(), self.took.len(), self.put.len()].map(|count| count as i64)
    }

    /// Binds $33 to $43 of the statement.
    fn bind(&self, query: Query) -> Query {
        let keys = |query: Query, keys: Vec<(Owner, Uuid)>| {
            query
                .bind(keys.iter().map(|((task, _), _)| *task).collect::<Vec<_>>())
                .bind(keys.iter().map(|((_, fence), _)| *fence).collect::<Vec<_>>())
                .bind(keys.iter().map(|(_, call)| *call).collect::<Vec<_>>())
        };
        let put = self.put.iter().map(|(owner, call, ..)| (*owner, *call)).collect();
        let query = keys(keys(keys(query, self.gone.clone()), self.took.clone()), put);
        query
            .bind(self.put.iter().map(|(_, _, peer, _)| peer.clone()).collect::<Vec<_>>())
            .bind(self.put.iter().map(|(.., taken)| *taken).collect::<Vec<_>>())
    }
}
