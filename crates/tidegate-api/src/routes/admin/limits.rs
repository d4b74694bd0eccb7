//! The limits of the cell and its classes.

use std::borrow::Cow;

use axum::extract::{Request, State};
use axum::response::Response;
use http::{StatusCode, Uri};
use tidegate_wire::{LimitsChange, LimitsDocument, Problem};

use super::{change, read, write};
use crate::rejection::Rejection;
use crate::routes::extract::By;
use crate::settings::App;
use crate::{answer, decode};

/// Reads the limits of the cell that are in effect.
#[utoipa::path(
    get,
    path = "/v1/admin/limits",
    operation_id = "getLimits",
    tag = "operators",
    responses(
        (status = 200, description = "The limits, every key", body = LimitsDocument<'_>),
        (status = 422, description = "A parameter that is not known", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn get(State(app): State<App>, uri: Uri) -> Result<Response, Rejection> {
    decode::no_parameters(&uri)?;
    let limits = read(&app, app.backend.limits()).await?;
    Ok(answer::json(StatusCode::OK, &LimitsDocument(Cow::Owned(limits))))
}

/// Changes limits of the cell.
#[utoipa::path(
    patch,
    path = "/v1/admin/limits",
    operation_id = "patchLimits",
    tag = "operators",
    request_body(content((LimitsChange = "application/merge-patch+json"), (LimitsChange = "application/json")), description = "The keys to change; `null` is no limit"),
    responses(
        (status = 200, description = "The limits that are in effect now, in every replica within a second", body = LimitsDocument<'_>),
        (status = 400, description = "Not JSON, or not UTF-8", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 413, description = "Too large", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 415, description = "Neither application/merge-patch+json nor application/json", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A key that is not known, or a value that it cannot have", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn patch(State(app): State<App>, By(by): By, request: Request) -> Result<Response, Rejection> {
    let change = change(&app, request, None).await?;
    let limits = write(&app, app.backend.patch_limits(by, &change)).await?;
    Ok(answer::json(StatusCode::OK, &LimitsDocument(Cow::Owned(limits))))
}
