//! The limits of a downstream dependency.
//!
//! All of them are kept and checked. In this version `max_in_flight`, `max_waiting`, `max_wait_ms`,
//! `requests_per_minute`, `tokens_per_minute` and `retry_budget` take effect: the first five at claims, at the door and
//! for calls of running tasks ([`crate::call`]).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bucket::Bucket;
use crate::merge_patch::{BadValue, Patched};

/// The largest answer that a peer may be allowed, in bytes: it is held in memory while it is checked.
pub const MAX_RESULT_BYTES: u64 = 64 << 20;
/// The longest JSON Schema, in bytes of JSON text.
pub const MAX_SCHEMA_BYTES: usize = 64 << 10;
/// The longest wait, window and pause: a day. Longer is a mistake of units.
const DAY_MS: u64 = 86_400_000;

/// The limits of one peer. `None` is no limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeerLimits {
    /// Most tasks and calls that use it at once, in the whole fleet.
    pub max_in_flight: Option<u32>,
    /// Most QUEUED tasks and calls that wait for it.
    pub max_waiting: Option<u32>,
    /// How long they wait at most.
    pub max_wait_ms: Option<u64>,
    /// Requests in a minute, in the whole fleet.
    pub requests_per_minute: Option<u32>,
    /// Tokens in a minute, in the whole fleet.
    pub tokens_per_minute: Option<u64>,
    /// The latency above which the limit of a worker process shrinks.
    pub target_latency_ms: Option<u64>,
    /// The limit of a worker process, moved by what it sees.
    pub aimd: Option<Aimd>,
    /// What retries may cost.
    pub retry_budget: RetryBudget,
    /// When it counts as down.
    pub breaker: Breaker,
    /// The largest answer that is read from it.
    pub max_result_bytes: u64,
    /// The JSON Schema that its answers must match, as JSON or as text that holds it.
    pub result_schema: Option<Value>,
}

/// The limit of one worker process towards a peer, which grows by addition and shrinks by multiplication.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aimd {
    /// Where it starts.
    pub initial: u32,
    /// Its lower bound.
    pub min: u32,
    /// Its upper bound.
    pub max: u32,
    /// The factor on overload.
    #[serde(default = "Aimd::usual_backoff")]
    pub backoff: f64,
}

impl Aimd {
    fn usual_backoff() -> f64 {
        0.7
    }
}

/// What retries may cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryBudget {
    /// Retries that each first attempt earns.
    pub ratio: f64,
    /// Most retries that can be saved up; where the budget starts.
    pub cap: u32,
}

impl RetryBudget {
    /// The budget of a kind without a peer, and of a peer that nobody configured.
    pub const USUAL: Self = Self { ratio: 0.1, cap: 10 };
    /// What a retry costs, in the thousandths in which budgets are kept.
    pub const RETRY: i64 = 1_000;

    /// What a first attempt earns, in thousandths of a retry.
    pub fn earned(&self) -> i64 {
        (self.ratio * Self::RETRY as f64).round() as i64
    }

    /// Whether there is a retry left where so much, in thousandths, is missing from a full budget.
    pub fn has_token(&self, spent: i64) -> bool {
        spent.saturating_add(Self::RETRY) <= i64::from(self.cap) * Self::RETRY
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::USUAL
    }
}

/// When a peer counts as down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Breaker {
    /// Failures in the window that open it.
    pub failures: u32,
    /// The time within which they count.
    pub window_ms: u64,
    /// How long it stays open.
    pub open_ms: u64,
    /// Calls that are let through to find out whether the peer is back.
    pub probes: u32,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { failures: 5, window_ms: 10_000, open_ms: 15_000, probes: 2 }
    }
}

impl Default for PeerLimits {
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

/// The part of a minute that a peer may be sent at once. A larger burst would add to what a minute brings.
const BURST_OF_MINUTE: u64 = 600;

impl PeerLimits {
    /// Whether something may have to wait for it although a slot is free.
    pub fn limits_running(&self) -> bool {
        self.max_in_flight.is_some() || self.limits_rate()
    }

    /// Whether there is a limit of what it may be sent in a minute.
    pub fn limits_rate(&self) -> bool {
        self.requests_per_minute.is_some() || self.tokens_per_minute.is_some()
    }

    /// The requests that it may be sent. They are spread over the minute: at once it gets a tenth of a second's worth, at
    /// least one.
    pub fn requests(&self) -> Option<Bucket> {
        self.requests_per_minute.map(|rate| spread(rate.into()))
    }

    /// The tokens that it may be sent, spread in the same way.
    pub fn tokens(&self) -> Option<Bucket> {
        self.tokens_per_minute.map(spread)
    }
}

fn spread(per_minute: u64) -> Bucket {
    Bucket::new(per_minute, (per_minute / BURST_OF_MINUTE).max(1))
}

impl Patched for PeerLimits {
    /// These have no default.
    const NEVER_NULL: &[&str] = &["/aimd/initial", "/aimd/min", "/aimd/max"];

    fn check(&self) -> Result<(), BadValue> {
        let breaker = &self.breaker;
        within("/max_wait_ms", self.max_wait_ms.unwrap_or(0), 0, DAY_MS)?;
        within("/requests_per_minute", self.requests_per_minute.map_or(1, u64::from), 1, u32::MAX.into())?;
        within("/tokens_per_minute", self.tokens_per_minute.unwrap_or(1), 1, i64::MAX as u64)?;
        within("/target_latency_ms", self.target_latency_ms.unwrap_or(1), 1, DAY_MS)?;
        if let Some(aimd) = &self.aimd {
            aimd.check()?;
        }
        if !(0.0..=1.0).contains(&self.retry_budget.ratio) {
            return Err(BadValue::new("/retry_budget/ratio", "must be between 0 and 1"));
        }
        within("/breaker/failures", breaker.failures.into(), 1, 1_000_000)?;
        within("/breaker/window_ms", breaker.window_ms, 1, DAY_MS)?;
        within("/breaker/open_ms", breaker.open_ms, 1, DAY_MS)?;
        within("/breaker/probes", breaker.probes.into(), 1, 1_000)?;
        within("/max_result_bytes", self.max_result_bytes, 2, MAX_RESULT_BYTES)?;
        self.result_schema.as_ref().map_or(Ok(()), check_schema)
    }
}

impl Aimd {
    fn check(&self) -> Result<(), BadValue> {
        if !(1 <= self.min && self.min <= self.initial && self.initial <= self.max) {
            return Err(BadValue::new("/aimd", "must have 1 <= min <= initial <= max"));
        }
        if !(self.backoff > 0.0 && self.backoff < 1.0) {
            return Err(BadValue::new("/aimd/backoff", "must be above 0 and below 1"));
        }
        Ok(())
    }
}

fn within(pointer: &str, value: u64, least: u64, most: u64) -> Result<(), BadValue> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(BadValue::new(pointer, format!("must be {least} to {most}, not {value}"))),
    }
}

/// A schema is an object or a boolean, or text that holds one.
fn check_schema(schema: &Value) -> Result<(), BadValue> {
    let bad = |problem: String| Err(BadValue::new("/result_schema", problem));
    let (bytes, is_schema) = match schema {
        Value::String(text) => {
            let parsed = serde_json::from_str::<Value>(text);
            (text.len(), parsed.is_ok_and(|value| value.is_object() || value.is_boolean()))
        }
        other => (other.to_string().len(), other.is_object() || other.is_boolean()),
    };
    if bytes > MAX_SCHEMA_BYTES {
        return bad(format!("must be at most {MAX_SCHEMA_BYTES} bytes"));
    }
    if is_schema { Ok(()) } else { bad("must be a JSON Schema: an object or a boolean, or text that holds one".into()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::merge_patch::compose;

    #[test]
    fn nonsense_is_refused_where_it_stands() {
        for (patch, pointer) in [
            (json!({"max_wait_ms": 86_400_001}), "/max_wait_ms"),
            (json!({"requests_per_minute": 0}), "/requests_per_minute"),
            (json!({"tokens_per_minute": 0}), "/tokens_per_minute"),
            (json!({"target_latency_ms": 0}), "/target_latency_ms"),
            (json!({"aimd": {"initial": 1, "min": 2, "max": 3}}), "/aimd"),
            (json!({"aimd": {"initial": 2, "min": 1, "max": 3, "backoff": 1.0}}), "/aimd/backoff"),
            (json!({"retry_budget": {"ratio": 1.1}}), "/retry_budget/ratio"),
            (json!({"breaker": {"probes": 0}}), "/breaker/probes"),
            (json!({"max_result_bytes": 1}), "/max_result_bytes"),
            (json!({"result_schema": 7}), "/result_schema"),
            (json!({"result_schema": "not json"}), "/result_schema"),
            (json!({"result_schema": {"description": "x".repeat(MAX_SCHEMA_BYTES)}}), "/result_schema"),
        ] {
            assert_eq!(compose::<PeerLimits>(&[&patch]).map_err(|bad| bad.pointer), Err(pointer.to_owned()));
        }
    }

    #[test]
    fn a_budget_of_ten_has_ten_retries_and_ten_first_attempts_earn_another() {
        let (budget, mut spent, mut retries) = (RetryBudget::default(), 0, 0);
        while budget.has_token(spent) {
            spent += RetryBudget::RETRY;
            retries += 1;
        }
        assert_eq!(retries, 10);
        assert!(!budget.has_token(spent - 9 * budget.earned()));
        assert!(budget.has_token(spent - 10 * budget.earned()));
        assert!(!RetryBudget { ratio: 1.0, cap: 0 }.has_token(0));
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let patch = json!({"aimd": {"initial": 8, "min": 1, "max": 32}, "breaker": {"failures": 9},
            "result_schema": "{\"type\":\"object\"}"});
        let peer: PeerLimits = compose(&[&patch]).unwrap();
        assert_eq!(peer.aimd.map(|aimd| aimd.backoff), Some(0.7));
        assert_eq!(peer.breaker, Breaker { failures: 9, ..Breaker::default() });
        assert_eq!((peer.max_in_flight, peer.max_result_bytes), (None, 262_144));
    }
}
