//! When to come again where a limit lets nothing pass.

use super::*;

/// What a submission of 7 tokens and 7 micro-dollars hears of limits, in place of a plain refusal.
fn told(limits: impl Fn(&mut Policy, &mut TenantLimits), on_full: OnFull) -> (Option<Reason>, Option<u64>) {
    let (mut policy, mut tenant) = (policy(), TenantLimits::default());
    policy.limits.classes.standard.shed_at = None;
    limits(&mut policy, &mut tenant);
    policy.tenants.insert("default".into(), tenant);
    let cost = crate::submission::Cost { tokens: 7, usd_micros: 7 };
    let asked = Submission { cost, on_full, ..submission(STANDARD) };
    let verdict = decide(&policy, &queued(0), &asked, NOW, 0);
    assert_eq!((verdict.decision.status, verdict.wait_until), (Status::Rejected, None));
    (verdict.decision.reason, verdict.decision.retry_after_ms)
}

#[test]
fn behind_a_limit_of_0_is_a_time_to_come_again_and_behind_one_that_is_too_small_is_none() {
    use Reason as R;
    type Set = fn(&mut Policy, &mut TenantLimits, u64);
    let holds: [(Set, Reason); 10] = [
        (|_, tenant, most| tenant.max_tokens = Some(most), R::TenantTokens),
        (|_, tenant, most| tenant.tokens_per_minute = Some(most), R::TenantTokens),
        (|_, tenant, most| tenant.max_bytes = Some(most), R::TenantBytes),
        (|_, tenant, most| tenant.max_usd_micros = Some(most), R::TenantCost),
        (|policy, _, most| policy.limits.max_tokens = Some(most), R::TokenBudget),
        (|policy, _, most| policy.limits.max_usd_micros = Some(most), R::CostBudget),
        (|policy, _, most| policy.limits.max_bytes = most, R::ByteBudget),
        (|policy, _, most| policy.limits.classes.standard.max_tokens = Some(most), R::TokenBudget),
        (|policy, _, most| policy.limits.classes.standard.max_bytes = Some(most), R::ByteBudget),
        (
            // Opening one of the two is no use while the other is too small.
            |policy, _, most| {
                (policy.limits.max_tokens, policy.limits.classes.standard.max_tokens) = (Some(0), Some(most))
            },
            R::TokenBudget,
        ),
    ];
    for (set, reason) in holds {
        for on_full in [OnFull::Reject, OnFull::Defer, OnFull::Wait { max_wait_ms: 500 }] {
            let of = |most| told(|policy, tenant| set(policy, tenant, most), on_full);
            assert_eq!(of(0), (Some(reason), Some(PAUSED_RETRY_MS)));
            assert_eq!(of(3), (Some(reason), None));
        }
    }
    let counts: [(Set, Reason); 7] = [
        (|_, tenant, _| tenant.max_queued = Some(0), R::TenantQueueLimit),
        (|_, tenant, _| tenant.classes.standard.max_queued = Some(0), R::TenantQueueLimit),
        (|_, tenant, _| tenant.rate_per_minute = Some(0), R::TenantRate),
        (|_, tenant, _| (tenant.rate_per_minute, tenant.burst) = (Some(60), Some(0)), R::TenantRate),
        (|policy, _, _| policy.limits.max_queued = 0, R::QueueFull),
        (|policy, _, _| policy.limits.max_in_flight = Some(0), R::QueueFull),
        (|policy, _, _| policy.limits.classes.standard.max_queued = Some(0), R::ClassQueueLimit),
    ];
    for (set, reason) in counts {
        let told = told(|policy, tenant| set(policy, tenant, 0), OnFull::Wait { max_wait_ms: 500 });
        assert_eq!(told, (Some(reason), Some(PAUSED_RETRY_MS)));
    }
    let mut policy = policy();
    policy.limits.max_deferred = 0;
    let timing = Timing { start: Start::After(1_000), ..Timing::default() };
    let later = decide(&policy, &queued(0), &Submission { timing, ..submission(STANDARD) }, NOW, 0).decision;
    assert_eq!((later.reason, later.retry_after_ms), (Some(R::DeferredFull), Some(PAUSED_RETRY_MS)));
}
