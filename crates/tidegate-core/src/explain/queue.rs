//! What keeps a DEFERRED task whose time has come out of the queue: every bound that a promotion asks, in its order.

use super::{Blocker, BlockerKind, Subject};
use crate::admission::{Facts, Load, Usage};
use crate::policy::Policy;

use BlockerKind as K;

/// One bound: what it is called, what is in use of it, how much more is asked, and the bound.
type Bound = (BlockerKind, String, &'static str, i64, i64, Option<u64>);

/// Something is said exactly where a promotion would find no room without displacing others.
pub(super) fn blockers(policy: &Policy, facts: &Facts, task: &Subject<'_>, into: &mut Vec<Blocker>) {
    // Its bytes are held already.
    let load = Load { bytes: 0, ..task.load };
    let bounds = tenant(policy, facts, task, load).into_iter().chain(peer(policy, facts, task));
    let bounds = bounds.chain(class(policy, facts, task, load)).chain(cell(policy, facts, load));
    for (kind, name, what, used, more, limit) in bounds {
        let Some(limit) = limit.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX)) else { continue };
        if used.max(0).saturating_add(more) > limit {
            let detail = format!("it is due, and {used} of at most {limit} {what} are taken ({name})");
            into.push(Blocker::new(kind, detail).named(name).counted(used, limit));
        }
    }
}

fn tenant(policy: &Policy, facts: &Facts, task: &Subject<'_>, load: Load) -> [Bound; 4] {
    let (limits, held) = (policy.tenant(task.tenant), facts.tenant(task.tenant));
    let (class, name) = (task.class, |key: &str| format!("tenants.{}.{key}", task.tenant));
    let of_class = held.classes[class as usize].queued;
    let most_of_class = limits.class(class).max_queued.map(u64::from);
    [
        (K::TenantQueueLimit, name("max_queued"), PLACES, held.usage.queued, 1, limits.max_queued.map(u64::from)),
        (K::TenantQueueLimit, name(&format!("classes.{class}.max_queued")), PLACES, of_class, 1, most_of_class),
        (K::TenantTokens, name("max_tokens"), "tokens", held.usage.tokens, load.tokens, limits.max_tokens),
        (K::TenantCost, name("max_usd_micros"), MONEY, held.usage.usd_micros, load.usd_micros, limits.max_usd_micros),
    ]
}

fn peer(policy: &Policy, facts: &Facts, task: &Subject<'_>) -> Option<Bound> {
    let most = policy.peer(task.peer)?.max_waiting.map(u64::from);
    let name = format!("peers.{}.max_waiting", task.peer);
    Some((K::BulkheadFull, name, PLACES, facts.peer(task.peer).queued, 1, most))
}

fn class(policy: &Policy, facts: &Facts, task: &Subject<'_>, load: Load) -> [Bound; 3] {
    let (limits, held) = (policy.limits.classes.get(task.class), &facts.classes[task.class as usize]);
    let name = |key: &str| format!("limits.classes.{}.{key}", task.class);
    [
        (K::ClassQueueLimit, name("max_queued"), PLACES, held.queued, 1, limits.max_queued.map(u64::from)),
        (K::TokenBudget, name("max_tokens"), "tokens", held.tokens, load.tokens, limits.max_tokens),
        (K::ByteBudget, name("max_bytes"), "bytes", held.bytes, load.bytes, limits.max_bytes),
    ]
}

fn cell(policy: &Policy, facts: &Facts, load: Load) -> [Bound; 5] {
    let (limits, held): (_, &Usage) = (&policy.limits, &facts.cell);
    let name = |key: &str| format!("limits.{key}");
    let in_flight = limits.max_in_flight.map(u64::from);
    [
        (K::QueueFull, name("max_in_flight"), PLACES, held.in_flight(), 1, in_flight),
        (K::QueueFull, name("max_queued"), PLACES, held.queued, 1, Some(u64::from(limits.max_queued))),
        (K::TokenBudget, name("max_tokens"), "tokens", held.tokens, load.tokens, limits.max_tokens),
        (K::CostBudget, name("max_usd_micros"), MONEY, held.usd_micros, load.usd_micros, limits.max_usd_micros),
        (K::ByteBudget, name("max_bytes"), "bytes", held.bytes, load.bytes, Some(limits.max_bytes)),
    ]
}

const PLACES: &str = "places";
const MONEY: &str = "millionths of a dollar";
