//! How full it is, how long a newcomer would wait, and when a class is shed.

use super::capacity::{Ask, in_queue, named};
use super::facts::{Backlog, Facts, Usage};
use super::slot::{may_run, peer_runs, tenant_runs};
use crate::EpochMs;
use crate::limits::Limits;
use crate::names::Class;
use crate::peer::PeerLimits;
use crate::policy::Policy;
use crate::slots::SlotCaps;

/// A class that is being shed is let in again below this share of its threshold, so that it does not flutter.
pub(super) const RELIEF: f64 = 0.95;

/// The largest of the filled shares of the cell: queue, in flight, bytes and tokens.
fn filled(limits: &Limits, cell: &Usage) -> f64 {
    let share = |used: i64, limit: Option<u64>| match limit {
        None => 0.0,
        Some(0) => 1.0,
        Some(limit) => used.max(0) as f64 / limit as f64,
    };
    [
        share(cell.queued + cell.due, Some(u64::from(limits.max_queued))),
        share(cell.in_flight() + cell.due, limits.max_in_flight.map(u64::from)),
        share(cell.bytes, Some(limits.max_bytes)),
        share(cell.tokens + cell.due_tokens, limits.max_tokens),
    ]
    .into_iter()
    .fold(0.0, f64::max)
    .min(1.0)
}

/// How full the cell is, from 0 to 1, for whoever asks: all that waits counts for the predicted wait.
pub fn cell_pressure(policy: &Policy, facts: &Facts, now: EpochMs) -> f64 {
    class_pressure(policy, facts, Class::Background, now)
}

/// The pressure on a class, from 0 to 1.
pub fn class_pressure(policy: &Policy, facts: &Facts, class: Class, now: EpochMs) -> f64 {
    let wait = ahead_ms(policy, facts, class, now);
    with_wait(policy, facts, wait)
}

/// The pressure for whoever would wait so long.
pub(super) fn with_wait(policy: &Policy, facts: &Facts, wait_ms: Option<f64>) -> f64 {
    let waits = wait_ms.map_or(0.0, |wait| wait / f64::from(policy.limits.max_expected_wait_ms.max(1)));
    filled(&policy.limits, &facts.cell).max(waits).min(1.0)
}

/// Which classes are shed now, given which were.
pub fn shed_flags(policy: &Policy, facts: &Facts, now: EpochMs) -> [bool; 3] {
    Class::ALL.map(|class| {
        let Some(at) = policy.limits.classes.get(class).shed_at else { return false };
        let pressure = class_pressure(policy, facts, class, now);
        if facts.shedding[class as usize] { pressure >= at * RELIEF } else { pressure > at }
    })
}

/// How long a submission would wait to start, in milliseconds; `None` while nobody knows. What waits for the same
/// saturated peer, capped tenant or hold is counted for it alone, by that one's own rate.
pub fn expected_wait_ms(policy: &Policy, facts: &Facts, ask: &Ask<'_>, now: EpochMs) -> Option<f64> {
    if policy.held(ask.kind, ask.class, ask.tenant, named(ask.peer), now).is_some() {
        return None;
    }
    if !has_worker(facts, ask.kind) {
        return None;
    }
    let mut narrow: Option<f64> = rate_ms(policy, facts, ask.peer);
    if !peer_runs(policy, facts, ask.peer) {
        let slots = policy.peer(ask.peer).and_then(|peer| peer.max_in_flight).unwrap_or(0);
        narrow = wait(facts, facts.peer(ask.peer).queued, i64::from(slots)).into_iter().chain(narrow).reduce(f64::max);
    }
    if !tenant_runs(policy, facts, ask.tenant, ask.class) {
        let (limits, tenant) = (policy.tenant(ask.tenant), facts.tenant(ask.tenant));
        let whole = limits.max_running.map(|slots| wait(facts, tenant.usage.queued, i64::from(slots)));
        let of_class = limits
            .class(ask.class)
            .max_running
            .map(|slots| wait(facts, tenant.classes[ask.class as usize].queued, i64::from(slots)));
        let own = whole.flatten().into_iter().chain(of_class.flatten()).fold(0.0, f64::max);
        narrow = Some(narrow.unwrap_or(0.0).max(own));
    }
    let ahead = ahead_ms(policy, facts, ask.class, now)?;
    let ahead = fair_ms(policy, facts, ask, now).map_or(ahead, |fair| fair.min(ahead));
    Some(narrow.unwrap_or(0.0).max(ahead))
}

/// Whether what waits in a flow goes before others for the slots. What no live worker runs does not, nor what waits for
/// the rate of its peer: slots stand free beside it.
fn takes_slots(policy: &Policy, facts: &Facts, flow: &Backlog, now: EpochMs) -> bool {
    let rate = policy.peer(&flow.peer).is_some_and(PeerLimits::limits_rate);
    !rate && has_worker(facts, &flow.kind) && may_run(policy, facts, flow, now)
}

fn has_worker(facts: &Facts, kind: &str) -> bool {
    facts.live_kinds.as_ref().is_none_or(|kinds| kinds.contains(kind))
}

/// The wait behind what waits for the same peer, by the requests that it may be sent.
fn rate_ms(policy: &Policy, facts: &Facts, peer: &str) -> Option<f64> {
    let per_minute = policy.peer(peer)?.requests_per_minute?;
    Some(facts.peer(peer).queued.max(0) as f64 * 60_000.0 / f64::from(per_minute))
}

fn wait(facts: &Facts, tasks: i64, slots: i64) -> Option<f64> {
    facts.pace.rate(slots).map(|rate| tasks.max(0) as f64 / rate)
}

/// How long a newcomer of a class would wait to start, in milliseconds; `None` while nobody knows.
pub fn class_wait_ms(policy: &Policy, facts: &Facts, class: Class, now: EpochMs) -> Option<u64> {
    ahead_ms(policy, facts, class, now).map(|ms| ms.min(1e12) as u64)
}

/// The wait behind the runnable work of the class and those above.
fn ahead_ms(policy: &Policy, facts: &Facts, class: Class, now: EpochMs) -> Option<f64> {
    let caps = SlotCaps::of(&policy.limits, facts.live_slots);
    let runnable = |of: Class| -> i64 {
        let usage = &facts.classes[of as usize];
        match &facts.backlog {
            None => usage.queued + usage.due,
            Some(flows) => flows
                .iter()
                .filter(|flow| flow.class == of && in_queue(flow.lane) && takes_slots(policy, facts, flow, now))
                .map(|flow| flow.queued)
                .sum(),
        }
    };
    let all: i64 = Class::ALL.into_iter().take_while(|above| *above <= class).map(runnable).sum();
    let together = wait(facts, all, caps.total)?;
    let own = wait(facts, runnable(class), caps.ceiling(class))?;
    Some(together.max(own))
}

/// The wait by the tenant's own queue and its fair share of the slots, where it is known who else waits.
fn fair_ms(policy: &Policy, facts: &Facts, ask: &Ask<'_>, now: EpochMs) -> Option<f64> {
    let flows = facts.backlog.as_ref()?;
    let (mut own, mut weights) =
        (0, std::collections::BTreeMap::from([(ask.tenant, policy.tenant(ask.tenant).weight)]));
    for flow in flows.iter().filter(|flow| flow.class <= ask.class && flow.queued > 0 && in_queue(flow.lane)) {
        if !takes_slots(policy, facts, flow, now) {
            continue;
        }
        if flow.tenant == ask.tenant {
            own += flow.queued;
        } else {
            weights.insert(&flow.tenant, policy.tenant(&flow.tenant).weight);
        }
    }
    let share = weights.get(ask.tenant)? / weights.values().sum::<f64>();
    let slots = SlotCaps::of(&policy.limits, facts.live_slots).ceiling(ask.class);
    wait(facts, own, slots).map(|alone| alone / share.max(1e-9))
}
