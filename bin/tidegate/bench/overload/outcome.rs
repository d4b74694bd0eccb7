//! What became of each task, and what that comes to.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::DEADLINE;
use super::schedule::Arrival;
use crate::bench::report::{grouped, histogram, ratio};
use crate::exit::Failure;

/// What became of one task. Times are counted from when it was due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was not let in, for this reason.
    Refused { reason: String, after: Duration },
    /// It was let in and ended.
    Ended { completed: bool, after: Duration, run: Option<Run> },
    /// It was let in, and had not ended when nobody waited any more.
    Left,
    /// Nobody knows.
    Broken(String),
}

/// A run, as far as the worker spent time on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// The time that was left to the deadline when it started.
    pub(super) left_ms: i64,
    /// How long it took.
    pub(super) took_ms: i64,
}

/// The outcomes of one load, by the place of the arrival.
pub(super) type Outcomes = Vec<(usize, Outcome)>;

/// What they come to.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) offered: u64,
    pub(super) accepted: u64,
    pub(super) left: u64,
    broken: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
    in_time: u64,
    /// The same, of those that ended in the window.
    useful: u64,
    done: u64,
    window: Duration,
    run_ms: i64,
    doomed_ms: i64,
    latencies: Vec<Duration>,
    refusals: Vec<Duration>,
}

impl Tally {
    /// Adds up. What was done counts towards a rate where it ended in the window.
    pub(super) fn of(outcomes: &Outcomes, arrivals: &[Arrival], window: (Duration, Duration)) -> Self {
        let mut tally = Self { offered: arrivals.len() as u64, window: window.1 - window.0, ..Self::default() };
        for (at, outcome) in outcomes {
            let Some(arrival) = arrivals.get(*at) else { continue };
            match outcome {
                Outcome::Refused { reason, after } => {
                    *tally.refused.entry(reason.clone()).or_default() += 1;
                    tally.refusals.push(*after);
                }
                Outcome::Ended { completed, after, run } => {
                    tally.ended(arrival, *completed, *after, window);
                    tally.ran(arrival, *run);
                }
                Outcome::Left => {
                    tally.accepted += 1;
                    tally.left += 1;
                }
                Outcome::Broken(what) => *tally.broken.entry(what.clone()).or_default() += 1,
            }
        }
        tally
    }

    fn ended(&mut self, arrival: &Arrival, completed: bool, after: Duration, window: (Duration, Duration)) {
        self.accepted += 1;
        self.latencies.push(after);
        let end = arrival.due + after;
        let counts = completed && end >= window.0 && end < window.1;
        self.done += u64::from(counts);
        if completed && after <= DEADLINE {
            self.in_time += 1;
            self.useful += u64::from(counts);
        }
    }

    fn ran(&mut self, arrival: &Arrival, run: Option<Run>) {
        let Some(run) = run else { return };
        self.run_ms += run.took_ms;
        if i64::from(arrival.run_ms) > run.left_ms {
            self.doomed_ms += run.took_ms;
        }
    }

    /// Done in time, a second.
    pub(super) fn goodput(&self) -> f64 {
        ratio(self.useful as f64, self.window.as_secs_f64())
    }

    /// Done at all, a second.
    pub(super) fn done_a_second(&self) -> f64 {
        ratio(self.done as f64, self.window.as_secs_f64())
    }

    /// Of what was let in. What nobody waited for did not.
    pub(super) fn in_time_percent(&self) -> f64 {
        100.0 * ratio(self.in_time as f64, self.accepted as f64)
    }

    /// The share of the worker's time that went to runs which could not end in time when they started.
    pub(super) fn doomed_percent(&self) -> f64 {
        100.0 * ratio(self.doomed_ms as f64, self.run_ms as f64)
    }

    /// Of those that were let in and ended, in microseconds.
    pub(super) fn latency(&self) -> Result<Histogram<u64>, Failure> {
        recorded(&self.latencies)
    }

    /// Of those that were not let in, in microseconds.
    pub(super) fn refusals(&self) -> Result<Histogram<u64>, Failure> {
        recorded(&self.refusals)
    }

    /// How many were refused and why.
    pub(super) fn refused_in_words(&self) -> Option<String> {
        counted(&self.refused)
    }

    /// What should not be.
    pub(super) fn troubles(&self) -> Option<String> {
        let mut troubles = self.broken.clone();
        if self.left > 0 {
            troubles.insert("had not ended long after their deadline".to_owned(), self.left);
        }
        let known = self.accepted + self.refused.values().sum::<u64>() + self.broken.values().sum::<u64>();
        if known < self.offered {
            troubles.insert("were never sent".to_owned(), self.offered - known);
        }
        counted(&troubles)
    }
}

fn recorded(times: &[Duration]) -> Result<Histogram<u64>, Failure> {
    let mut histogram = histogram()?;
    times.iter().for_each(|time| histogram.saturating_record(time.as_micros() as u64));
    Ok(histogram)
}

fn counted(counts: &BTreeMap<String, u64>) -> Option<String> {
    let each: Vec<String> = counts.iter().map(|(what, count)| format!("{} {what}", grouped(*count as i64))).collect();
    (!each.is_empty()).then(|| each.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(completed: bool, after_ms: u64, left_ms: i64, took_ms: i64) -> Outcome {
        let run = Some(Run { left_ms, took_ms });
        Outcome::Ended { completed, after: Duration::from_millis(after_ms), run }
    }

    #[test]
    fn only_what_is_done_in_time_is_useful_and_only_runs_take_time() {
        let arrivals = [Arrival { due: Duration::from_secs(1), run_ms: 100 }; 6];
        let outcomes = [
            ended(true, 300, 1_800, 100),
            ended(true, 2_100, 50, 150),
            ended(false, 2_000, 99, 50),
            Outcome::Refused { reason: "queue_full".to_owned(), after: Duration::from_millis(2) },
            Outcome::Left,
        ];
        let outcomes: Outcomes = outcomes.into_iter().enumerate().collect();
        let tally = Tally::of(&outcomes, &arrivals, (Duration::ZERO, Duration::from_secs(10)));
        assert_eq!((tally.offered, tally.accepted, tally.left), (6, 4, 1));
        assert_eq!((tally.goodput(), tally.done_a_second()), (0.1, 0.2));
        assert_eq!(tally.in_time_percent(), 25.0);
        assert!((tally.doomed_percent() - 100.0 * 200.0 / 300.0).abs() < 1e-9);
        assert_eq!(tally.refused_in_words().as_deref(), Some("1 queue_full"));
        assert_eq!(tally.troubles().as_deref(), Some("1 had not ended long after their deadline, 1 were never sent"));
    }

    #[test]
    fn what_ends_outside_the_window_is_no_part_of_the_rate() {
        let arrivals = [Arrival { due: Duration::from_secs(1), run_ms: 100 }];
        let outcomes = vec![(0, ended(true, 300, 1_800, 100))];
        for (from, to, rate) in [(0, 2, 0.5), (1, 2, 1.0), (2, 4, 0.0), (0, 1, 0.0)] {
            let tally = Tally::of(&outcomes, &arrivals, (Duration::from_secs(from), Duration::from_secs(to)));
            assert_eq!(tally.goodput(), rate, "{from} {to}");
            assert_eq!(tally.in_time_percent(), 100.0);
        }
    }
}
