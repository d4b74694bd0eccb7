//! How long to wait before another try: exponential backoff with full jitter.
//!
//! Formula: `random × min(max, base × 2^(failures − 1))`, "full jitter" in Marc Brooker's *Exponential Backoff And
//! Jitter* (2015). A peer's own `Retry-After` is a floor, with the jitter on top, so that a crowd told the same second
//! does not come back in it.

use serde::{Deserialize, Serialize};

/// The shape of the backoff, per kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BackoffPolicy {
    /// The longest delay after the first failure, in milliseconds.
    pub base_ms: u32,
    /// The longest delay after any failure, in milliseconds.
    pub max_ms: u32,
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        Self { base_ms: 500, max_ms: 60_000 }
    }
}

/// The delay after `failures` failures (at least one), in milliseconds. `random` is uniform in `0.0..1.0`.
pub fn delay_ms(policy: BackoffPolicy, failures: u32, retry_after_ms: Option<u64>, random: f64) -> u64 {
    let doubled = u64::from(policy.base_ms) << failures.saturating_sub(1).min(31);
    let ceiling = doubled.min(u64::from(policy.max_ms));
    let jitter = (random.clamp(0.0, 1.0) * ceiling as f64) as u64;
    retry_after_ms.unwrap_or(0).saturating_add(jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BackoffPolicy = BackoffPolicy { base_ms: 100, max_ms: 1_000 };

    #[test]
    fn the_ceiling_doubles_up_to_the_maximum() {
        let ceilings: Vec<_> = (1..=6).map(|failures| delay_ms(POLICY, failures, None, 1.0)).collect();
        assert_eq!(ceilings, [100, 200, 400, 800, 1_000, 1_000]);
        assert_eq!(delay_ms(POLICY, u32::MAX, None, 1.0), 1_000);
        assert_eq!(delay_ms(POLICY, 3, None, 0.0), 0);
    }

    #[test]
    fn the_peers_own_word_is_a_floor_with_jitter_above() {
        assert_eq!(delay_ms(POLICY, 1, Some(5_000), 0.0), 5_000);
        assert_eq!(delay_ms(POLICY, 1, Some(5_000), 0.5), 5_050);
        assert_eq!(delay_ms(POLICY, 1, Some(u64::MAX), 1.0), u64::MAX);
    }
}
