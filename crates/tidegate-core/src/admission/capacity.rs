//! Room: the bounds of the cell, the class and the peer, and whose place a more important task may take.

use super::facts::{Candidate, Facts, Load, Usage};
use super::{Refusal, UNKNOWN_RETRY_MS};
use crate::limits::Limits;
use crate::names::{Class, Lane};
use crate::policy::Policy;
use crate::reason::Reason;
use crate::submission::Submission;

/// Most waiting tasks whose place one newcomer takes.
pub const MAX_DISPLACED: usize = 8;

/// What a task asks for.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    pub(super) class: Class,
    pub(super) tenant: &'a str,
    pub(super) kind: &'a str,
    pub(super) peer: &'a str,
    pub(super) load: Load,
    /// Whether what is due goes before it: it does not go before what was accepted earlier.
    newcomer: bool,
}

/// By which way a task would come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entrance {
    /// To a slot that is reserved for it.
    Slot,
    /// To the queue.
    Queue,
    /// Among the deferred, to wait for its time.
    Later,
}

impl<'a> Ask<'a> {
    /// What a submission asks for.
    pub(super) fn of(submission: &'a Submission, class: Class) -> Self {
        Self {
            class,
            tenant: submission.tenant.as_str(),
            kind: submission.kind.as_str(),
            peer: submission.peer.as_ref().map_or("", |peer| peer.as_str()),
            load: Load {
                tokens: signed(submission.cost.tokens),
                usd_micros: signed(submission.cost.usd_micros),
                bytes: signed(submission.bytes()),
            },
            newcomer: true,
        }
    }

    /// What is held at a level before it: for a newcomer what is due as well, as if it were in the queue already.
    pub(super) fn before(&self, usage: &Usage) -> Usage {
        match self.newcomer {
            false => *usage,
            true => Usage {
                queued: usage.queued + usage.due,
                tokens: usage.tokens + usage.due_tokens,
                usd_micros: usage.usd_micros + usage.due_usd_micros,
                ..*usage
            },
        }
    }

    /// What a task asks for that is inside already.
    pub fn inside(class: Class, tenant: &'a str, kind: &'a str, peer: &'a str, load: Load) -> Self {
        Self { class, tenant, kind, peer, load, newcomer: false }
    }
}

/// A peer's name where there is one.
pub(super) fn named(peer: &str) -> Option<&str> {
    (!peer.is_empty()).then_some(peer)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

/// Whether `more` still fits where `used` is.
pub(super) fn within(used: i64, more: i64, limit: Option<u64>) -> bool {
    limit.is_none_or(|limit| used.max(0).saturating_add(more) <= i64::try_from(limit).unwrap_or(i64::MAX))
}

/// Whether the cell and the class hold the task.
pub(super) fn fits(policy: &Policy, facts: &Facts, ask: &Ask<'_>, entrance: Entrance) -> Result<(), Reason> {
    class_fits(policy, facts, ask, entrance)?;
    cell_fits(&policy.limits, &facts.cell, ask, entrance)
}

fn class_fits(policy: &Policy, facts: &Facts, ask: &Ask<'_>, entrance: Entrance) -> Result<(), Reason> {
    let limits = policy.limits.classes.get(ask.class);
    let usage = ask.before(&facts.classes[ask.class as usize]);
    if entrance == Entrance::Queue && !within(usage.queued, 1, limits.max_queued.map(u64::from)) {
        return Err(Reason::ClassQueueLimit);
    }
    if entrance != Entrance::Later && !within(usage.tokens, ask.load.tokens, limits.max_tokens) {
        return Err(Reason::TokenBudget);
    }
    match within(usage.bytes, ask.load.bytes, limits.max_bytes) {
        true => Ok(()),
        false => Err(Reason::ByteBudget),
    }
}

fn cell_fits(limits: &Limits, cell: &Usage, ask: &Ask<'_>, entrance: Entrance) -> Result<(), Reason> {
    let cell = ask.before(cell);
    let in_flight = limits.max_in_flight.map(u64::from);
    let room = match entrance {
        Entrance::Slot => within(cell.in_flight(), 1, in_flight),
        Entrance::Queue => {
            within(cell.in_flight(), 1, in_flight) && within(cell.queued, 1, Some(u64::from(limits.max_queued)))
        }
        Entrance::Later => {
            if !within(cell.deferred, 1, Some(u64::from(limits.max_deferred))) {
                return Err(Reason::DeferredFull);
            }
            true
        }
    };
    if !room {
        return Err(Reason::QueueFull);
    }
    if entrance != Entrance::Later {
        if !within(cell.tokens, ask.load.tokens, limits.max_tokens) {
            return Err(Reason::TokenBudget);
        }
        if !within(cell.usd_micros, ask.load.usd_micros, limits.max_usd_micros) {
            return Err(Reason::CostBudget);
        }
    }
    match within(cell.bytes, ask.load.bytes, Some(limits.max_bytes)) {
        true => Ok(()),
        false => Err(Reason::ByteBudget),
    }
}

/// Whether the peer's waiting room holds the task.
pub(super) fn peer_has_room(policy: &Policy, facts: &Facts, ask: &Ask<'_>, entrance: Entrance) -> Result<(), Refusal> {
    let Some(most) = policy.peer(ask.peer).and_then(|peer| peer.max_waiting) else { return Ok(()) };
    let usage = ask.before(&facts.peer(ask.peer));
    if entrance == Entrance::Slot || within(usage.queued, 1, Some(u64::from(most))) {
        return Ok(());
    }
    // Also where nothing may wait: what finds a slot free needs no place here.
    Err(Refusal { passes: true, ..Refusal::rejected(Reason::BulkheadFull, Some(UNKNOWN_RETRY_MS)) })
}

/// Whether the queue takes the task, and in whose place.
pub(super) fn enter(policy: &Policy, facts: &Facts, ask: &Ask<'_>) -> Result<Vec<Candidate>, Reason> {
    class_fits(policy, facts, ask, Entrance::Queue)?;
    displace(policy, facts, ask)
}

fn displace(policy: &Policy, facts: &Facts, ask: &Ask<'_>) -> Result<Vec<Candidate>, Reason> {
    let mut cell = facts.cell;
    let mut displaced: Vec<Candidate> = Vec::new();
    let lower = Class::ALL.into_iter().rev().take_while(|class| *class > ask.class);
    let mut worst = lower.flat_map(|class| &facts.candidates[class as usize]);
    loop {
        let Err(reason) = cell_fits(&policy.limits, &cell, ask, Entrance::Queue) else { return Ok(displaced) };
        let next = if displaced.len() < MAX_DISPLACED { worst.next() } else { None };
        let Some(candidate) = next else { return Err(reason) };
        cell.queue(candidate.load, -1);
        displaced.push(candidate.clone());
    }
}

/// Whether a deferred task whose time has come may go to the queue, and in whose place. It holds its bytes already,
/// and is not behind itself: what is due counts for newcomers only.
pub fn promote(policy: &Policy, facts: &Facts, ask: &Ask<'_>) -> Option<Vec<Candidate>> {
    let load = Load { bytes: 0, ..ask.load };
    inside(policy, facts, &Ask { load, ..*ask })
}

/// Whether a task whose reserved slot nobody claimed may go to the queue. It holds all that it reserves already.
pub fn readmit(policy: &Policy, facts: &Facts, ask: &Ask<'_>) -> bool {
    inside(policy, facts, &Ask { load: Load::default(), ..*ask }).is_some_and(|displaced| displaced.is_empty())
}

fn inside(policy: &Policy, facts: &Facts, ask: &Ask<'_>) -> Option<Vec<Candidate>> {
    let tenant = super::tenant::has_room(policy, facts, ask);
    if !tenant || peer_has_room(policy, facts, ask, Entrance::Queue).is_err() {
        return None;
    }
    enter(policy, facts, ask).ok()
}

impl Facts {
    /// Counts a deferred task that went to the queue.
    pub fn promoted(&mut self, ask: &Ask<'_>, displaced: &[Candidate]) {
        self.displaced(displaced);
        let load = Load { bytes: 0, ..ask.load };
        self.at_levels(ask.class, ask.tenant, ask.peer, |usage| {
            usage.deferred -= 1;
            usage.queue(load, 1);
        });
    }

    /// Counts a task whose reserved slot went to the queue instead.
    pub fn readmitted(&mut self, ask: &Ask<'_>) {
        self.at_levels(ask.class, ask.tenant, ask.peer, |usage| {
            usage.running -= 1;
            usage.queued += 1;
        });
    }
}

/// Whether a flow's tasks stand in the queue, rather than on reserved slots.
pub(super) fn in_queue(lane: Lane) -> bool {
    lane != Lane::Admitted
}
