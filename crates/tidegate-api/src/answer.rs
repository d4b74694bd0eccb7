//! From what the store says to what goes on the wire.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;
use tidegate_core::admission::Decision;
use tidegate_core::{Fence, Status, TaskId, TenantId};
use tidegate_store::{AttemptRecord, TaskRecord};
use tidegate_wire::{Accepted, Attempt, Cancel, CostReport, Task, TaskError, Timestamp};

use crate::decode::Draft;

/// Room for a task without its payload, so that writing one seldom has to grow its buffer.
const TASK_BYTES: usize = 1_536;

/// Room for the headers of an answer: those of every answer, and its own.
const HEADERS: usize = 12;

/// The furthest place in the queue that is told.
pub(crate) const MAX_POSITION: u64 = 1_000;

/// An answer in JSON.
pub(crate) fn json<T: Serialize>(status: StatusCode, value: &T) -> Response {
    sized_json(status, value, TASK_BYTES)
}

/// An answer in JSON of about so many bytes.
fn sized_json<T: Serialize>(status: StatusCode, value: &T, about: usize) -> Response {
    let mut bytes = Vec::with_capacity(about);
    // Our types have string keys and cannot fail to serialise; were that to change, the answer is an error.
    if let Err(error) = serde_json::to_writer(&mut bytes, value) {
        tracing::error!(%error, "an answer cannot be written");
        return respond(StatusCode::INTERNAL_SERVER_ERROR, "application/json", Vec::new());
    }
    respond(status, "application/json", bytes)
}

/// An answer of a type.
pub(crate) fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.headers_mut() = HeaderMap::with_capacity(HEADERS);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The answer with a task.
pub(crate) fn task(status: StatusCode, task: &Task<'_>) -> Response {
    let payload = task.payload.as_ref().map_or(0, |raw| raw.get().len());
    let result = task.result.as_ref().map_or(0, |raw| raw.get().len());
    sized_json(status, task, TASK_BYTES + payload + result)
}

/// Says where the task is found.
pub(crate) fn located(mut response: Response, id: TaskId) -> Response {
    if let Ok(location) = HeaderValue::try_from(format!("/v1/tasks/{id}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// The task that a submission has just become, without asking the store again.
pub(crate) fn decided<'a>(
    id: TaskId,
    draft: &'a Draft<'_>,
    tenant: &'a TenantId,
    key: Option<&'a str>,
    decision: &Decision,
) -> Task<'a> {
    let times = &decision.times;
    let waited_ms = decision.decided.saturating_sub(times.arrived);
    let waits = decision.status.is_waiting();
    Task {
        id,
        kind: Cow::Borrowed(draft.kind.as_str()),
        tenant: Cow::Borrowed(tenant.as_str()),
        status: decision.status,
        reason: decision.reason,
        detail: None,
        priority: draft.priority.get(),
        class: decision.class,
        priority_notes: draft.priority_notes.iter().map(|note| Cow::Borrowed(note.as_str())).collect(),
        attempt: 0,
        max_attempts: u32::from(draft.max_attempts),
        deliveries: 0,
        fence: Fence(0),
        enqueued_at: Timestamp::from_ms(times.arrived),
        not_before: times.not_before.map(Timestamp::from_ms),
        started_at: None,
        finished_at: None,
        deadline: Timestamp::from_ms(times.deadline),
        remaining_ms: waits.then(|| times.deadline.saturating_sub(decision.decided).max(0)),
        admission_wait_ms: waited_ms,
        queue_wait_ms: waits.then_some(0),
        run_ms: None,
        queue_position: decision
            .queue_position
            .filter(|position| *position <= MAX_POSITION)
            .and_then(|at| u32::try_from(at).ok()),
        estimated_start_ms: waits.then_some(decision.expected_wait_ms).flatten().and_then(|ms| i64::try_from(ms).ok()),
        note: None,
        cancel: None,
        cost: CostReport { estimated: draft.cost.into(), actual: None },
        peer: draft.peer.as_ref().map(|peer| Cow::Borrowed(peer.as_str())),
        worker: None,
        progress: None,
        payload: Some(Cow::Borrowed(draft.payload)),
        result: None,
        error: None,
        labels: draft.labels.as_deref().and_then(raw),
        workflow_id: draft.workflow_id.as_deref().map(Cow::Borrowed),
        parent_id: draft.parent_id,
        children: Vec::new(),
        cancellation_token: draft.cancellation_token.as_deref().map(Cow::Borrowed),
        idempotency_key: key.map(Cow::Borrowed),
        redriven_from: None,
    }
}

/// The item of a batch that a submission has just become.
pub(crate) fn accepted(id: TaskId, decision: &Decision) -> Accepted {
    Accepted {
        status: decision.status,
        task_id: id,
        outcome: decision.status,
        reason: decision.reason,
        class: decision.class,
        deadline: Timestamp::from_ms(decision.times.deadline),
    }
}

/// The task as the store has it.
pub(crate) fn stored(record: &TaskRecord) -> Task<'_> {
    Task {
        id: record.id,
        kind: Cow::Borrowed(record.kind.as_str()),
        tenant: Cow::Borrowed(record.tenant.as_str()),
        status: record.status,
        reason: record.reason,
        detail: borrowed(&record.detail),
        priority: record.priority,
        class: record.class,
        priority_notes: record.priority_notes.iter().map(|note| Cow::Borrowed(note.as_str())).collect(),
        attempt: record.attempt,
        max_attempts: record.max_attempts,
        deliveries: record.deliveries,
        fence: record.fence,
        enqueued_at: Timestamp::from_ms(record.enqueued_ms),
        not_before: record.not_before_ms.map(Timestamp::from_ms),
        started_at: record.started_ms.map(Timestamp::from_ms),
        finished_at: record.finished_ms.map(Timestamp::from_ms),
        deadline: Timestamp::from_ms(record.deadline_ms),
        remaining_ms: (!record.status.is_final()).then(|| record.deadline_ms.saturating_sub(record.now_ms).max(0)),
        admission_wait_ms: record.admission_wait_ms,
        queue_wait_ms: Some(queue_wait_ms(record)),
        run_ms: run_ms(record),
        queue_position: record.queue_position,
        estimated_start_ms: None,
        note: borrowed(&record.note),
        cancel: record.cancel_requested_ms.map(|at| Cancel {
            requested_at: Some(Timestamp::from_ms(at)),
            delivered_at: record.cancel_delivered_ms.map(Timestamp::from_ms),
            acknowledged_at: record.cancel_acknowledged_ms.map(Timestamp::from_ms),
        }),
        cost: CostReport { estimated: record.estimated.into(), actual: record.actual.map(Into::into) },
        peer: record.peer.as_ref().map(|peer| Cow::Borrowed(peer.as_str())),
        worker: borrowed(&record.worker),
        progress: record.progress.as_deref().and_then(raw),
        payload: record.payload.as_deref().and_then(raw),
        result: record.result.as_deref().and_then(raw),
        error: record.error.as_ref().map(error),
        labels: record.labels.as_deref().and_then(raw),
        workflow_id: borrowed(&record.workflow_id),
        parent_id: record.parent_id,
        children: record.children.clone(),
        cancellation_token: borrowed(&record.cancellation_token),
        idempotency_key: borrowed(&record.idempotency_key),
        redriven_from: record.redriven_from,
    }
}

/// The time between the door and the latest start, or the end, or now.
fn queue_wait_ms(record: &TaskRecord) -> i64 {
    let until = record.started_ms.or(record.finished_ms).unwrap_or(record.now_ms);
    until.saturating_sub(record.enqueued_ms).saturating_sub(record.admission_wait_ms).max(0)
}

/// How long the latest attempt ran, or runs. Unknown for a task that did not end (or is not) in that attempt.
fn run_ms(record: &TaskRecord) -> Option<i64> {
    let stopped_by_cancel = record.cancel_delivered_ms.is_some() || record.cancel_acknowledged_ms.is_some();
    let ran_to_its_end = match record.status {
        Status::Running | Status::Completed | Status::Failed | Status::TimedOut => true,
        Status::Cancelled => stopped_by_cancel,
        _ => false,
    };
    let started_ms = record.started_ms.filter(|_| ran_to_its_end)?;
    Some(record.finished_ms.unwrap_or(record.now_ms).saturating_sub(started_ms).max(0))
}

/// A run of a task.
pub(crate) fn attempt(record: &AttemptRecord) -> Attempt<'_> {
    Attempt {
        attempt: record.number,
        fence: record.fence,
        worker: borrowed(&record.worker),
        started_at: Timestamp::from_ms(record.started_ms),
        ended_at: record.ended_ms.map(Timestamp::from_ms),
        outcome: Cow::Borrowed(&record.outcome),
        reason: record.reason,
        error: record.error.as_ref().map(error),
        result: record.result.as_deref().and_then(raw),
    }
}

fn error(error: &tidegate_store::TaskError) -> TaskError<'_> {
    TaskError { kind: Cow::Borrowed(&error.kind), message: Cow::Borrowed(&error.message), retryable: error.retryable }
}

fn borrowed(text: &Option<String>) -> Option<Cow<'_, str>> {
    text.as_deref().map(Cow::Borrowed)
}

/// Stored JSON text as it is. All of it was checked on its way in; what is not JSON after all becomes a string, so
/// that the rest of the answer stays readable.
pub(crate) fn raw(text: &str) -> Option<Cow<'_, RawValue>> {
    match serde_json::from_str::<&RawValue>(text) {
        Ok(raw) => Some(Cow::Borrowed(raw)),
        Err(_) => serde_json::value::to_raw_value(text).ok().map(Cow::Owned),
    }
}
