//! What a transaction moves: counters, the bounds of flows, and the outbox. Every statement that changes where tasks
//! stand starts with the same part, the `ledger_*.sql`, and binds it from here.

use std::collections::BTreeMap;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row};
pub(crate) use tidegate_core::admission::Load as Holding;
use tidegate_core::{Class, EpochMs, Reason, Status, TaskId};
use uuid::Uuid;

use crate::connection::Tx;
use crate::directory::FlowKey;
use crate::error::StoreError;

/// A statement that begins with the ledger and ends with a file of this directory. Between the counters and the end of the
/// ledger stand what wakes flows, which is left out where nothing comes to wait in a flow that was empty, and what becomes
/// of tenants' room: a statement of few tasks costs by the parts that it has.
macro_rules! ledger_sql {
    ($($part:literal),+; $rest:literal) => {
        concat!(
            include_str!("ledger_counters.sql"),
            $(include_str!($part),)+
            include_str!("ledger_tell.sql"),
            include_str!($rest)
        )
    };
}
pub(crate) use ledger_sql;

/// Versions after which a counter row is replaced by the next generation, so that under an old snapshot no look-up
/// walks more dead rows than this.
const ROTATE_AFTER: i32 = 250;

/// What is counted, signed, for one task or many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) queued: i64,
    pub(crate) running: i64,
    pub(crate) deferred: i64,
    pub(crate) tokens: i64,
    pub(crate) usd_micros: i64,
    pub(crate) bytes: i64,
    /// Runs that ended, and how long they took together.
    pub(crate) runs: i64,
    pub(crate) run_ms: i64,
    /// What is drawn from the buckets of the tenant or peer, in nanoseconds.
    pub(crate) rate_ns: i64,
    pub(crate) tokens_ns: i64,
    /// By how much the virtual time of a tenant's class, or the floor of a class, moves on.
    pub(crate) turn: i64,
    /// What is taken from a retry budget, in thousandths of a retry.
    pub(crate) retry_spent: i64,
}

impl Counts {
    /// What a task that stands at `status` counts: tasks where they stand, bytes until they end, tokens and money only
    /// while in flight.
    fn of(status: Status, holding: Holding) -> Self {
        let in_flight =
            Self { tokens: holding.tokens, usd_micros: holding.usd_micros, bytes: holding.bytes, ..Self::default() };
        match status {
            Status::Queued => Self { queued: 1, ..in_flight },
            Status::Admitted | Status::Running => Self { running: 1, ..in_flight },
            Status::Deferred => Self { deferred: 1, bytes: holding.bytes, ..Self::default() },
            _ => Self::default(),
        }
    }

    fn add(&mut self, other: Self, sign: i64) {
        self.queued += sign * other.queued;
        self.running += sign * other.running;
        self.deferred += sign * other.deferred;
        self.tokens += sign * other.tokens;
        self.usd_micros += sign * other.usd_micros;
        self.bytes += sign * other.bytes;
        self.runs += sign * other.runs;
        self.run_ms += sign * other.run_ms;
        self.rate_ns += sign * other.rate_ns;
        self.tokens_ns += sign * other.tokens_ns;
        self.turn += sign * other.turn;
        self.retry_spent += sign * other.retry_spent;
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct FlowMove {
    queued: i64,
    low: Option<(i64, Uuid)>,
    raise: bool,
    /// The last that came in, and the first that was displaced.
    entered: Option<(i64, Uuid)>,
    displaced: Option<(i64, Uuid)>,
}

impl FlowMove {
    /// Where the upper bound goes: past what was displaced, but not below what came in.
    fn high(&self) -> Option<(i64, Uuid)> {
        self.entered.max(self.displaced)
    }
}

/// What an event tells: of which tenant and kind, what they became, and why.
type Told<'a> = (&'a str, &'a str, Status, Option<Reason>);
/// In order of the names.
type Named<T> = Vec<(String, T)>;
/// Tasks by what they became, and why.
type Became = BTreeMap<(Status, Option<Reason>), Vec<Uuid>>;

/// Gathers what a transaction moves.
#[derive(Default)]
pub(crate) struct Ledger {
    /// By scope and key. Names are owned once, not once for each task.
    usage: [Named<Counts>; 4],
    /// The retry budgets of kinds without a peer.
    kinds: Named<Counts>,
    /// The calls that wait for a peer.
    calls: Named<Counts>,
    /// By class and tenant.
    tenant_classes: [Named<Counts>; 3],
    /// Slots taken, by session.
    slots: BTreeMap<Uuid, i64>,
    flows: BTreeMap<i64, FlowMove>,
    /// By tenant and kind.
    events: Named<Named<Became>>,
}

/// Whom to ring once the transaction is committed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rings {
    /// A worker of another process waits for work.
    pub(crate) workers: bool,
    /// A reader of another process waits for an ending.
    pub(crate) readers: bool,
    /// Tasks that were cancelled have children, which are to be cancelled now.
    pub(crate) parents: bool,
    /// Flows that were passed over for their tenant's sake are looked at again.
    pub(crate) unparked: bool,
    /// A peer may have room that it had not.
    pub(crate) peers: bool,
}

impl Ledger {
    /// A task makes a transition: it is counted where it stands now, no more where it stood, and told.
    pub(crate) fn transition(
        &mut self,
        flow: &FlowKey,
        id: TaskId,
        from: Option<Status>,
        to: Status,
        reason: Option<Reason>,
        holding: Holding,
    ) {
        self.transitions(flow, [(id, holding)], from, to, reason);
    }

    /// The same for tasks that make the same transition in the same flow.
    pub(crate) fn transitions(
        &mut self,
        flow: &FlowKey,
        tasks: impl IntoIterator<Item = (TaskId, Holding)>,
        from: Option<Status>,
        to: Status,
        reason: Option<Reason>,
    ) {
        let became = entry(entry(&mut self.events, &flow.tenant), &flow.kind);
        let told = became.entry((to, reason)).or_default();
        let mut counts = Counts::default();
        for (id, holding) in tasks {
            counts.add(Counts::of(to, holding), 1);
            if let Some(from) = from {
                counts.add(Counts::of(from, holding), -1);
            }
            told.push(id.0);
        }
        if counts != Counts::default() {
            self.count(0, "", counts);
            self.count(1, flow.class.as_str(), counts);
            self.count(2, &flow.tenant, counts);
            entry(&mut self.tenant_classes[flow.class as usize], &flow.tenant).add(counts, 1);
            if !flow.peer.is_empty() {
                self.count(3, &flow.peer, counts);
            }
        }
    }

    /// Slots of a session are taken, or given back.
    pub(crate) fn slots(&mut self, session: Uuid, more: i64) {
        *self.slots.entry(session).or_default() += more;
    }

    /// A run ended that took so long: it tells the pace of the cell, of its tenant and of its peer.
    pub(crate) fn ran(&mut self, flow: &FlowKey, run_ms: i64) {
        let counts = Counts { runs: 1, run_ms: run_ms.max(0), ..Counts::default() };
        self.count(0, "", counts);
        self.count(2, &flow.tenant, counts);
        if !flow.peer.is_empty() {
            self.count(3, &flow.peer, counts);
        }
    }

    /// A tenant's buckets are drawn from.
    pub(crate) fn draw(&mut self, tenant: &str, rate_ns: i64, tokens_ns: i64) {
        if rate_ns != 0 || tokens_ns != 0 {
            self.count(2, tenant, Counts { rate_ns, tokens_ns, ..Counts::default() });
        }
    }

    /// A peer's rates are drawn from.
    pub(crate) fn draw_peer(&mut self, peer: &str, rate_ns: i64, tokens_ns: i64) {
        if rate_ns != 0 || tokens_ns != 0 {
            self.count(3, peer, Counts { rate_ns, tokens_ns, ..Counts::default() });
        }
    }

    /// Calls take permits of a peer or give them back, and come to wait for it or stop waiting.
    pub(crate) fn permits(&mut self, peer: &str, taken: i64, waits: i64) {
        self.count(3, peer, Counts { running: taken, queued: waits, ..Counts::default() });
        if waits != 0 {
            entry(&mut self.calls, peer).queued += waits;
        }
    }

    /// How many more calls wait for a peer.
    pub(crate) fn calls(&self, peer: &str) -> i64 {
        of_name(&self.calls, peer).map_or(0, |counts| counts.queued)
    }

    /// What is drawn from a peer's rates.
    pub(crate) fn drawn(&self, peer: &str) -> (i64, i64) {
        of_name(&self.usage[3], peer).map_or((0, 0), |counts| (counts.rate_ns, counts.tokens_ns))
    }

    /// A retry budget is drawn from, or earns: that of the peer, or of the kind where there is none. In thousandths of a
    /// retry.
    pub(crate) fn spend_retry(&mut self, flow: &FlowKey, retry_spent: i64) {
        let counts = Counts { retry_spent, ..Counts::default() };
        match flow.peer.is_empty() {
            true => entry(&mut self.kinds, &flow.kind).add(counts, 1),
            false => self.count(3, &flow.peer, counts),
        }
    }

    /// What is drawn from that budget.
    pub(crate) fn retry_spent(&self, flow: &FlowKey) -> i64 {
        let (named, name) = if flow.peer.is_empty() { (&self.kinds, &flow.kind) } else { (&self.usage[3], &flow.peer) };
        of_name(named, name).map_or(0, |counts| counts.retry_spent)
    }

    /// A tenant was served in a class, or what it was charged is corrected.
    pub(crate) fn turn(&mut self, class: Class, tenant: &str, more: i64) {
        if more != 0 {
            entry(&mut self.tenant_classes[class as usize], tenant).turn += more;
        }
    }

    /// By how much this moves a tenant's virtual time in a class.
    pub(crate) fn turned(&self, class: Class, tenant: &str) -> i64 {
        of_name(&self.tenant_classes[class as usize], tenant).map_or(0, |counts| counts.turn)
    }

    /// The floor of a class rises.
    pub(crate) fn floor(&mut self, class: Class, more: i64) {
        if more != 0 {
            self.count(1, class.as_str(), Counts { turn: more, ..Counts::default() });
        }
    }

    /// A task came to wait in a flow.
    pub(crate) fn enters(&mut self, flow: i64, rank: i64, id: TaskId) {
        let moved = self.flows.entry(flow).or_default();
        moved.queued += 1;
        moved.entered = moved.entered.max(Some((rank, id.0)));
        if !moved.raise {
            moved.low = Some(moved.low.map_or((rank, id.0), |low| low.min((rank, id.0))));
        }
    }

    /// A task left a flow out of turn.
    pub(crate) fn leaves(&mut self, flow: i64) {
        self.flows.entry(flow).or_default().queued -= 1;
    }

    /// A task was taken from the front of a flow: nothing waits there at or below it any more.
    pub(crate) fn taken_in_order(&mut self, flow: i64, rank: i64, id: TaskId) {
        let moved = self.flows.entry(flow).or_default();
        moved.queued -= 1;
        moved.raise = true;
        moved.low = Some(moved.low.map_or((rank, id.0), |low| low.max((rank, id.0))));
    }

    /// A task was taken from the end of a flow: nothing waits there at or above it any more.
    pub(crate) fn displaced(&mut self, flow: i64, rank: i64, id: TaskId) {
        let moved = self.flows.entry(flow).or_default();
        moved.queued -= 1;
        moved.displaced = Some(moved.displaced.map_or((rank, id.0), |first| first.min((rank, id.0))));
    }

    /// Whether something comes to wait in a flow where nothing may have waited.
    pub(crate) fn wakes(&self) -> bool {
        self.flows.values().any(|moved| moved.queued > 0)
    }

    /// How many more run, by scope and key.
    pub(crate) fn running(&self, scope: usize, key: &str) -> i64 {
        of_name(&self.usage[scope], key).map_or(0, |counts| counts.running)
    }

    /// How many more run of a tenant's class.
    pub(crate) fn running_of_class(&self, class: Class, tenant: &str) -> i64 {
        of_name(&self.tenant_classes[class as usize], tenant).map_or(0, |counts| counts.running)
    }

    /// Tenants of which less runs afterwards, in all or of a class.
    fn freed(&self) -> Vec<String> {
        let fewer = |(_, counts): &&(String, Counts)| counts.running < 0;
        let of_class = self.tenant_classes.iter().flatten();
        let mut freed: Vec<_> =
            self.usage[2].iter().chain(of_class).filter(fewer).map(|(name, _)| name.clone()).collect();
        freed.sort_unstable();
        freed.dedup();
        freed
    }

    fn count(&mut self, scope: usize, key: &str, counts: Counts) {
        entry(&mut self.usage[scope], key).add(counts, 1);
    }

    /// The counter rows that move, and by how much, in order.
    fn usage(&self) -> Vec<(i16, String, Counts)> {
        let named = (0..)
            .zip(&self.usage)
            .flat_map(|(scope, keys)| keys.iter().map(move |(key, counts)| (scope, key.clone(), *counts)));
        let of_class = Class::ALL.into_iter().zip(&self.tenant_classes);
        let of_class = of_class.flat_map(|(class, keys)| {
            keys.iter().map(move |(tenant, counts)| (4, format!("{}:{tenant}", class.as_str()), *counts))
        });
        let slots = self.slots.iter().filter(|(_, more)| **more != 0);
        let slots = slots.map(|(id, more)| (5, id.to_string(), Counts { running: *more, ..Counts::default() }));
        let kinds = self.kinds.iter().map(|(kind, counts)| (6, kind.clone(), *counts));
        let calls = self.calls.iter().map(|(peer, counts)| (7, peer.clone(), *counts));
        named.chain(of_class).chain(slots).chain(kinds).chain(calls).collect()
    }

    fn events(&self) -> impl Iterator<Item = (Told<'_>, &Vec<Uuid>)> {
        let kinds =
            self.events.iter().flat_map(|(tenant, kinds)| kinds.iter().map(move |(kind, all)| (tenant, kind, all)));
        kinds.flat_map(|(tenant, kind, all)| {
            all.iter().map(move |((status, reason), ids)| ((tenant.as_str(), kind.as_str(), *status, *reason), ids))
        })
    }

    /// Binds the parameters of the ledger, $1 to $32.
    pub(crate) fn bind(&self, sql: &'static str, now: EpochMs, process: Uuid) -> Query<'static, Postgres, PgArguments> {
        let moved = self.usage();
        let usage = |get: fn(&Counts) -> i64| moved.iter().map(|(_, _, counts)| get(counts)).collect::<Vec<_>>();
        let flows = self.flows.values();
        let mut first = 1;
        let (mut ids, mut spans) = (Vec::new(), Vec::new());
        for (_, tasks) in self.events() {
            ids.extend_from_slice(tasks);
            spans.push((first, first + tasks.len() as i32 - 1));
            first += tasks.len() as i32;
        }
        let event = |get: fn(Told<'_>) -> Option<String>| self.events().map(|(told, _)| get(told)).collect::<Vec<_>>();
        sqlx::query(sql)
            .bind(moved.iter().map(|(scope, _, _)| *scope).collect::<Vec<_>>())
            .bind(moved.iter().map(|(_, key, _)| key.clone()).collect::<Vec<_>>())
            .bind(usage(|c| c.queued))
            .bind(usage(|c| c.running))
            .bind(usage(|c| c.deferred))
            .bind(usage(|c| c.tokens))
            .bind(usage(|c| c.usd_micros))
            .bind(usage(|c| c.bytes))
            .bind(self.flows.keys().copied().collect::<Vec<_>>())
            .bind(flows.clone().map(|f| f.queued).collect::<Vec<_>>())
            .bind(flows.clone().map(|f| f.low.map(|low| low.0)).collect::<Vec<_>>())
            .bind(flows.clone().map(|f| f.low.map(|low| low.1)).collect::<Vec<_>>())
            .bind(flows.clone().map(|f| f.raise).collect::<Vec<_>>())
            .bind(now)
            .bind(event(|key| Some(key.0.to_owned())))
            .bind(event(|key| Some(key.1.to_owned())))
            .bind(event(|key| Some(key.2.as_str().to_owned())))
            .bind(event(|key| key.3.map(|reason| reason.as_str().to_owned())))
            .bind(spans.iter().map(|span| span.0).collect::<Vec<_>>())
            .bind(spans.iter().map(|span| span.1).collect::<Vec<_>>())
            .bind(ids)
            .bind(process)
            .bind(usage(|c| c.runs))
            .bind(usage(|c| c.run_ms))
            .bind(usage(|c| c.rate_ns))
            .bind(usage(|c| c.tokens_ns))
            .bind(flows.clone().map(|f| f.high().map(|high| high.0)).collect::<Vec<_>>())
            .bind(flows.clone().map(|f| f.high().map(|high| high.1)).collect::<Vec<_>>())
            .bind(flows.map(|f| f.displaced.is_some()).collect::<Vec<_>>())
            .bind(usage(|c| c.turn))
            .bind(usage(|c| c.retry_spent))
            .bind(self.freed())
    }

    /// Checks the row that the statement returned, and replaces counter rows that have had enough versions.
    pub(crate) async fn close(&self, row: &PgRow, tx: &mut Tx) -> Result<Rings, StoreError> {
        let (usages, flows): (i64, i64) = (row.try_get("usages")?, row.try_get("flows")?);
        if usages != self.usage().len() as i64 || flows != self.flows.len() as i64 {
            // A counter row was pruned since this process last saw it: begin again with what is there.
            return Err(StoreError::Busy(sqlx::Error::RowNotFound));
        }
        if row.try_get::<i32, _>("usage_version")? >= ROTATE_AFTER {
            let (scopes, keys): (Vec<i16>, Vec<String>) =
                self.usage().into_iter().map(|(scope, key, _)| (scope, key)).unzip();
            let sql = include_str!("rotate_usage.sql");
            tx.call(|conn| sqlx::query(sql).bind(scopes).bind(keys).bind(ROTATE_AFTER).execute(conn)).await?;
        }
        if row.try_get::<i32, _>("flow_version")? >= ROTATE_AFTER {
            let flows: Vec<i64> = self.flows.keys().copied().collect();
            let sql = include_str!("rotate_flow.sql");
            tx.call(|conn| sqlx::query(sql).bind(flows).bind(ROTATE_AFTER).execute(conn)).await?;
        }
        Ok(Rings {
            workers: row.try_get("worker_waits")?,
            readers: row.try_get("reader_waits")?,
            parents: false,
            unparked: row.try_get::<i64, _>("unparked")? > 0,
            peers: self.usage[3].iter().any(|(_, counts)| counts.running < 0)
                || self.calls.iter().any(|(_, counts)| counts.queued < 0),
        })
    }
}

/// What a name leads to, made anew where there is nothing yet. Owns the name only then.
fn entry<'a, T: Default>(named: &'a mut Named<T>, name: &str) -> &'a mut T {
    let at = match named.binary_search_by(|(known, _)| known.as_str().cmp(name)) {
        Ok(at) => at,
        Err(at) => {
            named.insert(at, (name.to_owned(), T::default()));
            at
        }
    };
    &mut named[at].1
}

/// What a name leads to, where there is anything.
fn of_name<'a, T>(named: &'a Named<T>, name: &str) -> Option<&'a T> {
    named.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok().map(|at| &named[at].1)
}

/// The class that a stored number stands for.
pub(crate) fn class_of(code: i16) -> Result<Class, StoreError> {
    Class::from_code(code).ok_or_else(|| StoreError::Schema(format!("class {code}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> FlowKey {
        FlowKey {
            class: Class::Standard,
            tenant: "acme".into(),
            kind: "echo".into(),
            peer: "hotels".into(),
            lane: tidegate_core::Lane::Fresh,
        }
    }

    #[test]
    fn what_goes_in_comes_out_again() {
        let mut ledger = Ledger::default();
        let (id, holding) = (TaskId::new(1, [1; 10], 0), Holding { tokens: 5, usd_micros: 7, bytes: 11 });
        for (from, to) in [
            (None, Status::Deferred),
            (Some(Status::Deferred), Status::Queued),
            (Some(Status::Queued), Status::Running),
            (Some(Status::Running), Status::Completed),
        ] {
            ledger.transition(&flow(), id, from, to, None, holding);
        }
        assert_eq!(ledger.usage().len(), 5);
        assert!(ledger.usage().iter().all(|(_, _, counts)| *counts == Counts::default()));
        assert_eq!(ledger.events().count(), 4);
    }

    #[test]
    fn tokens_count_in_flight_only_and_bytes_until_the_end() {
        let holding = Holding { tokens: 5, usd_micros: 7, bytes: 11 };
        assert_eq!(Counts::of(Status::Deferred, holding), Counts { deferred: 1, bytes: 11, ..Counts::default() });
        let queued = Counts { queued: 1, tokens: 5, usd_micros: 7, bytes: 11, ..Counts::default() };
        assert_eq!(Counts::of(Status::Queued, holding), queued);
        assert_eq!(Counts::of(Status::Running, holding), Counts { queued: 0, running: 1, ..queued });
        assert_eq!(Counts::of(Status::Failed, holding), Counts::default());
    }
}
