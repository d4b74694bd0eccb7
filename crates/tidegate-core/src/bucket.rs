//! A token bucket as one number: the generic cell rate algorithm (ITU-T I.371) keeps the instant at which the bucket
//! will be full again. Exact under the lock that its row is kept under, whoever asks, and nothing has to tick.

/// A rate with a burst: so much in a minute, and so much at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    per_minute: u64,
    burst: u64,
}

/// What a bucket says to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drawn {
    /// It is taken: this long must be added to the instant that is kept, from now where that lies in the past.
    Taken {
        /// Nanoseconds to add.
        add_ns: i64,
    },
    /// It is not taken, and nothing was used up.
    Short {
        /// Milliseconds until it would be; `None` where it is more than the bucket ever holds.
        retry_ms: Option<u64>,
    },
}

const MINUTE_NS: u128 = 60_000_000_000;
/// What rounding up may cost a burst of small requests.
const SLACK_NS: i64 = 1_000;

impl Bucket {
    /// A bucket that fills at `per_minute` and holds `burst`.
    pub fn new(per_minute: u64, burst: u64) -> Self {
        Self { per_minute, burst }
    }

    /// How many flow in within a minute.
    pub fn per_minute(&self) -> u64 {
        self.per_minute
    }

    /// How many it holds at most.
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// The nanoseconds in which `amount` flows in; rounded up, so that a rate is never exceeded.
    pub fn time_of(&self, amount: u64) -> i64 {
        if self.per_minute == 0 {
            return i64::MAX / 4;
        }
        let time = (u128::from(amount) * MINUTE_NS).div_ceil(u128::from(self.per_minute));
        i64::try_from(time).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
    }

    /// Asks for `amount` at `now_ns`, where the bucket is full again at `full_ns`.
    pub fn draw(&self, full_ns: i64, now_ns: i64, amount: u64) -> Drawn {
        let add_ns = self.time_of(amount);
        let short = (full_ns.max(now_ns) - now_ns).saturating_add(add_ns).saturating_sub(self.time_of(self.burst));
        if amount > self.burst || self.per_minute == 0 {
            return Drawn::Short { retry_ms: None };
        }
        if short > SLACK_NS {
            Drawn::Short { retry_ms: Some((short as u64).div_ceil(1_000_000)) }
        } else {
            Drawn::Taken { add_ns }
        }
    }

    /// How much it holds at `now_ns`.
    pub fn level(&self, full_ns: i64, now_ns: i64) -> u64 {
        if self.per_minute == 0 {
            return 0;
        }
        let free_ns = self.time_of(self.burst).saturating_sub((full_ns - now_ns).max(0)).max(0);
        (free_ns as u128 * u128::from(self.per_minute) / MINUTE_NS) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fifty_at_once_of_a_thousand_each_against_ten_thousand_a_minute() {
        let bucket = Bucket::new(10_000, 10_000);
        let (mut full, now, mut taken) = (0, 1_000_000_000, 0);
        for _ in 0..50 {
            match bucket.draw(full, now, 1_000) {
                Drawn::Taken { add_ns } => {
                    full = full.max(now) + add_ns;
                    taken += 1;
                }
                Drawn::Short { retry_ms } => assert_eq!(retry_ms, Some(6_000)),
            }
        }
        assert_eq!((taken, bucket.level(full, now)), (10, 0));
        assert_eq!(bucket.level(full, now + 6_000_000_000), 1_000);
        assert!(matches!(bucket.draw(full, now + 6_000_000_000, 1_000), Drawn::Taken { .. }));
    }

    #[test]
    fn more_than_it_ever_holds_is_never_given() {
        let bucket = Bucket::new(60, 5);
        assert_eq!(bucket.draw(0, 0, 6), Drawn::Short { retry_ms: None });
        assert_eq!(Bucket::new(0, 5).draw(0, 0, 1), Drawn::Short { retry_ms: None });
    }

    proptest! {
        #[test]
        fn no_window_sees_more_than_burst_and_rate(per_minute in 1u64..10_000, burst in 1u64..100, steps in proptest::collection::vec((0i64..5_000_000_000, 1u64..5), 1..200)) {
            let bucket = Bucket::new(per_minute, burst);
            let (mut full, mut now, mut given) = (0i64, 0i64, Vec::new());
            for (step, amount) in steps {
                now += step;
                if let Drawn::Taken { add_ns } = bucket.draw(full, now, amount) {
                    full = full.max(now) + add_ns;
                    given.push((now, amount));
                }
            }
            for (n, (from, _)) in given.iter().enumerate() {
                let mut sum = 0;
                for (at, amount) in &given[n..] {
                    sum += amount;
                    let most = burst as f64 + (at - from) as f64 * per_minute as f64 / 6e10;
                    prop_assert!(sum as f64 <= most + 1e-3);
                }
            }
        }
    }
}
