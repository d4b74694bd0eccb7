//! A cell in virtual time: streams of tasks, slots, and what the store does around `choose`. Every claim is checked on
//! the way: nothing that may run waits beside a free slot, no class takes what is kept for another, and the tasks of a
//! flow start in their order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::RangeInclusive;

use tidegate_core::limits::Limits;
use tidegate_core::order::{ClaimRoom, FlowHead, PeerRoom, TenantRoom, Waiting, choose, rank, virtual_cost};
use tidegate_core::slots::SlotCaps;
use tidegate_core::{Class, EpochMs, Lane, Priority, TaskId};

/// Long after any run: no deadline plays a part.
const DEADLINE: EpochMs = i64::MAX;
/// What the store expects of a run where nothing is known, and the part of the average that a new run makes.
const UNKNOWN_RUN_MS: f64 = 100.0;
const NEW_RUN: f64 = 0.2;

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number above 0, at most 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn within(&mut self, range: &RangeInclusive<i64>) -> i64 {
        range.start() + (self.next() % (range.end() - range.start() + 1) as u64) as i64
    }
}

/// How the tasks of a stream come.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arrivals {
    /// At random, so many milliseconds apart on average, while fewer than so many wait; more are refused.
    Random { every_ms: f64, most: usize },
    /// One each so many milliseconds.
    Steady { every_ms: i64 },
    /// Whenever one starts another comes, so that so many wait always.
    Backlog(usize),
}

/// Tasks of one tenant that are alike.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    pub(crate) tenant: usize,
    pub(crate) priority: i64,
    pub(crate) peer: Option<usize>,
    pub(crate) run_ms: RangeInclusive<i64>,
    pub(crate) arrivals: Arrivals,
    /// When it begins and ends.
    pub(crate) from: EpochMs,
    pub(crate) until: EpochMs,
}

impl Stream {
    pub(crate) fn new(tenant: usize, priority: i64, run_ms: RangeInclusive<i64>, arrivals: Arrivals) -> Self {
        Self { tenant, priority, peer: None, run_ms, arrivals, from: 0, until: EpochMs::MAX }
    }
}

/// A task that started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Started {
    pub(crate) stream: usize,
    pub(crate) arrived: EpochMs,
    pub(crate) at: EpochMs,
    pub(crate) ends: EpochMs,
}

impl Started {
    pub(crate) fn waited(&self) -> i64 {
        self.at - self.arrived
    }
}

#[derive(Debug, Clone)]
struct Tenant {
    weight: f64,
    max_running: i64,
    running: i64,
    turns: [i64; 3],
    waiting: [usize; 3],
    /// What a run of it takes, as far as is known.
    mean_ms: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Task {
    stream: usize,
    arrived: EpochMs,
}

type Key = (Class, usize, Option<usize>);

#[derive(Debug, Clone, Copy)]
struct Run {
    stream: usize,
    class: Class,
    charged_in: Class,
    charged_ms: i64,
    started: EpochMs,
}

/// A cell.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) now: EpochMs,
    pub(crate) limits: Limits,
    pub(crate) slots: i64,
    /// Everything that started, in order.
    pub(crate) started: Vec<Started>,
    floors: [i64; 3],
    tenants: Vec<Tenant>,
    /// What each peer may still be given.
    peers: Vec<i64>,
    streams: Vec<Stream>,
    waiting_of: Vec<usize>,
    flows: BTreeMap<Key, BTreeMap<(i64, TaskId), Task>>,
    arrivals: BinaryHeap<Reverse<(EpochMs, usize)>>,
    ends: BinaryHeap<Reverse<(EpochMs, u64)>>,
    runs: BTreeMap<u64, Run>,
    running: [i64; 3],
    ids: u64,
    random: Random,
}

impl Cell {
    pub(crate) fn new(slots: i64, limits: Limits, seed: u64) -> Self {
        Self {
            now: 0,
            limits,
            slots,
            started: Vec::new(),
            floors: [0; 3],
            tenants: Vec::new(),
            peers: Vec::new(),
            streams: Vec::new(),
            waiting_of: Vec::new(),
            flows: BTreeMap::new(),
            arrivals: BinaryHeap::new(),
            ends: BinaryHeap::new(),
            runs: BTreeMap::new(),
            running: [0; 3],
            ids: 0,
            random: Random(seed),
        }
    }

    pub(crate) fn tenant(&mut self, weight: f64) -> usize {
        let (max_running, running) = (i64::MAX, 0);
        self.tenants.push(Tenant { weight, max_running, running, turns: [0; 3], waiting: [0; 3], mean_ms: None });
        self.tenants.len() - 1
    }

    pub(crate) fn cap(&mut self, tenant: usize, max_running: i64) {
        self.tenants[tenant].max_running = max_running;
    }

    /// A peer that may be given so many tasks at once.
    pub(crate) fn peer(&mut self, most: i64) -> usize {
        self.peers.push(most);
        self.peers.len() - 1
    }

    /// A peer may be given so many more at once.
    pub(crate) fn widen(&mut self, peer: usize, more: i64) {
        self.peers[peer] += more;
    }

    pub(crate) fn stream(&mut self, stream: Stream) -> usize {
        let (n, from) = (self.streams.len(), stream.from);
        let first = if let Arrivals::Backlog(most) = stream.arrivals { most } else { 1 };
        self.streams.push(stream);
        self.waiting_of.push(0);
        self.arrivals.extend((0..first).map(|_| Reverse((from, n))));
        n
    }

    /// Lives on until then.
    pub(crate) fn run(&mut self, until: EpochMs) {
        loop {
            let arrival = self.arrivals.peek().map(|Reverse((at, _))| *at);
            let end = self.ends.peek().map(|Reverse((at, _))| *at);
            let Some(at) = arrival.into_iter().chain(end).min().filter(|at| *at <= until) else { break };
            self.now = at;
            self.end_runs();
            self.arrive();
            self.claim();
        }
        self.now = until;
    }

    /// Worker time of a stream within a span.
    pub(crate) fn worked_ms(&self, stream: usize, span: std::ops::Range<EpochMs>) -> i64 {
        let runs = self.started.iter().filter(|run| run.stream == stream);
        runs.map(|run| (run.ends.min(span.end) - run.at.max(span.start)).max(0)).sum()
    }

    /// How long the tasks of a stream waited that started, shortest first.
    pub(crate) fn waits_ms(&self, stream: usize) -> Vec<i64> {
        let runs = self.started.iter().filter(|run| run.stream == stream);
        let mut waits: Vec<i64> = runs.map(Started::waited).collect();
        waits.sort_unstable();
        waits
    }

    /// When the task of a stream came that waits longest.
    pub(crate) fn oldest(&self, stream: usize) -> Option<EpochMs> {
        let tasks = self.flows.values().flat_map(BTreeMap::values);
        tasks.filter(|task| task.stream == stream).map(|task| task.arrived).min()
    }

    fn end_runs(&mut self) {
        while let Some(Reverse((at, n))) = self.ends.peek().copied().filter(|Reverse((at, _))| *at <= self.now) {
            self.ends.pop();
            let run = self.runs.remove(&n).unwrap();
            let stream = &self.streams[run.stream];
            let tenant = &mut self.tenants[stream.tenant];
            let took = at - run.started;
            tenant.turns[run.charged_in as usize] +=
                virtual_cost(took, tenant.weight) - virtual_cost(run.charged_ms, tenant.weight);
            tenant.mean_ms = Some(tenant.mean_ms.map_or(took as f64, |mean| mean + NEW_RUN * (took as f64 - mean)));
            tenant.running -= 1;
            self.running[run.class as usize] -= 1;
            if let Some(peer) = stream.peer {
                self.peers[peer] += 1;
            }
        }
    }

    fn arrive(&mut self) {
        while let Some(Reverse((_, n))) = self.arrivals.peek().copied().filter(|Reverse((at, _))| *at <= self.now) {
            self.arrivals.pop();
            let stream = self.streams[n].clone();
            if self.now > stream.until {
                continue;
            }
            let next_ms = match stream.arrivals {
                Arrivals::Random { every_ms, .. } => Some((-self.random.unit().ln() * every_ms).round() as i64),
                Arrivals::Steady { every_ms } => Some(every_ms),
                Arrivals::Backlog(_) => None,
            };
            self.arrivals.extend(next_ms.map(|ms| Reverse((self.now + ms.max(1), n))));
            if matches!(stream.arrivals, Arrivals::Random { most, .. } if self.waiting_of[n] >= most) {
                continue;
            }
            let priority = Priority::new(stream.priority).unwrap();
            let class = self.limits.class_of(priority);
            let tenant = &mut self.tenants[stream.tenant];
            if tenant.waiting[class as usize] == 0 {
                // One that was idle starts from the floor.
                tenant.turns[class as usize] = tenant.turns[class as usize].max(self.floors[class as usize]);
            }
            tenant.waiting[class as usize] += 1;
            self.waiting_of[n] += 1;
            let key = (rank(self.now, priority, self.limits.ageing_step_ms), self.new_id());
            let task = Task { stream: n, arrived: self.now };
            self.flows.entry((class, stream.tenant, stream.peer)).or_default().insert(key, task);
        }
    }

    fn new_id(&mut self) -> TaskId {
        self.ids += 1;
        let mut random = [0; 10];
        random[3..9].copy_from_slice(&self.ids.to_be_bytes()[2..]);
        TaskId::new(self.now, random, 0)
    }

    fn caps(&self) -> SlotCaps {
        SlotCaps::of(&self.limits, self.slots)
    }

    /// What a claim of so many is told.
    pub(crate) fn seen(&self, want: usize) -> (Vec<FlowHead>, ClaimRoom) {
        let heads = self.flows.iter().map(|((class, tenant, peer), tasks)| FlowHead {
            flow: 0,
            class: *class,
            lane: Lane::Fresh,
            tenant: *tenant,
            peer: *peer,
            kind: None,
            run_ms: self.tenants[*tenant].mean_ms.unwrap_or(UNKNOWN_RUN_MS) as i64,
            queued: tasks.len() as i64,
            tasks: tasks
                .iter()
                .take(want)
                .map(|((rank, id), task)| Waiting {
                    id: *id,
                    rank: *rank,
                    enqueued: task.arrived,
                    deadline: DEADLINE,
                    min_useful_ms: 0,
                    tokens: 0,
                })
                .collect(),
        });
        let tenants = self.tenants.iter().map(|tenant| TenantRoom {
            left: tenant.max_running.saturating_sub(tenant.running),
            left_of_class: [i64::MAX; 3],
            weight: tenant.weight,
            turns: tenant.turns,
        });
        let room = ClaimRoom {
            caps: self.caps(),
            running: self.running,
            floors: self.floors,
            promote_after_ms: Class::ALL.map(|class| self.limits.classes.get(class).promote_after_ms),
            tenants: tenants.collect(),
            peers: self.peers.iter().map(|left| PeerRoom { left: *left, requests: None, tokens: None }).collect(),
            kinds: vec![],
            suspects: 1,
        };
        (heads.collect(), room)
    }

    fn free(&self) -> i64 {
        self.slots - self.running.iter().sum::<i64>()
    }

    fn claim(&mut self) {
        let want = self.free() as usize;
        if want == 0 || self.flows.is_empty() {
            return;
        }
        let (heads, room) = self.seen(want);
        let keys: Vec<Key> = self.flows.keys().copied().collect();
        let chosen = choose(&heads, room, want, self.now);
        for start in &chosen.start {
            let (key, head) = (keys[start.flow], &heads[start.flow]);
            let task = head.tasks[start.task];
            self.start(key, (task.rank, task.id), start.charged_in, head.run_ms);
        }
        for (tenant, turns) in self.tenants.iter_mut().zip(&chosen.turns) {
            tenant.turns = *turns;
        }
        self.floors = chosen.floors;
        self.check();
    }

    fn start(&mut self, key: Key, place: (i64, TaskId), charged_in: Class, charged_ms: i64) {
        let flow = self.flows.get_mut(&key).unwrap();
        assert_eq!(flow.first_key_value().map(|(first, _)| *first), Some(place), "out of order in {key:?}");
        let task = flow.remove(&place).unwrap();
        if flow.is_empty() {
            self.flows.remove(&key);
        }
        let (class, tenant, peer) = key;
        self.tenants[tenant].waiting[class as usize] -= 1;
        self.tenants[tenant].running += 1;
        self.waiting_of[task.stream] -= 1;
        self.running[class as usize] += 1;
        if let Some(peer) = peer {
            self.peers[peer] -= 1;
        }
        let stream = &self.streams[task.stream];
        let ends = self.now + self.random.within(&stream.run_ms);
        if matches!(stream.arrivals, Arrivals::Backlog(_)) {
            self.arrivals.push(Reverse((self.now, task.stream)));
        }
        self.ids += 1;
        self.ends.push(Reverse((ends, self.ids)));
        let run = Run { stream: task.stream, class, charged_in, charged_ms, started: self.now };
        self.runs.insert(self.ids, run);
        self.started.push(Started { stream: task.stream, arrived: task.arrived, at: self.now, ends });
    }

    /// What holds after every claim.
    fn check(&self) {
        let (caps, running) = (self.caps(), self.running);
        let limits = &self.limits.classes;
        let kept = |class: Class| (limits.get(class).reserve * self.slots as f64 + 1e-9) as i64;
        let [critical, standard, background] = running;
        assert!(critical + standard + background <= self.slots, "{running:?}");
        assert!(standard + background <= self.slots - kept(Class::Critical), "{running:?}");
        assert!(Class::ALL.iter().all(|class| running[*class as usize] <= caps.ceiling(*class)), "{running:?}");
        assert!(self.tenants.iter().all(|tenant| tenant.running <= tenant.max_running));
        assert!(self.peers.iter().all(|left| *left >= 0));
        if self.free() == 0 {
            return;
        }
        for (class, tenant, peer) in self.flows.keys() {
            let tenant_is_full = self.tenants[*tenant].running >= self.tenants[*tenant].max_running;
            let peer_is_full = peer.is_some_and(|peer| self.peers[peer] == 0);
            let class_is_full = caps.room(&running, *class) == 0;
            assert!(tenant_is_full || peer_is_full || class_is_full, "{class} of {tenant} waits beside a free slot");
        }
    }
}
