//! Nothing waits for ever (C29): with high priority at 120 % of capacity for five hours, the lowest starts in time.

use tidegate_core::Class;
use tidegate_core::limits::Limits;

use crate::bound::{Ahead, sure_slots, worst_wait_ms};
use crate::cell::{Arrivals, Cell, Stream};

const HOUR: i64 = 3_600_000;
const FIVE_HOURS: i64 = 5 * HOUR;
const SLOTS: i64 = 10;
/// Two seconds on average: five a second.
const RUN_MS: std::ops::RangeInclusive<i64> = 1_000..=3_000;
const LONGEST_MS: i64 = 3_000;
/// 120 % of what ten slots do, at random.
const FLOOD: Arrivals = Arrivals::Random { every_ms: 1_000.0 / 6.0, most: QUEUE };
const QUEUE: usize = 200;
/// The lowest come so seldom that none waits for another of them.
const LOWEST_EVERY_MS: i64 = 30_000;

fn lowest(tenant: usize, priority: i64) -> Stream {
    Stream::new(tenant, priority, RUN_MS, Arrivals::Steady { every_ms: LOWEST_EVERY_MS })
}

/// The longest wait of a stream, those that wait still included.
fn longest_wait(cell: &Cell, stream: usize) -> i64 {
    let still = cell.oldest(stream).map_or(0, |arrived| cell.now - arrived);
    cell.waits_ms(stream).last().copied().unwrap_or(0).max(still)
}

#[test]
fn critical_work_leaves_the_lowest_a_slot() {
    let mut cell = Cell::new(SLOTS, Limits::default(), 1);
    let (loud, low) = (cell.tenant(1.0), cell.tenant(1.0));
    cell.stream(Stream::new(loud, 95, RUN_MS, FLOOD));
    let stream = cell.stream(lowest(low, 0));
    cell.run(FIVE_HOURS);
    let ahead = Ahead { tasks: 0, weight: 1.0, others: &[], may_lag: false };
    let bound = worst_wait_ms(sure_slots(&cell.limits, SLOTS, Class::Background), LONGEST_MS, &ahead);
    assert_eq!(bound, 6_000);
    assert!(cell.waits_ms(stream).len() > 590);
    assert!(longest_wait(&cell, stream) <= bound, "{}", longest_wait(&cell, stream));
}

/// Critical and standard work at 120 % each, and the lowest of all beside them.
fn under_everything(promote_after_ms: Option<u64>) -> (Cell, usize) {
    let mut limits = Limits::default();
    limits.classes.background.promote_after_ms = promote_after_ms;
    let mut cell = Cell::new(SLOTS, limits, 2);
    let (loud, usual, low) = (cell.tenant(1.0), cell.tenant(1.0), cell.tenant(1.0));
    cell.stream(Stream::new(loud, 95, RUN_MS, FLOOD));
    cell.stream(Stream::new(usual, 60, RUN_MS, FLOOD));
    let stream = cell.stream(lowest(low, 0));
    cell.run(FIVE_HOURS);
    (cell, stream)
}

#[test]
fn the_lowest_is_promoted_past_standard_work() {
    let (cell, stream) = under_everything(Some(300_000));
    let ahead = Ahead { tasks: 0, weight: 1.0, others: &[1.0], may_lag: true };
    let wait_ms = worst_wait_ms(sure_slots(&cell.limits, SLOTS, Class::Background), LONGEST_MS, &ahead);
    let bound = 300_000 + wait_ms;
    assert_eq!(bound, 321_000);
    assert!(wait_ms < LOWEST_EVERY_MS, "one of them is gone before the next is promoted");
    assert!(cell.waits_ms(stream).len() > 580);
    assert!(longest_wait(&cell, stream) <= bound, "{}", longest_wait(&cell, stream));
}

/// The twin: without promotion, strict classes starve it.
#[test]
fn without_promotion_the_lowest_starves() {
    let (cell, stream) = under_everything(None);
    assert!(longest_wait(&cell, stream) > 4 * HOUR, "{}", longest_wait(&cell, stream));
}

#[test]
fn in_one_class_age_outweighs_priority() {
    let limits = Limits::default();
    let (high, low) = (89, 40);
    let mut cell = Cell::new(SLOTS, limits, 3);
    let tenant = cell.tenant(1.0);
    cell.stream(Stream::new(tenant, high, RUN_MS, FLOOD));
    let stream = cell.stream(lowest(tenant, low));
    cell.run(FIVE_HOURS);
    // After so long nothing new goes before it, and what waits is bounded.
    let overtaken_ms = (high - low) * i64::from(cell.limits.ageing_step_ms);
    let ahead =
        Ahead { tasks: QUEUE as i64 + overtaken_ms / LOWEST_EVERY_MS, weight: 1.0, others: &[], may_lag: false };
    let bound = overtaken_ms + worst_wait_ms(sure_slots_alone(&cell), LONGEST_MS, &ahead);
    assert!(cell.waits_ms(stream).len() > 590);
    let longest = longest_wait(&cell, stream);
    assert!(longest <= bound, "{longest} > {bound}");
    assert!(longest > overtaken_ms, "nothing ever went before it: {longest}");
}

/// Slots of standard work where there is no critical work, which keeps its reserve all the same.
fn sure_slots_alone(cell: &Cell) -> i64 {
    SLOTS - (cell.limits.classes.critical.reserve * SLOTS as f64) as i64
}
