//! The bounds of a cell and its classes, as operators write them.

use serde::{Deserialize, Serialize};

use crate::names::{Class, Priority};

/// The bounds of one cell. `None` is no limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Most tasks that are QUEUED.
    pub max_queued: u32,
    /// Most tasks that are ADMITTED or RUNNING; `None` is the live sessions' slots.
    pub max_running: Option<u32>,
    /// Most tasks that are QUEUED, ADMITTED or RUNNING.
    pub max_in_flight: Option<u32>,
    /// Most tasks that are DEFERRED.
    pub max_deferred: u32,
    /// Most tokens that tasks in flight reserve.
    pub max_tokens: Option<u64>,
    /// Most bytes of payload that tasks hold which have not ended.
    pub max_bytes: u64,
    /// Most money that tasks in flight reserve, in millionths of a dollar.
    pub max_usd_micros: Option<u64>,
    /// Most callers that wait at the door of one replica.
    pub max_waiting_callers: u32,
    /// How long a task waits to gain one point of priority.
    pub ageing_step_ms: u32,
    /// The predicted wait that counts as full pressure.
    pub max_expected_wait_ms: u32,
    /// The time from arrival to end of a task that names none.
    pub default_timeout_ms: u64,
    /// The longest time from arrival to end that a task may have.
    pub max_timeout_ms: u64,
    /// The bounds of each class.
    pub classes: Classes,
}

/// The bounds of the three classes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Classes {
    /// Work that others wait for.
    pub critical: ClassLimits,
    /// The usual work.
    pub standard: ClassLimits,
    /// Work that may wait.
    pub background: ClassLimits,
}

/// The bounds of one class. `None` is no limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClassLimits {
    /// The lowest priority of the class.
    pub from: u8,
    /// The share of the slots that lower classes may not take; rounds down.
    pub reserve: f64,
    /// The largest share of the slots that the class may take; rounds down, at least one slot.
    pub max_share: f64,
    /// The pressure from which the class is shed.
    pub shed_at: Option<f64>,
    /// The wait after which a task competes in the class above (never critical).
    pub promote_after_ms: Option<u64>,
    /// Most tasks of the class that are QUEUED.
    pub max_queued: Option<u32>,
    /// Most tasks of the class that are ADMITTED or RUNNING.
    pub max_running: Option<u32>,
    /// Most tokens that tasks of the class in flight reserve.
    pub max_tokens: Option<u64>,
    /// Most bytes of payload that tasks of the class hold.
    pub max_bytes: Option<u64>,
    /// The wait that the operator aims at.
    pub target_wait_ms: Option<u64>,
    /// The time at the door that the operator aims at.
    pub target_admission_ms: Option<u64>,
}

impl Default for ClassLimits {
    fn default() -> Self {
        Self {
            from: 0,
            reserve: 0.0,
            max_share: 1.0,
            shed_at: None,
            promote_after_ms: None,
            max_queued: None,
            max_running: None,
            max_tokens: None,
            max_bytes: None,
            target_wait_ms: None,
            target_admission_ms: None,
        }
    }
}

impl Default for Classes {
    fn default() -> Self {
        Self {
            critical: ClassLimits { from: 90, reserve: 0.1, max_share: 0.9, ..ClassLimits::default() },
            standard: ClassLimits { from: 40, shed_at: Some(0.95), ..ClassLimits::default() },
            background: ClassLimits {
                max_share: 0.5,
                shed_at: Some(0.80),
                promote_after_ms: Some(300_000),
                ..ClassLimits::default()
            },
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_queued: 100_000,
            max_running: None,
            max_in_flight: None,
            max_deferred: 100_000,
            max_tokens: None,
            max_bytes: 1 << 30,
            max_usd_micros: None,
            max_waiting_callers: 1_000,
            ageing_step_ms: 1_000,
            max_expected_wait_ms: 60_000,
            default_timeout_ms: 300_000,
            max_timeout_ms: 86_400_000,
            classes: Classes::default(),
        }
    }
}

/// Bounds that contradict themselves.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} {problem}")]
pub struct BadLimits {
    /// The key, as in the configuration.
    pub key: &'static str,
    /// What is wrong with its value.
    pub problem: &'static str,
}

impl Classes {
    /// The bounds of a class.
    pub fn get(&self, class: Class) -> &ClassLimits {
        match class {
            Class::Critical => &self.critical,
            Class::Standard => &self.standard,
            Class::Background => &self.background,
        }
    }
}

impl Limits {
    /// The class of a priority: the most important one whose lowest priority it reaches.
    pub fn class_of(&self, priority: Priority) -> Class {
        Class::ALL
            .into_iter()
            .find(|class| priority.get() >= self.classes.get(*class).from)
            .unwrap_or(Class::Background)
    }

    /// The priority that a class's name stands for: the lowest of the class.
    pub fn priority_of(&self, class: Class) -> Priority {
        Priority::new(i64::from(self.classes.get(class).from)).unwrap_or(Priority::MAX)
    }

    /// Refuses bounds that contradict themselves.
    pub fn check(&self) -> Result<(), BadLimits> {
        let bad = |key, problem| Err(BadLimits { key, problem });
        let classes = &self.classes;
        if classes.critical.from > 100 || classes.standard.from > classes.critical.from {
            return bad("limits.classes", "must have critical.from <= 100 and standard.from <= critical.from");
        }
        if classes.background.from != 0 {
            return bad("limits.classes.background.from", "must be 0, so that every priority has a class");
        }
        for class in Class::ALL {
            let limits = classes.get(class);
            if !(0.0..=1.0).contains(&limits.reserve) || !(0.0..=1.0).contains(&limits.max_share) {
                return bad("limits.classes", "must have reserve and max_share between 0 and 1");
            }
            if limits.shed_at.is_some_and(|at| !(0.0..=1.0).contains(&at)) {
                return bad("limits.classes", "must have shed_at between 0 and 1");
            }
        }
        if self.ageing_step_ms == 0 {
            return bad("limits.ageing_step_ms", "must be at least 1");
        }
        if self.max_expected_wait_ms == 0 {
            return bad("limits.max_expected_wait_ms", "must be at least 1");
        }
        if self.default_timeout_ms == 0 || self.default_timeout_ms > self.max_timeout_ms {
            return bad("limits.default_timeout_ms", "must be between 1 and max_timeout_ms");
        }
        if self.max_timeout_ms > 30 * 86_400_000 {
            return bad("limits.max_timeout_ms", "must be at most 30 days (2592000000)");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_hold_and_divide_the_priorities() {
        let limits = Limits::default();
        assert_eq!(limits.check(), Ok(()));
        let class = |value| Priority::new(value).map(|priority| limits.class_of(priority));
        assert_eq!(class(100), Ok(Class::Critical));
        assert_eq!(class(90), Ok(Class::Critical));
        assert_eq!(class(89), Ok(Class::Standard));
        assert_eq!(class(40), Ok(Class::Standard));
        assert_eq!(class(39), Ok(Class::Background));
        assert_eq!(class(0), Ok(Class::Background));
        for class in Class::ALL {
            assert_eq!(limits.class_of(limits.priority_of(class)), class);
        }
    }

    #[test]
    fn contradictions_are_named() {
        let mut limits = Limits::default();
        limits.classes.background.from = 1;
        assert!(limits.check().is_err());
        let mut limits = Limits::default();
        limits.classes.critical.max_share = 1.5;
        assert!(limits.check().is_err());
        let limits = Limits { ageing_step_ms: 0, ..Limits::default() };
        assert_eq!(limits.check().map_err(|bad| bad.key), Err("limits.ageing_step_ms"));
        let limits = Limits { default_timeout_ms: 100, max_timeout_ms: 99, ..Limits::default() };
        assert!(limits.check().is_err());
    }
}
