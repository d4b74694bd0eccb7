//! Sections that are read, checked and kept, and that a later version acts on. [`Config::dormant`] names those that
//! are in use, so that nobody believes in a limit that does not hold yet.
//!
//! [`Config::dormant`]: super::Config::dormant

use serde::{Deserialize, Serialize};

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
