//! What holds for every task of a kind, where the task does not say otherwise.

use serde::{Deserialize, Serialize};

use crate::backoff::BackoffPolicy;
use crate::names::PeerName;

/// What a lost or repeated run may do to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effects {
    /// It changes nothing outside.
    None,
    /// Running it again changes nothing more.
    #[default]
    Idempotent,
    /// It must not be run again after a loss.
    Once,
}

impl Effects {
    /// The number that the database stores.
    pub fn code(self) -> i16 {
        self as i16
    }

    /// The effects of that stored number.
    pub fn from_code(code: i16) -> Option<Self> {
        [Self::None, Self::Idempotent, Self::Once].into_iter().find(|effects| effects.code() == code)
    }
}

/// The policy of a kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KindPolicy {
    /// The peer that the kind calls.
    pub peer: Option<PeerName>,
    /// The least time that must be left for a start to make sense, in milliseconds.
    pub min_useful_ms: u64,
    /// The longest one attempt may take, in milliseconds; `None` is the time that is left.
    pub attempt_timeout_ms: Option<u64>,
    /// Most failures before the task ends FAILED.
    pub max_attempts: u16,
    /// What a repeated run may do to the world.
    pub effects: Effects,
    /// Children that one task of the kind may start, where nothing smaller is said.
    pub fanout: u32,
    /// The multiple of its estimate at which a run is stopped.
    pub cost_overrun: f64,
    /// The delays between attempts.
    pub backoff: BackoffPolicy,
}

impl Default for KindPolicy {
    fn default() -> Self {
        Self {
            peer: None,
            min_useful_ms: 0,
            attempt_timeout_ms: None,
            max_attempts: 3,
            effects: Effects::default(),
            fanout: 4,
            cost_overrun: 2.0,
            backoff: BackoffPolicy::default(),
        }
    }
}
