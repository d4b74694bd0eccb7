//! The bounds of a cell and its classes, as operators write them.

use serde::{Deserialize, Serialize};

use crate::merge_patch::{BadValue, Patched};
use crate::names::{Class, Priority};

/// The longest that `max_timeout_ms` may be: 30 days.
const MAX_MAX_TIMEOUT_MS: u64 = 30 * 86_400_000;

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
}

impl Patched for Limits {
    /// These protect the database itself: whoever changes them has to say to what.
    const NEVER_NULL: &[&str] = &["/max_queued", "/max_deferred", "/max_bytes"];

    fn check(&self) -> Result<(), BadValue> {
        let bad = |pointer: &str, problem: &str| Err(BadValue::new(pointer, problem));
        let classes = &self.classes;
        if classes.critical.from > Priority::MAX.get() {
            return bad("/classes/critical/from", "must be at most 100");
        }
        if classes.standard.from > classes.critical.from {
            return bad("/classes/standard/from", "must not be above that of critical");
        }
        if classes.background.from != 0 {
            return bad("/classes/background/from", "must be 0, so that every priority has a class");
        }
        for class in Class::ALL {
            classes.get(class).check(class)?;
        }
        // With room for what a sum of decimal fractions is off by.
        if Class::ALL.into_iter().map(|class| classes.get(class).reserve).sum::<f64>() > 1.0 + 1e-9 {
            return bad("/classes", "must not reserve more than 1 for all classes together");
        }
        if self.ageing_step_ms == 0 {
            return bad("/ageing_step_ms", "must be at least 1");
        }
        if self.max_expected_wait_ms == 0 {
            return bad("/max_expected_wait_ms", "must be at least 1");
        }
        if !(1..=MAX_MAX_TIMEOUT_MS).contains(&self.max_timeout_ms) {
            return bad("/max_timeout_ms", "must be 1 to 2592000000 (30 days)");
        }
        if self.default_timeout_ms == 0 || self.default_timeout_ms > self.max_timeout_ms {
            return bad("/default_timeout_ms", "must be at least 1 and not above max_timeout_ms");
        }
        Ok(())
    }
}

impl ClassLimits {
    fn check(&self, class: Class) -> Result<(), BadValue> {
        let shares = [("reserve", Some(self.reserve)), ("max_share", Some(self.max_share)), ("shed_at", self.shed_at)];
        match shares.into_iter().find(|(_, share)| share.is_some_and(|share| !(0.0..=1.0).contains(&share))) {
            Some((key, _)) => Err(BadValue::new(format!("/classes/{class}/{key}"), "must be between 0 and 1")),
            None => Ok(()),
        }
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
    fn classes_may_reserve_everything_between_them() {
        let mut limits = Limits::default();
        (limits.classes.critical.reserve, limits.classes.standard.reserve) = (0.1, 0.2);
        limits.classes.background.reserve = 0.7;
        assert_eq!(limits.check(), Ok(()));
    }

    #[test]
    fn contradictions_are_named() {
        type Change = fn(&mut Limits);
        let refused = |change: Change| {
            let mut limits = Limits::default();
            change(&mut limits);
            limits.check().map_err(|bad| bad.pointer)
        };
        let changes: [(Change, &str); 11] = [
            (|limits| limits.classes.background.from = 1, "/classes/background/from"),
            (|limits| limits.classes.standard.from = 91, "/classes/standard/from"),
            (|limits| limits.classes.critical.from = 101, "/classes/critical/from"),
            (|limits| limits.classes.critical.max_share = 1.5, "/classes/critical/max_share"),
            (|limits| limits.classes.standard.reserve = -0.1, "/classes/standard/reserve"),
            (|limits| limits.classes.standard.reserve = 0.91, "/classes"),
            (|limits| limits.classes.background.shed_at = Some(2.0), "/classes/background/shed_at"),
            (|limits| limits.ageing_step_ms = 0, "/ageing_step_ms"),
            (|limits| limits.max_expected_wait_ms = 0, "/max_expected_wait_ms"),
            (|limits| limits.max_timeout_ms = 2_592_000_001, "/max_timeout_ms"),
            (|limits| limits.max_timeout_ms = 299_999, "/default_timeout_ms"),
        ];
        for (change, pointer) in changes {
            assert_eq!(refused(change), Err(pointer.to_owned()));
        }
    }
}
