//! What the door knows when it decides: all of it read inside the transaction that locked the cell.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::EpochMs;
use crate::id::TaskId;
use crate::names::{Class, Lane};

/// What tasks hold, at one level: the cell, a class, a tenant, a tenant's class or a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tasks that are QUEUED.
    pub queued: i64,
    /// Tasks that are ADMITTED or RUNNING.
    pub running: i64,
    /// Tasks that are DEFERRED.
    pub deferred: i64,
    /// Tokens that tasks in flight reserve.
    pub tokens: i64,
    /// Money that tasks in flight reserve, in millionths of a dollar.
    pub usd_micros: i64,
    /// Bytes of payload that tasks hold which have not ended.
    pub bytes: i64,
    /// DEFERRED tasks whose time has come: they go before newcomers.
    pub due: i64,
    /// Tokens that those will reserve.
    pub due_tokens: i64,
    /// Money that those will reserve.
    pub due_usd_micros: i64,
}

/// What the door knows of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantFacts {
    /// What it holds.
    pub usage: Usage,
    /// What it holds of each class.
    pub classes: [Usage; 3],
    /// When its bucket of submissions is full again, in nanoseconds since the epoch.
    pub rate_full_ns: i64,
    /// When its bucket of tokens is.
    pub tokens_full_ns: i64,
}

/// How far the rates of a peer are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerRates {
    /// When its bucket of requests is full again, in nanoseconds since the epoch.
    pub requests_full_ns: i64,
    /// When its bucket of tokens is.
    pub tokens_full_ns: i64,
    /// Requests that go before a newcomer's: calls that wait, and tasks that have a slot reserved and draw when they start.
    pub ahead: i64,
    /// Tokens that those tasks will draw.
    pub ahead_tokens: i64,
}

/// A live session that has a slot free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRoom {
    /// The session.
    pub id: u128,
    /// The kinds that it runs.
    pub kinds: std::sync::Arc<[String]>,
    /// Slots that neither run nor are reserved.
    pub free: i64,
}

/// What the door knows of a task that a submission names as its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParentFacts {
    /// Its deadline.
    pub deadline: EpochMs,
    /// Hops that it may still delegate.
    pub depth: u32,
    /// Children that it may start, over its life.
    pub fanout: u32,
    /// Children that it started.
    pub children: i64,
    /// Whether it is RUNNING, with no cancel asked.
    pub running: bool,
}

/// The waiting tasks of one flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// The class of the flow.
    pub class: Class,
    /// Its tenant.
    pub tenant: String,
    /// Its kind.
    pub kind: String,
    /// Its peer; empty for none.
    pub peer: String,
    /// Its lane.
    pub lane: Lane,
    /// How many wait in it.
    pub queued: i64,
}

/// A waiting task that may be displaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The task.
    pub id: TaskId,
    /// Its flow.
    pub flow: i64,
    /// Its sort key.
    pub rank: i64,
    /// Its class.
    pub class: Class,
    /// Its tenant.
    pub tenant: String,
    /// Its peer; empty for none.
    pub peer: String,
    /// What it holds.
    pub load: Load,
}

/// How fast tasks have been served lately.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pace {
    /// Runs that ended in the window.
    pub runs: u64,
    /// How long they took on average, in milliseconds.
    pub mean_run_ms: f64,
}

/// Runs in the window below which nobody knows how fast tasks are served.
pub const LEAST_RUNS: u64 = 20;

impl Pace {
    /// Tasks a millisecond that so many slots serve; `None` while unknown. By Little's law: what is observed while
    /// slots stand idle says nothing about how fast a queue would drain, slots over the mean run does.
    pub fn rate(&self, slots: i64) -> Option<f64> {
        let known = self.runs >= LEAST_RUNS && slots > 0;
        known.then(|| slots as f64 / self.mean_run_ms.max(0.1))
    }
}

/// The facts that one batch of submissions is decided over. [`Facts::take`] keeps them true from one to the next.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The database's clock.
    pub now: EpochMs,
    /// Slots of the live sessions that take work.
    pub live_slots: i64,
    /// The kinds that live sessions run; `None` where nobody read it, and then all count.
    pub live_kinds: Option<HashSet<String>>,
    /// What the cell holds.
    pub cell: Usage,
    /// What each class holds.
    pub classes: [Usage; 3],
    /// Whether each class is being shed.
    pub shedding: [bool; 3],
    /// What the tenants hold that the batch names.
    pub tenants: BTreeMap<String, TenantFacts>,
    /// What the peers hold that the batch names, or that have limits.
    pub peers: BTreeMap<String, Usage>,
    /// How far the rates of those peers are used up.
    pub peer_rates: BTreeMap<String, PeerRates>,
    /// Sessions with a free slot; empty where there is none, or where nobody could take it.
    pub sessions: Vec<SessionRoom>,
    /// Parents that the batch names and that the tenant has.
    pub parents: HashMap<TaskId, ParentFacts>,
    /// Cancelled tokens that the batch names, by tenant.
    pub cancelled_tokens: HashSet<(String, String)>,
    /// Waiting tasks by flow, where they were read: only then is it known which of them may run.
    pub backlog: Option<Vec<Backlog>>,
    /// The worst waiting tasks of each class, worst first, where they were read.
    pub candidates: [Vec<Candidate>; 3],
    /// How fast tasks are served.
    pub pace: Pace,
    /// The typical longest run of kinds, in milliseconds, where it is known.
    pub typical_run_ms: HashMap<String, i64>,
    /// Of the submissions at hand, those whose input is held.
    pub held: HashSet<TaskId>,
}

/// What one task holds while it has not ended: what it adds to each level, and takes from it in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Tokens.
    pub tokens: i64,
    /// Money.
    pub usd_micros: i64,
    /// Bytes.
    pub bytes: i64,
}

impl Usage {
    /// Tasks that are QUEUED, ADMITTED or RUNNING.
    pub fn in_flight(&self) -> i64 {
        self.queued + self.running
    }

    pub(super) fn queue(&mut self, load: Load, sign: i64) {
        self.queued += sign;
        self.reserve(load, sign);
    }

    pub(super) fn run(&mut self, load: Load) {
        self.running += 1;
        self.reserve(load, 1);
    }

    pub(super) fn defer(&mut self, load: Load, due: bool) {
        self.deferred += 1;
        self.bytes += load.bytes;
        if due {
            self.due += 1;
            self.due_tokens += load.tokens;
            self.due_usd_micros += load.usd_micros;
        }
    }

    fn reserve(&mut self, load: Load, sign: i64) {
        self.tokens += sign * load.tokens;
        self.usd_micros += sign * load.usd_micros;
        self.bytes += sign * load.bytes;
    }
}

impl Facts {
    /// Changes what is held at every level of a task.
    pub(super) fn at_levels(&mut self, class: Class, tenant: &str, peer: &str, mut change: impl FnMut(&mut Usage)) {
        change(&mut self.cell);
        change(&mut self.classes[class as usize]);
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            change(&mut tenant.usage);
            change(&mut tenant.classes[class as usize]);
        }
        if let Some(peer) = self.peers.get_mut(peer) {
            change(peer);
        }
    }

    /// Counts tasks that lose their place.
    pub(super) fn displaced(&mut self, displaced: &[Candidate]) {
        for lost in displaced {
            self.at_levels(lost.class, &lost.tenant, &lost.peer, |usage| usage.queue(lost.load, -1));
            self.candidates[lost.class as usize].retain(|candidate| candidate.id != lost.id);
        }
    }

    /// What a tenant holds; nothing where it is not known.
    pub fn tenant(&self, name: &str) -> TenantFacts {
        self.tenants.get(name).copied().unwrap_or_default()
    }

    /// What a peer holds; nothing where it is not known.
    pub fn peer(&self, name: &str) -> Usage {
        self.peers.get(name).copied().unwrap_or_default()
    }

    /// How far the rates of a peer are used up; not at all where it is not known.
    pub fn rates(&self, peer: &str) -> PeerRates {
        self.peer_rates.get(peer).copied().unwrap_or_default()
    }

    /// What runs of each class.
    pub fn running(&self) -> [i64; 3] {
        self.classes.map(|class| class.running)
    }
}
