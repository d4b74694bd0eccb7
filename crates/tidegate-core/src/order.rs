//! The order of waiting tasks: which a claim takes, and in what order.
//!
//! Class goes before tenant, and tenant before task. Between the tenants of a class it is start-time fair queueing
//! (Goyal, Vin, Cheng 1996): each has a virtual time that advances by what its work costs divided by its weight, and
//! the smallest is served next. `docs/scheduling.md` derives what that means for the wait of each class.

use std::collections::{BTreeMap, BTreeSet};

use crate::EpochMs;
use crate::bucket::{Bucket, Drawn};
use crate::id::TaskId;
use crate::names::{Class, Lane, Priority};
use crate::peer::PeerLimits;
use crate::reason::Reason;
use crate::slots::SlotCaps;

/// How far behind the floor of its class a tenant may be and still have it made up for, in microseconds of worker time
/// for a weight of 1. What is corrected at settlement lies well within; a tenant that could not run, since its peers
/// were full or its kinds paused, does not come back with more than this.
const MAX_LAG_US: i64 = 10_000_000;
/// The same in expected runs, where those are long.
const MAX_LAG_RUNS: i64 = 4;

/// The stored sort key, smaller first: `enqueued_ms − priority × ageing_step_ms`. Every waiting task gains one point
/// of priority each step, all alike, so two waiting tasks never change places and linear ageing is a constant.
pub fn rank(enqueued: EpochMs, priority: Priority, ageing_step_ms: u32) -> i64 {
    enqueued.saturating_sub(i64::from(priority.get()) * i64::from(ageing_step_ms))
}

/// By how much a run that takes `run_ms` advances the virtual time of a tenant: microseconds of worker time, divided
/// by its weight; at least one, so that nobody is served for nothing.
pub fn virtual_cost(run_ms: i64, weight: f64) -> i64 {
    ((run_ms.max(0) as f64 * 1_000.0 / weight).min(i64::MAX as f64 / 1e6) as i64).max(1)
}

/// The waiting tasks of one flow, as far as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowHead {
    /// The flow's id.
    pub flow: i64,
    /// Its class.
    pub class: Class,
    /// Its lane. What is in the admitted lane has a slot of its own, and is counted as running already.
    pub lane: Lane,
    /// Its tenant among [`ClaimRoom::tenants`].
    pub tenant: usize,
    /// Its peer among [`ClaimRoom::peers`], where the peer has a limit.
    pub peer: Option<usize>,
    /// Its kind among [`ClaimRoom::kinds`], where this worker has a limit for it.
    pub kind: Option<usize>,
    /// What a run of it is expected to take, in milliseconds.
    pub run_ms: i64,
    /// How many tasks wait in it, read or not.
    pub queued: i64,
    /// Its first tasks in order of rank, then id.
    pub tasks: Vec<Waiting>,
}

/// A waiting task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// The task.
    pub id: TaskId,
    /// Its sort key.
    pub rank: i64,
    /// Since when it could have run.
    pub enqueued: EpochMs,
    /// When it must have ended.
    pub deadline: EpochMs,
    /// The least time left that makes a start useful.
    pub min_useful_ms: i64,
    /// The tokens that it is expected to use.
    pub tokens: u64,
}

/// What a tenant may still start, and where it stands among the others.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantRoom {
    /// Tasks that it may still start.
    pub left: i64,
    /// Of each class.
    pub left_of_class: [i64; 3],
    /// Its share of the workers' time, against the other tenants of a class.
    pub weight: f64,
    /// Its virtual time in each class, in microseconds.
    pub turns: [i64; 3],
}

/// What a peer may still be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRoom {
    /// Tasks and calls that may still use it at once.
    pub left: i64,
    /// Requests in a minute.
    pub requests: Option<Rate>,
    /// Tokens in a minute.
    pub tokens: Option<Rate>,
}

/// A rate, and how far it is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The rate with its burst.
    pub bucket: Bucket,
    /// When it is full again, in nanoseconds.
    pub full_ns: i64,
}

/// What is drawn from a peer's rates, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Draw {
    /// From its requests.
    pub requests_ns: i64,
    /// From its tokens.
    pub tokens_ns: i64,
}

impl PeerRoom {
    /// What a peer with these limits may still be given, where so many tasks and calls use it and its buckets of requests
    /// and tokens are full again at these instants, in nanoseconds. Anything where nobody configured it.
    pub fn of(limits: Option<&PeerLimits>, running: i64, rate_full_ns: i64, tokens_full_ns: i64) -> Self {
        let rate = |bucket: Option<Bucket>, full_ns| bucket.map(|bucket| Rate { bucket, full_ns });
        let most = limits.and_then(|limits| limits.max_in_flight);
        Self {
            left: most.map_or(i64::MAX, |most| i64::from(most) - running),
            requests: rate(limits.and_then(PeerLimits::requests), rate_full_ns),
            tokens: rate(limits.and_then(PeerLimits::tokens), tokens_full_ns),
        }
    }

    /// What is left of it for others once so many calls have theirs: a call holds a slot of a worker while it waits, so it
    /// goes before tasks that hold none.
    pub fn behind(mut self, calls: i64, now: EpochMs) -> Self {
        if calls > 0 {
            self.left = self.left.saturating_sub(calls);
            if let Some(rate) = &mut self.requests {
                rate.take(now, rate.bucket.time_of(1).saturating_mul(calls));
            }
        }
        self
    }

    /// What is left of it for others once so many tokens have been drawn.
    pub(crate) fn behind_tokens(mut self, tokens: i64, now: EpochMs) -> Self {
        if let (Some(rate), Ok(tokens @ 1..)) = (&mut self.tokens, u64::try_from(tokens)) {
            rate.take(now, rate.bucket.time_of(tokens));
        }
        self
    }

    /// Whether it can be given a task of so many tokens now; else in how many milliseconds, as far as that is known.
    pub(crate) fn draw(&self, now: EpochMs, tokens: u64) -> Result<Draw, Option<u64>> {
        if self.left <= 0 {
            return Err(None);
        }
        let mut draw = Draw::default();
        if let Some(rate) = &self.requests {
            draw.requests_ns = rate.ask(now, 1)?;
        }
        if let Some(rate) = &self.tokens {
            draw.tokens_ns = rate.ask(now, tokens)?;
        }
        Ok(draw)
    }

    /// In how many milliseconds it may be given anything at all, where that is a matter of its rates; 0 where it may now
    /// and `None` where only the end of a run helps.
    pub fn ready_in_ms(&self, now: EpochMs) -> Option<u64> {
        if self.left <= 0 {
            return None;
        }
        let wait = |rate: &Option<Rate>| rate.map_or(Ok(0), |rate| rate.ask(now, 1));
        match (wait(&self.requests), wait(&self.tokens)) {
            (Ok(_), Ok(_)) => Some(0),
            (a, b) => Some(a.err().flatten().max(b.err().flatten()).unwrap_or(0).max(1)),
        }
    }
}

impl Rate {
    /// What must be added for `amount`. More than the rate ever holds at once is asked for as all that it holds, and
    /// paid for in full.
    fn ask(&self, now: EpochMs, amount: u64) -> Result<i64, Option<u64>> {
        let now_ns = now.saturating_mul(1_000_000);
        match self.bucket.draw(self.full_ns, now_ns, amount.min(self.bucket.burst())) {
            Drawn::Taken { .. } => Ok(self.bucket.time_of(amount)),
            Drawn::Short { retry_ms } => Err(retry_ms),
        }
    }

    fn take(&mut self, now: EpochMs, add_ns: i64) {
        self.full_ns = self.full_ns.max(now.saturating_mul(1_000_000)).saturating_add(add_ns);
    }
}

/// What may still start, at every level.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimRoom {
    /// How the cell's slots are divided.
    pub caps: SlotCaps,
    /// Tasks that are ADMITTED or RUNNING, by class.
    pub running: [i64; 3],
    /// The floor of each class: the virtual time of what was last served there. Whoever was idle starts from it.
    pub floors: [i64; 3],
    /// The wait after which a task competes in the class above, by class.
    pub promote_after_ms: [Option<u64>; 3],
    /// The tenants of the flows.
    pub tenants: Vec<TenantRoom>,
    /// The peers that have limits.
    pub peers: Vec<PeerRoom>,
    /// What this worker may still run of the kinds that it limits.
    pub kinds: Vec<i64>,
    /// How many tasks that were lost twice this worker may still take: none beside another.
    pub suspects: i64,
}

/// Why a flow has no room.
enum Full {
    /// No class, kind or peer of it has, or the worker has a suspect already.
    Passing,
    /// Its peer has in so many milliseconds.
    Peer(Option<u64>),
    /// Its tenant has none.
    Tenant,
}

impl ClaimRoom {
    fn check(&self, flow: &FlowHead, task: &Waiting, now: EpochMs) -> Result<Draw, Full> {
        let kind_is_full = flow.kind.is_some_and(|n| self.kinds[n] <= 0);
        if flow.lane == Lane::Admitted {
            if kind_is_full {
                return Err(Full::Passing);
            }
            // Its slot is taken already; what its peer may be sent in a minute is not.
            return match flow.peer.map(|n| PeerRoom { left: 1, ..self.peers[n].clone() }.draw(now, task.tokens)) {
                Some(Err(wait)) => Err(Full::Peer(wait)),
                Some(Ok(draw)) => Ok(draw),
                None => Ok(Draw::default()),
            };
        }
        let tenant = &self.tenants[flow.tenant];
        if tenant.left <= 0 || tenant.left_of_class[flow.class as usize] <= 0 {
            return Err(Full::Tenant);
        }
        let suspect = flow.lane == Lane::Suspect && self.suspects <= 0;
        if kind_is_full || suspect || self.caps.room(&self.running, flow.class) <= 0 {
            return Err(Full::Passing);
        }
        flow.peer.map_or(Ok(Draw::default()), |n| self.peers[n].draw(now, task.tokens).map_err(Full::Peer))
    }

    fn start(&mut self, flow: &FlowHead, draw: Draw, now: EpochMs) {
        if let Some(n) = flow.kind {
            self.kinds[n] -= 1;
        }
        if let Some(n) = flow.peer {
            let peer = &mut self.peers[n];
            if let Some(rate) = &mut peer.requests {
                rate.take(now, draw.requests_ns);
            }
            if let Some(rate) = &mut peer.tokens {
                rate.take(now, draw.tokens_ns);
            }
        }
        if flow.lane == Lane::Admitted {
            return;
        }
        if flow.lane == Lane::Suspect {
            self.suspects -= 1;
        }
        self.running[flow.class as usize] += 1;
        let tenant = &mut self.tenants[flow.tenant];
        tenant.left -= 1;
        tenant.left_of_class[flow.class as usize] -= 1;
        if let Some(n) = flow.peer {
            self.peers[n].left -= 1;
        }
    }

    /// The class in which a task competes: its own, or the one above where it has waited for long; never critical.
    pub fn competes_in(&self, class: Class, enqueued: EpochMs, now: EpochMs) -> Class {
        let waited = u64::try_from(now.saturating_sub(enqueued)).unwrap_or(0);
        match (class, self.promote_after_ms[class as usize]) {
            (Class::Background, Some(after)) if waited >= after => Class::Standard,
            _ => class,
        }
    }

    /// Charges a tenant for a run, in the class in which it competed. Returns how far behind the floor it was.
    fn charge(&mut self, flow: &FlowHead, class: Class) -> i64 {
        let (at, run_ms) = (class as usize, flow.run_ms);
        let TenantRoom { weight, turns, .. } = &mut self.tenants[flow.tenant];
        // Where it was promoted to, it may never have been: it is behind for want of work there, not for having waited.
        let least_us = if class == flow.class { MAX_LAG_US } else { 0 };
        let lag_us = least_us.max(run_ms.saturating_mul(1_000 * MAX_LAG_RUNS));
        let lag = virtual_cost(lag_us / 1_000, *weight);
        let behind = self.floors[at].saturating_sub(turns[at]).max(0);
        let start = turns[at].max(self.floors[at].saturating_sub(lag));
        turns[at] = start.saturating_add(virtual_cost(run_ms, *weight));
        self.floors[at] = self.floors[at].max(start);
        behind
    }
}

/// A task to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The position of its flow.
    pub flow: usize,
    /// Its position in the flow.
    pub task: usize,
    /// The class whose virtual time is charged for it.
    pub charged_in: Class,
    /// What is drawn from the rates of its peer.
    pub draw: Draw,
    /// How far its tenant was behind the floor, in microseconds of virtual time.
    pub behind_us: i64,
}

/// What a claim does with the tasks it saw, by the positions of flow and task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chosen {
    /// To start.
    pub start: Vec<Start>,
    /// Doomed: to end as EXPIRED instead of starting late.
    pub expire: Vec<(usize, usize, Reason)>,
    /// Whether it stopped because a flow was not read far enough to tell what comes next.
    pub stopped_short: bool,
    /// Flows whose tenant has no room, by position: nobody need look at them before something of that tenant ends.
    pub capped: Vec<usize>,
    /// In how many milliseconds a peer that was passed over may be given something.
    pub again_in_ms: Option<u64>,
    /// The tenants' virtual times afterwards.
    pub turns: Vec<[i64; 3]>,
    /// The floors afterwards.
    pub floors: [i64; 3],
}

/// Chooses at most `slots` tasks to start. First those that a slot is reserved for; then by class; in a class by the
/// virtual times of the tenants; of a tenant by rank and id, over all its flows. A flow without room is passed over
/// whole. What has no time left to be useful is expired on the way and takes no slot. It stops where a flow was not
/// read far enough to tell what comes next, so the order is exact.
pub fn choose(flows: &[FlowHead], room: ClaimRoom, slots: usize, now: EpochMs) -> Chosen {
    let mut choice = Choice { flows, room, slots, now, chosen: Chosen::default(), queues: Default::default() };
    choice.reserved();
    for (at, flow) in flows.iter().enumerate().filter(|(_, flow)| flow.lane != Lane::Admitted) {
        choice.queue(at, flow, 0);
    }
    while choice.wants_more() && choice.next() {}
    let Choice { room, mut chosen, .. } = choice;
    chosen.turns = room.tenants.iter().map(|tenant| tenant.turns).collect();
    chosen.floors = room.floors;
    chosen
}

/// The heads of one class: tenants by virtual time, and the flows of each by rank.
#[derive(Default)]
struct Queue {
    /// By virtual time, then by the first rank and id.
    tenants: BTreeSet<(i64, i64, TaskId, usize)>,
    heads: BTreeMap<usize, BTreeSet<Head>>,
}

/// Rank, id, position of the flow and of the task.
type Head = (i64, TaskId, usize, usize);

struct Choice<'a> {
    flows: &'a [FlowHead],
    room: ClaimRoom,
    slots: usize,
    now: EpochMs,
    chosen: Chosen,
    queues: [Queue; 3],
}

impl Choice<'_> {
    fn wants_more(&self) -> bool {
        self.chosen.start.len() < self.slots && !self.chosen.stopped_short
    }

    /// Starts what slots are reserved for, the more important first.
    fn reserved(&mut self) {
        let flows = self.flows;
        let mut heads: Vec<_> = flows
            .iter()
            .enumerate()
            .filter(|(_, flow)| flow.lane == Lane::Admitted)
            .flat_map(|(at, flow)| {
                flow.tasks.iter().enumerate().map(move |(n, task)| (flow.class, task.rank, task.id, at, n))
            })
            .collect();
        heads.sort_unstable();
        for (_, _, _, at, n) in heads {
            if !self.wants_more() {
                return;
            }
            self.take(at, n, flows[at].class);
        }
    }

    /// Starts a task or ends it as doomed; otherwise tells why not.
    fn take(&mut self, at: usize, n: usize, class: Class) -> Option<Full> {
        let (flow, task) = (&self.flows[at], self.flows[at].tasks[n]);
        if let Some(reason) = doom(&task, self.now) {
            self.chosen.expire.push((at, n, reason));
            return None;
        }
        match self.room.check(flow, &task, self.now) {
            Ok(draw) => {
                self.room.start(flow, draw, self.now);
                let behind_us = self.room.charge(flow, class);
                self.chosen.start.push(Start { flow: at, task: n, charged_in: class, draw, behind_us });
                None
            }
            Err(full) => Some(full),
        }
    }

    /// Takes the next task of the first class in which any is left. Returns whether there was one.
    fn next(&mut self) -> bool {
        let first = |class: Class| self.queues[class as usize].tenants.first().map(|entry| (class, *entry));
        let Some((class, entry)) = Class::ALL.into_iter().find_map(first) else { return false };
        let (queue, tenant) = (&mut self.queues[class as usize], entry.3);
        queue.tenants.remove(&entry);
        let Some((_, _, at, n)) = queue.heads.get_mut(&tenant).and_then(BTreeSet::pop_first) else { return true };
        let flow = &self.flows[at];
        match self.take(at, n, class) {
            None if n + 1 < flow.tasks.len() => self.queue(at, flow, n + 1),
            None if flow.queued > flow.tasks.len() as i64 => self.chosen.stopped_short = self.wants_more(),
            None | Some(Full::Passing) => {}
            Some(Full::Peer(wait)) => {
                self.chosen.again_in_ms = match (self.chosen.again_in_ms, wait) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
            Some(Full::Tenant) => self.chosen.capped.push(at),
        }
        self.enter(class, tenant);
        true
    }

    /// Puts the head of a flow where it competes.
    fn queue(&mut self, at: usize, flow: &FlowHead, n: usize) {
        let Some(task) = flow.tasks.get(n) else { return };
        let class = self.room.competes_in(flow.class, task.enqueued, self.now);
        let queue = &mut self.queues[class as usize];
        let turn = self.room.tenants[flow.tenant].turns[class as usize];
        let heads = queue.heads.entry(flow.tenant).or_default();
        if let Some(first) = heads.first() {
            queue.tenants.remove(&(turn, first.0, first.1, flow.tenant));
        }
        heads.insert((task.rank, task.id, at, n));
        self.enter(class, flow.tenant);
    }

    /// Puts a tenant at its place in a class, by its virtual time there.
    fn enter(&mut self, class: Class, tenant: usize) {
        let queue = &mut self.queues[class as usize];
        let first = queue.heads.get(&tenant).and_then(BTreeSet::first);
        if let Some((rank, id, ..)) = first {
            queue.tenants.insert((self.room.tenants[tenant].turns[class as usize], *rank, *id, tenant));
        }
    }
}

/// Why a task must not start at `now`, if so.
pub fn doom(task: &Waiting, now: EpochMs) -> Option<Reason> {
    if task.deadline <= now {
        Some(Reason::DeadlinePassed)
    } else if task.deadline.saturating_sub(now) < task.min_useful_ms {
        Some(Reason::DeadlineTooShort)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
