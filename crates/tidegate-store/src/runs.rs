//! How long the runs of each kind typically take: what has less time left is doomed, and never started. Each process
//! goes by the runs that it has settled itself.

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

#[derive(Default)]
struct Runs {
    ended: VecDeque<(Instant, i64)>,
    typical: Option<(Instant, Option<i64>)>,
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

/// Run times by kind.
#[derive(Default)]
pub(crate) struct RunTimes(Mutex<HashMap<String, Runs>>);

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
}
