//! How an attempt's end becomes the task's: DESIGN's "who ends what", as one function.

use crate::EpochMs;
use crate::backoff::{self, BackoffPolicy};
use crate::kind_policy::Effects;
use crate::names::Lane;
use crate::reason::Reason;
use crate::state::Status;

/// Losses after which the input is taken to be the cause.
pub const MAX_LOSSES: u16 = 3;

/// What is known of a running task, read with its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// Failures before this attempt.
    pub failures: u16,
    /// Losses before this attempt.
    pub losses: u16,
    /// Most failures before the task ends.
    pub max_attempts: u16,
    /// When it must have ended.
    pub deadline: EpochMs,
    /// When this attempt started.
    pub started: EpochMs,
    /// The least time left that makes a start useful.
    pub min_useful_ms: u64,
    /// The longest one attempt may take.
    pub attempt_timeout_ms: Option<u64>,
    /// What a repeated run may do to the world.
    pub effects: Effects,
    /// The reason a cancel was asked for, if it was.
    pub cancel: Option<Reason>,
    /// Whether the retry budget of its peer, or of its kind where it has none, has a token.
    pub may_retry: bool,
}

/// How an attempt ended, as the worker reports it or the reaper finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The handler returned a result.
    Completed,
    /// The handler failed.
    Failed {
        /// Whether another try may cure it.
        retryable: bool,
        /// The peer's own word on when.
        retry_after_ms: Option<u64>,
        /// Why, where it is known more closely than "failed".
        reason: Option<Reason>,
    },
    /// The attempt ran out of its own time.
    AttemptTimedOut,
    /// The worker stopped it for its deadline.
    DeadlineHit,
    /// It stopped because it was told to.
    Cancelled,
    /// The handler asks to be run again later.
    Snoozed {
        /// How much later.
        after_ms: u64,
    },
    /// The worker gives it back unfinished.
    HandedBack,
    /// The lease ended without a word.
    Lost,
}

/// What becomes of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// It ends.
    End {
        /// As what.
        status: Status,
        /// Why.
        reason: Option<Reason>,
    },
    /// It goes back to wait.
    Return {
        /// Why.
        reason: Reason,
        /// When it may run again.
        eligible: EpochMs,
        /// Where it waits then.
        lane: Lane,
        /// Failures counted, this one included.
        failures: u16,
        /// Losses counted, this one included.
        losses: u16,
    },
}

impl Ending {
    /// Whether another attempt is due unless something stands in its way, so that the retry budget is asked.
    pub fn asks_for_retry(self) -> bool {
        matches!(self, Self::Failed { retryable: true, .. } | Self::AttemptTimedOut)
    }
}

/// Decides. `random` is uniform in `0.0..1.0`.
pub fn settle(running: &Running, ending: Ending, backoff: BackoffPolicy, now: EpochMs, random: f64) -> Settlement {
    let end = |status, reason| Settlement::End { status, reason: Some(reason) };
    let late = now >= running.deadline;
    match ending {
        Ending::Completed if late => end(Status::TimedOut, Reason::DeadlinePassed),
        Ending::Completed => Settlement::End { status: Status::Completed, reason: None },
        Ending::Cancelled => end(Status::Cancelled, running.cancel.unwrap_or(Reason::CancelRequested)),
        // A cancel that was asked for is obeyed: whatever ended the attempt, it is not run again.
        _ if running.cancel.is_some() => end(Status::Cancelled, running.cancel.unwrap_or(Reason::CancelRequested)),
        Ending::DeadlineHit => end(Status::TimedOut, Reason::DeadlinePassed),
        _ if late => end(Status::TimedOut, Reason::DeadlinePassed),
        Ending::Failed { retryable: false, reason, .. } => {
            end(Status::Failed, reason.unwrap_or(Reason::PermanentError))
        }
        Ending::Failed { retry_after_ms, .. } => {
            let exhausted = end(Status::Failed, Reason::AttemptsExhausted);
            retry(running, backoff, retry_after_ms, now, random).unwrap_or(exhausted)
        }
        Ending::AttemptTimedOut => {
            let exhausted = end(Status::TimedOut, Reason::AttemptTimeout);
            retry(running, backoff, None, now, random).unwrap_or(exhausted)
        }
        Ending::Snoozed { after_ms } => {
            let eligible = now.saturating_add_unsigned(after_ms);
            if fits(running, eligible, running.min_useful_ms.max(1)) {
                back(running, Reason::Snoozed, eligible)
            } else {
                end(Status::Failed, Reason::RetryNoTime)
            }
        }
        Ending::HandedBack => back(running, Reason::HandedBack, now),
        Ending::Lost if running.effects == Effects::Once => end(Status::Failed, Reason::OutcomeUnknown),
        Ending::Lost if running.losses + 1 >= MAX_LOSSES => end(Status::Failed, Reason::Quarantined),
        Ending::Lost => {
            let losses = running.losses + 1;
            let lane = if losses + 1 >= MAX_LOSSES { Lane::Suspect } else { Lane::Returned };
            Settlement::Return { reason: Reason::WorkerLost, eligible: now, lane, failures: running.failures, losses }
        }
    }
}

/// Another attempt, or nothing where the failures are used up. Without the time for a whole attempt it ends here.
fn retry(
    running: &Running,
    policy: BackoffPolicy,
    retry_after_ms: Option<u64>,
    now: EpochMs,
    random: f64,
) -> Option<Settlement> {
    let failures = running.failures.saturating_add(1);
    if failures >= running.max_attempts {
        return None;
    }
    let delay_ms = backoff::delay_ms(policy, u32::from(failures), retry_after_ms, random);
    let eligible = now.saturating_add_unsigned(delay_ms);
    // How long a whole attempt takes: what it is allowed, else what the last one took.
    let took = u64::try_from(now.saturating_sub(running.started)).unwrap_or(0);
    let attempt_ms = running.attempt_timeout_ms.unwrap_or(took).max(running.min_useful_ms).max(1);
    if !fits(running, eligible, attempt_ms) {
        return Some(Settlement::End { status: Status::Failed, reason: Some(Reason::RetryNoTime) });
    }
    if !running.may_retry {
        return Some(Settlement::End { status: Status::Failed, reason: Some(Reason::RetryBudget) });
    }
    let Settlement::Return { reason, eligible, lane, losses, .. } = back(running, Reason::RetryBackoff, eligible)
    else {
        return None;
    };
    Some(Settlement::Return { reason, eligible, lane, failures, losses })
}

fn back(running: &Running, reason: Reason, eligible: EpochMs) -> Settlement {
    let lane = if running.losses + 1 >= MAX_LOSSES { Lane::Suspect } else { Lane::Returned };
    Settlement::Return { reason, eligible, lane, failures: running.failures, losses: running.losses }
}

fn fits(running: &Running, eligible: EpochMs, needed_ms: u64) -> bool {
    running.deadline.saturating_sub(eligible) >= i64::try_from(needed_ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: EpochMs = 1_000_000;
    const BACKOFF: BackoffPolicy = BackoffPolicy { base_ms: 1_000, max_ms: 10_000 };

    fn running() -> Running {
        Running {
            failures: 0,
            losses: 0,
            max_attempts: 3,
            deadline: NOW + 60_000,
            started: NOW - 500,
            min_useful_ms: 0,
            attempt_timeout_ms: None,
            effects: Effects::Idempotent,
            cancel: None,
            may_retry: true,
        }
    }

    fn failed(retryable: bool) -> Ending {
        Ending::Failed { retryable, retry_after_ms: None, reason: None }
    }

    fn at(running: Running, ending: Ending) -> Settlement {
        settle(&running, ending, BACKOFF, NOW, 0.5)
    }

    fn end(status: Status, reason: Reason) -> Settlement {
        Settlement::End { status, reason: Some(reason) }
    }

    #[test]
    fn who_ends_what() {
        let late = Running { deadline: NOW, ..running() };
        let cancelled = Running { cancel: Some(Reason::WorkflowCancelled), ..running() };
        let last = Running { failures: 2, ..running() };
        let twice_lost = Running { losses: 2, ..running() };
        let once = Running { effects: Effects::Once, ..running() };
        let spent = Running { may_retry: false, ..running() };
        for (running, ending, expected) in [
            (running(), Ending::Completed, Settlement::End { status: Status::Completed, reason: None }),
            (cancelled, Ending::Completed, Settlement::End { status: Status::Completed, reason: None }),
            (late, Ending::Completed, end(Status::TimedOut, Reason::DeadlinePassed)),
            (late, failed(true), end(Status::TimedOut, Reason::DeadlinePassed)),
            (late, Ending::HandedBack, end(Status::TimedOut, Reason::DeadlinePassed)),
            (late, Ending::Lost, end(Status::TimedOut, Reason::DeadlinePassed)),
            (running(), Ending::DeadlineHit, end(Status::TimedOut, Reason::DeadlinePassed)),
            (running(), failed(false), end(Status::Failed, Reason::PermanentError)),
            (last, failed(true), end(Status::Failed, Reason::AttemptsExhausted)),
            (last, Ending::AttemptTimedOut, end(Status::TimedOut, Reason::AttemptTimeout)),
            (spent, failed(true), end(Status::Failed, Reason::RetryBudget)),
            (spent, Ending::AttemptTimedOut, end(Status::Failed, Reason::RetryBudget)),
            (Running { failures: 2, ..spent }, failed(true), end(Status::Failed, Reason::AttemptsExhausted)),
            (running(), Ending::Cancelled, end(Status::Cancelled, Reason::CancelRequested)),
            (cancelled, Ending::Cancelled, end(Status::Cancelled, Reason::WorkflowCancelled)),
            (cancelled, failed(true), end(Status::Cancelled, Reason::WorkflowCancelled)),
            (cancelled, Ending::Lost, end(Status::Cancelled, Reason::WorkflowCancelled)),
            (cancelled, Ending::HandedBack, end(Status::Cancelled, Reason::WorkflowCancelled)),
            (twice_lost, Ending::Lost, end(Status::Failed, Reason::Quarantined)),
            (once, Ending::Lost, end(Status::Failed, Reason::OutcomeUnknown)),
        ] {
            assert_eq!(at(running, ending), expected, "{running:?} {ending:?}");
        }
    }

    #[test]
    fn what_comes_back_keeps_count_of_failures_and_losses_apart() {
        let returned =
            |reason, eligible, failures, losses, lane| Settlement::Return { reason, eligible, lane, failures, losses };
        assert_eq!(at(running(), failed(true)), returned(Reason::RetryBackoff, NOW + 500, 1, 0, Lane::Returned));
        assert_eq!(
            at(running(), Ending::Snoozed { after_ms: 70 }),
            returned(Reason::Snoozed, NOW + 70, 0, 0, Lane::Returned)
        );
        assert_eq!(at(running(), Ending::HandedBack), returned(Reason::HandedBack, NOW, 0, 0, Lane::Returned));
        assert_eq!(at(running(), Ending::Lost), returned(Reason::WorkerLost, NOW, 0, 1, Lane::Returned));
        let once_lost = Running { losses: 1, ..running() };
        assert_eq!(at(once_lost, Ending::Lost), returned(Reason::WorkerLost, NOW, 0, 2, Lane::Suspect));
        let suspect = Running { losses: 2, ..running() };
        assert_eq!(at(suspect, Ending::HandedBack), returned(Reason::HandedBack, NOW, 0, 2, Lane::Suspect));
    }

    #[test]
    fn a_retry_needs_time_for_a_whole_attempt() {
        let short = Running { deadline: NOW + 900, ..running() };
        assert_eq!(at(short, failed(true)), end(Status::Failed, Reason::RetryNoTime));
        let allowed = Running { deadline: NOW + 5_000, attempt_timeout_ms: Some(4_600), ..running() };
        assert_eq!(at(allowed, failed(true)), end(Status::Failed, Reason::RetryNoTime));
        let told = Ending::Failed { retryable: true, retry_after_ms: Some(60_000), reason: None };
        assert_eq!(at(running(), told), end(Status::Failed, Reason::RetryNoTime));
        assert_eq!(at(short, Ending::Snoozed { after_ms: 900 }), end(Status::Failed, Reason::RetryNoTime));
    }

    fn endings() -> impl Strategy<Value = Ending> {
        prop_oneof![
            Just(Ending::Completed),
            (any::<bool>(), proptest::option::of(0u64..100_000))
                .prop_map(|(retryable, retry_after_ms)| Ending::Failed { retryable, retry_after_ms, reason: None }),
            Just(Ending::AttemptTimedOut),
            Just(Ending::DeadlineHit),
            Just(Ending::Cancelled),
            (0u64..100_000).prop_map(|after_ms| Ending::Snoozed { after_ms }),
            Just(Ending::HandedBack),
            Just(Ending::Lost),
        ]
    }

    proptest! {
        #[test]
        fn a_task_comes_back_only_uncancelled_in_time_and_within_its_counts(ending in endings(), failures in 0u16..5, losses in 0u16..3, max_attempts in 1u16..5, left in -100i64..100_000, cancel in any::<bool>(), random in 0.0f64..1.0) {
            let cancel = cancel.then_some(Reason::CancelRequested);
            let running = Running { failures, losses, max_attempts, deadline: NOW + left, cancel, ..running() };
            match settle(&running, ending, BACKOFF, NOW, random) {
                Settlement::Return { eligible, failures: f, losses: l, .. } => {
                    prop_assert!(cancel.is_none() && left > 0 && eligible >= NOW && eligible < NOW + left);
                    prop_assert!(f - failures + l - losses <= 1 && l < MAX_LOSSES);
                    prop_assert!(f == failures || f < max_attempts);
                }
                Settlement::End { status, reason } => {
                    prop_assert!(matches!(status, Status::Completed | Status::Failed | Status::TimedOut | Status::Cancelled));
                    prop_assert_eq!(status == Status::Completed, reason.is_none());
                }
            }
        }
    }
}
