//! Who may take a slot: the cell's slots, the share of them that a class may take at most, and what is kept for the
//! classes above.

use crate::limits::Limits;
use crate::names::Class;

/// How the slots of a cell are divided at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCaps {
    /// Tasks that may be ADMITTED or RUNNING at once.
    pub total: i64,
    ceilings: [i64; 3],
    reserves: [i64; 3],
}

impl SlotCaps {
    /// The division where the live sessions have so many slots. A reserve rounds down; a largest share rounds down
    /// too, but is at least one slot.
    pub fn of(limits: &Limits, live_slots: i64) -> Self {
        let total = limits.max_running.map_or(live_slots.max(0), i64::from);
        let share = |share: f64| (share * total as f64 + 1e-9).floor() as i64;
        let ceilings = Class::ALL.map(|class| {
            let limits = limits.classes.get(class);
            let ceiling = share(limits.max_share).max(1);
            limits.max_running.map_or(ceiling, |most| ceiling.min(i64::from(most)))
        });
        let reserves = Class::ALL.map(|class| share(limits.classes.get(class).reserve));
        Self { total, ceilings, reserves }
    }

    /// Slots of a class at most.
    pub fn ceiling(&self, class: Class) -> i64 {
        self.ceilings[class as usize].min(self.total)
    }

    /// How many more tasks of a class may run where so many of each class do: what is free, without what is kept for
    /// the classes above, and not more than the class's own share.
    pub fn room(&self, running: &[i64; 3], class: Class) -> i64 {
        let at = class as usize;
        let kept: i64 = (0..at).map(|above| (self.reserves[above] - running[above]).max(0)).sum();
        let free = self.total - running.iter().sum::<i64>() - kept;
        free.min(self.ceilings[at] - running[at]).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_round_down_and_a_class_has_at_least_one_slot() {
        let caps = |slots| SlotCaps::of(&Limits::default(), slots);
        let empty = [0; 3];
        // critical 0.9 at most, 0.1 kept for it; background half at most.
        assert_eq!(Class::ALL.map(|class| caps(20).room(&empty, class)), [18, 18, 10]);
        assert_eq!(Class::ALL.map(|class| caps(9).room(&empty, class)), [8, 9, 4]);
        assert_eq!(Class::ALL.map(|class| caps(1).room(&empty, class)), [1, 1, 1]);
        assert_eq!(Class::ALL.map(|class| caps(0).room(&empty, class)), [0, 0, 0]);
        // A reserve that is in use keeps nothing more.
        assert_eq!(caps(20).room(&[2, 0, 0], Class::Standard), 18);
        assert_eq!(caps(20).room(&[2, 18, 0], Class::Standard), 0);
        assert_eq!(caps(20).room(&[0, 18, 0], Class::Critical), 2);
    }

    #[test]
    fn a_limit_takes_the_place_of_the_live_slots() {
        let limits = Limits { max_running: Some(4), ..Limits::default() };
        assert_eq!(SlotCaps::of(&limits, 100).room(&[0, 3, 0], Class::Standard), 1);
        assert_eq!(SlotCaps::of(&limits, 100).room(&[0, 9, 0], Class::Standard), 0);
    }

    proptest! {
        #[test]
        fn no_class_takes_what_is_kept_for_another(slots in 0i64..200, starts in proptest::collection::vec(0usize..3, 0..300)) {
            let caps = SlotCaps::of(&Limits::default(), slots);
            let mut running = [0; 3];
            for at in starts {
                if caps.room(&running, Class::ALL[at]) > 0 {
                    running[at] += 1;
                }
            }
            prop_assert!(running.iter().sum::<i64>() <= slots);
            prop_assert!(running[1] + running[2] <= slots - (slots / 10).min(slots));
            for class in Class::ALL {
                prop_assert!(running[class as usize] <= caps.ceiling(class));
            }
        }
    }
}
