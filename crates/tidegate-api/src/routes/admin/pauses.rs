//! Pauses: what shall not start for a while.

use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::LOCATION;
use http::request::Parts;
use http::{HeaderValue, StatusCode, Uri};
use tidegate_wire::{Fault, MAX_PAYLOAD_DEPTH, Pause, PauseList, PauseRequest, Problem};
use uuid::Uuid;

use super::{read, write};
use crate::rejection::Rejection;
use crate::routes::extract::By;
use crate::settings::App;
use crate::{answer, body, decode};

/// Most bytes of a pause: the longest reason, even if every character is escaped, and some.
const MAX_BODY: usize = 16 << 10;

/// Makes a pause.
#[utoipa::path(
    post,
    path = "/v1/admin/pauses",
    operation_id = "createPause",
    tag = "operators",
    request_body = PauseRequest,
    responses(
        (status = 201, description = "The pause, in effect in every replica within a second", body = Pause, headers(("Location" = String, description = "Where it is ended"))),
        (status = 400, description = "Not JSON, or not UTF-8, or nothing to pause", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 413, description = "Too large", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 415, description = "Not application/json", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A bad value", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn create(State(app): State<App>, By(by): By, request: Request) -> Result<Response, Rejection> {
    let (parts, body) = request.into_parts();
    decode::no_parameters(&parts.uri)?;
    body::check_json(&parts.headers)?;
    let received = body::read(&app, &parts.headers, body, MAX_BODY).await?;
    let wanted = decode::pause(decode::document(received.text()?, MAX_PAYLOAD_DEPTH)?)?;
    let asked = app.backend.create_pause(by, wanted.target, wanted.mode, wanted.until, wanted.reason);
    let pause = Pause::from(&write(&app, asked).await?);
    let mut response = answer::json(StatusCode::CREATED, &pause);
    if let Ok(location) = HeaderValue::try_from(format!("/v1/admin/pauses/{}", pause.id)) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// Lists the pauses that are in effect, oldest first.
#[utoipa::path(
    get,
    path = "/v1/admin/pauses",
    operation_id = "listPauses",
    tag = "operators",
    responses(
        (status = 200, description = "The pauses: there are at most 1000", body = PauseList),
        (status = 422, description = "A parameter that is not known", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, Rejection> {
    decode::no_parameters(&uri)?;
    let pauses = read(&app, app.backend.pauses()).await?;
    Ok(answer::json(StatusCode::OK, &PauseList { pauses: pauses.iter().map(Pause::from).collect() }))
}

/// Ends a pause.
#[utoipa::path(
    delete,
    path = "/v1/admin/pauses/{id}",
    operation_id = "deletePause",
    tag = "operators",
    params(("id" = String, Path, description = "The pause")),
    responses(
        (status = 204, description = "It has ended"),
        (status = 404, description = "There is no such pause, or it had ended", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A parameter that is not known", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn delete(
    State(app): State<App>,
    By(by): By,
    PauseId(id): PauseId,
    uri: Uri,
) -> Result<Response, Rejection> {
    decode::no_parameters(&uri)?;
    match write(&app, app.backend.delete_pause(by, id)).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(no_such_pause()),
    }
}

/// The pause that the path names. What is no id is answered as one that is unknown.
pub(crate) struct PauseId(Uuid);

impl<S: Send + Sync> FromRequestParts<S> for PauseId {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| no_such_pause())?;
        let id = params.iter().find(|(name, _)| *name == "id").and_then(|(_, id)| id.parse().ok());
        id.map(Self).ok_or_else(no_such_pause)
    }
}

fn no_such_pause() -> Rejection {
    Rejection::fault(Fault::NotFound, "there is no such pause")
}
