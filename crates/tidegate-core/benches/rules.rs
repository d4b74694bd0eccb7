//! What the rules cost that run under the cell's lock or for each request: none may be more than a trifle beside the
//! statement it belongs to.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tidegate_core::admission::{Facts, TenantFacts, decide};
use tidegate_core::backoff::BackoffPolicy;
use tidegate_core::kind_policy::Effects;
use tidegate_core::limits::Limits;
use tidegate_core::order::{ClaimRoom, FlowHead, TenantRoom, Waiting, choose};
use tidegate_core::policy::Policy;
use tidegate_core::settlement::{Ending, Running, settle};
use tidegate_core::slots::SlotCaps;
use tidegate_core::submission::Submission;
use tidegate_core::{Class, EpochMs, Kind, Lane, TaskId, TenantId, json};

const NOW: EpochMs = 1_790_000_000_000;
/// As many as a batch of submissions, or a turn of a worker, holds.
const BATCH: usize = 500;
/// What a claim of a batch may see of four flows.
const FLOWS: usize = 4;
const HEADS: usize = 1_000;
const PAYLOAD_BYTES: usize = 64 * 1024;
/// Enough for a steady figure of something that takes microseconds.
const MEASURED: Duration = Duration::from_secs(3);

fn id(n: usize) -> TaskId {
    let mut random = [0; 10];
    random[..8].copy_from_slice(&(n as u64).to_be_bytes());
    TaskId::new(NOW, random, 0)
}

/// A batch of submissions into a cell with room.
fn admission(c: &mut Criterion) {
    let policy = Policy::default();
    let kind = Kind::parse("echo").unwrap();
    let submissions: Vec<_> = (0..BATCH)
        .map(|n| Submission::new(id(n), TenantId::default_tenant(), kind.clone(), "{\"hello\":\"world\"}".to_owned()))
        .collect();
    let mut group = c.benchmark_group("admission");
    group.throughput(Throughput::Elements(BATCH as u64)).measurement_time(MEASURED);
    group.bench_function("decide a batch of 500", |b| {
        b.iter(|| {
            let mut facts = Facts::default();
            facts.tenants.insert("default".into(), TenantFacts::default());
            for submission in &submissions {
                let verdict = decide(&policy, &facts, black_box(submission), NOW, 3);
                facts.take(submission, &verdict);
            }
            facts
        });
    });
    group.finish();
}

/// A claim of a batch over flows whose ranks interleave.
fn order(c: &mut Criterion) {
    let flows: Vec<_> = (0..FLOWS)
        .map(|flow| FlowHead {
            flow: flow as i64,
            class: Class::Standard,
            lane: Lane::Fresh,
            tenant: 0,
            kind: None,
            run_ms: 100,
            peer: None,
            queued: HEADS as i64,
            tasks: (0..HEADS).map(|n| waiting(n * FLOWS + (n + flow) % FLOWS)).collect(),
        })
        .collect();
    let caps = SlotCaps::of(&Limits::default(), 2 * BATCH as i64);
    let tenant = TenantRoom { left: i64::MAX, left_of_class: [i64::MAX; 3], weight: 1.0, turns: [0; 3] };
    let room = ClaimRoom {
        caps,
        running: [0; 3],
        floors: [0; 3],
        promote_after_ms: [None; 3],
        tenants: vec![tenant],
        peers: Vec::new(),
        kinds: Vec::new(),
        suspects: 1,
    };
    let mut group = c.benchmark_group("order");
    group.throughput(Throughput::Elements(BATCH as u64)).measurement_time(MEASURED);
    group.bench_function("choose 500 from 4 flows of 1,000", |b| {
        b.iter(|| choose(black_box(&flows), room.clone(), BATCH, NOW))
    });
    group.finish();
}

fn waiting(n: usize) -> Waiting {
    Waiting { id: id(n), rank: NOW + n as i64, enqueued: NOW, tokens: 0, deadline: NOW + 300_000, min_useful_ms: 10 }
}

/// The largest payload of the usual size, of the usual mixture.
fn payload(c: &mut Criterion) {
    let item = r#"{"id":12345,"name":"a hotel by the sea","tags":["quiet","caf\u00e9","\"new\""],"score":4.75,"open":true,"owner":null}"#;
    let items = vec![item; PAYLOAD_BYTES / (item.len() + 1)].join(",");
    let text = format!("[{items}]");
    let mut group = c.benchmark_group("json");
    group.throughput(Throughput::Bytes(text.len() as u64)).measurement_time(MEASURED);
    group.bench_function("check 64 KiB", |b| b.iter(|| json::check(black_box(&text), json::MAX_DEPTH)));
    group.bench_function("hash 64 KiB", |b| b.iter(|| json::canonical_sha256(black_box(&text))));
    group.finish();
}

/// A batch of attempts that ended, most of them well.
fn settlement(c: &mut Criterion) {
    let running = Running {
        failures: 0,
        losses: 0,
        max_attempts: 3,
        deadline: NOW + 300_000,
        started: NOW - 100,
        min_useful_ms: 10,
        attempt_timeout_ms: None,
        effects: Effects::default(),
        cancel: None,
        may_retry: true,
    };
    let failed = Ending::Failed { retryable: true, retry_after_ms: None, reason: None };
    let endings = |n: usize| if n.is_multiple_of(10) { failed } else { Ending::Completed };
    let mut group = c.benchmark_group("settlement");
    group.throughput(Throughput::Elements(BATCH as u64)).measurement_time(MEASURED);
    group.bench_function("settle a batch of 500", |b| {
        b.iter_batched(
            || (0..BATCH).map(endings).collect::<Vec<_>>(),
            |endings| {
                for ending in endings {
                    black_box(settle(black_box(&running), ending, BackoffPolicy::default(), NOW, 0.5));
                }
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(rules, admission, order, payload, settlement);
criterion_main!(rules);
