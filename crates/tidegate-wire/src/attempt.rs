//! The runs of a task.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate_core::{Fence, Reason};

use crate::task::TaskError;
use crate::time::Timestamp;

/// One run of a task.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Attempt<'a> {
    /// The number of the attempt, from 1. A run that was handed back or lost does not use its number up.
    pub attempt: u32,
    /// The fence it ran under.
    #[schema(value_type = i64)]
    pub fence: Fence,
    /// Who ran it.
    pub worker: Option<Cow<'a, str>>,
    /// When it started.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// When it ended; `null` while it runs.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// How it ended: running, completed, failed, timed_out, cancelled, snoozed, handed_back, lost or late.
    pub outcome: Cow<'a, str>,
    /// Why, from the closed vocabulary.
    #[schema(value_type = Option<String>)]
    pub reason: Option<Reason>,
    /// The error it ended in.
    pub error: Option<TaskError<'a>>,
    /// A result that came too late to be the task's: any JSON.
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Cow<'a, RawValue>>,
}

/// The runs of a task, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AttemptList<'a> {
    /// The runs.
    pub attempts: Vec<Attempt<'a>>,
}
