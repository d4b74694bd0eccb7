//! The door: what becomes of a submission, decided over facts that were read under the lock.

use crate::EpochMs;
use crate::limits::Limits;
use crate::names::Class;
use crate::order;
use crate::reason::Reason;
use crate::state::Status;
use crate::submission::{Submission, Times};

/// What the cell holds at the moment of the decision. All of it was read inside the transaction that locked it, and
/// [`Room::take`] keeps it true from one submission of a batch to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// Tasks that are QUEUED.
    pub queued: i64,
    /// Tasks that are ADMITTED or RUNNING.
    pub running: i64,
    /// Tasks that are DEFERRED.
    pub deferred: i64,
    /// DEFERRED tasks whose time has come: they go before newcomers.
    pub due_deferred: i64,
    /// Bytes of payload that tasks hold which have not ended.
    pub bytes: i64,
}

/// What becomes of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Where the task stands now.
    pub status: Status,
    /// Why, where it is not simply waiting its turn.
    pub reason: Option<Reason>,
    /// Its class.
    pub class: Class,
    /// Its sort key.
    pub rank: i64,
    /// Its instants.
    pub times: Times,
    /// When this was decided.
    pub decided: EpochMs,
}

impl Room {
    /// Counts what a decision takes.
    pub fn take(&mut self, decision: &Decision, bytes: u64) {
        match decision.status {
            Status::Queued => self.queued += 1,
            Status::Admitted => self.running += 1,
            Status::Deferred => self.deferred += 1,
            _ => return,
        }
        self.bytes = self.bytes.saturating_add_unsigned(bytes);
    }

    /// Whether a deferred task whose time has come may go to the queue.
    pub fn may_promote(&self, limits: &Limits) -> bool {
        let in_flight = limits.max_in_flight.is_none_or(|limit| self.queued + self.running < i64::from(limit));
        in_flight && self.queued < i64::from(limits.max_queued)
    }

    /// How full the queue is, from 0 to 1.
    pub fn pressure(&self, limits: &Limits) -> f64 {
        let share = |used: i64, limit: u64| if limit == 0 { 1.0 } else { used.max(0) as f64 / limit as f64 };
        share(self.queued, u64::from(limits.max_queued)).max(share(self.bytes, limits.max_bytes)).min(1.0)
    }
}

/// Decides. The order of the questions is part of the contract: a deadline that passed is answered before a lack of
/// room.
pub fn decide(limits: &Limits, room: &Room, submission: &Submission, now: EpochMs, waited_ms: u64) -> Decision {
    let times = submission.timing.resolve(limits, now, waited_ms);
    let class = limits.class_of(submission.priority);
    let rank = order::rank(times.not_before.unwrap_or(times.arrived), submission.priority, limits.ageing_step_ms);
    let (status, reason) = place(limits, room, submission, &times, now);
    Decision { status, reason, class, rank, times, decided: now }
}

fn place(
    limits: &Limits,
    room: &Room,
    submission: &Submission,
    times: &Times,
    now: EpochMs,
) -> (Status, Option<Reason>) {
    if times.deadline <= now {
        return (Status::Expired, Some(Reason::DeadlinePassed));
    }
    let start = times.not_before.unwrap_or(now);
    if times.deadline.saturating_sub(start) < submission.min_useful_ms.max(1) as i64 {
        return (Status::Expired, Some(Reason::DeadlineTooShort));
    }
    let fits = |used: i64, more: u64, limit: u64| {
        used.max(0).saturating_add_unsigned(more) <= i64::try_from(limit).unwrap_or(i64::MAX)
    };
    if !fits(room.bytes, submission.bytes(), limits.max_bytes) {
        return (Status::Rejected, Some(Reason::ByteBudget));
    }
    if times.not_before.is_some() {
        return if fits(room.deferred, 1, u64::from(limits.max_deferred)) {
            (Status::Deferred, Some(Reason::Scheduled))
        } else {
            (Status::Rejected, Some(Reason::DeferredFull))
        };
    }
    let in_flight = limits
        .max_in_flight
        .is_none_or(|limit| fits(room.queued + room.running + room.due_deferred, 1, u64::from(limit)));
    if in_flight && fits(room.queued + room.due_deferred, 1, u64::from(limits.max_queued)) {
        (Status::Queued, None)
    } else {
        (Status::Rejected, Some(Reason::QueueFull))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::TaskId;
    use crate::names::{Kind, TenantId};
    use crate::submission::{Start, Timing};
    use proptest::prelude::*;

    const NOW: EpochMs = 1_790_000_000_000;

    fn submission(timing: Timing) -> Submission {
        let kind = Kind::parse("echo").unwrap_or_else(|_| unreachable!());
        let mut submission =
            Submission::new(TaskId::new(NOW, [0; 10], 0), TenantId::default_tenant(), kind, "null".into());
        submission.timing = timing;
        submission
    }

    fn outcome(room: Room, submission: &Submission) -> (Status, Option<Reason>) {
        let limits = Limits { max_queued: 2, max_deferred: 1, max_bytes: 100, ..Limits::default() };
        let decision = decide(&limits, &room, submission, NOW, 0);
        (decision.status, decision.reason)
    }

    #[test]
    fn the_questions_are_asked_in_order() {
        let now = |room| outcome(room, &submission(Timing::default()));
        let later = Timing { start: Start::After(10), ..Timing::default() };
        let past = Timing { deadline: Some(NOW), ..Timing::default() };
        let empty = Room::default();
        let full = Room { queued: 2, ..empty };
        assert_eq!(now(empty), (Status::Queued, None));
        assert_eq!(now(full), (Status::Rejected, Some(Reason::QueueFull)));
        assert_eq!(now(Room { queued: 1, due_deferred: 1, ..empty }), (Status::Rejected, Some(Reason::QueueFull)));
        assert_eq!(now(Room { bytes: 97, ..empty }), (Status::Rejected, Some(Reason::ByteBudget)));
        assert_eq!(outcome(full, &submission(past)), (Status::Expired, Some(Reason::DeadlinePassed)));
        assert_eq!(outcome(full, &submission(later)), (Status::Deferred, Some(Reason::Scheduled)));
        let crowded = Room { deferred: 1, ..empty };
        assert_eq!(outcome(crowded, &submission(later)), (Status::Rejected, Some(Reason::DeferredFull)));
        let mut picky = submission(Timing { timeout_ms: Some(100), ..Timing::default() });
        picky.min_useful_ms = 101;
        assert_eq!(outcome(empty, &picky), (Status::Expired, Some(Reason::DeadlineTooShort)));
    }

    proptest! {
        #[test]
        fn no_bound_is_ever_exceeded(arrivals in proptest::collection::vec((0u8..=100, 0u64..50, any::<bool>()), 0..60), max_queued in 0u32..20, max_deferred in 0u32..10, max_bytes in 0u64..600) {
            let limits = Limits { max_queued, max_deferred, max_bytes, ..Limits::default() };
            let mut room = Room::default();
            for (priority, size, delayed) in arrivals {
                let start = if delayed { Start::After(5) } else { Start::Now };
                let mut submission = submission(Timing { start, ..Timing::default() });
                submission.priority = Priority::new(i64::from(priority)).unwrap_or(Priority::DEFAULT);
                submission.payload = "1".repeat(size as usize);
                let before = room;
                let decision = decide(&limits, &room, &submission, NOW, 0);
                room.take(&decision, submission.bytes());
                prop_assert!(room.queued <= i64::from(max_queued) && room.deferred <= i64::from(max_deferred));
                prop_assert!(room.bytes <= max_bytes as i64);
                if decision.status.is_final() {
                    prop_assert_eq!(before, room);
                }
                prop_assert_eq!(decision, decide(&limits, &before, &submission, NOW, 0));
            }
        }
    }

    use crate::names::Priority;
}
