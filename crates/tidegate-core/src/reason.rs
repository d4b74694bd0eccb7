//! The closed vocabulary of reasons beside a status. Each has a page in `docs/errors/`.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident $text:literal,)*) => {
        /// Why a task stands where it stands.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name on the wire and in the database.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    /// The cell's queue holds as many as it may.
    QueueFull "queue_full",
    /// The class's share of the queue is taken.
    ClassQueueLimit "class_queue_limit",
    /// The cell's or class's tokens are reserved.
    TokenBudget "token_budget",
    /// The cell's or class's bytes are held.
    ByteBudget "byte_budget",
    /// The cell's money is reserved.
    CostBudget "cost_budget",
    /// Too many callers wait at the door.
    WaitersFull "waiters_full",
    /// As many tasks are deferred as may be.
    DeferredFull "deferred_full",
    /// The peer's waiting room is full, or was for too long.
    BulkheadFull "bulkhead_full",
    /// The peer's breaker is open.
    PeerUnavailable "peer_unavailable",
    /// An operator paused this work.
    Paused "paused",
    /// This server is shutting down.
    Draining "draining",
    /// The database could not be reached.
    StoreUnavailable "store_unavailable",
    /// Nobody knows whether it was done.
    OutcomeUnknown "outcome_unknown",
    /// Of low priority while pressure is high.
    LowPriority "low_priority",
    /// The deadline passed.
    DeadlinePassed "deadline_passed",
    /// Too little time was left to be useful.
    DeadlineTooShort "deadline_too_short",
    /// The tenant has as many waiting as it may.
    TenantQueueLimit "tenant_queue_limit",
    /// The tenant submits faster than it may.
    TenantRate "tenant_rate",
    /// The tenant's tokens are reserved.
    TenantTokens "tenant_tokens",
    /// The tenant's bytes are held.
    TenantBytes "tenant_bytes",
    /// The tenant's money is reserved.
    TenantCost "tenant_cost",
    /// An operator paused this tenant.
    TenantPaused "tenant_paused",
    /// The input is in quarantine.
    Quarantined "quarantined",
    /// No hops are left in the delegation budget.
    DepthExhausted "depth_exhausted",
    /// No children are left in the delegation budget.
    FanoutExhausted "fanout_exhausted",
    /// The parent task is not running.
    ParentNotRunning "parent_not_running",
    /// The payload is larger than allowed.
    PayloadTooLarge "payload_too_large",
    /// The cancellation token was cancelled before.
    TokenCancelled "token_cancelled",
    /// Its time has not come.
    Scheduled "scheduled",
    /// Between two attempts.
    RetryBackoff "retry_backoff",
    /// Its peer has no room.
    PeerBusy "peer_busy",
    /// Its handler asked to be run again later.
    Snoozed "snoozed",
    /// Its worker handed it back while shutting down.
    HandedBack "handed_back",
    /// Its worker was lost.
    WorkerLost "worker_lost",
    /// No room as things were.
    Overload "overload",
    /// A more important task took its place.
    Displaced "displaced",
    /// An error that another try would not cure.
    PermanentError "permanent_error",
    /// The last attempt failed.
    AttemptsExhausted "attempts_exhausted",
    /// The last attempt ran out of its time.
    AttemptTimeout "attempt_timeout",
    /// The retry budget has no token.
    RetryBudget "retry_budget",
    /// No time is left for another attempt.
    RetryNoTime "retry_no_time",
    /// The remote task failed.
    RemoteFailed "remote_failed",
    /// The remote agent declined.
    RemoteRejected "remote_rejected",
    /// The remote agent wants input that nobody can give.
    InputRequired "input_required",
    /// The output did not match what was agreed, or was too large.
    OutputRejected "output_rejected",
    /// It used more than its estimate allows.
    CostOverrun "cost_overrun",
    /// Its caller asked for it.
    CancelRequested "cancel_requested",
    /// Its parent was cancelled.
    ParentCancelled "parent_cancelled",
    /// Its workflow was cancelled.
    WorkflowCancelled "workflow_cancelled",
}

impl Reason {
    /// The reason of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Reason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a reason"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_lead_back() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(*reason));
        }
    }
}
