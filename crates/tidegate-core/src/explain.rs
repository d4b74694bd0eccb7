//! Why a task stands where it stands: the limits, pauses and places in the queue that a waiting one waits for, and a
//! sentence for people. It asks the same questions as the claim and as the promotion of what is due, and answers all of
//! them instead of stopping at the first.

mod queue;
mod start;
mod words;

#[cfg(test)]
mod tests;

use uuid::Uuid;

use crate::EpochMs;
use crate::admission::{Facts, Load};
use crate::names::Class;
use crate::pause::Pause;
use crate::policy::Policy;
use crate::reason::Reason;
use crate::state::Status;

use words::span;

/// The furthest place in the queue that is counted.
pub const MAX_POSITION: u32 = 1_000;
/// Most blockers that the summary tells; the list has all of them.
const TOLD: usize = 3;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident $text:literal,)*) => {
        /// What sort of thing a task waits for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum BlockerKind {
            $($(#[$doc])* $variant,)*
        }

        impl BlockerKind {
            /// Every sort.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The sort of that name.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|kind| kind.as_str() == text)
            }
        }
    };
}

kinds! {
    /// Its time has not come.
    DeferredUntil "deferred_until",
    /// Its input is held.
    Quarantine "quarantine",
    /// An operator paused such work.
    Pause "pause",
    /// The peer is taken to be down.
    PeerBreaker "peer_breaker",
    /// No live session runs the kind.
    NoWorker "no_worker",
    /// The peer has as many in flight as it may.
    PeerLimit "peer_limit",
    /// The peer has had what it may in a minute.
    PeerRate "peer_rate",
    /// The tenant runs as many as it may.
    TenantLimit "tenant_limit",
    /// The tenant runs as many of the class as it may.
    TenantClassLimit "tenant_class_limit",
    /// As many of the class run as may.
    ClassLimit "class_limit",
    /// The class has its share of the slots.
    ClassShare "class_share",
    /// What is free is kept for the classes above.
    ClassReserve "class_reserve",
    /// No slot is free, or none on a worker that runs the kind.
    NoSlots "no_slots",
    /// It was lost twice: it runs only where no other such task runs.
    Suspect "suspect",
    /// A slot is reserved for it, and its worker has not fetched it yet.
    ReservedSlot "reserved_slot",
    /// Others wait before it.
    QueuePosition "queue_position",
    /// It is due and has room: a keeper moves it.
    Promotion "promotion",
    /// It is due, and the cell's queue is full.
    QueueFull "queue_full",
    /// It is due, and the class's part of the queue is full.
    ClassQueueLimit "class_queue_limit",
    /// It is due, and the tenant's part of the queue is full.
    TenantQueueLimit "tenant_queue_limit",
    /// It is due, and the peer's waiting room is full.
    BulkheadFull "bulkhead_full",
    /// It is due, and the cell's or the class's tokens are reserved.
    TokenBudget "token_budget",
    /// It is due, and the cell's or the class's bytes are held.
    ByteBudget "byte_budget",
    /// It is due, and the cell's money is reserved.
    CostBudget "cost_budget",
    /// It is due, and the tenant's tokens are reserved.
    TenantTokens "tenant_tokens",
    /// It is due, and the tenant's money is reserved.
    TenantCost "tenant_cost",
}

/// The task, as far as it matters here.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Where it stands.
    pub status: Status,
    /// Why.
    pub reason: Option<Reason>,
    /// Free text about it.
    pub detail: Option<&'a str>,
    /// What sort of work.
    pub kind: &'a str,
    /// Its class.
    pub class: Class,
    /// Who pays.
    pub tenant: &'a str,
    /// The dependency it calls; empty for none.
    pub peer: &'a str,
    /// What it holds, or will.
    pub load: Load,
    /// Since when it waits or runs, or when it ended.
    pub since: EpochMs,
    /// When it may start, where it is DEFERRED.
    pub eligible: Option<EpochMs>,
    /// Who runs it, or whose slot is reserved for it.
    pub worker: Option<&'a str>,
    /// Until when its slot is reserved.
    pub reserved_until: Option<EpochMs>,
    /// The number of its latest attempt; 0 before the first.
    pub attempt: u32,
    /// Most failures before it ends FAILED.
    pub max_attempts: u32,
    /// Whether it was asked to stop.
    pub cancel_requested: bool,
    /// Whether its worker was lost with it twice.
    pub suspect: bool,
    /// Its place in the queue, where it is QUEUED; none beyond [`MAX_POSITION`].
    pub position: Option<u32>,
}

/// What is around the task besides what [`Facts`] hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Surroundings {
    /// Live sessions that run the kind and take work.
    pub sessions: i64,
    /// Slots of those.
    pub slots: i64,
    /// How many of those slots are taken.
    pub taken: i64,
    /// When the peer's bucket of requests is full again, in nanoseconds since the epoch.
    pub requests_full_ns: i64,
    /// When the peer's bucket of tokens is.
    pub tokens_full_ns: i64,
    /// When the peer's breaker lets a call through again, while it is open.
    pub breaker_until: Option<EpochMs>,
    /// Until when its input is held, where it is.
    pub held_until: Option<EpochMs>,
}

/// One thing that a task waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// What sort of thing.
    pub kind: BlockerKind,
    /// The limit's name, as operators write it, or what is paused; none where there is no name to it.
    pub name: Option<String>,
    /// What the limit is; of a place in the queue, the first.
    pub limit: Option<i64>,
    /// What is in use of it; of a place in the queue, the place.
    pub in_use: Option<i64>,
    /// When it is over, where that is known.
    pub until: Option<EpochMs>,
    /// The pause, where it is one.
    pub pause: Option<Uuid>,
    /// The same for people: a part of a sentence.
    pub detail: String,
}

impl Blocker {
    fn new(kind: BlockerKind, detail: impl Into<String>) -> Self {
        Self { kind, name: None, limit: None, in_use: None, until: None, pause: None, detail: detail.into() }
    }

    fn named(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    fn counted(self, in_use: i64, limit: i64) -> Self {
        Self { in_use: Some(in_use), limit: Some(limit), ..self }
    }

    fn until(self, until: Option<EpochMs>) -> Self {
        Self { until, ..self }
    }
}

/// Why a task stands where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Since when it waits or runs, or when it ended.
    pub since: EpochMs,
    /// How long it has waited, where it waits.
    pub waiting_ms: Option<i64>,
    /// When it may start, where it is DEFERRED.
    pub eligible: Option<EpochMs>,
    /// All that it waits for, what holds it most first.
    pub blockers: Vec<Blocker>,
    /// One sentence for people.
    pub summary: String,
}

impl Explanation {
    /// Whether it waits for nothing but its turn and a slot, so that the pace of the queue tells when it starts. Behind a
    /// limit of nothing no pace does.
    pub fn moves_with_the_queue(&self) -> bool {
        use BlockerKind as K;
        let turn =
            |kind| matches!(kind, K::QueuePosition | K::NoSlots | K::ClassLimit | K::ClassShare | K::ClassReserve);
        self.blockers.iter().all(|blocker| turn(blocker.kind) && blocker.limit != Some(0))
    }
}

/// Explains a task over facts that were read together with it. They name its tenant and its peer.
pub fn explain(policy: &Policy, facts: &Facts, around: &Surroundings, task: &Subject<'_>) -> Explanation {
    let blockers = match task.status {
        Status::Admitted => admitted(policy, facts, task),
        Status::Queued => queued(policy, facts, around, task),
        Status::Deferred => deferred(policy, facts, around, task),
        _ => Vec::new(),
    };
    Explanation {
        since: task.since,
        waiting_ms: task.status.is_waiting().then(|| facts.now.saturating_sub(task.since).max(0)),
        eligible: task.eligible.filter(|_| task.status == Status::Deferred),
        summary: summary(task, &blockers, facts.now),
        blockers,
    }
}

fn admitted(policy: &Policy, facts: &Facts, task: &Subject<'_>) -> Vec<Blocker> {
    let mut blockers = pauses(policy, facts, task);
    let worker = task.worker.map_or_else(|| "a worker".to_owned(), |worker| format!("worker {worker}"));
    let reserved = Blocker::new(BlockerKind::ReservedSlot, format!("a slot of {worker} is reserved for it"));
    blockers.push(reserved.until(task.reserved_until));
    blockers
}

fn queued(policy: &Policy, facts: &Facts, around: &Surroundings, task: &Subject<'_>) -> Vec<Blocker> {
    let mut blockers = holds(policy, facts, around, task);
    start::blockers(policy, facts, around, task, &mut blockers);
    if task.suspect {
        let detail = "two workers were lost with it, so it runs only where no other such task runs";
        blockers.push(Blocker::new(BlockerKind::Suspect, detail));
    }
    let detail = match task.position {
        Some(1) => "it is next in the queue".to_owned(),
        Some(position) => format!("it is number {position} in the queue"),
        None => format!("more than {MAX_POSITION} wait before it"),
    };
    let in_use = task.position.map(i64::from);
    blockers.push(Blocker { in_use, limit: Some(1), ..Blocker::new(BlockerKind::QueuePosition, detail) });
    blockers
}

fn deferred(policy: &Policy, facts: &Facts, around: &Surroundings, task: &Subject<'_>) -> Vec<Blocker> {
    let mut blockers = Vec::new();
    let later = task.eligible.filter(|eligible| *eligible > facts.now);
    if let Some(eligible) = later {
        let why = task.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        let detail = format!("it may start in {}{why}", span(eligible - facts.now));
        blockers.push(Blocker::new(BlockerKind::DeferredUntil, detail).until(Some(eligible)));
    }
    blockers.append(&mut holds(policy, facts, around, task));
    if later.is_none() {
        let before = blockers.len();
        queue::blockers(policy, facts, task, &mut blockers);
        if blockers.len() == before {
            let detail = "its time has come, and the next sweep of a keeper puts it into the queue";
            blockers.push(Blocker::new(BlockerKind::Promotion, detail));
        }
    }
    blockers
}

/// What holds a task whatever room there is.
fn holds(policy: &Policy, facts: &Facts, around: &Surroundings, task: &Subject<'_>) -> Vec<Blocker> {
    let mut blockers = Vec::new();
    if let Some(until) = around.held_until.filter(|until| *until > facts.now) {
        let detail = format!("its input is in quarantine for another {}", span(until - facts.now));
        blockers.push(Blocker::new(BlockerKind::Quarantine, detail).until(Some(until)));
    }
    blockers.append(&mut pauses(policy, facts, task));
    if let Some(until) = around.breaker_until.filter(|until| *until > facts.now) {
        let detail =
            format!("peer {} is taken to be down and is tried again in {}", task.peer, span(until - facts.now));
        let name = format!("peers.{}.breaker", task.peer);
        blockers.push(Blocker::new(BlockerKind::PeerBreaker, detail).named(name).until(Some(until)));
    }
    blockers
}

fn pauses(policy: &Policy, facts: &Facts, task: &Subject<'_>) -> Vec<Blocker> {
    let peer = (!task.peer.is_empty()).then_some(task.peer);
    let stops = |pause: &&Pause| pause.in_effect(facts.now) && pause.stops(task.kind, task.class, task.tenant, peer);
    let blocker = |pause: &Pause| {
        let (member, value) = pause.target.parts();
        let lasting = pause.until.map(|until| format!(" for another {}", span(until - facts.now))).unwrap_or_default();
        let why = pause.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let detail = format!("{member} {value} is paused{lasting}{why}");
        let blocker = Blocker::new(BlockerKind::Pause, detail).named(format!("{member} {value}")).until(pause.until);
        Blocker { pause: Some(pause.id), ..blocker }
    };
    policy.pauses.iter().filter(stops).map(blocker).collect()
}

fn summary(task: &Subject<'_>, blockers: &[Blocker], now: EpochMs) -> String {
    let ago = span(now.saturating_sub(task.since).max(0));
    match task.status {
        Status::Running => {
            let worker = task.worker.map(|worker| format!(" on {worker}")).unwrap_or_default();
            let asked = if task.cancel_requested { "; it was asked to stop" } else { "" };
            format!("Running{worker} for {ago}, attempt {} of {}{asked}.", task.attempt, task.max_attempts)
        }
        status if status.is_waiting() => {
            let told: Vec<_> = blockers.iter().take(TOLD).map(|blocker| blocker.detail.as_str()).collect();
            let more = match blockers.len().saturating_sub(TOLD) {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            let place = match status {
                Status::Admitted => "Admitted",
                Status::Deferred => "Deferred",
                _ => "Queued",
            };
            format!("{place} for {ago}: {}{more}.", told.join("; "))
        }
        status => {
            let why = task.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            let detail = task.detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
            format!("Ended {status} {ago} ago{why}{detail}.")
        }
    }
}
