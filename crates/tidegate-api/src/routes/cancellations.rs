//! `POST /v1/cancellations`: all tasks with a token, or of a workflow. Like the cancel of one task it is never refused
//! for load.

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use tidegate_store::StoreError;
use tidegate_wire::{CancellationRequest, Cancelled, MAX_PAYLOAD_DEPTH, Problem};

use crate::rejection::Rejection;
use crate::routes::extract::Tenant;
use crate::settings::App;
use crate::{answer, body, decode};

/// Most bytes of the body: the longest name, even if every character is escaped, and some.
const MAX_BODY: usize = 8 << 10;

/// Cancels a group of tasks.
#[utoipa::path(
    post,
    path = "/v1/cancellations",
    operation_id = "cancelTasks",
    tag = "tasks",
    params(("X-Tenant" = Option<String>, Header, description = "Without a key: the tenant that is asking")),
    request_body = CancellationRequest<'_>,
    responses(
        (status = 200, description = "How many tasks were reached. Asking again is harmless", body = Cancelled),
        (status = 400, description = "Neither of the two, or no JSON", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 413, description = "Too large", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 415, description = "Not application/json", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "Both of the two, or a bad value", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached, or (`outcome_unknown`) it took too long: what was recorded is carried out all the same", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["cancel"])),
    extensions(("x-auth-class" = json!("cancel")))
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    Tenant(tenant): Tenant,
    request: Request,
) -> Result<Response, Rejection> {
    let (parts, body) = request.into_parts();
    decode::no_parameters(&parts.uri)?;
    body::check_json(&parts.headers)?;
    let received = body::read(&app, &parts.headers, body, MAX_BODY).await?;
    let group = decode::group(decode::document(received.text()?, MAX_PAYLOAD_DEPTH)?)?;
    let asked = tokio::time::timeout(app.settings.write_timeout, app.backend.cancel_group(&tenant, group)).await;
    let reached = asked.unwrap_or(Err(StoreError::OutcomeUnknown(None))).map_err(|error| match error {
        unknown @ StoreError::OutcomeUnknown(_) => {
            let detail = "if the cancel was recorded it is being carried out; asking again is harmless, and tells";
            Rejection::from(unknown).saying(detail.to_owned())
        }
        error => error.into(),
    })?;
    let reached = Cancelled { cancelled: reached.cancelled, requested: reached.requested };
    Ok(answer::json(StatusCode::OK, &reached))
}
