//! The door: what becomes of a submission, decided over facts that were read under the lock.
//!
//! The order of the questions is part of the contract: cancelled before late, late before the delegation budget, that
//! before pauses, those before the tenant's allowance, the peer's waiting room and the capacity of the cell.

mod capacity;
mod chance;
mod facts;
mod pressure;
mod slot;
mod tenant;

#[cfg(test)]
mod tests;

use crate::EpochMs;
use crate::names::Class;
use crate::order;
use crate::pause::PauseTarget;
use crate::policy::Policy;
use crate::reason::Reason;
use crate::slots::SlotCaps;
use crate::state::Status;
use crate::submission::{OnFull, Submission, Times};

pub use capacity::{Ask, Entrance, MAX_DISPLACED, promote, readmit};
pub use facts::{
    Backlog, Candidate, Facts, LEAST_RUNS, Load, Pace, ParentFacts, PeerRates, SessionRoom, TenantFacts, Usage,
};
pub use pressure::{cell_pressure, class_pressure, class_wait_ms, expected_wait_ms, shed_flags};
pub use tenant::{Quota, tokens_bucket};

use capacity::named;
use chance::Chance;
use slot::free_slot;

/// What a child's deadline is before its parent's: the parent needs time to use the answer.
pub const PARENT_RESERVE_MS: i64 = 300;
/// When to come again where nobody knows how fast the queue drains.
const UNKNOWN_RETRY_MS: u64 = 5_000;
/// When to come again where work is paused without an end, or a limit is 0.
const PAUSED_RETRY_MS: u64 = 30_000;
/// The earliest and the latest that a refused caller is asked to come again, where it is an estimate.
const RETRY_RANGE_MS: (u64, u64) = (1_000, 60_000);

/// What becomes of a submission.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// Where the task stands now.
    pub status: Status,
    /// Why, where it is not simply waiting its turn.
    pub reason: Option<Reason>,
    /// Its class.
    pub class: Class,
    /// Its sort key.
    pub rank: i64,
    /// Its instants.
    pub times: Times,
    /// When this was decided.
    pub decided: EpochMs,
    /// Hops that it may delegate.
    pub depth: u32,
    /// The session whose slot is reserved for it, where it is ADMITTED.
    pub session: Option<u128>,
    /// When to come again, in milliseconds and without jitter; none where that cannot help.
    pub retry_after_ms: Option<u64>,
    /// How long it would have waited, or will wait, to start; none where nobody knows.
    pub expected_wait_ms: Option<u64>,
    /// Its place in the queue at the latest, counted from 1: behind all that waits in its class and above.
    pub queue_position: Option<u64>,
    /// The tenant's limit that was hit.
    pub quota: Option<Quota>,
}

/// A decision and what goes with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// What becomes of the submission.
    pub decision: Decision,
    /// The waiting tasks whose place it takes.
    pub displaced: Vec<Candidate>,
    /// Its caller may wait at the door until then; the decision is what it gets after that.
    pub wait_until: Option<EpochMs>,
    /// What the tenant's bucket of submissions is moved by, in nanoseconds.
    pub rate_ns: i64,
    /// What the tenant's bucket of tokens is moved by.
    pub tokens_ns: i64,
}

/// A refusal, before it is a decision.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    status: Status,
    reason: Reason,
    retry_after_ms: Option<u64>,
    /// Whether room may come by itself, so that waiting for it can help.
    passes: bool,
    quota: Option<Quota>,
}

impl Refusal {
    fn new(status: Status, reason: Reason) -> Self {
        Self { status, reason, retry_after_ms: None, passes: false, quota: None }
    }

    fn rejected(reason: Reason, retry_after_ms: Option<u64>) -> Self {
        Self { retry_after_ms, ..Self::new(Status::Rejected, reason) }
    }
}

/// What a submission that is not refused gets.
enum Place {
    Slot(u128),
    Queue(Vec<Candidate>),
    Deferred(Reason),
}

/// Decides over facts that hold until [`Facts::take`]. `waited_ms` is how long ago the submission arrived.
pub fn decide(policy: &Policy, facts: &Facts, submission: &Submission, now: EpochMs, waited_ms: u64) -> Verdict {
    let mut times = submission.timing.resolve(&policy.limits, now, waited_ms);
    let class = policy.limits.class_of(submission.priority);
    let parent = submission.parent_id.map(|id| facts.parents.get(&id));
    if let Some(Some(parent)) = parent {
        times.deadline = times.deadline.min(parent.deadline - PARENT_RESERVE_MS);
    }
    let rank =
        order::rank(times.not_before.unwrap_or(times.arrived), submission.priority, policy.limits.ageing_step_ms);
    let depth = match parent {
        Some(Some(parent)) => submission.depth.min(parent.depth.saturating_sub(1)),
        _ => submission.depth,
    };
    let mut decision = Decision {
        status: Status::Queued,
        reason: None,
        class,
        rank,
        times,
        decided: now,
        depth,
        session: None,
        retry_after_ms: None,
        expected_wait_ms: None,
        queue_position: None,
        quota: None,
    };
    let mut verdict = Verdict { decision, displaced: Vec::new(), wait_until: None, rate_ns: 0, tokens_ns: 0 };
    let ask = Ask::of(submission, class);
    let wait_ms = expected_wait_ms(policy, facts, &ask, now);
    decision.expected_wait_ms = wait_ms.map(|ms| ms.min(1e12) as u64);
    let judged = judge(policy, facts, submission, &ask, &times, now, wait_ms, &mut verdict);
    match judged {
        Ok(Place::Slot(session)) => {
            (decision.status, decision.session, decision.expected_wait_ms) = (Status::Admitted, Some(session), Some(0));
        }
        Ok(Place::Queue(displaced)) => {
            let before: i64 = facts.classes[..=class as usize].iter().map(|class| class.queued).sum();
            decision.queue_position = Some(before.max(0).unsigned_abs() + 1);
            verdict.displaced = displaced;
        }
        Ok(Place::Deferred(reason)) => (decision.status, decision.reason) = (Status::Deferred, Some(reason)),
        Err(refusal) => {
            (decision.status, decision.reason) = (refusal.status, Some(refusal.reason));
            (decision.retry_after_ms, decision.quota) = (refusal.retry_after_ms, refusal.quota);
            (verdict.rate_ns, verdict.tokens_ns) = (0, 0);
        }
    }
    verdict.decision = decision;
    verdict
}

#[allow(clippy::too_many_arguments, reason = "what one submission is judged by")]
fn judge(
    policy: &Policy,
    facts: &Facts,
    submission: &Submission,
    ask: &Ask<'_>,
    times: &Times,
    now: EpochMs,
    wait_ms: Option<f64>,
    verdict: &mut Verdict,
) -> Result<Place, Refusal> {
    cancelled(facts, submission)?;
    in_time(submission, times, now)?;
    delegated(facts, submission)?;
    quarantined(facts, submission)?;
    paused(policy, ask, now)?;
    let caps = SlotCaps::of(&policy.limits, facts.live_slots);
    let delayed = times.not_before.is_some();
    // A slot is of use only where all that the task holds has room too; otherwise it asks for the queue.
    let holds = |_: &u128| capacity::fits(policy, facts, ask, Entrance::Slot).is_ok();
    let slot = if delayed { None } else { free_slot(policy, facts, ask, &caps, now).filter(holds) };
    let entrance = match (delayed, slot) {
        (true, _) => Entrance::Later,
        (false, Some(_)) => Entrance::Slot,
        (false, None) => Entrance::Queue,
    };
    tenant::allowed(policy, facts, ask, entrance, now, verdict)?;
    if delayed {
        return later(policy, facts, ask);
    }
    if let Err(refusal) = capacity::peer_has_room(policy, facts, ask, entrance) {
        return full(policy, facts, submission, ask, times, refusal, Reason::PeerBusy, verdict);
    }
    if let Some(session) = slot {
        return Ok(Place::Slot(session));
    }
    shed(policy, facts, ask, wait_ms)?;
    match capacity::enter(policy, facts, ask) {
        Ok(displaced) => {
            starts_in_time(facts, submission, ask, times, now, wait_ms)?;
            Ok(Place::Queue(displaced))
        }
        Err(reason) => {
            let chance = Chance::behind(policy, ask, reason);
            let retry = chance.retry_ms(Some(retry_after(policy, facts, ask.class, 0.0)));
            let refusal = Refusal { passes: chance == Chance::Room, ..Refusal::rejected(reason, retry) };
            full(policy, facts, submission, ask, times, refusal, Reason::Overload, verdict)
        }
    }
}

fn cancelled(facts: &Facts, submission: &Submission) -> Result<(), Refusal> {
    let Some(token) = &submission.cancellation_token else { return Ok(()) };
    let key = (submission.tenant.as_str().to_owned(), token.clone());
    match facts.cancelled_tokens.contains(&key) {
        true => Err(Refusal::new(Status::Cancelled, Reason::TokenCancelled)),
        false => Ok(()),
    }
}

fn in_time(submission: &Submission, times: &Times, now: EpochMs) -> Result<(), Refusal> {
    if times.deadline <= now {
        return Err(Refusal::new(Status::Expired, Reason::DeadlinePassed));
    }
    let start = times.not_before.unwrap_or(now);
    if times.deadline.saturating_sub(start) < submission.min_useful_ms.max(1) as i64 {
        return Err(Refusal::new(Status::Expired, Reason::DeadlineTooShort));
    }
    Ok(())
}

/// A child's submission spends one of its running parent's fan-out, and one hop.
fn delegated(facts: &Facts, submission: &Submission) -> Result<(), Refusal> {
    let Some(id) = submission.parent_id else { return Ok(()) };
    let no = |reason| Err(Refusal::new(Status::Rejected, reason));
    match facts.parents.get(&id) {
        Some(parent) if parent.running => {
            if parent.depth == 0 {
                no(Reason::DepthExhausted)
            } else if parent.children >= i64::from(parent.fanout) {
                no(Reason::FanoutExhausted)
            } else {
                Ok(())
            }
        }
        _ => no(Reason::ParentNotRunning),
    }
}

fn quarantined(facts: &Facts, submission: &Submission) -> Result<(), Refusal> {
    match facts.held.contains(&submission.id) {
        true => Err(Refusal::new(Status::Rejected, Reason::Quarantined)),
        false => Ok(()),
    }
}

fn paused(policy: &Policy, ask: &Ask<'_>, now: EpochMs) -> Result<(), Refusal> {
    let Some(pause) = policy.refused(ask.kind, ask.class, ask.tenant, named(ask.peer), now) else { return Ok(()) };
    let retry = pause.until.map_or(PAUSED_RETRY_MS, |until| u64::try_from(until - now).unwrap_or(0));
    let reason = match pause.target {
        PauseTarget::Tenant(_) => Reason::TenantPaused,
        _ => Reason::Paused,
    };
    Err(Refusal::rejected(reason, Some(retry)))
}

/// A task whose time has not come holds bytes and a place among the deferred.
fn later(policy: &Policy, facts: &Facts, ask: &Ask<'_>) -> Result<Place, Refusal> {
    if let Err(reason) = capacity::fits(policy, facts, ask, Entrance::Later) {
        return Err(Refusal::rejected(reason, Chance::behind(policy, ask, reason).retry_ms(None)));
    }
    Ok(Place::Deferred(Reason::Scheduled))
}

/// Low classes are shed while pressure is above their threshold.
fn shed(policy: &Policy, facts: &Facts, ask: &Ask<'_>, wait_ms: Option<f64>) -> Result<(), Refusal> {
    let Some(at) = policy.limits.classes.get(ask.class).shed_at else { return Ok(()) };
    let own = pressure::with_wait(policy, facts, wait_ms);
    if !facts.shedding[ask.class as usize] && own <= at {
        return Ok(());
    }
    let over = (facts.cell.queued as f64 - at * pressure::RELIEF * f64::from(policy.limits.max_queued)).max(0.0);
    let retry_after_ms = Some(retry_after(policy, facts, ask.class, over));
    Err(Refusal { retry_after_ms, ..Refusal::new(Status::Shed, Reason::LowPriority) })
}

/// What by the predicted wait cannot start in time is refused now rather than expired later.
fn starts_in_time(
    facts: &Facts,
    submission: &Submission,
    ask: &Ask<'_>,
    times: &Times,
    now: EpochMs,
    wait_ms: Option<f64>,
) -> Result<(), Refusal> {
    let Some(wait_ms) = wait_ms else { return Ok(()) };
    let typical = facts.typical_run_ms.get(ask.kind).copied().unwrap_or(0);
    let useful = (submission.min_useful_ms.max(1) as i64).max(typical);
    if wait_ms + useful as f64 <= times.deadline.saturating_sub(now) as f64 {
        return Ok(());
    }
    Err(Refusal::new(Status::Expired, Reason::DeadlineTooShort))
}

/// There is no room: what the caller agreed to is done, or it is refused. Who is deferred holds its bytes all the same.
#[allow(clippy::too_many_arguments, reason = "the facts of one refusal")]
fn full(
    policy: &Policy,
    facts: &Facts,
    submission: &Submission,
    ask: &Ask<'_>,
    times: &Times,
    refusal: Refusal,
    deferred: Reason,
    verdict: &mut Verdict,
) -> Result<Place, Refusal> {
    match submission.on_full {
        OnFull::Wait { max_wait_ms } if refusal.passes => {
            let quarter = u64::try_from((times.deadline - times.arrived) / 4).unwrap_or(0);
            verdict.wait_until = Some(times.arrived.saturating_add_unsigned(max_wait_ms.min(quarter)));
            Err(refusal)
        }
        OnFull::Defer if refusal.passes => match capacity::fits(policy, facts, ask, Entrance::Later) {
            Ok(()) => Ok(Place::Deferred(deferred)),
            Err(reason) => {
                let chance = Chance::behind(policy, ask, reason);
                Err(Refusal::rejected(reason, chance.retry_ms(refusal.retry_after_ms)))
            }
        },
        _ => Err(refusal),
    }
}

/// When `tasks` more than now will have been served, in milliseconds, within what a caller can be asked to wait.
fn retry_after(policy: &Policy, facts: &Facts, class: Class, tasks: f64) -> u64 {
    let slots = SlotCaps::of(&policy.limits, facts.live_slots).ceiling(class);
    match facts.pace.rate(slots) {
        Some(rate) => ((tasks / rate) as u64).clamp(RETRY_RANGE_MS.0, RETRY_RANGE_MS.1),
        None => UNKNOWN_RETRY_MS,
    }
}

impl Facts {
    /// Counts what a verdict takes.
    pub fn take(&mut self, submission: &Submission, verdict: &Verdict) {
        let decision = &verdict.decision;
        let ask = Ask::of(submission, decision.class);
        self.displaced(&verdict.displaced);
        match decision.status {
            Status::Queued => {
                self.at_levels(ask.class, ask.tenant, ask.peer, |usage| usage.queue(ask.load, 1));
                self.grow_backlog(&ask);
            }
            Status::Admitted => {
                self.at_levels(ask.class, ask.tenant, ask.peer, |usage| usage.run(ask.load));
                let own = |session: &&mut SessionRoom| Some(session.id) == decision.session;
                if let Some(session) = self.sessions.iter_mut().find(own) {
                    session.free -= 1;
                }
                if let Some(rates) = self.peer_rates.get_mut(ask.peer) {
                    rates.ahead += 1;
                    rates.ahead_tokens += ask.load.tokens;
                }
            }
            Status::Deferred => {
                let due = decision.times.not_before.is_none();
                self.at_levels(ask.class, ask.tenant, ask.peer, |usage| usage.defer(ask.load, due));
            }
            _ => return,
        }
        if let Some(tenant) = self.tenants.get_mut(ask.tenant) {
            let now_ns = decision.decided.saturating_mul(1_000_000);
            for (full_ns, add_ns) in
                [(&mut tenant.rate_full_ns, verdict.rate_ns), (&mut tenant.tokens_full_ns, verdict.tokens_ns)]
            {
                if add_ns != 0 {
                    *full_ns = (*full_ns).max(now_ns) + add_ns;
                }
            }
        }
        if let Some(parent) = submission.parent_id.and_then(|id| self.parents.get_mut(&id)) {
            parent.children += 1;
        }
    }

    fn grow_backlog(&mut self, ask: &Ask<'_>) {
        let Some(backlog) = &mut self.backlog else { return };
        let same = |flow: &&mut Backlog| {
            flow.class == ask.class
                && flow.tenant == ask.tenant
                && flow.kind == ask.kind
                && flow.peer == ask.peer
                && flow.lane == crate::names::Lane::Fresh
        };
        match backlog.iter_mut().find(same) {
            Some(flow) => flow.queued += 1,
            None => backlog.push(Backlog {
                class: ask.class,
                tenant: ask.tenant.to_owned(),
                kind: ask.kind.to_owned(),
                peer: ask.peer.to_owned(),
                lane: crate::names::Lane::Fresh,
                queued: 1,
            }),
        }
    }
}
