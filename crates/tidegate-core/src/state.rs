//! The states of a task and the one table of its transitions.
//!
//! The database repeats the invariants of each state as CHECKs, and `docs/state-machine.md` draws them; a test holds
//! the three together.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// A slot is reserved for it.
    Admitted,
    /// Waiting for a slot.
    Queued,
    /// Not yet eligible: scheduled, backing off, its peer busy, or overload.
    Deferred,
    /// A worker holds a lease on it.
    Running,
    /// Its handler returned a result.
    Completed,
    /// It ended in an error.
    Failed,
    /// Its deadline, or its last attempt's time-out, hit while it ran.
    TimedOut,
    /// Cancelled by its caller, parent, workflow or token.
    Cancelled,
    /// Its deadline hit before it ran, or too little time was left to be useful.
    Expired,
    /// Of low priority, and refused or displaced under pressure.
    Shed,
    /// Refused as things were.
    Rejected,
}

/// What can happen to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// The door reserved a slot for it.
    Admit,
    /// The door, or a promotion, gave it a place in the queue.
    Queue,
    /// It has to wait until it is eligible.
    Defer,
    /// A worker took it.
    Claim,
    /// Its handler returned a result in time.
    Complete,
    /// It ended in an error.
    Fail,
    /// Its time ran out while it ran.
    TimeOut,
    /// It was cancelled.
    Cancel,
    /// Its time ran out before it ran.
    Expire,
    /// Pressure refused or displaced it.
    Shed,
    /// A limit, a hold or a full bulkhead refused it.
    Reject,
}

/// A transition that the table does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a task that is {from:?} cannot {event:?}")]
pub struct Illegal {
    /// Where it stood; nothing for a submission at the door.
    pub from: Option<Status>,
    /// What was asked.
    pub event: Event,
}

impl Event {
    /// Everything that can happen.
    pub const ALL: [Self; 11] = [
        Self::Admit,
        Self::Queue,
        Self::Defer,
        Self::Claim,
        Self::Complete,
        Self::Fail,
        Self::TimeOut,
        Self::Cancel,
        Self::Expire,
        Self::Shed,
        Self::Reject,
    ];
}

/// The one transition table: where a task that stood at `from` stands after `event`. `None` is a submission at the
/// door.
pub fn next_state(from: Option<Status>, event: Event) -> Result<Status, Illegal> {
    use Event as E;
    use Status as S;
    let to = match (from, event) {
        (None, E::Admit) => S::Admitted,
        (None | Some(S::Admitted | S::Deferred), E::Queue) => S::Queued,
        (None | Some(S::Admitted | S::Running), E::Defer) => S::Deferred,
        (Some(S::Admitted | S::Queued), E::Claim) => S::Running,
        (Some(S::Running), E::Complete) => S::Completed,
        (Some(S::Running), E::Fail) => S::Failed,
        (Some(S::Running), E::TimeOut) => S::TimedOut,
        (None | Some(S::Admitted | S::Queued | S::Deferred | S::Running), E::Cancel) => S::Cancelled,
        (None | Some(S::Admitted | S::Queued | S::Deferred), E::Expire) => S::Expired,
        (None | Some(S::Queued), E::Shed) => S::Shed,
        (None | Some(S::Admitted | S::Queued | S::Deferred), E::Reject) => S::Rejected,
        (from, event) => return Err(Illegal { from, event }),
    };
    Ok(to)
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 11] = [
        Self::Admitted,
        Self::Queued,
        Self::Deferred,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::TimedOut,
        Self::Cancelled,
        Self::Expired,
        Self::Shed,
        Self::Rejected,
    ];

    /// The name on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admitted => "ADMITTED",
            Self::Queued => "QUEUED",
            Self::Deferred => "DEFERRED",
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::TimedOut => "TIMED_OUT",
            Self::Cancelled => "CANCELLED",
            Self::Expired => "EXPIRED",
            Self::Shed => "SHED",
            Self::Rejected => "REJECTED",
        }
    }

    /// The status of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Whether the task stays like this for good.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Admitted | Self::Queued | Self::Deferred | Self::Running)
    }

    /// Whether the task waits for its turn.
    pub fn is_waiting(self) -> bool {
        matches!(self, Self::Admitted | Self::Queued | Self::Deferred)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_happens_to_a_task_that_has_ended() {
        for status in Status::ALL.into_iter().filter(|status| status.is_final()) {
            for event in Event::ALL {
                assert!(next_state(Some(status), event).is_err(), "{status} {event:?}");
            }
        }
    }

    #[test]
    fn every_status_can_be_reached_and_every_living_one_left() {
        for status in Status::ALL {
            let reached = std::iter::once(None).chain(Status::ALL.map(Some)).any(|from| {
                from != Some(status) && Event::ALL.iter().any(|event| next_state(from, *event) == Ok(status))
            });
            assert!(reached, "{status}");
            let left = Event::ALL.iter().any(|event| next_state(Some(status), *event).is_ok());
            assert_eq!(left, !status.is_final(), "{status}");
        }
    }

    #[test]
    fn only_a_claim_starts_a_task_and_only_a_running_one_has_an_outcome() {
        for from in std::iter::once(None).chain(Status::ALL.map(Some)) {
            for event in Event::ALL {
                let Ok(to) = next_state(from, event) else { continue };
                assert_eq!(to == Status::Running, event == Event::Claim);
                if matches!(to, Status::Completed | Status::Failed | Status::TimedOut) {
                    assert_eq!(from, Some(Status::Running));
                }
            }
        }
    }

    #[test]
    fn names_lead_back() {
        for status in Status::ALL {
            assert_eq!(Status::parse(status.as_str()), Some(status));
            assert_eq!(serde_json::to_value(status).ok(), Some(status.as_str().into()));
        }
    }
}
