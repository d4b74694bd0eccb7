//! What a caller sends, and the answer to a batch.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate_core::{Class, Reason, Status, TaskId};

use crate::problem::Problem;
use crate::task::Labels;
use crate::time::Timestamp;

/// A submission. Members that are absent or `null` take their defaults; unknown members are refused.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// What sort of work: 1 to 128 characters of `A-Z a-z 0-9 . _ : -`.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._:-]+$")]
    pub kind: String,
    /// The input: any JSON, nested at most 64 levels, kept as sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// How much it matters: 0 to 100, or the name of a class; 50 where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<WantedPriority>,
    /// The time from arrival (or from `not_before`) to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub timeout_ms: Option<u64>,
    /// When it must have ended. Of several ends the smallest counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub deadline: Option<Timestamp>,
    /// The least time left that makes a start useful; the kind's where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_useful_ms: Option<u64>,
    /// How long after its arrival it may start. Not beside `not_before`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// When it may start. Not beside `delay_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub not_before: Option<Timestamp>,
    /// What the caller thinks it will use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostEstimate>,
    /// The downstream dependency it calls; the kind's where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._:-]+$")]
    pub peer: Option<String>,
    /// Most failures before it ends FAILED; the kind's where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub max_attempts: Option<u16>,
    /// The longest one attempt may take; the kind's where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub attempt_timeout_ms: Option<u64>,
    /// A group of tasks that can be cancelled together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub cancellation_token: Option<String>,
    /// The workflow it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub workflow_id: Option<String>,
    /// The task that starts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Uuid)]
    pub parent_id: Option<TaskId>,
    /// What to do where there is no room now, but will be once something ends: `reject` (the default), `wait` at the door,
    /// or `defer`. A class that is being shed, and a tenant that is over its own share, is refused all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_full: Option<OnFull>,
    /// The longest wait at the door, beside `on_full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_ms: Option<u64>,
    /// At most 16 labels: names of at most 64 characters, values of at most 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::HashMap<String, String>>)]
    pub labels: Option<Labels>,
    /// Not served yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub webhook: Option<Box<RawValue>>,
}

impl SubmitRequest {
    /// A submission of a kind with nothing else said.
    pub fn new(kind: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            payload: None,
            priority: None,
            timeout_ms: None,
            deadline: None,
            min_useful_ms: None,
            delay_ms: None,
            not_before: None,
            cost: None,
            peer: None,
            max_attempts: None,
            attempt_timeout_ms: None,
            cancellation_token: None,
            workflow_id: None,
            parent_id: None,
            on_full: None,
            max_wait_ms: None,
            labels: None,
            webhook: None,
        }
    }
}

/// A priority as a number or by the name of a class, which stands for the lowest of the class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum WantedPriority {
    /// 0 to 100, higher first.
    Number(u8),
    /// critical, standard or background.
    #[schema(value_type = ClassName)]
    Class(Class),
}

/// The name of a class, as the document knows it.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is of use")]
enum ClassName {
    Critical,
    Standard,
    Background,
}

/// What to do where the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// Refuse it at once.
    Reject,
    /// Wait at the door.
    Wait,
    /// Keep it for later.
    Defer,
}

/// What a caller thinks a task will use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CostEstimate {
    /// Model tokens.
    #[serde(default)]
    pub tokens: u64,
    /// Millionths of a dollar.
    #[serde(default)]
    pub usd_micros: u64,
}

/// Several submissions in one request, each decided alone.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// At most 1,000 submissions.
    #[schema(max_items = 1000)]
    pub tasks: Vec<SubmitRequest>,
}

/// The answers to a batch, one for each submission, in order.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BatchAnswer<'a> {
    /// The answers.
    pub results: Vec<BatchItem<'a>>,
}

/// The answer to one submission of a batch.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum BatchItem<'a> {
    /// It is a task that may run.
    Accepted(Accepted),
    /// It was refused. Told apart by its `type`.
    Refused(Box<Problem<'a>>),
}

/// A submission of a batch that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Accepted {
    /// Where the task stands.
    #[schema(schema_with = crate::schema::status)]
    pub status: Status,
    /// The task.
    #[schema(value_type = String, format = Uuid)]
    pub task_id: TaskId,
    /// The same as `status`, under the name that a problem has it.
    #[schema(schema_with = crate::schema::status)]
    pub outcome: Status,
    /// Why it stands there.
    #[schema(value_type = Option<String>)]
    pub reason: Option<Reason>,
    /// Its class.
    #[schema(schema_with = crate::schema::class)]
    pub class: Class,
    /// When it must have ended.
    #[schema(value_type = String, format = DateTime)]
    pub deadline: Timestamp,
}

/// Why a task is cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest<'a> {
    /// For people: becomes the task's `detail`. At most 1,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1000)]
    pub reason: Option<Cow<'a, str>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_says_only_what_it_holds() {
        let text = serde_json::to_string(&SubmitRequest::new("echo")).unwrap();
        assert_eq!(text, r#"{"kind":"echo"}"#);
        let mut request = SubmitRequest::new("echo");
        request.priority = Some(WantedPriority::Class(Class::Critical));
        request.payload = Some(RawValue::from_string("{\"b\":1.50,\"a\":1e400}".into()).unwrap());
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(text, r#"{"kind":"echo","payload":{"b":1.50,"a":1e400},"priority":"critical"}"#);
    }

    #[test]
    fn the_items_of_a_batch_are_told_apart() {
        let text = r#"{"results":[
            {"status":"QUEUED","task_id":"018f0000-0000-7000-8000-000000000000","outcome":"QUEUED","reason":null,
             "class":"standard","deadline":"2026-11-30T08:15:00.000Z","something_new":1},
            {"type":"/docs/errors/queue_full","title":"t","status":503,"detail":"d","reason":"queue_full"}]}"#;
        let answer: BatchAnswer<'static> = serde_json::from_str(text).unwrap();
        assert!(matches!(&answer.results[0], BatchItem::Accepted(item) if item.status == Status::Queued));
        assert!(matches!(&answer.results[1], BatchItem::Refused(problem) if problem.status == 503));
    }
}
