//! `POST /v1/tasks`: the hot path.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use tidegate_core::submission::{OnFull, Submission};
use tidegate_core::{Reason, Status, TaskId, TenantId, json};
use tidegate_store::{Admission, AdmitError};
use tidegate_wire::{Fault, MAX_PAYLOAD_DEPTH, Problem, SubmitRequest, Task, header};

use crate::decode::{self, Draft, SubmitHeaders};
use crate::rejection::Rejection;
use crate::routes::extract::{Tenant, no_such_task};
use crate::routes::poll;
use crate::settings::{App, Shared};
use crate::{answer, body, prefer};

/// The payload may nest as deep as the contract says, and sits one level deep in the body.
const MAX_DEPTH: usize = MAX_PAYLOAD_DEPTH + 1;

/// Submits a task.
#[utoipa::path(
    post,
    path = "/v1/tasks",
    operation_id = "submitTask",
    tag = "tasks",
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible characters, quoted or not. The same key and body again within a day is the same task"),
        ("X-Deadline-Epoch-Ms" = Option<i64>, Header, description = "When it must have ended; of several ends the smallest counts"),
        ("X-Budget" = Option<String>, Header, description = "The delegation budget: {\"remaining_s\":12.5,\"depth\":2,\"fanout\":4}"),
        ("traceparent" = Option<String>, Header, description = "The W3C trace context"),
        ("Prefer" = Option<String>, Header, description = "wait=N: answer when the task has ended, or after N seconds, at most 60"),
        ("X-Tenant" = Option<String>, Header, description = "Without a key: the tenant that is asking")
    ),
    request_body(content = SubmitRequest, content_type = "application/json"),
    responses(
        (status = 202, description = "Accepted", body = Task<'_>, headers(("Location" = String, description = "Where the task is found"))),
        (status = 200, description = "The same key and body came before (Idempotent-Replayed: true), or the task ended within Prefer: wait", body = Task<'_>),
        (status = 400, description = "Not JSON, not UTF-8, or without kind", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 409, description = "The key is still in flight, or the cancellation token was cancelled", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 413, description = "Too large", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 415, description = "Not application/json", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A bad value, a key reused with another body, or refused for good", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 429, description = "The tenant is over its share", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The system is busy, or the deadline cannot be kept", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["submit"])),
    extensions(("x-auth-class" = json!("submit")))
)]
pub(crate) async fn submit(State(app): State<App>, request: Request) -> Result<Response, Rejection> {
    let arrived = Instant::now();
    let (parts, body) = request.into_parts();
    let Tenant(tenant) = Tenant::of(&parts)?;
    let wait = prefer::wait(&parts.headers);
    // The body, and its room in the budget, is gone once this returns: nobody waits with it in hand.
    let mut response = match offer(&app, &tenant, &parts, body, arrived).await? {
        Offered::Accepted(id, accepted) => match wait.filter(|wait| !wait.is_zero()) {
            None => accepted,
            Some(wait) => after_wait(&app, &tenant, id, wait).await.unwrap_or(accepted),
        },
        Offered::Replayed(id) => replay(&app, &tenant, id, wait).await?,
    };
    if let Some(wait) = wait {
        let applied = HeaderValue::try_from(format!("wait={}", wait.as_secs()));
        let applied = applied.unwrap_or(HeaderValue::from_static("wait"));
        response.headers_mut().insert(HeaderName::from_static(header::PREFERENCE_APPLIED), applied);
    }
    Ok(response)
}

/// What became of a submission that was not refused.
enum Offered {
    /// It is this task, with the answer that says so.
    Accepted(TaskId, Response),
    /// It was this task before.
    Replayed(TaskId),
}

async fn offer(
    app: &Shared,
    tenant: &TenantId,
    parts: &Parts,
    body: Body,
    arrived: Instant,
) -> Result<Offered, Rejection> {
    let headers = match before_reading(parts).and_then(|()| SubmitHeaders::read(&parts.headers)) {
        Ok(headers) => headers,
        Err(rejection) => {
            body::discard(&parts.headers, body);
            return Err(rejection);
        }
    };
    let received = body::read(app, &parts.headers, body, app.settings.max_body_bytes).await?;
    let text = received.text()?;
    let document = decode::document(text, MAX_DEPTH)?;
    let policy = app.backend.policy();
    let mut draft = decode::draft(app, &policy.limits, &headers, document, "")?;
    decode::earn_class(app, &policy, tenant, None, &mut draft);
    let key = headers.idempotency_key.as_deref();
    let body_sha256 = key.map(|_| json::canonical_sha256(text));
    let id = app.backend.next_id();
    let submission = draft.submission(id, tenant, &headers, body_sha256);
    before_the_door(app, &draft, &submission, arrived, "")?;
    match admit(app, submission, arrived).await? {
        Admission::Decided { id, decision } if decision.status.is_final() => Err(Rejection::decided(&decision, id)),
        Admission::Decided { id, decision } => {
            let task = answer::decided(id, &draft, tenant, key, &decision);
            Ok(Offered::Accepted(id, answer::located(answer::task(StatusCode::ACCEPTED, &task), id)))
        }
        Admission::Replayed { id } => Ok(Offered::Replayed(id)),
        Admission::KeyReused { id } => {
            let detail = "this Idempotency-Key came before with another body";
            Err(Rejection::fault(Fault::KeyReused, detail).at_header("Idempotency-Key").about(id, None))
        }
    }
}

/// What can be refused before the body is read.
pub(crate) fn before_reading(parts: &Parts) -> Result<(), Rejection> {
    decode::no_parameters(&parts.uri)?;
    body::check_json(&parts.headers)
}

/// Asks the door, and turns what is no decision into a refusal.
pub(crate) async fn admit(app: &Shared, submission: Submission, arrived: Instant) -> Result<Admission, Rejection> {
    // A caller that agreed to wait for room gets that time on top.
    let wait = match submission.on_full {
        OnFull::Wait { max_wait_ms } => Duration::from_millis(max_wait_ms),
        _ => Duration::ZERO,
    };
    let at_most = app.settings.write_timeout + wait;
    app.backend.admit(submission, arrived, at_most).await.map_err(|error| match error {
        AdmitError::Unavailable => Rejection::unavailable(Reason::StoreUnavailable),
        AdmitError::OutcomeUnknown(id) => Rejection::unavailable(Reason::OutcomeUnknown).about(id, None),
        AdmitError::Overloaded => Rejection::unavailable(Reason::WaitersFull),
        AdmitError::Draining => Rejection::unavailable(Reason::Draining),
        AdmitError::KeyInFlight => {
            Rejection::fault(Fault::KeyInFlight, "a submission with this Idempotency-Key is still being decided")
        }
        AdmitError::Invalid => Rejection::fault(Fault::InvalidValue, "the database cannot hold a value of this task"),
    })
}

/// Refuses what need not come to the door: the submission at `base` if its payload is larger than allowed, and every one
/// while this server shuts down.
pub(crate) fn before_the_door(
    app: &Shared,
    draft: &Draft<'_>,
    submission: &Submission,
    arrived: Instant,
    base: &str,
) -> Result<(), Rejection> {
    if decode::payload_too_large(app, draft) {
        let most = app.settings.max_payload_bytes;
        let pointer = format!("{base}/payload");
        let detail = format!("{pointer} has {} bytes, at most {most} are allowed", submission.payload.len());
        return Err(refuse(app, submission, Reason::PayloadTooLarge, arrived).saying(detail).at_pointer(pointer));
    }
    if app.draining.is_cancelled() {
        return Err(refuse(app, submission, Reason::Draining, arrived));
    }
    Ok(())
}

/// Refuses a submission: a decision like any other, so its id can be read.
fn refuse(app: &Shared, submission: &Submission, reason: Reason, arrived: Instant) -> Rejection {
    let recorded = app.backend.refuse(submission, reason, arrived);
    let rejection = Rejection::door(Status::Rejected, reason, submission.id);
    if recorded { rejection } else { rejection.about_no_task() }
}

/// The answer after waiting for the task's end: 200 with the ended task, or 202 with it as it is. `None` where the
/// store cannot be read: the task was accepted all the same.
async fn after_wait(app: &Shared, tenant: &TenantId, id: TaskId, wait: Duration) -> Option<Response> {
    poll::wait_for_end(app, id, wait).await;
    let record = poll::read(app, tenant, id).await.ok()??;
    let status = if record.status.is_final() { StatusCode::OK } else { StatusCode::ACCEPTED };
    Some(answer::located(answer::task(status, &answer::stored(&record)), id))
}

/// The answer to a submission that came before: its task as it is now.
async fn replay(app: &Shared, tenant: &TenantId, id: TaskId, wait: Option<Duration>) -> Result<Response, Rejection> {
    let wait = wait.filter(|wait| !wait.is_zero());
    let record = poll::read_ended(app, tenant, id, wait).await?.ok_or_else(no_such_task)?;
    let mut response = answer::located(answer::task(StatusCode::OK, &answer::stored(&record)), id);
    response
        .headers_mut()
        .insert(HeaderName::from_static(header::IDEMPOTENT_REPLAYED), HeaderValue::from_static("true"));
    Ok(response)
}
