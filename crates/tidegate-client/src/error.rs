//! What can go wrong, one variant for each thing that a caller does differently.

use std::time::Duration;

use tidegate_core::{Status, TaskId};

use crate::Problem;

/// Why a call gave no value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No connection could be made: nothing was sent, so trying again is safe.
    #[error("cannot reach {host}: {cause}")]
    Unreachable {
        /// The server's host and port.
        host: String,
        /// What happened.
        cause: String,
    },
    /// The request was sent and no (whole) answer came: it may or may not have been done. A submission with an
    /// idempotency key can be repeated.
    #[error("no answer from {host}: {cause}")]
    NoAnswer {
        /// The server's host and port.
        host: String,
        /// What happened.
        cause: String,
    },
    /// Admission said no, or the server is too busy even for a look. Nothing was accepted.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The server lost its database while it accepted the task, so nobody knows. Read the task, or repeat the
    /// submission with its idempotency key.
    #[error("the outcome is unknown: {detail}")]
    OutcomeUnknown {
        /// The task that may exist.
        task_id: Option<TaskId>,
        /// What the server says about it.
        detail: String,
    },
    /// The request was wrong, or there is no such thing, or it may not be done.
    #[error("{}", describe(.0))]
    Problem(Box<Problem>),
    /// Whoever answered does not speak this protocol; perhaps a proxy, or another program on the port.
    #[error("an answer of another sort (HTTP {status}): {excerpt}")]
    Unexpected {
        /// The HTTP status.
        status: u16,
        /// The beginning of the body, or what is wrong with it.
        excerpt: String,
    },
    /// The answer was larger than the client was built to take.
    #[error("the answer is larger than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The call cannot be sent as it is.
    #[error("{0}")]
    Invalid(String),
}

/// A no, and what the server said about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    pub(crate) problem: Problem,
    pub(crate) retry_after: Option<Duration>,
}

impl Refusal {
    /// The HTTP status: 503 says that the system is busy, 429 that the caller is over its share.
    pub fn status(&self) -> u16 {
        self.problem.status
    }

    /// Why, from the closed vocabulary, as in `queue_full`.
    pub fn reason(&self) -> &str {
        &self.problem.reason
    }

    /// How the task ended that records the refusal.
    pub fn outcome(&self) -> Option<Status> {
        self.problem.outcome
    }

    /// The task that records the refusal; it can be read.
    pub fn task_id(&self) -> Option<TaskId> {
        self.problem.task_id
    }

    /// When a later try can work, from now, with the server's jitter in it; `None` where it cannot.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// All that the server said.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.outcome() {
            Some(outcome) => write!(f, "refused ({outcome} {}): {}", self.reason(), self.problem.detail)?,
            None => write!(f, "refused ({}): {}", self.reason(), self.problem.detail)?,
        }
        match self.retry_after {
            Some(after) => write!(f, "; a try in {:.1} s can work", after.as_secs_f64()),
            None => Ok(()),
        }
    }
}

fn describe(problem: &Problem) -> String {
    let place = [("", &problem.pointer), ("header ", &problem.header), ("parameter ", &problem.parameter)]
        .into_iter()
        .find_map(|(what, place)| place.as_ref().map(|place| format!(" at {what}{place}")))
        .unwrap_or_default();
    format!("{} (HTTP {}, {}){place}: {}", problem.title, problem.status, problem.reason, problem.detail)
}
