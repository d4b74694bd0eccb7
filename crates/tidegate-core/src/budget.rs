//! The delegation budget: how much time, depth and fan-out a task may hand on.

use serde::{Deserialize, Serialize};

/// Hops that a task may delegate where nothing is said.
pub const DEFAULT_DEPTH: u32 = 2;
/// Children that a task may start where nothing is said.
pub const DEFAULT_FANOUT: u32 = 4;

/// A delegation budget as it travels in the `X-Budget` header.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Seconds left, counted from arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_s: Option<f64>,
    /// Hops still allowed: 0 may run but not delegate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Children still allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fanout: Option<u32>,
}

/// A budget that cannot be meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("remaining_s must be a number of seconds, not negative and finite")]
pub struct BadBudget;

impl Budget {
    /// The time left, in milliseconds, rounded down.
    pub fn remaining_ms(&self) -> Result<Option<u64>, BadBudget> {
        match self.remaining_s {
            None => Ok(None),
            Some(seconds) if seconds.is_finite() && (0.0..=1e12).contains(&seconds) => {
                Ok(Some((seconds * 1_000.0) as u64))
            }
            Some(_) => Err(BadBudget),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_milliseconds_and_nonsense_an_error() {
        let budget = |remaining_s| Budget { remaining_s, depth: None, fanout: None }.remaining_ms();
        assert_eq!(budget(Some(12.5)), Ok(Some(12_500)));
        assert_eq!(budget(Some(0.0)), Ok(Some(0)));
        assert_eq!(budget(None), Ok(None));
        for bad in [-0.1, f64::NAN, f64::INFINITY, 1e13] {
            assert_eq!(budget(Some(bad)), Err(BadBudget));
        }
    }
}
