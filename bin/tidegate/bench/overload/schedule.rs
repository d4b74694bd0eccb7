//! When tasks arrive and how long they run: drawn before the load begins, and the same for both sides.

use std::time::Duration;

/// The run time of all tasks, or of the median one.
pub(super) const MEDIAN_MS: f64 = 100.0;
/// The 99th percentile of run times that are spread.
const P99_MS: f64 = 600.0;
/// The 99th percentile of the standard normal distribution.
const NORMAL_P99: f64 = 2.326_347_874;

/// One task to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival {
    /// When it is due, from the begin of the load.
    pub(super) due: Duration,
    /// How long it runs.
    pub(super) run_ms: u32,
}

/// How long tasks run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Runs {
    /// The standard deviation of the logarithm; 0 where all run equally long.
    sigma: f64,
}

impl Runs {
    /// All equally long.
    pub(super) const ALIKE: Self = Self { sigma: 0.0 };
    /// Log-normal: most short, a few very long.
    pub(super) const SPREAD: Self = Self { sigma: 1.791_759_469 / NORMAL_P99 };

    /// Whether all run equally long.
    pub(super) fn are_alike(self) -> bool {
        self.sigma == 0.0
    }

    /// The mean. That of a log-normal distribution is above its median: the long ones weigh.
    pub(super) fn mean_ms(self) -> f64 {
        MEDIAN_MS * (self.sigma * self.sigma / 2.0).exp()
    }

    /// In words.
    pub(super) fn describe(self) -> String {
        match self.are_alike() {
            true => format!("runs of {MEDIAN_MS:.0} ms"),
            false => format!(
                "log-normal runs (median {MEDIAN_MS:.0} ms, 99th percentile {P99_MS:.0} ms, mean {:.1} ms)",
                self.mean_ms()
            ),
        }
    }

    fn draw(self) -> u32 {
        (MEDIAN_MS * (self.sigma * standard_normal()).exp()).round().max(1.0) as u32
    }
}

/// By G. E. P. Box and M. E. Muller, "A Note on the Generation of Random Normal Deviates", 1958.
fn standard_normal() -> f64 {
    let (u, v) = (positive(), rand::random_range(0.0..std::f64::consts::TAU));
    (-2.0 * u.ln()).sqrt() * v.cos()
}

/// A random number above 0 and up to 1, of which there is a logarithm.
fn positive() -> f64 {
    1.0 - rand::random_range(0.0..1.0)
}

/// Arrivals that know nothing of one another, at so many a second on average: the gaps are exponential.
pub(super) fn poisson(rate: f64, time: Duration, runs: Runs) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    let mut at = -positive().ln() / rate;
    while at < time.as_secs_f64() {
        arrivals.push(Arrival { due: Duration::from_secs_f64(at), run_ms: runs.draw() });
        at += -positive().ln() / rate;
    }
    arrivals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_come_in_order_at_the_rate_and_within_the_time() {
        let arrivals = poisson(1_000.0, Duration::from_secs(20), Runs::ALIKE);
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.due));
        assert!(arrivals.iter().all(|arrival| arrival.due < Duration::from_secs(20) && arrival.run_ms == 100));
        // 20,000 ± 10 standard deviations.
        assert!((18_586..21_414).contains(&arrivals.len()), "{}", arrivals.len());
    }

    #[test]
    fn spread_runs_have_the_median_the_percentile_and_the_mean_that_are_told() {
        let mut runs: Vec<u32> = (0..200_000).map(|_| Runs::SPREAD.draw()).collect();
        runs.sort_unstable();
        let (median, p99) = (runs[100_000], runs[198_000]);
        assert!((95..=105).contains(&median), "{median}");
        assert!((560..=640).contains(&p99), "{p99}");
        let mean = runs.iter().map(|ms| f64::from(*ms)).sum::<f64>() / runs.len() as f64;
        assert!((mean / Runs::SPREAD.mean_ms() - 1.0).abs() < 0.03, "{mean}");
    }
}
