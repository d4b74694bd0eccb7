//! What each tenant gets: a share by weight and cost, no credit for idleness, and little harm from a flood.

use tidegate_core::limits::Limits;

use crate::cell::{Arrivals, Cell, Stream};

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const SLOTS: i64 = 10;
const STANDARD: i64 = 60;
/// How far behind a tenant may be and have it made up for, in milliseconds of worker time.
const MAX_LAG_MS: i64 = 10_000;

/// The part of the worker time of both that the first had.
fn share(cell: &Cell, streams: [usize; 2], span: std::ops::Range<i64>) -> f64 {
    let [a, b] = streams.map(|stream| cell.worked_ms(stream, span.clone()) as f64);
    a / (a + b)
}

fn assert_near(got: f64, wanted: f64, percent: f64) {
    assert!((got / wanted - 1.0).abs() <= percent / 100.0, "{got} is not within {percent} % of {wanted}");
}

#[test]
fn weights_of_one_and_three_give_shares_of_one_and_three() {
    for (seed, run_ms) in [(1, 50..=150), (2, 1_000..=3_000), (3, 20..=2_000)] {
        let mut cell = Cell::new(SLOTS, Limits::default(), seed);
        let streams = [1.0, 3.0].map(|weight| {
            let tenant = cell.tenant(weight);
            cell.stream(Stream::new(tenant, STANDARD, run_ms.clone(), Arrivals::Backlog(50)))
        });
        let settled = 30 * SECOND;
        cell.run(settled + 10 * MINUTE);
        assert_near(share(&cell, streams, settled..cell.now), 0.25, 5.0);
    }
}

/// C32: where tasks are counted, the tenant with the long ones takes 98 % of the workers' time and more.
#[test]
fn ten_milliseconds_and_ten_seconds_get_the_same_time() {
    let mut cell = Cell::new(4, Limits::default(), 4);
    let streams = [10..=10, 10_000..=10_000].map(|run_ms| {
        let tenant = cell.tenant(1.0);
        cell.stream(Stream::new(tenant, STANDARD, run_ms, Arrivals::Backlog(50)))
    });
    // Until the first long runs end nobody knows what they cost. What they took is made up for afterwards.
    let settled = 2 * MINUTE;
    cell.run(settled + 10 * MINUTE);
    assert_near(share(&cell, streams, settled..cell.now), 0.5, 5.0);
    assert_near(share(&cell, streams, 0..cell.now), 0.5, 10.0);
}

#[test]
fn who_was_idle_for_an_hour_has_nothing_to_make_up_for() {
    let mut cell = Cell::new(SLOTS, Limits::default(), 5);
    let (busy, idle) = (cell.tenant(1.0), cell.tenant(1.0));
    let run_ms = 500..=1_500;
    let busy = cell.stream(Stream::new(busy, STANDARD, run_ms.clone(), Arrivals::Backlog(50)));
    let back = HOUR;
    let late = Stream { from: back, ..Stream::new(idle, STANDARD, run_ms, Arrivals::Backlog(50)) };
    let late = cell.stream(late);
    cell.run(back + 10 * MINUTE);
    assert_near(share(&cell, [late, busy], back..back + MINUTE), 0.5, 5.0);
    assert_near(share(&cell, [late, busy], back..cell.now), 0.5, 5.0);
}

#[test]
fn short_idleness_erases_no_debt() {
    let mut cell = Cell::new(2, Limits::default(), 6);
    let (short, long) = (cell.tenant(1.0), cell.tenant(1.0));
    let short = cell.stream(Stream::new(short, STANDARD, 10..=10, Arrivals::Backlog(20)));
    // One long task at a time, each as soon as the one before has ended: idle in between.
    let long = cell.stream(Stream::new(long, STANDARD, 2_000..=2_000, Arrivals::Steady { every_ms: 2_000 }));
    cell.run(10 * MINUTE);
    assert_near(share(&cell, [short, long], MINUTE..cell.now), 0.5, 5.0);
}

#[test]
fn who_was_blocked_gets_the_lag_bound_and_no_more() {
    let mut cell = Cell::new(SLOTS, Limits::default(), 7);
    let (free, blocked) = (cell.tenant(1.0), cell.tenant(1.0));
    let peer = cell.peer(0);
    let run_ms = 500..=1_500;
    let free = cell.stream(Stream::new(free, STANDARD, run_ms.clone(), Arrivals::Backlog(50)));
    let stream = Stream { peer: Some(peer), ..Stream::new(blocked, STANDARD, run_ms, Arrivals::Backlog(50)) };
    let blocked = cell.stream(stream);
    let open = HOUR;
    cell.run(open);
    assert_eq!(cell.worked_ms(blocked, 0..open), 0);
    cell.widen(peer, SLOTS);
    cell.run(open + 10 * MINUTE);
    let after = |until| cell.worked_ms(blocked, open..until) - cell.worked_ms(free, open..until);
    // What runs when its peer opens ends first; then at most a run for each slot is uncorrected.
    let slack = 2 * SLOTS * 1_500;
    for minute in 1..=10 {
        let more = after(open + minute * MINUTE);
        assert!(more <= MAX_LAG_MS + slack, "after {minute} minutes {more} ms more");
    }
    assert_near(share(&cell, [blocked, free], open + MINUTE..cell.now), 0.5, 5.0);
}

/// The waits of a tenant with a task a second, beside another with a flood or alone.
fn beside(flood: Option<usize>) -> Vec<i64> {
    let run_ms = 25..=75;
    let mut cell = Cell::new(SLOTS, Limits::default(), 8);
    let (calm, loud) = (cell.tenant(1.0), cell.tenant(1.0));
    let calm = cell.stream(Stream::new(calm, STANDARD, run_ms.clone(), Arrivals::Steady { every_ms: SECOND }));
    if let Some(waiting) = flood {
        cell.stream(Stream::new(loud, STANDARD, run_ms, Arrivals::Backlog(waiting)));
    }
    cell.run(300 * SECOND);
    cell.waits_ms(calm)
}

#[test]
fn a_flood_delays_another_tenant_by_the_next_free_slot() {
    let p99 = |waits: &[i64]| waits[waits.len() * 99 / 100];
    let (alone, beside) = (beside(None), beside(Some(10_000)));
    assert!(alone.len() >= 300 && beside.len() >= 300);
    let run_by_slots = 50 / SLOTS;
    assert!(p99(&beside) <= p99(&alone) + 2 * run_by_slots + 20, "{} {}", p99(&alone), p99(&beside));
    assert!(beside.last() <= Some(&75), "longer than the longest run: {beside:?}");
}

/// Tenants whose background work was promoted were never among the standard: that is not to be made up for.
#[test]
fn promoted_work_has_no_credit_where_it_never_was() {
    let mut limits = Limits::default();
    limits.classes.background.promote_after_ms = Some(60_000);
    limits.classes.background.max_share = 1.0;
    let mut cell = Cell::new(SLOTS, limits, 9);
    let (run_ms, longest_ms, promoted) = (50..=150, 150, 10);
    let usual = cell.tenant(1.0);
    let usual = cell.stream(Stream::new(usual, STANDARD, run_ms.clone(), Arrivals::Backlog(20)));
    for _ in 0..promoted {
        let tenant = cell.tenant(1.0);
        cell.stream(Stream::new(tenant, 10, run_ms.clone(), Arrivals::Random { every_ms: 100.0, most: 100 }));
    }
    cell.run(90 * SECOND);
    let starts: Vec<i64> = cell.started.iter().filter(|run| run.stream == usual).map(|run| run.at).collect();
    let gap = starts.windows(2).map(|pair| pair[1] - pair[0]).max();
    // Each may be behind by four runs, and has one more.
    let bound = 2 * longest_ms + promoted * 5 * longest_ms / (SLOTS - 1);
    assert!(gap <= Some(bound), "standard work stood still for {gap:?} ms, more than {bound}");
    let others = cell.started.iter().filter(|run| run.stream != usual && run.at > 61 * SECOND).count();
    assert!(others > 500, "only {others} were promoted");
}
