//! What keeps a QUEUED task from starting: a worker, its peer, its tenant, its class, the slots.

use super::words::span;
use super::{Blocker, BlockerKind, Subject, Surroundings};
use crate::admission::Facts;
use crate::bucket::Drawn;
use crate::names::Class;
use crate::peer::PeerLimits;
use crate::policy::Policy;
use crate::slots::SlotCaps;

pub(super) fn blockers(
    policy: &Policy,
    facts: &Facts,
    around: &Surroundings,
    task: &Subject<'_>,
    into: &mut Vec<Blocker>,
) {
    if around.sessions == 0 {
        let detail = format!("no live worker runs the kind {}", task.kind);
        into.push(Blocker::new(BlockerKind::NoWorker, detail));
    }
    if let Some(peer) = policy.peer(task.peer) {
        into.extend(peer_limit(peer, facts, task));
        into.extend(peer_rates(peer, facts, around, task));
    }
    tenant(policy, facts, task, into);
    slots(policy, facts, task, into);
    let free = SlotCaps::of(&policy.limits, facts.live_slots).total - facts.running().iter().sum::<i64>();
    if around.sessions > 0 && around.taken >= around.slots && free > 0 {
        let detail = format!("the workers that run {} have all of their {} slots taken", task.kind, around.slots);
        into.push(Blocker::new(BlockerKind::NoSlots, detail).counted(around.taken, around.slots));
    }
}

fn peer_limit(peer: &PeerLimits, facts: &Facts, task: &Subject<'_>) -> Option<Blocker> {
    let most = i64::from(peer.max_in_flight?);
    let running = facts.peer(task.peer).running;
    let full = running >= most;
    full.then(|| {
        let detail = format!("peer {} has {running} of at most {most} in flight", task.peer);
        let name = format!("peers.{}.max_in_flight", task.peer);
        Blocker::new(BlockerKind::PeerLimit, detail).named(name).counted(running, most)
    })
}

fn peer_rates<'a>(
    peer: &PeerLimits,
    facts: &'a Facts,
    around: &Surroundings,
    task: &'a Subject<'_>,
) -> impl Iterator<Item = Blocker> + use<'a> {
    let tokens = task.load.tokens.max(1).unsigned_abs();
    let requests = peer.requests().map(|bucket| ("requests", bucket, 1, around.requests_full_ns));
    let tokens = peer.tokens().map(|bucket| ("tokens", bucket, tokens, around.tokens_full_ns));
    let now_ns = facts.now.saturating_mul(1_000_000);
    [requests, tokens].into_iter().flatten().filter_map(move |(what, bucket, amount, full_ns)| {
        // More than it ever holds at once is asked for as all that it holds.
        let Drawn::Short { retry_ms } = bucket.draw(full_ns, now_ns, amount.min(bucket.burst())) else { return None };
        let retry_ms = retry_ms.and_then(|ms| i64::try_from(ms).ok());
        let again = retry_ms.map(|ms| format!("; there is room in {}", span(ms))).unwrap_or_default();
        let rate = bucket.per_minute();
        let detail = format!("peer {} has had its share of {rate} {what} a minute{again}", task.peer);
        let name = format!("peers.{}.{what}_per_minute", task.peer);
        let until = retry_ms.map(|ms| facts.now.saturating_add(ms));
        let blocker = Blocker::new(BlockerKind::PeerRate, detail).named(name).until(until);
        Some(Blocker { limit: i64::try_from(rate).ok(), ..blocker })
    })
}

fn tenant(policy: &Policy, facts: &Facts, task: &Subject<'_>, into: &mut Vec<Blocker>) {
    let (limits, held, class) = (policy.tenant(task.tenant), facts.tenant(task.tenant), task.class);
    if let Some(most) = limits.max_running.map(i64::from) {
        let running = held.usage.running;
        if running >= most {
            let detail = format!("tenant {} runs {running} of at most {most}", task.tenant);
            let name = format!("tenants.{}.max_running", task.tenant);
            into.push(Blocker::new(BlockerKind::TenantLimit, detail).named(name).counted(running, most));
        }
    }
    if let Some(most) = limits.class(class).max_running.map(i64::from) {
        let running = held.classes[class as usize].running;
        if running >= most {
            let detail = format!("tenant {} runs {running} of at most {most} {class} tasks", task.tenant);
            let name = format!("tenants.{}.classes.{class}.max_running", task.tenant);
            into.push(Blocker::new(BlockerKind::TenantClassLimit, detail).named(name).counted(running, most));
        }
    }
}

/// The slots of the cell and of the class. Something is said exactly where the class has no room.
pub(super) fn slots(policy: &Policy, facts: &Facts, task: &Subject<'_>, into: &mut Vec<Blocker>) {
    let (limits, class, running) = (&policy.limits, task.class, facts.running());
    let caps = SlotCaps::of(limits, facts.live_slots);
    let own = running[class as usize];
    let before = into.len();
    let most = limits.classes.get(class).max_running.map(i64::from).filter(|most| own >= *most);
    if let Some(most) = most {
        let detail = format!("{own} of at most {most} {class} tasks run");
        let name = format!("limits.classes.{class}.max_running");
        into.push(Blocker::new(BlockerKind::ClassLimit, detail).named(name).counted(own, most));
    }
    let all: i64 = running.iter().sum();
    let share = caps.ceiling(class);
    if most.is_none() && own >= share && share < caps.total {
        let detail = format!("{class} may take {share} of the {} slots and has {own}", caps.total);
        let name = format!("limits.classes.{class}.max_share");
        into.push(Blocker::new(BlockerKind::ClassShare, detail).named(name).counted(own, share));
    }
    if all >= caps.total {
        let detail = match (limits.max_running, caps.total) {
            (Some(0), _) => "limits.max_running is 0, so nothing may start".to_owned(),
            (Some(most), _) => format!("{all} of at most {most} tasks run"),
            (None, 0) => "no live worker has a slot".to_owned(),
            (None, total) => format!("all {total} slots are taken"),
        };
        let blocker = Blocker::new(BlockerKind::NoSlots, detail).counted(all, caps.total);
        let name = limits.max_running.map(|_| "limits.max_running".to_owned());
        into.push(Blocker { name, ..blocker });
    } else if into.len() == before && caps.room(&running, class) == 0 {
        let mut above = Class::ALL.into_iter().rev().filter(|above| *above < class);
        let keeper = above.find(|above| limits.classes.get(*above).reserve > 0.0);
        let detail = format!("the {} free slots are kept for the classes above", caps.total - all);
        let name = keeper.map(|keeper| format!("limits.classes.{keeper}.reserve"));
        into.push(Blocker { name, ..Blocker::new(BlockerKind::ClassReserve, detail).counted(all, caps.total) });
    }
}
