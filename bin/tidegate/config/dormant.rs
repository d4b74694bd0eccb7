//! What is read and kept, and not acted on yet: nobody should believe in a limit that does not hold.

use serde_json::Value;
use tidegate_core::kind_policy::KindPolicy;

use super::{Config, DEFAULTS};

/// Keys, as JSON pointers, that this version does not act on. `*` is any name or class.
const DORMANT: [&str; 21] = [
    "/tenants/*",
    "/peers/*",
    "/class_rules/*",
    "/quarantine/*",
    "/cost/*",
    "/limits/max_running",
    "/limits/max_tokens",
    "/limits/max_usd_micros",
    "/limits/max_waiting_callers",
    "/limits/max_expected_wait_ms",
    "/limits/classes/*/reserve",
    "/limits/classes/*/max_share",
    "/limits/classes/*/shed_at",
    "/limits/classes/*/promote_after_ms",
    "/limits/classes/*/max_queued",
    "/limits/classes/*/max_running",
    "/limits/classes/*/max_tokens",
    "/limits/classes/*/max_bytes",
    "/limits/classes/*/target_wait_ms",
    "/limits/classes/*/target_admission_ms",
    "/kinds/*/cost_overrun",
];

impl Config {
    /// The keys that somebody set to something else than the default and that this version does not act on.
    pub(crate) fn dormant(&self) -> Vec<String> {
        let defaults: Option<Self> = toml::from_str(DEFAULTS).ok();
        let (Ok(ours), Ok(usual)) = (serde_json::to_value(self), serde_json::to_value(defaults)) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for pattern in DORMANT {
            let steps: Vec<_> = pattern.split('/').skip(1).collect();
            differing(&ours, &usual, &steps, String::new(), &mut found);
        }
        // A kind has no default to differ from, but its policy has.
        let usual = KindPolicy::default().cost_overrun;
        let untouched: Vec<_> = self.kinds.iter().filter(|(_, kind)| kind.policy().cost_overrun == usual).collect();
        found.retain(|key| !untouched.iter().any(|(name, _)| *key == format!("kinds.{name}.cost_overrun")));
        found
    }
}

/// Where the values at a pattern differ, as dotted keys.
fn differing(ours: &Value, usual: &Value, steps: &[&str], path: String, into: &mut Vec<String>) {
    let Some((step, rest)) = steps.split_first() else {
        if ours != usual {
            into.push(path);
        }
        return;
    };
    let mut visit = |name: &str, value: &Value, other: &Value| {
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        differing(value, other, rest, path, into);
    };
    match ours {
        Value::Object(object) => {
            for (name, value) in object.iter().filter(|(name, _)| *step == "*" || step == name) {
                visit(name, value, &usual[name]);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                visit(&index.to_string(), value, usual.get(index).unwrap_or(&Value::Null));
            }
        }
        _ => {}
    }
}
