//! Whether a slot is free for a newcomer: one of its own on a live session, with room at every level, and nobody
//! runnable before it.

use super::capacity::{Ask, in_queue, named};
use super::facts::{Backlog, Facts, SessionRoom};
use crate::EpochMs;
use crate::order::PeerRoom;
use crate::policy::Policy;
use crate::slots::SlotCaps;

/// The session on which a slot is free for the task.
pub(super) fn free_slot(policy: &Policy, facts: &Facts, ask: &Ask<'_>, caps: &SlotCaps, now: EpochMs) -> Option<u128> {
    let session = session_for(facts, ask.kind)?;
    let runs = caps.room(&facts.running(), ask.class) > 0
        && tenant_runs(policy, facts, ask.tenant, ask.class)
        && peer_runs(policy, facts, ask.peer)
        && peer_sends(policy, facts, ask.peer, ask.load.tokens, now)
        && policy.held(ask.kind, ask.class, ask.tenant, named(ask.peer), now).is_none()
        && !anyone_before(policy, facts, ask, caps, now);
    runs.then_some(session.id)
}

/// The session with most slots free for a kind: work is spread.
fn session_for<'a>(facts: &'a Facts, kind: &str) -> Option<&'a SessionRoom> {
    let runs = |session: &&SessionRoom| session.free > 0 && session.kinds.iter().any(|own| own == kind);
    facts.sessions.iter().filter(runs).max_by_key(|session| (session.free, std::cmp::Reverse(session.id)))
}

pub(super) fn tenant_runs(policy: &Policy, facts: &Facts, name: &str, class: crate::Class) -> bool {
    let (limits, tenant) = (policy.tenant(name), facts.tenant(name));
    let below = |running: i64, most: Option<u32>| most.is_none_or(|most| running < i64::from(most));
    below(tenant.usage.running, limits.max_running)
        && below(tenant.classes[class as usize].running, limits.class(class).max_running)
}

pub(super) fn peer_runs(policy: &Policy, facts: &Facts, name: &str) -> bool {
    let most = policy.peer(name).and_then(|peer| peer.max_in_flight);
    most.is_none_or(|most| facts.peer(name).running < i64::from(most))
}

/// Whether a peer's rates let a task of so many tokens start now, behind what goes before it. By the claim's own rule: a
/// slot that is reserved for what the claim then passes over stands idle.
fn peer_sends(policy: &Policy, facts: &Facts, name: &str, tokens: i64, now: EpochMs) -> bool {
    let Some(limits) = policy.peer(name) else { return true };
    let rates = facts.rates(name);
    PeerRoom { left: i64::MAX, ..PeerRoom::of(Some(limits), 0, rates.requests_full_ns, rates.tokens_full_ns) }
        .behind(rates.ahead, now)
        .behind_tokens(rates.ahead_tokens, now)
        .draw(now, tokens.max(0).unsigned_abs())
        .is_ok()
}

/// Whether something runnable waits in its class or above. Where nobody read which flows wait, all that waits counts.
fn anyone_before(policy: &Policy, facts: &Facts, ask: &Ask<'_>, caps: &SlotCaps, now: EpochMs) -> bool {
    let above = || facts.classes[..=ask.class as usize].iter();
    if above().any(|class| class.due > 0) {
        return true;
    }
    match &facts.backlog {
        None => above().any(|class| class.queued > 0),
        Some(flows) => flows.iter().any(|flow| {
            flow.class <= ask.class
                && flow.queued > 0
                && in_queue(flow.lane)
                && caps.room(&facts.running(), flow.class) > 0
                && may_run(policy, facts, flow, now)
                && session_for(facts, &flow.kind).is_some()
        }),
    }
}

/// Whether nothing but its turn keeps the head of a flow from running.
pub(super) fn may_run(policy: &Policy, facts: &Facts, flow: &Backlog, now: EpochMs) -> bool {
    tenant_runs(policy, facts, &flow.tenant, flow.class)
        && peer_runs(policy, facts, &flow.peer)
        && peer_sends(policy, facts, &flow.peer, 1, now)
        && policy.held(&flow.kind, flow.class, &flow.tenant, named(&flow.peer), now).is_none()
}
