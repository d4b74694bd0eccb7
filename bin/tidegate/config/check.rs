//! What a type alone cannot say: ranges, and keys that only make sense together.

use std::fmt::Display;
use std::ops::RangeInclusive;

use tidegate_core::class_rules;
use tidegate_core::kind_policy::KindPolicy;
use tidegate_core::merge_patch::{BadValue, Patched};

use super::{Config, KindConfig};

/// A key and what is wrong with its value.
type Found = (String, String);

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Everything that is wrong with a configuration.
pub(super) fn problems(config: &Config) -> Vec<Found> {
    let mut check = Check::default();
    check.server(config);
    check.store(config);
    check.worker(config);
    check.keeper(config);
    check.retention(config);
    check.object("limits", &config.limits);
    for (name, kind) in &config.kinds {
        check.kind(&format!("kinds.{name}"), kind);
    }
    check.found.extend(config.registry().err().into_iter().flatten());
    for (name, tenant) in &config.tenants {
        check.object(&format!("tenants.{name}"), tenant);
    }
    for (name, peer) in &config.peers {
        check.object(&format!("peers.{name}"), peer);
    }
    if let Err(bad) = class_rules::check(&config.class_rules) {
        check.bad("class_rules", bad);
    }
    check.found
}

#[derive(Default)]
struct Check {
    found: Vec<Found>,
}

impl Check {
    fn found(&mut self, key: impl Into<String>, what: impl Into<String>) {
        self.found.push((key.into(), what.into()));
    }

    /// An object that operators may also change at run time checks itself.
    fn object(&mut self, key: &str, object: &impl Patched) {
        if let Err(bad) = object.check() {
            self.bad(key, bad);
        }
    }

    fn bad(&mut self, above: &str, bad: BadValue) {
        let key = bad.key();
        self.found(if key.is_empty() { above.to_owned() } else { format!("{above}.{key}") }, bad.problem);
    }

    /// The value must lie in the range.
    fn range<T: PartialOrd + Display>(&mut self, key: impl Into<String>, value: T, range: RangeInclusive<T>) {
        if !range.contains(&value) {
            self.found(key, format!("must be {} to {}, not {value}", range.start(), range.end()));
        }
    }

    /// The value must be a number, above 0 and not larger than `most`.
    fn factor(&mut self, key: impl Into<String>, value: f64, most: f64) {
        if !(value > 0.0 && value <= most) {
            self.found(key, format!("must be above 0 and at most {most}, not {value}"));
        }
    }

    fn server(&mut self, config: &Config) {
        let server = &config.server;
        self.range("server.max_connections", server.max_connections, 1..=1_000_000);
        self.range("server.header_timeout_ms", server.header_timeout_ms, 100..=10 * MINUTE_MS);
        self.range("server.body_timeout_ms", server.body_timeout_ms, 100..=HOUR_MS);
        self.range("server.write_stall_timeout_ms", server.write_stall_timeout_ms, 100..=HOUR_MS);
        self.range("server.max_header_bytes", server.max_header_bytes, 8_192..=MIB as u32);
        self.range("server.max_body_bytes", server.max_body_bytes, 1_024..=GIB as u32);
        self.range("server.max_payload_bytes", server.max_payload_bytes, 2..=64 * MIB as u32);
        self.range("server.max_ingest_bytes", server.max_ingest_bytes, 1_024..=64 * GIB);
        self.range("server.max_long_polls", server.max_long_polls, 0..=1_000_000);
        self.range("server.shutdown_grace_ms", server.shutdown_grace_ms, 0..=HOUR_MS);
        if server.max_payload_bytes > server.max_body_bytes {
            self.found("server.max_payload_bytes", "must not be above server.max_body_bytes");
        }
        if u64::from(server.max_body_bytes) > server.max_ingest_bytes {
            self.found("server.max_body_bytes", "must not be above server.max_ingest_bytes");
        }
    }

    fn store(&mut self, config: &Config) {
        let store = &config.store;
        let idle = store.idle_in_transaction_timeout_ms;
        self.range("store.max_connections", store.max_connections, 2..=1_000);
        self.range("store.connect_timeout_ms", store.connect_timeout_ms, 10..=MINUTE_MS);
        self.range("store.statement_timeout_ms", store.statement_timeout_ms, 100..=10 * MINUTE_MS);
        self.range("store.lock_timeout_ms", store.lock_timeout_ms, 10..=MINUTE_MS);
        self.range("store.idle_in_transaction_timeout_ms", idle, 10..=MINUTE_MS);
        self.range("store.batch_max_tasks", store.batch_max_tasks, 1..=10_000);
        self.range("store.batch_max_bytes", store.batch_max_bytes, 1_024..=GIB as u32);
        self.range("store.max_waiting_submissions", store.max_waiting_submissions, 1..=1_000_000);
        if store.lock_timeout_ms <= idle {
            let what = "must be above store.idle_in_transaction_timeout_ms, so that waiters outlive a stopped holder";
            self.found("store.lock_timeout_ms", what);
        }
        for (key, url) in [("store.url", &store.url), ("store.direct_url", &store.direct_url)] {
            if url.as_ref().is_some_and(|url| !url.is_postgres()) {
                self.found(key, "must begin with postgres:// or postgresql://");
            }
        }
    }

    fn worker(&mut self, config: &Config) {
        let worker = &config.worker;
        self.range("worker.slots", worker.slots, 1..=10_000);
        self.range("worker.lease_ms", worker.lease_ms, 300..=HOUR_MS);
        self.range("worker.shutdown_grace_ms", worker.shutdown_grace_ms, 0..=DAY_MS);
        self.range("worker.cancel_grace_ms", worker.cancel_grace_ms, 0..=HOUR_MS);
        self.range("worker.stop_grace_ms", worker.stop_grace_ms, 0..=HOUR_MS);
        self.range("worker.settle_reserve_ms", worker.settle_reserve_ms, 0..=MINUTE_MS);
        self.range("worker.max_result_bytes", worker.max_result_bytes, 2..=64 * MIB as u32);
        for kind in &worker.kinds {
            if !config.kinds.contains_key(kind) {
                self.found("worker.kinds", format!("names {kind}, which is not in [kinds]"));
            }
        }
        self.range("outbound.connect_timeout_ms", config.outbound.connect_timeout_ms, 10..=10 * MINUTE_MS);
    }

    fn keeper(&mut self, config: &Config) {
        let keeper = &config.keeper;
        self.range("keeper.sweep_interval_ms", keeper.sweep_interval_ms, 10..=HOUR_MS);
        self.range("keeper.reap_interval_ms", keeper.reap_interval_ms, 10..=HOUR_MS);
        self.range("keeper.audit_interval_ms", keeper.audit_interval_ms, 100..=DAY_MS);
        self.range("keeper.prune_interval_ms", keeper.prune_interval_ms, 100..=DAY_MS);
        self.range("keeper.snapshot_interval_ms", keeper.snapshot_interval_ms, 100..=DAY_MS);
        self.range("keeper.snapshot_alert_ms", keeper.snapshot_alert_ms, 100..=30 * DAY_MS);
    }

    fn retention(&mut self, config: &Config) {
        let retention = &config.retention;
        self.range("retention.finished_ms", retention.finished_ms, MINUTE_MS..=3_650 * DAY_MS);
        self.range("retention.refused_ms", retention.refused_ms, SECOND_MS..=3_650 * DAY_MS);
        self.range("retention.idempotency_ms", retention.idempotency_ms, MINUTE_MS..=3_650 * DAY_MS);
        self.range("retention.partition_ms", retention.partition_ms, MINUTE_MS..=30 * DAY_MS);
        self.range("quarantine.threshold", config.quarantine.threshold, 1..=1_000_000);
        self.range("quarantine.window_ms", config.quarantine.window_ms, 1..=30 * DAY_MS);
        self.range("quarantine.hold_ms", config.quarantine.hold_ms, 1..=3_650 * DAY_MS);
        self.factor("cost.per_usd", config.cost.per_usd, 1e9);
    }

    fn kind(&mut self, key: &str, kind: &KindConfig) {
        let KindPolicy { min_useful_ms, attempt_timeout_ms, max_attempts, cost_overrun, backoff, fanout, .. } =
            kind.policy();
        self.range(format!("{key}.min_useful_ms"), min_useful_ms, 0..=30 * DAY_MS);
        self.range(format!("{key}.attempt_timeout_ms"), attempt_timeout_ms.unwrap_or(1), 1..=30 * DAY_MS);
        self.range(format!("{key}.concurrency"), kind.concurrency.unwrap_or(1), 1..=100_000);
        self.range(format!("{key}.max_attempts"), max_attempts, 1..=1_000);
        self.range(format!("{key}.fanout"), fanout, 0..=10_000);
        self.factor(format!("{key}.cost_overrun"), cost_overrun, 1e6);
        if backoff.base_ms > backoff.max_ms {
            self.found(format!("{key}.backoff.base_ms"), "must not be above max_ms");
        }
    }
}
