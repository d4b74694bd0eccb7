//! The overload matrix: five ways to have too much, each with and without callers who change their minds.
//!
//! Whatever the load, what must be true is the same ([`check`]): queue and memory are bounded, nothing runs or waits past
//! its deadline, cancels reach handlers, critical work that the peer is not needed for is let in soon and done, and when it is over the traffic that goes on is done
//! and the rest drains, without a storm.

mod check;
mod load;

use std::time::Duration;

use tidegate_testkit::{Behaviour, short_or_long};

use check::Watched;
use load::{Course, Shape};

/// Calls that the peer takes at once; the slots are a few more.
const AT_ONCE: u32 = 6;
const SLOTS: u32 = 8;
/// How long a call takes while all is well: a capacity of 150 a second.
const WELL: Duration = Duration::from_millis(40);
/// Tasks that may wait.
const MAX_QUEUED: i64 = 60;
/// Where nothing else is said: from arrival to end.
const TIMEOUT_MS: u64 = 1_500;
/// One in so many is cancelled, where callers change their minds.
const ONE_IN: usize = 10;

/// Standard work alone.
const STANDARD: &[u8] = &[50];
/// A sixth is critical, a third standard, half background.
const MIXED: &[u8] = &[95, 50, 50, 10, 10, 10];

fn slow(call: Duration) -> Behaviour {
    Behaviour::Slow(call)
}

/// One row of the matrix, twice.
async fn both(shape: Shape) {
    let course = short_or_long(
        Course { lasts: Duration::from_secs(3), goes_on: Duration::from_secs(2) },
        Course { lasts: Duration::from_secs(60), goes_on: Duration::from_secs(20) },
    );
    for cancels in [None, Some(ONE_IN)] {
        let watched = Watched::start(&shape).await;
        let over = load::offer(&watched, &shape, &course, cancels).await;
        watched.check(&shape, over).await;
    }
}

/// All at once, and then nothing. Broken by: a door that lets everybody in who came together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst() {
    both(Shape { name: "burst", at_once: 600, a_second: 0.0, call: slow(WELL), priorities: STANDARD, ..Shape::WELL })
        .await;
}

/// Three times the capacity all the time. Broken by: a queue that fills with what will be late, refusals that cost as much
/// as work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sustained() {
    both(Shape { name: "sustained", a_second: 450.0, call: slow(WELL), ..Shape::WELL }).await;
}

/// The peer takes longer than a call may: every attempt fails and is tried again, until the peer is well. Broken by: retries
/// that pile up and come back together, permits that time-outs keep.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_dependency() {
    let call = slow(Duration::from_secs(5));
    both(Shape { name: "slow dependency", a_second: 60.0, call, attempt_ms: 300, ..Shape::WELL }).await;
}

/// Few tasks, each of which holds a permit for long; more than a permit's worth is cancelled in the midst. Broken by: a
/// cancel that waits for the end of the call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_jobs() {
    let call = slow(Duration::from_millis(1_200));
    both(Shape { name: "long jobs", a_second: 30.0, call, timeout_ms: 3_000, ..Shape::WELL }).await;
}

/// Three times the capacity, of every class. Broken by: background work that keeps critical work out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_priorities() {
    both(Shape { name: "mixed", a_second: 450.0, call: slow(WELL), priorities: MIXED, ..Shape::WELL }).await;
}
