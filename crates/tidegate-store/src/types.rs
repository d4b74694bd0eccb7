//! What goes into the store and comes out of it.

use std::collections::HashMap;
use std::time::Duration;

use tidegate_core::admission::Decision;
use tidegate_core::backoff::BackoffPolicy;
use tidegate_core::kind_policy::Effects;
use tidegate_core::settlement::Ending;
use tidegate_core::submission::Cost;
use tidegate_core::{Class, EpochMs, Fence, Kind, PeerName, Reason, Status, TaskId, TenantId};
use uuid::Uuid;

/// The answer of the door to one submission.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "nearly every answer is of the large sort")]
pub enum Admission {
    /// It was decided now.
    Decided {
        /// The task's id.
        id: TaskId,
        /// What became of it.
        decision: Decision,
    },
    /// The same key came with the same body before: this is the task it made.
    Replayed {
        /// The first answer's task.
        id: TaskId,
    },
    /// The same key came with another body before.
    KeyReused {
        /// The task that the key belongs to.
        id: TaskId,
    },
}

/// What a cancel did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It waited, and is CANCELLED now.
    Cancelled,
    /// It runs, and its worker is being told.
    Requested,
    /// It was CANCELLED before.
    AlreadyCancelled,
    /// It had ended otherwise before.
    Ended,
    /// The tenant has no such task.
    Unknown,
}

/// A task, with where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRecord {
    /// Its id.
    pub id: TaskId,
    /// Who pays.
    pub tenant: TenantId,
    /// What sort of work.
    pub kind: Kind,
    /// The dependency it calls.
    pub peer: Option<PeerName>,
    /// Its class.
    pub class: Class,
    /// Its priority.
    pub priority: u8,
    /// Why its priority is what it is.
    pub priority_notes: Vec<String>,
    /// Where it stands.
    pub status: Status,
    /// Why.
    pub reason: Option<Reason>,
    /// Free text about it.
    pub detail: Option<String>,
    /// What an orchestrating model should read.
    pub note: Option<String>,
    /// When it arrived.
    pub enqueued_ms: EpochMs,
    /// When it may start (again), while that is not yet.
    pub not_before_ms: Option<EpochMs>,
    /// Its place in the queue, from 1, where it is QUEUED and read alone; none beyond a thousand.
    pub queue_position: Option<u32>,
    /// When its latest attempt started.
    pub started_ms: Option<EpochMs>,
    /// When it ended.
    pub finished_ms: Option<EpochMs>,
    /// When it must have ended.
    pub deadline_ms: EpochMs,
    /// The database's clock when this was read.
    pub now_ms: EpochMs,
    /// How long it waited at the door.
    pub admission_wait_ms: i64,
    /// The number of its latest attempt; 0 before the first.
    pub attempt: u32,
    /// Most failures before it ends FAILED.
    pub max_attempts: u32,
    /// How often it was started.
    pub deliveries: u32,
    /// The fence of its latest start.
    pub fence: Fence,
    /// The longest one attempt may take.
    pub attempt_timeout_ms: Option<i64>,
    /// The least time left that makes a start useful.
    pub min_useful_ms: i64,
    /// When a cancel was asked for, delivered to the worker, and acknowledged by it.
    pub cancel_requested_ms: Option<EpochMs>,
    /// See above.
    pub cancel_delivered_ms: Option<EpochMs>,
    /// See above.
    pub cancel_acknowledged_ms: Option<EpochMs>,
    /// What the caller thought it would use.
    pub estimated: Cost,
    /// What it used.
    pub actual: Option<Cost>,
    /// Who runs or last ran it.
    pub worker: Option<String>,
    /// What its handler last said of its progress, as JSON text.
    pub progress: Option<String>,
    /// The input, as JSON text; none for a refused submission.
    pub payload: Option<String>,
    /// The result, as JSON text.
    pub result: Option<String>,
    /// The error that ended its latest attempt.
    pub error: Option<TaskError>,
    /// Labels, as a JSON object of strings.
    pub labels: Option<String>,
    /// Its workflow.
    pub workflow_id: Option<String>,
    /// The task that started it.
    pub parent_id: Option<TaskId>,
    /// The tasks it started, oldest first, at most 100.
    pub children: Vec<TaskId>,
    /// The group it can be cancelled with.
    pub cancellation_token: Option<String>,
    /// The key it was submitted with.
    pub idempotency_key: Option<String>,
    /// The dead letter it was redriven from.
    pub redriven_from: Option<TaskId>,
}

impl TaskRecord {
    /// What is the same of all submissions that were refused at the door: nothing became of them.
    pub(crate) fn refused(id: TaskId, tenant: TenantId, kind: Kind, status: Status, decided: EpochMs) -> Self {
        Self {
            id,
            tenant,
            kind,
            peer: None,
            class: Class::Standard,
            priority: 0,
            priority_notes: Vec::new(),
            status,
            reason: None,
            detail: None,
            note: None,
            enqueued_ms: decided,
            not_before_ms: None,
            queue_position: None,
            started_ms: None,
            finished_ms: Some(decided),
            deadline_ms: decided,
            now_ms: decided,
            admission_wait_ms: 0,
            attempt: 0,
            max_attempts: 0,
            deliveries: 0,
            fence: Fence(0),
            attempt_timeout_ms: None,
            min_useful_ms: 0,
            cancel_requested_ms: None,
            cancel_delivered_ms: None,
            cancel_acknowledged_ms: None,
            estimated: Cost::default(),
            actual: None,
            worker: None,
            progress: None,
            payload: None,
            result: None,
            error: None,
            labels: None,
            workflow_id: None,
            parent_id: None,
            children: Vec::new(),
            cancellation_token: None,
            idempotency_key: None,
            redriven_from: None,
        }
    }
}

/// An error as a handler reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskError {
    /// A short name of its sort, such as `http_status`.
    pub kind: String,
    /// What happened, for people.
    pub message: String,
    /// Whether another try may cure it.
    pub retryable: bool,
}

/// One numbered run of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptRecord {
    /// Its number, from 1; a run that was handed back or lost does not use one up.
    pub number: u32,
    /// The fence it ran under.
    pub fence: Fence,
    /// Who ran it.
    pub worker: Option<String>,
    /// When it started.
    pub started_ms: EpochMs,
    /// When it ended; none while it runs.
    pub ended_ms: Option<EpochMs>,
    /// How it ended: `running`, `completed`, `failed`, `timed_out`, `cancelled`, `snoozed`, `handed_back`, `lost`, `late`.
    pub outcome: String,
    /// Why.
    pub reason: Option<Reason>,
    /// The error it ended in.
    pub error: Option<TaskError>,
    /// A result that came too late to be the task's.
    pub result: Option<String>,
}

/// Which tasks of a tenant to list, newest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskFilter {
    /// Only those that stand there.
    pub status: Option<Status>,
    /// Only those of the kind.
    pub kind: Option<Kind>,
    /// Only those of the class.
    pub class: Option<Class>,
    /// Only those for the peer.
    pub peer: Option<PeerName>,
    /// Only those of the workflow.
    pub workflow_id: Option<String>,
    /// Only those with all of these labels.
    pub labels: Vec<(String, String)>,
    /// Only those that arrived at or after.
    pub from_ms: Option<EpochMs>,
    /// Only those that arrived before.
    pub to_ms: Option<EpochMs>,
    /// Only those older than this one: the cursor.
    pub before: Option<TaskId>,
    /// Most tasks to return, 1 to 200.
    pub limit: u16,
}

/// A page of a listing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskPage {
    /// The tasks, newest first. May be fewer than the limit though more follow.
    pub tasks: Vec<TaskRecord>,
    /// Where the next page starts; none at the end.
    pub next: Option<TaskId>,
}

/// What a worker registers at boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSpec {
    /// A name for people; the session's id is what counts.
    pub worker: String,
    /// The kinds it runs, and what a repeated run of each may do.
    pub kinds: Vec<(Kind, Effects)>,
    /// How many tasks of a kind it runs at once, where that is fewer than its slots.
    pub at_once: HashMap<Kind, u32>,
    /// How many tasks it runs at once.
    pub slots: u32,
    /// How long its leases live without a heartbeat.
    pub lease: Duration,
    /// The part of a task's time that is kept back for handing in its answer. A task with no more than this left has
    /// nothing to give its handler, and is ended instead of started.
    pub settle_reserve: Duration,
}

impl SessionSpec {
    /// The least time left, in milliseconds, with which a handler gets any of it.
    pub(crate) fn least_left_ms(&self) -> i64 {
        i64::try_from(self.settle_reserve.as_millis()).unwrap_or(i64::MAX).saturating_add(1)
    }
}

/// A started task, as the worker that holds its lease sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    /// The task.
    pub id: TaskId,
    /// Who pays.
    pub tenant: TenantId,
    /// What sort of work.
    pub kind: Kind,
    /// The dependency it calls.
    pub peer: Option<PeerName>,
    /// The input, as JSON text.
    pub payload: String,
    /// The number that makes a late writer change nothing.
    pub fence: Fence,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// Most failures before the task ends FAILED.
    pub max_attempts: u32,
    /// The time left when the claim was asked for: count from before the call.
    pub remaining: Duration,
    /// When it must have ended, by the database's clock.
    pub deadline_ms: EpochMs,
    /// The longest this attempt may take.
    pub attempt_timeout: Option<Duration>,
    /// The W3C trace context it came with.
    pub traceparent: Option<String>,
    /// Hops it may still delegate.
    pub depth: u32,
    /// Children it may still start.
    pub fanout: u32,
    /// What the caller thought it would use.
    pub estimated: Cost,
    /// Whether its worker was lost with it twice: no other such task may run beside it.
    pub suspect: bool,
}

/// How an attempt ended, as its worker reports it.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The task.
    pub id: TaskId,
    /// The fence it ran under.
    pub fence: Fence,
    /// How it ended.
    pub ending: Ending,
    /// The result, as JSON text; `null` where a completed handler returned nothing.
    pub result: Option<String>,
    /// The error.
    pub error: Option<TaskError>,
    /// What it used, where known.
    pub usage: Option<Cost>,
    /// The delays between attempts of its kind.
    pub backoff: BackoffPolicy,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The task ended like this.
    Ended(Status),
    /// The task waits to run again.
    Returned(Reason),
    /// The lease was lost before: nothing changed.
    LeaseLost,
}

/// What one turn of a worker brought.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Turn {
    /// What became of each report, in order.
    pub settled: Vec<Settled>,
    /// What to run now.
    pub claimed: Vec<Claimed>,
    /// Whether another turn may find more: this one did not see all that waits.
    pub more: bool,
    /// In how much time something may start that a peer's rate held back.
    pub again_in: Option<Duration>,
}

/// What a heartbeat brought back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Beat {
    /// Tasks of this session whose cancel was asked for.
    pub cancel: Vec<TaskId>,
    /// Of the tasks that were said to be held, those whose lease is gone.
    pub lost: Vec<TaskId>,
    /// Whether an operator told the session to take nothing more, to finish and to leave.
    pub draining: bool,
}

/// Numbers for metrics and health, read from the tables.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Gauges {
    /// Tasks by class that are QUEUED, ADMITTED or RUNNING, DEFERRED.
    pub classes: Vec<(Class, ClassGauges)>,
    /// What uses each peer that somebody configured, by name; of very many the first.
    pub peers: Vec<PeerGauges>,
    /// Bytes of payload held by tasks that have not ended.
    pub bytes: i64,
    /// Age of the oldest QUEUED task.
    pub oldest_queued_ms: Option<i64>,
    /// Age of the oldest DEFERRED task that is due.
    pub oldest_due_ms: Option<i64>,
    /// Age of the longest running attempt.
    pub oldest_running_ms: Option<i64>,
    /// Live sessions and their slots.
    pub sessions: i64,
    /// See above.
    pub slots: i64,
    /// Leases held.
    pub leases: i64,
}

/// Tasks of one class by where they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassGauges {
    /// QUEUED.
    pub queued: i64,
    /// ADMITTED or RUNNING.
    pub running: i64,
    /// DEFERRED.
    pub deferred: i64,
}

/// What uses a peer, beside its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerGauges {
    /// Its name.
    pub name: String,
    /// Tasks that are ADMITTED or RUNNING for it, and calls of others that hold a permit.
    pub in_flight: i64,
    /// How many there may be; `None` where that is not limited.
    pub max_in_flight: Option<u32>,
}

/// The session's id beside the lease it grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionId(pub Uuid);
