//! Sections that are read, checked and kept, and that a later version acts on. [`Config::dormant`] names those that
//! are in use, so that nobody believes in a limit that does not hold yet.
//!
//! [`Config::dormant`]: super::Config::dormant

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_core::{Class, Kind};

/// `[tenants.NAME]`: what a tenant may hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tenant {
    pub(crate) weight: f64,
    pub(crate) max_priority: u8,
    pub(crate) trusted_labels: Vec<String>,
    pub(crate) max_queued: Option<u32>,
    pub(crate) max_running: Option<u32>,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) max_usd_micros: Option<u64>,
    pub(crate) rate_per_minute: Option<u32>,
    pub(crate) burst: Option<u32>,
    pub(crate) tokens_per_minute: Option<u64>,
    pub(crate) classes: BTreeMap<Class, TenantClass>,
}

impl Default for Tenant {
    fn default() -> Self {
        Self {
            weight: 1.0,
            max_priority: 89,
            trusted_labels: Vec::new(),
            max_queued: None,
            max_running: None,
            max_tokens: None,
            max_bytes: None,
            max_usd_micros: None,
            rate_per_minute: None,
            burst: None,
            tokens_per_minute: None,
            classes: BTreeMap::new(),
        }
    }
}

/// `[tenants.NAME.classes.CLASS]`: what a tenant may hold of one class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TenantClass {
    pub(crate) max_queued: Option<u32>,
    pub(crate) max_running: Option<u32>,
}

/// `[peers.NAME]`: the limits of a downstream dependency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Peer {
    pub(crate) max_in_flight: Option<u32>,
    pub(crate) max_waiting: Option<u32>,
    pub(crate) max_wait_ms: Option<u64>,
    pub(crate) requests_per_minute: Option<u32>,
    pub(crate) tokens_per_minute: Option<u64>,
    pub(crate) target_latency_ms: Option<u64>,
    pub(crate) aimd: Option<Aimd>,
    pub(crate) retry_budget: RetryBudget,
    pub(crate) breaker: Breaker,
    pub(crate) max_result_bytes: u64,
    pub(crate) result_schema: Option<String>,
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            max_in_flight: None,
            max_waiting: None,
            max_wait_ms: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            target_latency_ms: None,
            aimd: None,
            retry_budget: RetryBudget::default(),
            breaker: Breaker::default(),
            max_result_bytes: 262_144,
            result_schema: None,
        }
    }
}

/// The limit of one worker process towards a peer, moved by what it sees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Aimd {
    pub(crate) initial: u32,
    pub(crate) min: u32,
    pub(crate) max: u32,
    #[serde(default = "Aimd::usual_backoff")]
    pub(crate) backoff: f64,
}

impl Aimd {
    fn usual_backoff() -> f64 {
        0.7
    }
}

/// What retries may cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RetryBudget {
    pub(crate) ratio: f64,
    pub(crate) cap: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { ratio: 0.1, cap: 10 }
    }
}

/// When a peer counts as down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Breaker {
    pub(crate) failures: u32,
    pub(crate) window_ms: u64,
    pub(crate) open_ms: u64,
    pub(crate) probes: u32,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { failures: 5, window_ms: 10_000, open_ms: 15_000, probes: 2 }
    }
}

/// `[[class_rules]]`: what raises or lowers an asked priority.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClassRule {
    pub(crate) when: When,
    pub(crate) priority: Option<u8>,
    pub(crate) add: Option<i8>,
}

/// The conditions of a rule; those that are given must all hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct When {
    pub(crate) kind: Option<Kind>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) left_below_ms: Option<u64>,
    pub(crate) cost_above_usd_micros: Option<u64>,
}

/// `[quarantine]`: when an input is held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quarantine {
    pub(crate) threshold: u32,
    pub(crate) window_ms: u64,
    pub(crate) hold_ms: u64,
}

/// `[cost]`: what things cost, for the reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cost {
    pub(crate) usd_micros_per_slot_hour: u64,
    pub(crate) currency: String,
    pub(crate) per_usd: f64,
}
