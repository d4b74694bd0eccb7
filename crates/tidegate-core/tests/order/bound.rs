//! The worst wait as docs/scheduling.md derives it, and its worked example.

use tidegate_core::Class;
use tidegate_core::limits::Limits;
use tidegate_core::slots::SlotCaps;

/// How far behind its class a tenant may be and have it made up for, in milliseconds of worker time.
const MAX_LAG_MS: i64 = 10_000;
const MAX_LAG_RUNS: i64 = 4;

/// What stands before a task.
#[derive(Debug, Clone)]
pub(crate) struct Ahead<'a> {
    /// Tasks of its own tenant that go before it in its class.
    pub(crate) tasks: i64,
    /// Its tenant's weight.
    pub(crate) weight: f64,
    /// The weights of the other tenants that have work in the class.
    pub(crate) others: &'a [f64],
    /// Whether they may be behind: their peers were full, or their runs were expected to take longer than they do.
    pub(crate) may_lag: bool,
}

/// Slots that a class has whenever it can use them, whatever the others want.
pub(crate) fn sure_slots(limits: &Limits, slots: i64, class: Class) -> i64 {
    let caps = SlotCaps::of(limits, slots);
    let kept = (limits.classes.critical.reserve * slots as f64 + 1e-9) as i64;
    match class {
        Class::Critical => caps.ceiling(class),
        // What competes among the standard shares their slots, within its own ceiling.
        Class::Standard | Class::Background => (slots - caps.ceiling(Class::Critical).max(kept))
            .min(caps.ceiling(Class::Standard))
            .min(caps.ceiling(class)),
    }
}

/// The longest that a task waits from the moment it competes, in milliseconds.
pub(crate) fn worst_wait_ms(slots: i64, longest_run_ms: i64, ahead: &Ahead<'_>) -> i64 {
    let lag = if ahead.may_lag { MAX_LAG_MS.max(MAX_LAG_RUNS * longest_run_ms) } else { 0 };
    let own = (ahead.tasks * longest_run_ms) as f64;
    let others: f64 =
        ahead.others.iter().map(|weight| own * weight / ahead.weight + (lag + longest_run_ms) as f64).sum();
    2 * longest_run_ms + ((own + others) / slots as f64).ceil() as i64
}

#[test]
fn the_worked_example_says_what_it_says() {
    let limits = Limits::default();
    let sure = Class::ALL.map(|class| sure_slots(&limits, 20, class));
    assert_eq!(sure, [18, 2, 2]);
    let two_slots = Class::ALL.map(|class| sure_slots(&limits, 2, class));
    assert_eq!(two_slots, [1, 1, 1]);
    let run_ms = 2_000;
    let alone = Ahead { tasks: 35, weight: 1.0, others: &[], may_lag: false };
    assert_eq!(worst_wait_ms(sure[0], run_ms, &alone), 7_889);
    let shared = Ahead { tasks: 4, weight: 1.0, others: &[1.0, 3.0], may_lag: false };
    assert_eq!(worst_wait_ms(sure[1], run_ms, &shared), 26_000);
    assert_eq!(worst_wait_ms(18, run_ms, &shared), 6_445, "where nothing critical waits");
    let lagging = Ahead { may_lag: true, ..shared };
    assert_eq!(worst_wait_ms(sure[1], run_ms, &lagging), 36_000);
    let first = Ahead { tasks: 0, ..lagging };
    let promoted = limits.classes.background.promote_after_ms.unwrap() as i64;
    assert_eq!(promoted + worst_wait_ms(sure[2], run_ms, &first), 316_000);
}
