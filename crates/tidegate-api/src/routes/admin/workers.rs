//! Workers: the registry of live sessions, and draining one.

use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::response::Response;
use http::request::Parts;
use http::{StatusCode, Uri};
use tidegate_store::WorkerRecord;
use tidegate_wire::{Fault, Problem, Timestamp, WorkerDocument, WorkerPage};
use uuid::Uuid;

use super::{nothing, read, write};
use crate::rejection::Rejection;
use crate::routes::extract::By;
use crate::settings::App;
use crate::{answer, decode};

/// Lists the live sessions of workers, oldest first.
#[utoipa::path(
    get,
    path = "/v1/admin/workers",
    operation_id = "listWorkers",
    tag = "operators",
    params(
        ("limit" = Option<u16>, Query, description = "How many at most, 1 to 200; 50 where nothing is said"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")
    ),
    responses(
        (status = 200, description = "A page of sessions", body = WorkerPage<'_>),
        (status = 422, description = "A bad parameter", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, Rejection> {
    let (after, limit) = decode::id_page(&uri)?;
    let page = read(&app, app.backend.workers(after, limit)).await?;
    let workers = page.workers.into_iter().map(document).collect();
    Ok(answer::json(StatusCode::OK, &WorkerPage { workers, next_cursor: page.next.map(decode::id_cursor) }))
}

/// Tells a worker to take nothing more, to finish what it runs within its grace and to leave. A body has no members.
#[utoipa::path(
    post,
    path = "/v1/admin/workers/{id}/drain",
    operation_id = "drainWorker",
    tag = "operators",
    params(("id" = String, Path, description = "The session")),
    responses(
        (status = 200, description = "It is draining; saying so again changes nothing", body = WorkerDocument<'_>),
        (status = 400, description = "Not JSON, or not UTF-8", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session, or it has left", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 413, description = "Too large", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 415, description = "Not application/json", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A member or parameter that is not known", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn drain(
    State(app): State<App>,
    By(by): By,
    WorkerId(id): WorkerId,
    request: Request,
) -> Result<Response, Rejection> {
    nothing(&app, request).await?;
    let worker = write(&app, app.backend.drain_worker(by, id)).await?.ok_or_else(no_such_worker)?;
    Ok(answer::json(StatusCode::OK, &document(worker)))
}

fn document(worker: WorkerRecord) -> WorkerDocument<'static> {
    WorkerDocument {
        id: worker.id.to_string().into(),
        worker: worker.worker.into(),
        kinds: worker.kinds.into_iter().map(Into::into).collect(),
        slots: worker.slots,
        running: worker.running,
        draining: worker.draining,
        started_at: Timestamp::from_ms(worker.started_ms),
        last_beat_at: Timestamp::from_ms(worker.expires_ms.saturating_sub(worker.lease_ms)),
        expires_at: Timestamp::from_ms(worker.expires_ms),
        lease_ms: worker.lease_ms,
    }
}

/// The session that the path names. What is no id is answered as one that is unknown.
pub(crate) struct WorkerId(Uuid);

impl<S: Send + Sync> FromRequestParts<S> for WorkerId {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| no_such_worker())?;
        let id = params.iter().find(|(name, _)| *name == "id").and_then(|(_, id)| id.parse().ok());
        id.map(Self).ok_or_else(no_such_worker)
    }
}

fn no_such_worker() -> Rejection {
    Rejection::fault(Fault::NotFound, "there is no such worker")
}
