//! What a caller sends, once every value in it has been checked.

use crate::EpochMs;
use crate::budget::{DEFAULT_DEPTH, DEFAULT_FANOUT};
use crate::id::TaskId;
use crate::limits::Limits;
use crate::names::{Kind, PeerName, Priority, TenantId};

/// A submission: it becomes a task whatever the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// The id that the task will have.
    pub id: TaskId,
    /// Who pays.
    pub tenant: TenantId,
    /// What sort of work.
    pub kind: Kind,
    /// The input, as JSON text, kept byte for byte.
    pub payload: String,
    /// How much it matters.
    pub priority: Priority,
    /// When it may start and must have ended.
    pub timing: Timing,
    /// The least time left that makes a start useful, in milliseconds.
    pub min_useful_ms: u64,
    /// The downstream dependency it calls.
    pub peer: Option<PeerName>,
    /// Most failures before it ends FAILED.
    pub max_attempts: u16,
    /// The longest one attempt may take, in milliseconds.
    pub attempt_timeout_ms: Option<u64>,
    /// What the caller thinks it will use.
    pub cost: Cost,
    /// What to do where there is no room.
    pub on_full: OnFull,
    /// The group of tasks that can be cancelled together.
    pub cancellation_token: Option<String>,
    /// The workflow it belongs to.
    pub workflow_id: Option<String>,
    /// The task that started it.
    pub parent_id: Option<TaskId>,
    /// Labels, as a JSON object of strings.
    pub labels: Option<String>,
    /// Why its priority is what it is.
    pub priority_notes: Vec<String>,
    /// The W3C trace context it came with.
    pub traceparent: Option<String>,
    /// Hops it may still delegate.
    pub depth: u32,
    /// Children it may still start.
    pub fanout: u32,
    /// The caller's key for this submission, and what it sent under it.
    pub idempotency: Option<Idempotency>,
}

/// A caller's key and the hash of the body it came with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// 1 to 255 visible characters.
    pub key: String,
    /// SHA-256 of the canonical body.
    pub body_sha256: [u8; 32],
}

/// What a caller agrees to where there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFull {
    /// To be refused at once.
    #[default]
    Reject,
    /// To wait at the door so long at most, and not more than a quarter of the time left.
    Wait {
        /// In milliseconds.
        max_wait_ms: u64,
    },
    /// To be accepted now and to wait among the deferred.
    Defer,
}

/// Tokens and money, estimated or used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Model tokens.
    pub tokens: u64,
    /// Millionths of a dollar.
    pub usd_micros: u64,
}

/// When a task may start and must have ended, as the caller said it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timing {
    /// When it may start.
    pub start: Start,
    /// From arrival, or from the start where that is later, to the end.
    pub timeout_ms: Option<u64>,
    /// The end by an absolute clock; of several, the smallest.
    pub deadline: Option<EpochMs>,
    /// From arrival to the end, by a delegation budget.
    pub remaining_ms: Option<u64>,
}

/// When a task may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// On arrival.
    #[default]
    Now,
    /// So many milliseconds after arrival.
    After(u64),
    /// At an instant.
    At(EpochMs),
}

/// The instants that a timing comes to, by one clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// When the submission arrived.
    pub arrived: EpochMs,
    /// When it may start, where that is after its arrival.
    pub not_before: Option<EpochMs>,
    /// When it must have ended.
    pub deadline: EpochMs,
}

impl Timing {
    /// The instants for a submission that is decided at `now` and arrived `waited_ms` before. Of several ends the
    /// smallest wins, none is further away than `max_timeout_ms`.
    pub fn resolve(&self, limits: &Limits, now: EpochMs, waited_ms: u64) -> Times {
        let arrived = now.saturating_sub_unsigned(waited_ms);
        let start = match self.start {
            Start::Now => arrived,
            Start::After(delay_ms) => arrived.saturating_add_unsigned(delay_ms),
            Start::At(at) => at.max(arrived),
        };
        let longest = start.saturating_add_unsigned(limits.max_timeout_ms);
        let relative = match (self.timeout_ms, self.deadline, self.remaining_ms) {
            (None, None, None) => Some(limits.default_timeout_ms),
            (timeout_ms, _, _) => timeout_ms,
        };
        let ends = [
            relative.map(|timeout_ms| start.saturating_add_unsigned(timeout_ms)),
            self.deadline,
            self.remaining_ms.map(|remaining_ms| arrived.saturating_add_unsigned(remaining_ms)),
        ];
        let deadline = ends.into_iter().flatten().fold(longest, EpochMs::min);
        Times { arrived, not_before: (start > now).then_some(start), deadline }
    }
}

impl Submission {
    /// A submission of a kind with nothing else said.
    pub fn new(id: TaskId, tenant: TenantId, kind: Kind, payload: String) -> Self {
        Self {
            id,
            tenant,
            kind,
            payload,
            priority: Priority::DEFAULT,
            timing: Timing::default(),
            min_useful_ms: 0,
            peer: None,
            max_attempts: 3,
            attempt_timeout_ms: None,
            cost: Cost::default(),
            on_full: OnFull::Reject,
            cancellation_token: None,
            workflow_id: None,
            parent_id: None,
            labels: None,
            priority_notes: Vec::new(),
            traceparent: None,
            depth: DEFAULT_DEPTH,
            fanout: DEFAULT_FANOUT,
            idempotency: None,
        }
    }

    /// The same without its payload, which may be large and is not copied.
    pub fn without_payload(&self) -> Self {
        Self {
            id: self.id,
            tenant: self.tenant.clone(),
            kind: self.kind.clone(),
            payload: String::new(),
            priority: self.priority,
            timing: self.timing,
            min_useful_ms: self.min_useful_ms,
            peer: self.peer.clone(),
            max_attempts: self.max_attempts,
            attempt_timeout_ms: self.attempt_timeout_ms,
            cost: self.cost,
            on_full: self.on_full,
            cancellation_token: self.cancellation_token.clone(),
            workflow_id: self.workflow_id.clone(),
            parent_id: self.parent_id,
            labels: self.labels.clone(),
            priority_notes: self.priority_notes.clone(),
            traceparent: self.traceparent.clone(),
            depth: self.depth,
            fanout: self.fanout,
            idempotency: self.idempotency.clone(),
        }
    }

    /// The bytes of payload that count against the bounds.
    pub fn bytes(&self) -> u64 {
        self.payload.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: EpochMs = 1_790_000_000_000;

    fn resolve(timing: Timing) -> Times {
        timing.resolve(&Limits::default(), NOW, 100)
    }

    #[test]
    fn a_task_that_names_no_end_gets_the_default_from_its_arrival() {
        let times = resolve(Timing::default());
        assert_eq!(times, Times { arrived: NOW - 100, not_before: None, deadline: NOW - 100 + 300_000 });
    }

    #[test]
    fn of_several_ends_the_smallest_wins() {
        let timing = Timing {
            timeout_ms: Some(10_000),
            deadline: Some(NOW + 5_000),
            remaining_ms: Some(20_000),
            ..Timing::default()
        };
        assert_eq!(resolve(timing).deadline, NOW + 5_000);
        let timing = Timing {
            timeout_ms: Some(10_000),
            deadline: Some(NOW + 50_000),
            remaining_ms: Some(2_000),
            ..Timing::default()
        };
        assert_eq!(resolve(timing).deadline, NOW - 100 + 2_000);
    }

    #[test]
    fn a_time_out_counts_from_the_start_but_a_budget_from_arrival() {
        let timing = Timing { start: Start::After(60_000), timeout_ms: Some(1_000), ..Timing::default() };
        let times = resolve(timing);
        assert_eq!((times.not_before, times.deadline), (Some(NOW + 59_900), NOW + 60_900));
        let timing = Timing { start: Start::After(60_000), remaining_ms: Some(1_000), ..Timing::default() };
        assert_eq!(resolve(timing).deadline, NOW + 900);
    }

    #[test]
    fn a_start_in_the_past_is_now_and_an_end_far_away_is_capped() {
        let timing = Timing { start: Start::At(NOW - 5_000), deadline: Some(EpochMs::MAX), ..Timing::default() };
        let times = resolve(timing);
        assert_eq!((times.not_before, times.deadline), (None, NOW - 100 + 86_400_000));
    }

    #[test]
    fn a_delay_that_ended_while_waiting_at_the_door_is_over() {
        let timing = Timing { start: Start::After(50), ..Timing::default() };
        assert_eq!(resolve(timing).not_before, None);
    }
}
