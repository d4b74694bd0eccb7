//! Inputs that break whatever runs them, and are held for a while so that they break no more.

use sha2::{Digest, Sha256};

use crate::EpochMs;
use crate::json;

/// How long an input is held where nothing else is configured, in milliseconds.
pub const HOLD_MS: u64 = 3_600_000;
/// Most holds that are remembered: every process knows them all. The oldest make room.
pub const MAX_HOLDS: usize = 10_000;

/// What makes two tasks the same input: SHA-256 of the kind and of the payload in canonical form.
pub fn fingerprint(kind: &str, payload: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(kind.as_bytes());
    hash.update([0]);
    hash.update(json::canonical(payload).as_bytes());
    hash.finalize().into()
}

/// An input that is held.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hold {
    /// Which input.
    pub fingerprint: [u8; 32],
    /// Its kind.
    pub kind: String,
    /// For whom: the tenant that it failed for; `None` is for all, once it failed for two.
    pub tenant: Option<String>,
    /// Until when.
    pub until: EpochMs,
}

impl Hold {
    /// Whether it may concern a task of this kind and tenant, before anybody looks at the input.
    pub fn concerns(&self, kind: &str, tenant: &str, now: EpochMs) -> bool {
        self.until > now && self.kind == kind && self.tenant.as_deref().is_none_or(|held| held == tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_input_has_the_same_fingerprint_however_it_is_written() {
        let print = fingerprint("echo", r#"{"a":1,"b":[2]}"#);
        assert_eq!(print, fingerprint("echo", "{ \"b\": [2], \"a\": 1 }"));
        assert_ne!(print, fingerprint("echo", r#"{"a":1,"b":[3]}"#));
        assert_ne!(print, fingerprint("sleep", r#"{"a":1,"b":[2]}"#));
    }

    #[test]
    fn a_hold_concerns_its_kind_and_tenant_until_it_is_over() {
        let hold = Hold { fingerprint: [1; 32], kind: "echo".into(), tenant: Some("acme".into()), until: 100 };
        assert!(hold.concerns("echo", "acme", 99));
        assert!(!hold.concerns("echo", "acme", 100));
        assert!(!hold.concerns("echo", "other", 99));
        assert!(!hold.concerns("sleep", "acme", 99));
        assert!(Hold { tenant: None, ..hold }.concerns("echo", "other", 99));
    }
}
