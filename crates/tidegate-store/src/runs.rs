//! How long the runs of each kind typically take: what has less time left is doomed, and never started. And how long a
//! run of a tenant is expected to take, for which it is charged when it starts. Each process goes by the runs that it
//! has settled itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How far back runs count.
const WINDOW: Duration = Duration::from_secs(60);
/// Runs below which nothing is known: a slow spell would lock the kind out for good.
const LEAST_RUNS: usize = 20;
/// Most runs of a kind that are kept: enough for a 99th percentile.
const MAX_RUNS: usize = 2_000;
/// Most kinds that are kept.
const MAX_KINDS: usize = 256;
/// How long a percentile is good for.
const FRESH: Duration = Duration::from_millis(250);

/// Most tenants whose averages are kept.
const MAX_TENANTS: usize = 10_000;
/// What a run is expected to take where nothing is known.
const UNKNOWN_RUN_MS: f64 = 100.0;
/// The part of an average that a new run makes.
const NEW_RUN: f64 = 0.2;

#[derive(Default)]
struct Runs {
    ended: VecDeque<(Instant, i64)>,
    typical: Option<(Instant, Option<i64>)>,
    mean: Option<f64>,
}

impl Runs {
    fn typical_ms(&mut self, now: Instant) -> Option<i64> {
        if let Some((at, typical)) = self.typical
            && now.duration_since(at) < FRESH
        {
            return typical;
        }
        while self.ended.front().is_some_and(|(at, _)| now.duration_since(*at) > WINDOW) {
            self.ended.pop_front();
        }
        let mut took: Vec<i64> = self.ended.iter().map(|(_, ms)| *ms).collect();
        let typical = (took.len() >= LEAST_RUNS).then(|| {
            // The 99th percentile: one run in a hundred may take longer.
            let at = (took.len() * 99).div_ceil(100) - 1;
            *took.select_nth_unstable(at).1
        });
        self.typical = Some((now, typical));
        typical
    }
}

/// Run times by kind, and averages by tenant and kind.
#[derive(Default)]
pub(crate) struct RunTimes(Mutex<HashMap<String, Runs>>, Mutex<HashMap<String, HashMap<String, f64>>>);

impl RunTimes {
    /// Remembers that a run of a kind completed, and how long it took.
    pub(crate) fn record(&self, kind: &str, ms: i64) {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !kinds.contains_key(kind) {
            if kinds.len() >= MAX_KINDS {
                return;
            }
            kinds.insert(kind.to_owned(), Runs::default());
        }
        let Some(runs) = kinds.get_mut(kind) else { return };
        if runs.ended.len() >= MAX_RUNS {
            runs.ended.pop_front();
        }
        runs.ended.push_back((Instant::now(), ms.max(0)));
        runs.mean = Some(moved(runs.mean, ms));
    }

    /// Remembers how long a run of a tenant took, however it ended.
    pub(crate) fn charge(&self, tenant: &str, kind: &str, ms: i64) {
        let mut tenants = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        if !tenants.contains_key(tenant) {
            if tenants.len() >= MAX_TENANTS {
                tenants.clear();
            }
            tenants.insert(tenant.to_owned(), HashMap::new());
        }
        let Some(kinds) = tenants.get_mut(tenant) else { return };
        if let Some(mean) = kinds.get_mut(kind) {
            *mean = moved(Some(*mean), ms);
        } else if kinds.len() < MAX_KINDS {
            kinds.insert(kind.to_owned(), moved(None, ms));
        }
    }

    /// How long a run of a tenant is expected to take, in milliseconds: its own average for the kind, else the kind's.
    pub(crate) fn expected_ms(&self, tenant: &str, kind: &str) -> i64 {
        let own = {
            let tenants = self.1.lock().unwrap_or_else(PoisonError::into_inner);
            tenants.get(tenant).and_then(|kinds| kinds.get(kind)).copied()
        };
        let of_kind = || self.0.lock().unwrap_or_else(PoisonError::into_inner).get(kind)?.mean;
        own.or_else(of_kind).unwrap_or(UNKNOWN_RUN_MS) as i64
    }

    /// The 99th percentile of the runs of a kind that completed in the last minute, in milliseconds; `None` while there
    /// were too few.
    pub(crate) fn typical_ms(&self, kind: &str) -> Option<i64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(kind)?.typical_ms(Instant::now())
    }

    /// The same for every kind of which it is known.
    pub(crate) fn typical(&self) -> HashMap<String, i64> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        kinds.iter_mut().filter_map(|(kind, runs)| Some((kind.clone(), runs.typical_ms(now)?))).collect()
    }
}

/// An average after another run.
fn moved(mean: Option<f64>, ms: i64) -> f64 {
    let ms = ms.max(0) as f64;
    mean.map_or(ms, |mean| mean + NEW_RUN * (ms - mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_typical_run_is_the_ninety_ninth_percentile_once_there_are_enough() {
        let runs = RunTimes::default();
        for ms in 1..20 {
            runs.record("echo", ms);
        }
        assert_eq!(runs.typical_ms("echo"), None);
        assert_eq!(runs.typical_ms("other"), None);
        let runs = RunTimes::default();
        for ms in 1..=100 {
            runs.record("echo", ms);
        }
        assert_eq!(runs.typical_ms("echo"), Some(99));
        assert_eq!(runs.typical(), HashMap::from([("echo".to_owned(), 99)]));
    }

    #[test]
    fn a_tenant_is_expected_to_take_what_it_took_else_what_others_did() {
        let runs = RunTimes::default();
        assert_eq!(runs.expected_ms("acme", "echo"), 100);
        runs.record("echo", 40);
        assert_eq!(runs.expected_ms("acme", "echo"), 40);
        runs.charge("acme", "echo", 1_000);
        runs.charge("acme", "echo", 0);
        assert_eq!((runs.expected_ms("acme", "echo"), runs.expected_ms("other", "echo")), (800, 40));
    }
}
