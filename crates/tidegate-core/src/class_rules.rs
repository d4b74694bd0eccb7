//! Classes are earned: rules of the configuration raise or lower the priority that a caller asked for, and a grant
//! caps the result.
//!
//! What a caller says of itself proves nothing. A rule that looks at labels, or at the workflow that a caller names,
//! raises only where the tenant is trusted with every one of them; it may always lower.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::merge_patch::BadValue;
use crate::names::{Kind, Priority};
use crate::submission::Cost;
use crate::tenant::{DEFAULT_MAX_PRIORITY, TenantLimits};

/// Most rules: every submission is held against all of them.
pub const MAX_RULES: usize = 200;
/// The name by which a tenant lists the workflow id among its `trusted_labels`.
pub const WORKFLOW_LABEL: &str = "workflow_id";

/// `[[class_rules]]`: what raises or lowers an asked priority. Exactly one of `priority` and `add` is set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassRule {
    /// When it holds.
    pub when: When,
    /// The priority that the task gets.
    pub priority: Option<u8>,
    /// The points that are added to its priority; negative to lower it.
    pub add: Option<i8>,
}

/// The conditions of a rule; those that are given must all hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    /// The task is of this kind.
    pub kind: Option<Kind>,
    /// It has each of these labels, with this value.
    pub labels: BTreeMap<String, String>,
    /// It belongs to this workflow; a `*` at the end stands for anything.
    pub workflow: Option<String>,
    /// Less time than this is left from its start to its deadline, in milliseconds.
    pub left_below_ms: Option<u64>,
    /// It is estimated to cost more than this, in millionths of a dollar.
    pub cost_above_usd_micros: Option<u64>,
    /// It is estimated to use more tokens than this.
    pub cost_above_tokens: Option<u64>,
}

/// What the rules look at, of one submission.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Its kind.
    pub kind: &'a Kind,
    /// Its labels, as a JSON object of strings.
    pub labels: Option<&'a str>,
    /// The workflow that it belongs to.
    pub workflow_id: Option<&'a str>,
    /// The time from its start to its deadline, in milliseconds.
    pub left_ms: u64,
    /// What its caller thinks it will use.
    pub cost: Cost,
}

/// The cap of callers who have a key: what the key grants, or the default. Callers without a key have none.
pub fn key_cap(granted: Option<u8>) -> u8 {
    granted.unwrap_or(DEFAULT_MAX_PRIORITY)
}

/// The priority that a submission gets, and why where it is not the one that was asked for. The rules act in their
/// order, each on what the one before left. The result is never above `cap`, what the caller's key grants, nor above
/// the tenant's own `max_priority`.
pub fn apply(
    rules: &[ClassRule],
    asked: Priority,
    facts: &Facts<'_>,
    tenant: &TenantLimits,
    cap: Option<u8>,
) -> (Priority, Vec<String>) {
    let mut priority = asked;
    let mut notes = Vec::new();
    let mut labels = Labels::Unread(facts.labels);
    for (n, rule) in rules.iter().enumerate() {
        if !rule.when.holds(facts, &mut labels) {
            continue;
        }
        let next = rule.result(priority);
        if next > priority && !tenant.trusts(rule.when.claims()) {
            continue;
        }
        if next != priority {
            let way = if next > priority { "raised" } else { "lowered" };
            notes.push(format!(
                "{way} from {} to {} by class rule {}: {}",
                priority.get(),
                next.get(),
                n + 1,
                rule.when.describe()
            ));
            priority = next;
        }
    }
    let caps = [(cap, "the most that the caller's key grants"), (tenant.max_priority, "the tenant's max_priority")];
    for (most, whose) in caps {
        let Some(most) = most.and_then(|most| Priority::new(most.into()).ok()) else { continue };
        if priority > most {
            notes.push(format!("lowered from {} to {}, {whose}", priority.get(), most.get()));
            priority = most;
        }
    }
    (priority, notes)
}

/// Refuses rules that cannot be meant. The pointer begins with the rule's place.
pub fn check(rules: &[ClassRule]) -> Result<(), BadValue> {
    if rules.len() > MAX_RULES {
        return Err(BadValue::new("", format!("must be at most {MAX_RULES} rules")));
    }
    for (n, rule) in rules.iter().enumerate() {
        rule.check().map_err(|bad| BadValue::new(format!("/{n}{}", bad.pointer), bad.problem))?;
    }
    Ok(())
}

impl ClassRule {
    fn check(&self) -> Result<(), BadValue> {
        if self.priority.is_some() == self.add.is_some() {
            return Err(BadValue::new("", "must have either priority or add"));
        }
        if self.priority.is_some_and(|priority| priority > Priority::MAX.get()) {
            return Err(BadValue::new("/priority", "must be 0 to 100"));
        }
        if self.add.is_some_and(|add| !(-100..=100).contains(&add)) {
            return Err(BadValue::new("/add", "must be -100 to 100"));
        }
        if self.when.workflow.as_ref().is_some_and(|workflow| workflow.trim_end_matches('*').contains('*')) {
            return Err(BadValue::new("/when/workflow", "may have a * only at its end"));
        }
        Ok(())
    }

    fn result(&self, priority: Priority) -> Priority {
        let points = match (self.priority, self.add) {
            (Some(exactly), _) => i64::from(exactly),
            (None, add) => i64::from(priority.get()) + i64::from(add.unwrap_or(0)),
        };
        Priority::new(points.clamp(0, Priority::MAX.get().into())).unwrap_or(priority)
    }
}

impl When {
    fn holds(&self, facts: &Facts<'_>, labels: &mut Labels<'_>) -> bool {
        self.kind.as_ref().is_none_or(|kind| kind == facts.kind)
            && self.left_below_ms.is_none_or(|below| facts.left_ms < below)
            && self.cost_above_usd_micros.is_none_or(|above| facts.cost.usd_micros > above)
            && self.cost_above_tokens.is_none_or(|above| facts.cost.tokens > above)
            && self.workflow.as_ref().is_none_or(|pattern| matches_workflow(pattern, facts.workflow_id))
            && (self.labels.is_empty() || labels.have(&self.labels))
    }

    /// What it believes its caller about.
    fn claims(&self) -> impl Iterator<Item = &str> {
        let workflow = self.workflow.as_ref().map(|_| WORKFLOW_LABEL);
        self.labels.keys().map(String::as_str).chain(workflow)
    }

    fn describe(&self) -> String {
        let mut said = Vec::new();
        said.extend(self.kind.as_ref().map(|kind| format!("kind {kind}")));
        said.extend(self.labels.iter().map(|(name, value)| format!("label {name} is {value}")));
        said.extend(self.workflow.as_ref().map(|pattern| format!("workflow {pattern}")));
        said.extend(self.left_below_ms.map(|below| format!("less than {below} ms left")));
        said.extend(self.cost_above_usd_micros.map(|above| format!("estimated at more than {above} usd_micros")));
        said.extend(self.cost_above_tokens.map(|above| format!("estimated at more than {above} tokens")));
        if said.is_empty() { "every task".to_owned() } else { said.join(", ") }
    }
}

fn matches_workflow(pattern: &str, id: Option<&str>) -> bool {
    id.is_some_and(|id| match pattern.strip_suffix('*') {
        Some(prefix) => id.starts_with(prefix),
        None => id == pattern,
    })
}

/// The labels of a submission, read once, and only if a rule asks.
enum Labels<'a> {
    Unread(Option<&'a str>),
    Read(BTreeMap<String, String>),
}

impl Labels<'_> {
    fn have(&mut self, wanted: &BTreeMap<String, String>) -> bool {
        if let Self::Unread(text) = self {
            *self = Self::Read(text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default());
        }
        match self {
            Self::Read(labels) => wanted.iter().all(|(name, value)| labels.get(name) == Some(value)),
            Self::Unread(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(when: When, priority: Option<u8>, add: Option<i8>) -> ClassRule {
        ClassRule { when, priority, add }
    }

    fn labelled(name: &str, value: &str) -> When {
        When { labels: BTreeMap::from([(name.to_owned(), value.to_owned())]), ..When::default() }
    }

    fn outcome(rules: &[ClassRule], trusted: &[&str], cap: Option<u8>) -> (u8, Vec<String>) {
        let kind = Kind::parse("refund").unwrap();
        let facts = Facts {
            kind: &kind,
            labels: Some(r#"{"safety":"true","team":"a"}"#),
            workflow_id: Some("payroll-7"),
            left_ms: 4_000,
            cost: Cost { tokens: 500, usd_micros: 20_000 },
        };
        let trusted_labels = trusted.iter().map(|label| (*label).to_owned()).collect();
        let tenant = TenantLimits { trusted_labels, ..TenantLimits::default() };
        let (priority, notes) = apply(rules, Priority::DEFAULT, &facts, &tenant, cap);
        (priority.get(), notes)
    }

    #[test]
    fn each_condition_holds_or_not() {
        let usual = When::default();
        for (when, holds) in [
            (usual.clone(), true),
            (When { kind: Kind::parse("refund").ok(), ..usual.clone() }, true),
            (When { kind: Kind::parse("other").ok(), ..usual.clone() }, false),
            (labelled("safety", "true"), true),
            (labelled("safety", "false"), false),
            (labelled("absent", "true"), false),
            (When { workflow: Some("payroll-7".into()), ..usual.clone() }, true),
            (When { workflow: Some("payroll-*".into()), ..usual.clone() }, true),
            (When { workflow: Some("payroll".into()), ..usual.clone() }, false),
            (When { left_below_ms: Some(4_001), ..usual.clone() }, true),
            (When { left_below_ms: Some(4_000), ..usual.clone() }, false),
            (When { cost_above_usd_micros: Some(19_999), ..usual.clone() }, true),
            (When { cost_above_usd_micros: Some(20_000), ..usual.clone() }, false),
            (When { cost_above_tokens: Some(499), ..usual.clone() }, true),
            (When { cost_above_tokens: Some(500), ..usual.clone() }, false),
            (When { left_below_ms: Some(1), ..labelled("safety", "true") }, false),
        ] {
            let (priority, notes) = outcome(&[rule(when.clone(), Some(20), None)], &[], None);
            assert_eq!((priority, notes.len()), if holds { (20, 1) } else { (50, 0) }, "{when:?}");
        }
    }

    #[test]
    fn what_a_caller_says_raises_only_where_its_tenant_is_trusted_with_it_but_always_lowers() {
        let raise = [rule(labelled("safety", "true"), Some(95), None)];
        assert_eq!(outcome(&raise, &[], None), (50, vec![]));
        assert_eq!(outcome(&raise, &["safety"], None).0, 95);
        assert_eq!(outcome(&[rule(labelled("safety", "true"), None, Some(-30))], &[], None).0, 20);
        let mut both = labelled("safety", "true");
        both.labels.insert("team".into(), "a".into());
        let both = [rule(both, Some(95), None)];
        assert_eq!(outcome(&both, &["safety"], None).0, 50);
        assert_eq!(outcome(&both, &["team", "safety"], None).0, 95);
        let workflow = [rule(When { workflow: Some("payroll-*".into()), ..When::default() }, None, Some(20))];
        assert_eq!(outcome(&workflow, &["safety"], None).0, 50);
        assert_eq!(outcome(&workflow, &[WORKFLOW_LABEL], None).0, 70);
    }

    #[test]
    fn rules_act_in_their_order_and_every_change_has_a_note() {
        let late = When { left_below_ms: Some(5_000), ..When::default() };
        let rules = [
            rule(late, None, Some(20)),
            rule(When { kind: Kind::parse("refund").ok(), ..When::default() }, Some(95), None),
            rule(When::default(), None, Some(100)),
            rule(When::default(), None, Some(1)),
        ];
        let (priority, notes) = outcome(&rules, &[], Some(89));
        assert_eq!(priority, 89);
        assert_eq!(
            notes,
            [
                "raised from 50 to 70 by class rule 1: less than 5000 ms left",
                "raised from 70 to 95 by class rule 2: kind refund",
                "raised from 95 to 100 by class rule 3: every task",
                "lowered from 100 to 89, the most that the caller's key grants",
            ]
        );
    }

    #[test]
    fn a_tenants_own_cap_holds_for_everyone_and_none_where_it_is_not_set() {
        let kind = Kind::parse("k").unwrap();
        let facts = Facts { kind: &kind, labels: None, workflow_id: None, left_ms: 1, cost: Cost::default() };
        let capped = TenantLimits { max_priority: Some(40), ..TenantLimits::default() };
        let given = |tenant, cap| apply(&[], Priority::MAX, &facts, tenant, cap).0.get();
        assert_eq!(given(&capped, None), 40);
        assert_eq!(given(&capped, Some(89)), 40);
        assert_eq!(given(TenantLimits::unconfigured(), None), 100);
        assert_eq!(given(TenantLimits::unconfigured(), Some(key_cap(None))), 89);
        assert_eq!(given(TenantLimits::unconfigured(), Some(key_cap(Some(100)))), 100);
    }

    #[test]
    fn rules_that_cannot_be_meant_are_refused() {
        let refused =
            |rule| check(&[ClassRule { priority: Some(1), ..ClassRule::default() }, rule]).map_err(|bad| bad.key());
        assert_eq!(refused(rule(When::default(), None, None)), Err("1".to_owned()));
        assert_eq!(refused(rule(When::default(), Some(1), Some(1))), Err("1".to_owned()));
        assert_eq!(refused(rule(When::default(), Some(101), None)), Err("1.priority".to_owned()));
        assert_eq!(refused(rule(When::default(), None, Some(101))), Err("1.add".to_owned()));
        let starred = When { workflow: Some("a*b".into()), ..When::default() };
        assert_eq!(refused(rule(starred, Some(1), None)), Err("1.when.workflow".to_owned()));
        assert!(check(&vec![ClassRule::default(); MAX_RULES + 1]).is_err());
    }

    fn any_rule() -> impl Strategy<Value = ClassRule> {
        let action = prop_oneof![(0u8..=100).prop_map(Ok), (-100i8..=100).prop_map(Err)];
        let label = proptest::option::of("[ab]");
        (action, label, proptest::option::of(0u64..10), proptest::option::of("w[*]?")).prop_map(
            |(action, label, left_below_ms, workflow)| ClassRule {
                when: When {
                    labels: label.into_iter().map(|name| (name, "1".to_owned())).collect(),
                    left_below_ms,
                    workflow,
                    ..When::default()
                },
                priority: action.ok(),
                add: action.err(),
            },
        )
    }

    proptest! {
        #[test]
        fn never_above_the_cap_and_never_raised_by_an_untrusted_word(
            rules in proptest::collection::vec(any_rule(), 0..8),
            asked in 0i64..=100,
            cap in proptest::option::of(0u8..=100),
            own in proptest::option::of(0u8..=100),
            left_ms in 0u64..10,
        ) {
            let kind = Kind::parse("k").unwrap();
            let asked = Priority::new(asked).unwrap();
            let labels = Some(r#"{"a":"1","b":"1"}"#);
            let facts = Facts { kind: &kind, labels, workflow_id: Some("w"), left_ms, cost: Cost::default() };
            let tenant = TenantLimits { max_priority: own, trusted_labels: vec!["a".into()], ..TenantLimits::default() };
            let (given, notes) = apply(&rules, asked, &facts, &tenant, cap);
            prop_assert!(given.get() <= cap.unwrap_or(100).min(own.unwrap_or(100)));
            prop_assert!(given == asked || !notes.is_empty());
            let trusted: Vec<_> = rules.iter().filter(|rule| !rule.when.labels.contains_key("b") && rule.when.workflow.is_none()).cloned().collect();
            if trusted.is_empty() {
                prop_assert!(given <= asked);
            }
            prop_assert_eq!((given, notes), apply(&rules, asked, &facts, &tenant, cap));
        }
    }
}
