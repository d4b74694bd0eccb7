//! Whether a refused caller should come again, by the limits that refused it.

use super::capacity::{Ask, within};
use super::{PAUSED_RETRY_MS, UNKNOWN_RETRY_MS};
use crate::bucket::Bucket;
use crate::policy::Policy;
use crate::reason::Reason;

/// What a later try can come to. The worst of several limits counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Chance {
    /// There will be room when what holds it now is done.
    Room,
    /// The limit is 0: nothing passes until an operator raises it, as with a pause.
    Closed,
    /// The task alone is larger than a limit above 0.
    Never,
}

impl Chance {
    /// What one limit lets hope for, if `more` is asked for.
    pub(super) fn of(more: i64, limit: Option<u64>) -> Self {
        match limit {
            limit if within(0, more, limit) => Self::Room,
            Some(0) => Self::Closed,
            _ => Self::Never,
        }
    }

    /// What a bucket lets hope for, if `amount` is drawn.
    pub(super) fn of_bucket(bucket: &Bucket, amount: u64) -> Self {
        let burst = Self::of(i64::try_from(amount).unwrap_or(i64::MAX), Some(bucket.burst()));
        // However little is drawn, nothing flows in.
        let rate = if bucket.per_minute() == 0 { Self::Closed } else { Self::Room };
        burst.max(rate)
    }

    /// What the bounds of cell and class behind a refusal let hope for.
    pub(super) fn behind(policy: &Policy, ask: &Ask<'_>, reason: Reason) -> Self {
        let (limits, class, load) = (&policy.limits, policy.limits.classes.get(ask.class), &ask.load);
        let room = Self::Room;
        let (one, other) = match reason {
            Reason::TokenBudget => (Self::of(load.tokens, limits.max_tokens), Self::of(load.tokens, class.max_tokens)),
            Reason::CostBudget => (Self::of(load.usd_micros, limits.max_usd_micros), room),
            Reason::ByteBudget => (Self::of(load.bytes, Some(limits.max_bytes)), Self::of(load.bytes, class.max_bytes)),
            Reason::QueueFull => {
                (Self::of(1, Some(limits.max_queued.into())), Self::of(1, limits.max_in_flight.map(u64::from)))
            }
            Reason::ClassQueueLimit => (Self::of(1, class.max_queued.map(u64::from)), room),
            Reason::DeferredFull => (Self::of(1, Some(limits.max_deferred.into())), room),
            _ => (room, room),
        };
        one.max(other)
    }

    /// When to come again, in milliseconds; `room` where there will be room. None where that cannot help.
    pub(super) fn retry_ms(self, room: Option<u64>) -> Option<u64> {
        match self {
            Self::Room => Some(room.unwrap_or(UNKNOWN_RETRY_MS)),
            Self::Closed => Some(PAUSED_RETRY_MS),
            Self::Never => None,
        }
    }
}
