//! How large things have to be: Little's law, which holds whatever the arrivals look like. The tasks in a system are
//! the rate at which they arrive times the time that each stays (J. D. C. Little, "A Proof for the Queuing Formula
//! L = λW", Operations Research 9(3), 1961).

/// The most that slots should be busy on average: beyond it a burst finds no slack and waits grow without bound.
pub const TARGET_UTILISATION: f64 = 0.8;

/// What is known of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Tasks that arrive in a second.
    pub rate: f64,
    /// How long one runs, on average, in milliseconds.
    pub run_ms: f64,
    /// The slots there are; `None` is those that are needed.
    pub slots: Option<u32>,
    /// The wait that is accepted, in milliseconds.
    pub wait_ms: f64,
}

/// What it takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    /// Slots that are busy on average: rate × run time.
    pub busy_slots: f64,
    /// Slots that are needed to keep them below [`TARGET_UTILISATION`] on average.
    pub slots_needed: u32,
    /// The slots that the rest is about.
    pub slots: u32,
    /// The share of those that is busy on average; 1 and more means that the work never catches up.
    pub utilisation: f64,
    /// Tasks that those slots can finish in a second: slots ÷ run time.
    pub capacity: f64,
    /// The longest queue that is worked off within the wait: capacity × wait.
    pub max_queued: u32,
    /// The predicted wait that counts as full.
    pub max_expected_wait_ms: u32,
}

/// A load that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadLoad(&'static str);

/// What a load takes.
pub fn size(load: &Load) -> Result<Size, BadLoad> {
    let sensible = |value: f64| value.is_finite() && value > 0.0;
    if !sensible(load.rate) || !sensible(load.run_ms) || !sensible(load.wait_ms) {
        return Err(BadLoad("the rate, the run time and the wait must be above 0"));
    }
    if load.slots == Some(0) {
        return Err(BadLoad("there must be at least one slot"));
    }
    let busy_slots = load.rate * load.run_ms / 1_000.0;
    let slots_needed = whole((busy_slots / TARGET_UTILISATION - ROUNDING).ceil())?.max(1);
    let slots = load.slots.unwrap_or(slots_needed);
    let capacity = f64::from(slots) * 1_000.0 / load.run_ms;
    Ok(Size {
        busy_slots,
        slots_needed,
        slots,
        utilisation: busy_slots / f64::from(slots),
        capacity,
        max_queued: whole((capacity * load.wait_ms / 1_000.0 + ROUNDING).floor())?.max(1),
        max_expected_wait_ms: whole(load.wait_ms.ceil())?,
    })
}

/// What a product of round numbers may miss a whole number by.
const ROUNDING: f64 = 1e-9;

fn whole(value: f64) -> Result<u32, BadLoad> {
    if value <= f64::from(u32::MAX) {
        // In range, and without a fraction.
        Ok(value as u32)
    } else {
        Err(BadLoad("comes to more than 4294967295"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sized(rate: f64, run_ms: f64, slots: Option<u32>, wait_ms: f64) -> Size {
        size(&Load { rate, run_ms, slots, wait_ms }).unwrap()
    }

    #[test]
    fn the_sums_are_those_of_littles_law() {
        let twenty = sized(100.0, 100.0, Some(20), 250.0);
        assert_eq!((twenty.busy_slots, twenty.slots_needed, twenty.utilisation), (10.0, 13, 0.5));
        assert_eq!((twenty.capacity, twenty.max_queued, twenty.max_expected_wait_ms), (200.0, 50, 250));
        let open = sized(8.0, 1_000.0, None, 5_000.0);
        assert_eq!((open.slots_needed, open.slots, open.utilisation, open.max_queued), (10, 10, 0.8, 50));
        let over = sized(400.0, 100.0, Some(20), 250.0);
        assert_eq!((over.slots_needed, over.utilisation), (50, 2.0));
        let tiny = sized(0.001, 1.0, None, 0.1);
        assert_eq!((tiny.slots_needed, tiny.max_queued, tiny.max_expected_wait_ms), (1, 1, 1));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = Load { rate: 1.0, run_ms: 1.0, slots: None, wait_ms: 1.0 };
        for bad in [
            Load { rate: 0.0, ..good },
            Load { rate: f64::NAN, ..good },
            Load { run_ms: -1.0, ..good },
            Load { wait_ms: f64::INFINITY, ..good },
            Load { slots: Some(0), ..good },
            Load { rate: 1e300, ..good },
        ] {
            assert!(size(&bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn the_slots_needed_stay_below_the_target_and_the_queue_drains_within_the_wait(
            rate in 0.01f64..10_000.0, run_ms in 1.0f64..100_000.0, wait_ms in 1.0f64..100_000.0
        ) {
            let size = sized(rate, run_ms, None, wait_ms);
            prop_assert!(size.utilisation <= TARGET_UTILISATION + 1e-6);
            let drained_ms = f64::from(size.max_queued) / size.capacity * 1_000.0;
            prop_assert!(size.max_queued == 1 || drained_ms <= wait_ms * (1.0 + 1e-6));
        }
    }
}
