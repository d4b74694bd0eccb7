//! `POST /v1/tasks/{id}/cancel`: never refused for load, which is when it is needed most.

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use tidegate_core::TaskId;
use tidegate_core::json::repair_text;
use tidegate_store::{CancelOutcome, StoreError};
use tidegate_wire::{CancelRequest, Fault, MAX_PAYLOAD_DEPTH, Problem, Task};

use crate::decode::{self, Members};
use crate::rejection::Rejection;
use crate::routes::extract::{PathId, Tenant, no_such_task};
use crate::routes::poll;
use crate::settings::{App, Shared};
use crate::{answer, body};

/// Most bytes of the body: the longest reason, even if every character is escaped.
const MAX_BODY: usize = 16 << 10;
/// The longest reason, in characters.
const MAX_REASON: usize = 1_000;

/// Cancels a task.
#[utoipa::path(
    post,
    path = "/v1/tasks/{id}/cancel",
    operation_id = "cancelTask",
    tag = "tasks",
    params(
        ("id" = String, Path, description = "The task"),
        ("X-Tenant" = Option<String>, Header, description = "Without a key: the tenant that is asking")
    ),
    request_body(content = Option<CancelRequest<'_>>, content_type = "application/json"),
    responses(
        (status = 200, description = "The task: CANCELLED if it waited, with cancel.requested_at if it runs", body = Task<'_>),
        (status = 400, description = "Not JSON, or not UTF-8", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 404, description = "There is no such task", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 409, description = "It had ended otherwise", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 413, description = "Too large", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 415, description = "Not application/json", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A bad value, or a member or parameter that is not known", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["cancel"])),
    extensions(("x-auth-class" = json!("cancel")))
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    Tenant(tenant): Tenant,
    PathId(id): PathId,
    request: Request,
) -> Result<Response, Rejection> {
    let reason = reason(&app, request).await?;
    let asked = tokio::time::timeout(app.settings.write_timeout, app.backend.cancel(&tenant, id, reason)).await;
    let outcome = asked.unwrap_or(Err(StoreError::OutcomeUnknown(None))).map_err(|error| match error {
        unknown @ StoreError::OutcomeUnknown(_) => Rejection::from(unknown).about(id, None),
        error => error.into(),
    })?;
    match outcome {
        CancelOutcome::Unknown => return Err(no_such_task()),
        CancelOutcome::Cancelled | CancelOutcome::Requested | CancelOutcome::AlreadyCancelled => {}
        CancelOutcome::Ended => return Err(ended(id, poll::read(&app, &tenant, id).await?.map(|task| task.status))),
    }
    let record = poll::read(&app, &tenant, id).await?.ok_or_else(no_such_task)?;
    Ok(answer::task(StatusCode::OK, &answer::stored(&record)))
}

fn ended(id: TaskId, status: Option<tidegate_core::Status>) -> Rejection {
    let detail =
        status.map_or("the task had ended before".to_owned(), |status| format!("the task had ended before: {status}"));
    Rejection::fault(Fault::AlreadyEnded, detail).about(id, status)
}

/// The reason in the body, if there is one.
async fn reason(app: &Shared, request: Request) -> Result<Option<String>, Rejection> {
    let (parts, body) = request.into_parts();
    decode::no_parameters(&parts.uri)?;
    let Some(received) = body::read_any(app, &parts.headers, body, MAX_BODY).await? else { return Ok(None) };
    let mut reason = None;
    for (name, value) in Members::of(decode::document(received.text()?, MAX_PAYLOAD_DEPTH)?, "")?.iter() {
        if name != "reason" {
            return Err(decode::unknown("", name));
        }
        if reason.replace(value).is_some() {
            return Err(decode::duplicate("", name));
        }
    }
    let Some(raw) = reason.filter(|raw| raw.get() != "null") else { return Ok(None) };
    let reason = decode::string(raw).map_err(|bad| bad.at("/reason".to_owned()))?;
    if reason.chars().count() > MAX_REASON {
        let bad = decode::Bad::value(format!("must have at most {MAX_REASON} characters"));
        return Err(bad.at("/reason".to_owned()));
    }
    // A cancel is not refused for a line break: what cannot be kept is replaced.
    let reason = repair_text(&reason, MAX_BODY);
    Ok((!reason.is_empty()).then_some(reason))
}
