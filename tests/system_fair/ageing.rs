//! Nothing waits for ever (C29): the lowest work under more high-priority work than there is capacity for.

use std::time::Duration;

use tidegate_testkit::{poll_until, short_or_long};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::fleet::{LIMIT, number};
use crate::{at, every, now_ms, patient_fleet, percentile, sleep_of, submit, waits_ms};

const SLOTS: u32 = 4;
/// Forty a second.
const RUN_MS: std::ops::RangeInclusive<u64> = 50..=150;
const CAPACITY: f64 = 40.0;
const LOWEST_EVERY: Duration = Duration::from_secs(1);
/// The bound of docs/scheduling.md beyond `promote_after_ms`, one slot for sure and one other tenant, is three of the
/// longest runs; a run here is as long as a busy machine makes it, the turns before and after included.
const WAIT_MS: i64 = 3 * 1_500;

/// Submits steadily until then.
async fn stream(caller: Caller, tenant: &'static str, priority: u8, gap: Duration, until: Instant) {
    let (mut next, mut posts) = (Instant::now(), JoinSet::new());
    while next < until {
        at(next).await;
        let (caller, task) = (caller.clone(), sleep_of(&RUN_MS, priority));
        posts.spawn(async move { submit(&caller, tenant, &task).await });
        next += gap;
    }
    posts.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lowest_starts_in_time_under_a_flood_of_high_priority() {
    let promote_after_ms = short_or_long(2_000, 30_000);
    let fleet = patient_fleet().await.with("LIMITS__CLASSES__BACKGROUND__PROMOTE_AFTER_MS", promote_after_ms);
    let server = fleet.serve().await;
    let _worker = fleet.worker(SLOTS).await;
    let from = now_ms(&fleet).await;
    let until = Instant::now() + Duration::from_secs(short_or_long(10, 180));
    let streams =
        [("urgent", 95, every(CAPACITY * 0.6)), ("usual", 60, every(CAPACITY * 0.6)), ("lowest", 0, LOWEST_EVERY)];
    let load = streams
        .map(|(tenant, priority, gap)| tokio::spawn(stream(server.caller.clone(), tenant, priority, gap, until)));
    for stream in load {
        stream.await.unwrap();
    }
    let to = now_ms(&fleet).await;
    let left = "SELECT count(*) FROM tidegate.task WHERE tenant = 'lowest' AND status IS NULL";
    poll_until(LIMIT, "the end of the lowest", async || (number(fleet.db.url(), left).await == 0).then_some(())).await;
    let waits = waits_ms(&fleet, "lowest", from..to).await;
    let (middle, longest) = (percentile(&waits, 50), percentile(&waits, 100));
    eprintln!("{} of the lowest: median wait {middle} ms, longest {longest} ms", waits.len());
    assert!(waits.len() as u64 >= short_or_long(9, 170));
    assert!(longest <= promote_after_ms + WAIT_MS, "{longest} ms");
    assert!(middle >= promote_after_ms / 2, "there was no flood");
}
