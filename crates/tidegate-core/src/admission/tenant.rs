//! A tenant's allowance: what it may have waiting, how fast it may submit, and what it may hold.

use super::capacity::{Ask, Entrance, within};
use super::chance::Chance;
use super::facts::Facts;
use super::{Refusal, Verdict};
use crate::EpochMs;
use crate::bucket::{Bucket, Drawn};
use crate::policy::Policy;
use crate::reason::Reason;
use crate::tenant::TenantLimits;

/// A tenant's limit that was hit, as the `RateLimit` headers tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// The limit's name.
    pub name: &'static str,
    /// How much there is of it.
    pub limit: u64,
    /// How much of it is left.
    pub remaining: u64,
    /// The time in which that much flows in, in seconds, where it is a rate.
    pub window_s: Option<u64>,
    /// When more of it will be there, in milliseconds.
    pub reset_ms: Option<u64>,
}

/// Checks the allowance, and notes what the buckets give. Nothing is used up where it refuses.
pub(super) fn allowed(
    policy: &Policy,
    facts: &Facts,
    ask: &Ask<'_>,
    entrance: Entrance,
    now: EpochMs,
    verdict: &mut Verdict,
) -> Result<(), Refusal> {
    let limits = policy.tenant(ask.tenant);
    if entrance == Entrance::Queue {
        queued(limits, facts, ask)?;
    }
    let tenant = facts.tenant(ask.tenant);
    let now_ns = now.saturating_mul(1_000_000);
    if let Some(bucket) = rate_bucket(limits) {
        verdict.rate_ns = draw(bucket, tenant.rate_full_ns, now_ns, 1, "rate", Reason::TenantRate)?;
    }
    if entrance != Entrance::Later {
        held(ask.before(&tenant.usage).tokens, ask.load.tokens, limits.max_tokens, "tokens", Reason::TenantTokens)?;
    }
    if let (Some(bucket), true) = (tokens_bucket(limits), ask.load.tokens > 0) {
        let amount = ask.load.tokens.unsigned_abs();
        verdict.tokens_ns =
            draw(bucket, tenant.tokens_full_ns, now_ns, amount, "tokens-per-minute", Reason::TenantTokens)?;
    }
    held(tenant.usage.bytes, ask.load.bytes, limits.max_bytes, "bytes", Reason::TenantBytes)?;
    if entrance != Entrance::Later {
        held(
            ask.before(&tenant.usage).usd_micros,
            ask.load.usd_micros,
            limits.max_usd_micros,
            "cost",
            Reason::TenantCost,
        )?;
    }
    Ok(())
}

/// Whether the tenant may have a task in the queue that is inside already.
pub(super) fn has_room(policy: &Policy, facts: &Facts, ask: &Ask<'_>) -> bool {
    let (limits, usage) = (policy.tenant(ask.tenant), ask.before(&facts.tenant(ask.tenant).usage));
    queued(limits, facts, ask).is_ok()
        && within(usage.tokens, ask.load.tokens, limits.max_tokens)
        && within(usage.usd_micros, ask.load.usd_micros, limits.max_usd_micros)
}

fn queued(limits: &TenantLimits, facts: &Facts, ask: &Ask<'_>) -> Result<(), Refusal> {
    let tenant = facts.tenant(ask.tenant);
    let of_class = &tenant.classes[ask.class as usize];
    let bounds = [
        (ask.before(&tenant.usage).queued, limits.max_queued, "queued"),
        (ask.before(of_class).queued, limits.class(ask.class).max_queued, "queued-of-class"),
    ];
    bounds
        .into_iter()
        .try_for_each(|(used, most, name)| held(used, 1, most.map(u64::from), name, Reason::TenantQueueLimit))
}

fn held(used: i64, more: i64, limit: Option<u64>, name: &'static str, reason: Reason) -> Result<(), Refusal> {
    let Some(most) = limit else { return Ok(()) };
    if within(used, more, limit) {
        return Ok(());
    }
    let remaining = most.saturating_sub(used.max(0).unsigned_abs());
    let chance = Chance::of(more, limit);
    let retry = chance.retry_ms(None);
    let reset_ms = retry.filter(|_| chance == Chance::Room);
    let quota = Quota { name, limit: most, remaining, window_s: None, reset_ms };
    Err(Refusal { quota: Some(quota), ..Refusal::rejected(reason, retry) })
}

fn draw(
    bucket: Bucket,
    full_ns: i64,
    now_ns: i64,
    amount: u64,
    name: &'static str,
    reason: Reason,
) -> Result<i64, Refusal> {
    match bucket.draw(full_ns, now_ns, amount) {
        Drawn::Taken { add_ns } => Ok(add_ns),
        Drawn::Short { retry_ms } => {
            let remaining = bucket.level(full_ns, now_ns);
            let quota = Quota { name, limit: bucket.per_minute(), remaining, window_s: Some(60), reset_ms: retry_ms };
            let retry = Chance::of_bucket(&bucket, amount).retry_ms(retry_ms);
            Err(Refusal { quota: Some(quota), ..Refusal::rejected(reason, retry) })
        }
    }
}

/// The bucket of submissions, where there is a rate.
pub(super) fn rate_bucket(limits: &TenantLimits) -> Option<Bucket> {
    let rate = u64::from(limits.rate_per_minute?);
    Some(Bucket::new(rate, limits.burst.map_or(rate, u64::from)))
}

/// The bucket of tokens, where there is a rate: it holds what a minute brings.
pub fn tokens_bucket(limits: &TenantLimits) -> Option<Bucket> {
    let rate = limits.tokens_per_minute?;
    Some(Bucket::new(rate, rate))
}
