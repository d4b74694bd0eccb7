//! The task object.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate_core::{Class, Fence, Reason, Status, TaskId};

use crate::time::Timestamp;

/// Labels: strings by name.
pub type Labels = BTreeMap<String, String>;

/// A task, as it stands. Members without a value are `null`.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Task<'a> {
    /// Its id, shaped as a UUIDv7.
    #[schema(value_type = String, format = Uuid)]
    pub id: TaskId,
    /// What sort of work it is.
    pub kind: Cow<'a, str>,
    /// Who pays for it.
    pub tenant: Cow<'a, str>,
    /// Where it stands.
    #[schema(schema_with = crate::schema::status)]
    pub status: Status,
    /// Why it stands there, from a closed vocabulary; each has a page under docs/errors/.
    #[schema(value_type = Option<String>)]
    pub reason: Option<Reason>,
    /// Free text about it.
    pub detail: Option<Cow<'a, str>>,
    /// How much it matters, 0 to 100, higher first.
    pub priority: u8,
    /// The band of its priority.
    #[schema(schema_with = crate::schema::class)]
    pub class: Class,
    /// Why its priority is what it is.
    pub priority_notes: Vec<Cow<'a, str>>,
    /// The number of its latest attempt; 0 before the first.
    pub attempt: u32,
    /// Most failures before it ends FAILED.
    pub max_attempts: u32,
    /// How often it was started, lost runs included.
    pub deliveries: u32,
    /// The fence of its latest start; 0 before the first.
    #[schema(value_type = i64)]
    pub fence: Fence,
    /// When it arrived.
    #[schema(value_type = String, format = DateTime)]
    pub enqueued_at: Timestamp,
    /// When it may start (again), while that is not yet.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub not_before: Option<Timestamp>,
    /// When its latest attempt started.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
    /// When it must have ended.
    #[schema(value_type = String, format = DateTime)]
    pub deadline: Timestamp,
    /// The time left until its deadline, while it has not ended; never below 0.
    pub remaining_ms: Option<i64>,
    /// How long it waited at the door.
    pub admission_wait_ms: i64,
    /// How long it waited between the door and its (latest) start; so far, where it still waits.
    pub queue_wait_ms: Option<i64>,
    /// How long its latest attempt ran; so far, where it runs.
    pub run_ms: Option<i64>,
    /// Its place in the queue, from 1, while it waits and the place is within 1,000.
    pub queue_position: Option<u32>,
    /// When it is expected to start, from now, while it waits.
    pub estimated_start_ms: Option<i64>,
    /// What an orchestrating model should read.
    pub note: Option<Cow<'a, str>>,
    /// When a cancel was asked for, and what became of it.
    pub cancel: Option<Cancel>,
    /// What it was thought to use, and what it used.
    pub cost: CostReport,
    /// The downstream dependency it calls.
    pub peer: Option<Cow<'a, str>>,
    /// Who runs or last ran it.
    pub worker: Option<Cow<'a, str>>,
    /// What its handler last said of its progress: any JSON.
    #[schema(value_type = Option<serde_json::Value>)]
    pub progress: Option<Cow<'a, RawValue>>,
    /// The input, as it was sent: any JSON. `null` for a refused submission, whose input is not kept.
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Cow<'a, RawValue>>,
    /// The result: any JSON.
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Cow<'a, RawValue>>,
    /// The error that ended its latest attempt.
    pub error: Option<TaskError<'a>>,
    /// Labels: strings by name.
    #[schema(value_type = Option<std::collections::HashMap<String, String>>)]
    pub labels: Option<Cow<'a, RawValue>>,
    /// The workflow it belongs to.
    pub workflow_id: Option<Cow<'a, str>>,
    /// The task that started it.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub parent_id: Option<TaskId>,
    /// The tasks it started, oldest first, at most 100.
    #[schema(value_type = Vec<String>)]
    pub children: Vec<TaskId>,
    /// The group it can be cancelled with.
    pub cancellation_token: Option<Cow<'a, str>>,
    /// The key it was submitted with.
    pub idempotency_key: Option<Cow<'a, str>>,
    /// The dead letter it was redriven from.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub redriven_from: Option<TaskId>,
}

/// How far a cancel has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Cancel {
    /// When it was asked for.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub requested_at: Option<Timestamp>,
    /// When the worker was told.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub delivered_at: Option<Timestamp>,
    /// When the worker had stopped.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub acknowledged_at: Option<Timestamp>,
}

/// What a task was thought to use, and what it used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CostReport {
    /// What the caller said.
    pub estimated: Cost,
    /// What its worker reported.
    pub actual: Option<Cost>,
}

/// Tokens and money.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Cost {
    /// Model tokens.
    pub tokens: u64,
    /// Millionths of a dollar.
    pub usd_micros: u64,
}

impl From<tidegate_core::submission::Cost> for Cost {
    fn from(cost: tidegate_core::submission::Cost) -> Self {
        Self { tokens: cost.tokens, usd_micros: cost.usd_micros }
    }
}

/// An error as a handler reported it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TaskError<'a> {
    /// A short name of its sort, such as `http_status`.
    #[serde(rename = "type")]
    pub kind: Cow<'a, str>,
    /// What happened, for people.
    pub message: Cow<'a, str>,
    /// Whether another try may cure it.
    pub retryable: bool,
}

/// A page of tasks.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TaskList<'a> {
    /// The tasks, newest first. May be fewer than asked for though more follow.
    pub tasks: Vec<Task<'a>>,
    /// What to pass as `cursor` for the next page; `null` at the end.
    pub next_cursor: Option<Cow<'a, str>>,
}
