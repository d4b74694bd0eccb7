//! The class that a submission has earned.

use tidegate_core::class_rules::{self, Facts};
use tidegate_core::policy::Policy;
use tidegate_core::{EpochMs, TenantId};

use crate::decode::submission::Draft;
use crate::settings::Shared;

/// Applies the class rules and the caps to a draft. `cap` is what the caller's key grants; a caller without a key has
/// none.
pub(crate) fn earn_class(app: &Shared, policy: &Policy, tenant: &TenantId, cap: Option<u8>, draft: &mut Draft<'_>) {
    let limits = policy.tenant(tenant.as_str());
    let rules = &app.settings.class_rules;
    if rules.is_empty() && cap.is_none() && limits.max_priority.is_none() {
        return;
    }
    // Only the rules look at this clock: the deadline itself is fixed by the database's.
    let now: EpochMs = chrono::Utc::now().timestamp_millis();
    let times = draft.timing.resolve(&policy.limits, now, 0);
    let start = times.not_before.unwrap_or(now);
    let facts = Facts {
        kind: &draft.kind,
        labels: draft.labels.as_deref(),
        workflow_id: draft.workflow_id.as_deref(),
        left_ms: u64::try_from(times.deadline.saturating_sub(start)).unwrap_or(0),
        cost: draft.cost,
    };
    (draft.priority, draft.priority_notes) = class_rules::apply(rules, draft.priority, &facts, limits, cap);
}
