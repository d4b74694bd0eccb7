//! What a tenant may hold and how its share weighs.

use serde::{Deserialize, Deserializer, Serialize};

use crate::merge_patch::{BadValue, Patched};
use crate::names::{Class, Priority};

/// The highest priority of callers with a key, where neither the key nor the tenant says more: critical work is
/// granted, not asked for.
pub const DEFAULT_MAX_PRIORITY: u8 = 89;
/// The largest weight. Beyond it others would wait for ever in all but name.
pub const MAX_WEIGHT: f64 = 1e6;
/// The smallest weight. Below it virtual times would leave the numbers they are kept in.
pub const MIN_WEIGHT: f64 = 1e-3;
/// Most labels that a tenant may be trusted with; a submission has at most 16.
pub const MAX_TRUSTED_LABELS: usize = 64;
/// The longest name of a trusted label, in bytes.
pub const MAX_LABEL_BYTES: usize = 256;

/// The limits of one tenant. `None` is no limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TenantLimits {
    /// Its share of the workers' time, against other tenants of the same class.
    pub weight: f64,
    /// The highest priority of its submissions. Set, it caps everyone; `None` is not set, and then
    /// [`DEFAULT_MAX_PRIORITY`] holds for callers with a key and nothing for those without.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "null_is_the_highest")]
    pub max_priority: Option<u8>,
    /// Labels that may raise a priority when this tenant sets them.
    pub trusted_labels: Vec<String>,
    /// Most of its tasks that are QUEUED.
    pub max_queued: Option<u32>,
    /// Most of its tasks that are ADMITTED or RUNNING. It never refuses.
    pub max_running: Option<u32>,
    /// Most tokens that its tasks in flight reserve.
    pub max_tokens: Option<u64>,
    /// Most bytes of payload that its tasks hold which have not ended.
    pub max_bytes: Option<u64>,
    /// Most money that its tasks in flight reserve, in millionths of a dollar.
    pub max_usd_micros: Option<u64>,
    /// Submissions that are let in within a minute.
    pub rate_per_minute: Option<u32>,
    /// Submissions that are let in at once before the rate applies; `None` is a minute's worth.
    pub burst: Option<u32>,
    /// Tokens that its submissions may reserve within a minute.
    pub tokens_per_minute: Option<u64>,
    /// What it may hold of one class.
    pub classes: TenantClasses,
}

/// What a tenant may hold of each class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TenantClasses {
    /// Of the work that others wait for.
    pub critical: TenantClassLimits,
    /// Of the usual work.
    pub standard: TenantClassLimits,
    /// Of the work that may wait.
    pub background: TenantClassLimits,
}

/// What a tenant may hold of one class. `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TenantClassLimits {
    /// Most of its tasks of the class that are QUEUED.
    pub max_queued: Option<u32>,
    /// Most of its tasks of the class that are ADMITTED or RUNNING.
    pub max_running: Option<u32>,
}

impl TenantClassLimits {
    const NONE: Self = Self { max_queued: None, max_running: None };
}

/// The limits of a tenant that nobody configured.
static USUAL: TenantLimits = TenantLimits::usual();

impl TenantLimits {
    const fn usual() -> Self {
        Self {
            weight: 1.0,
            max_priority: None,
            trusted_labels: Vec::new(),
            max_queued: None,
            max_running: None,
            max_tokens: None,
            max_bytes: None,
            max_usd_micros: None,
            rate_per_minute: None,
            burst: None,
            tokens_per_minute: None,
            classes: TenantClasses {
                critical: TenantClassLimits::NONE,
                standard: TenantClassLimits::NONE,
                background: TenantClassLimits::NONE,
            },
        }
    }

    /// Whether there is a limit to what of it runs.
    pub fn limits_running(&self) -> bool {
        self.max_running.is_some() || Class::ALL.into_iter().any(|class| self.class(class).max_running.is_some())
    }

    /// The limits of a tenant that nobody configured: none.
    pub fn unconfigured() -> &'static Self {
        &USUAL
    }

    /// What it may hold of a class.
    pub fn class(&self, class: Class) -> TenantClassLimits {
        match class {
            Class::Critical => self.classes.critical,
            Class::Standard => self.classes.standard,
            Class::Background => self.classes.background,
        }
    }

    /// The submissions that may come at once before the rate applies: `burst`, or a minute's worth. `None` where
    /// there is no rate.
    pub fn burst(&self) -> Option<u32> {
        self.rate_per_minute.map(|rate| self.burst.unwrap_or(rate))
    }

    /// Whether every one of these labels may raise a priority.
    pub fn trusts<'a>(&self, mut labels: impl Iterator<Item = &'a str>) -> bool {
        labels.all(|label| self.trusted_labels.iter().any(|trusted| trusted == label))
    }

    /// The same as operators read it: with the priority that holds where none is set.
    #[must_use]
    pub fn shown(mut self) -> Self {
        self.max_priority.get_or_insert(DEFAULT_MAX_PRIORITY);
        self
    }
}

impl Default for TenantLimits {
    fn default() -> Self {
        Self::usual()
    }
}

impl Patched for TenantLimits {
    fn check(&self) -> Result<(), BadValue> {
        let bad = |pointer: &str, problem: String| Err(BadValue::new(pointer, problem));
        if !(MIN_WEIGHT..=MAX_WEIGHT).contains(&self.weight) {
            return bad("/weight", format!("must be {MIN_WEIGHT} to {MAX_WEIGHT}"));
        }
        if self.max_priority.is_some_and(|most| most > Priority::MAX.get()) {
            return bad("/max_priority", "must be 0 to 100".into());
        }
        if self.trusted_labels.len() > MAX_TRUSTED_LABELS {
            return bad("/trusted_labels", format!("must be at most {MAX_TRUSTED_LABELS} names"));
        }
        if let Some(n) = self.trusted_labels.iter().position(|name| !(1..=MAX_LABEL_BYTES).contains(&name.len())) {
            return bad(&format!("/trusted_labels/{n}"), format!("must be 1 to {MAX_LABEL_BYTES} bytes"));
        }
        let at_least_one = [
            ("/rate_per_minute", self.rate_per_minute.map(u64::from)),
            ("/burst", self.burst.map(u64::from)),
            ("/tokens_per_minute", self.tokens_per_minute),
        ];
        match at_least_one.into_iter().find(|(_, value)| *value == Some(0)) {
            Some((pointer, _)) => bad(pointer, "must be at least 1; to let nothing in, pause the tenant".into()),
            None => Ok(()),
        }
    }
}

/// `null` means no limit: the highest priority there is. That is not the same as a key that is not there.
fn null_is_the_highest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    Ok(Some(Option::<u8>::deserialize(deserializer)?.unwrap_or(Priority::MAX.get())))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::merge_patch::compose;

    fn refused(patch: Value) -> Result<TenantLimits, String> {
        compose::<TenantLimits>(&[&patch]).map_err(|bad| bad.pointer)
    }

    #[test]
    fn a_tenant_that_nobody_configured_has_no_limits() {
        assert_eq!(TenantLimits::unconfigured(), &TenantLimits::default());
        assert_eq!(compose::<TenantLimits>(&[]), Ok(TenantLimits::default()));
    }

    #[test]
    fn a_priority_that_is_not_set_is_shown_as_the_default_and_null_is_no_limit() {
        assert_eq!(refused(json!({})).map(|tenant| tenant.max_priority), Ok(None));
        assert_eq!(refused(json!({"max_priority": null})).map(|tenant| tenant.max_priority), Ok(Some(100)));
        assert_eq!(refused(json!({"max_priority": 40})).map(|tenant| tenant.max_priority), Ok(Some(40)));
        assert_eq!(serde_json::to_value(TenantLimits::default().shown()).unwrap()["max_priority"], 89);
        assert_eq!(serde_json::to_value(TenantLimits::default()).unwrap().get("max_priority"), None);
    }

    #[test]
    fn nonsense_is_refused_where_it_stands() {
        for (patch, pointer) in [
            (json!({"weight": 0}), "/weight"),
            (json!({"weight": 1e-300}), "/weight"),
            (json!({"weight": -1.0}), "/weight"),
            (json!({"weight": 1e7}), "/weight"),
            (json!({"max_priority": 101}), "/max_priority"),
            (json!({"trusted_labels": ["ok", ""]}), "/trusted_labels/1"),
            (json!({"rate_per_minute": 0}), "/rate_per_minute"),
            (json!({"burst": 0}), "/burst"),
            (json!({"tokens_per_minute": 0}), "/tokens_per_minute"),
        ] {
            assert_eq!(refused(patch), Err(pointer.to_owned()));
        }
    }

    #[test]
    fn a_burst_is_a_minutes_worth_unless_said() {
        let burst = |patch| refused(patch).map(|tenant| tenant.burst());
        assert_eq!(burst(json!({"burst": 5})), Ok(None));
        assert_eq!(burst(json!({"rate_per_minute": 60})), Ok(Some(60)));
        assert_eq!(burst(json!({"rate_per_minute": 60, "burst": 5})), Ok(Some(5)));
    }
}
