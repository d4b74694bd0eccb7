//! What is read and kept, and not acted on yet: nobody should believe in a limit that does not hold.

use serde_json::Value;
use tidegate_core::peer::PeerLimits;
use tidegate_core::tenant::TenantLimits;

use super::{Config, DEFAULTS, KindConfig};

/// Keys, as JSON pointers, that this version does not act on. `*` is any name or class.
const DORMANT: [&str; 13] = [
    "/peers/*/target_latency_ms",
    "/peers/*/aimd",
    "/peers/*/breaker",
    "/peers/*/max_result_bytes",
    "/peers/*/result_schema",
    "/quarantine/threshold",
    "/quarantine/window_ms",
    "/cost/*",
    "/limits/classes/critical/promote_after_ms",
    "/limits/classes/standard/promote_after_ms",
    "/limits/classes/*/target_wait_ms",
    "/limits/classes/*/target_admission_ms",
    "/kinds/*/cost_overrun",
];

impl Config {
    /// The keys that somebody set to something else than the default and that this version does not act on.
    pub(crate) fn dormant(&self) -> Vec<String> {
        let Ok(usual) = toml::from_str::<Self>(DEFAULTS) else { return Vec::new() };
        // What has a name of its own is held against one that says nothing.
        let usual = Self {
            tenants: self.tenants.keys().map(|name| (name.clone(), TenantLimits::default())).collect(),
            peers: self.peers.keys().map(|name| (name.clone(), PeerLimits::default())).collect(),
            kinds: self.kinds.keys().map(|name| (name.clone(), KindConfig::default())).collect(),
            ..usual
        };
        let (Ok(ours), Ok(usual)) = (serde_json::to_value(self), serde_json::to_value(usual)) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for pattern in DORMANT {
            let steps: Vec<_> = pattern.split('/').skip(1).collect();
            differing(&ours, &usual, &steps, String::new(), &mut found);
        }
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
    let members = ours.as_object().into_iter().flatten();
    for (name, value) in members.filter(|(name, _)| *step == "*" || step == name) {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        differing(value, &usual[name], rest, path, into);
    }
}
