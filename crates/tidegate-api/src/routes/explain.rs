//! Why a task stands where it stands.

use std::borrow::Cow;

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use tidegate_core::Status;
use tidegate_core::explain::Blocker as CoreBlocker;
use tidegate_store::Explained;
use tidegate_wire::{Blocker, Explanation, Problem, Timestamp};

use crate::rejection::Rejection;
use crate::routes::extract::{PathId, Tenant, no_such_task};
use crate::routes::{poll, tasks};
use crate::settings::{App, Shared};
use crate::{answer, decode};

/// Tells why a task stands where it stands: which limit, pause or place in the queue a waiting one waits for.
#[utoipa::path(
    get,
    path = "/v1/tasks/{id}/explain",
    operation_id = "explainTask",
    tag = "tasks",
    params(
        ("id" = String, Path, description = "The task"),
        ("X-Tenant" = Option<String>, Header, description = "Without a key: the tenant that is asking")
    ),
    responses(
        (status = 200, description = "What it waits for, or what it does or did", body = Explanation<'_>),
        (status = 404, description = "There is no such task", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A parameter that is not known", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["read"])),
    extensions(("x-auth-class" = json!("read")))
)]
pub(crate) async fn explain(
    State(app): State<App>,
    Tenant(tenant): Tenant,
    PathId(id): PathId,
    uri: Uri,
) -> Result<Response, Rejection> {
    decode::no_parameters(&uri)?;
    let explained = poll::within(&app, app.backend.explain(&tenant, id)).await?.ok_or_else(no_such_task)?;
    Ok(answer::json(StatusCode::OK, &document(&app, &explained)))
}

fn document<'a>(app: &Shared, explained: &'a Explained) -> Explanation<'a> {
    let told = &explained.explanation;
    Explanation {
        id: explained.id,
        status: explained.status,
        reason: explained.reason,
        since: Timestamp::from_ms(told.since),
        waiting_ms: told.waiting_ms,
        eligible_at: told.eligible.map(Timestamp::from_ms),
        queue_position: explained.queue_position,
        estimated_start_ms: estimated_ms(app, explained),
        blockers: told.blockers.iter().map(blocker).collect(),
        summary: Cow::Borrowed(&told.summary),
    }
}

fn estimated_ms(app: &Shared, explained: &Explained) -> Option<i64> {
    match explained.status {
        Status::Queued if explained.explanation.moves_with_the_queue() => {
            tasks::expected_ms(app, explained.queue_position?)
        }
        _ => None,
    }
}

fn blocker(blocker: &CoreBlocker) -> Blocker<'_> {
    Blocker {
        kind: Cow::Borrowed(blocker.kind.as_str()),
        name: blocker.name.as_deref().map(Cow::Borrowed),
        limit: blocker.limit,
        in_use: blocker.in_use,
        until: blocker.until.map(Timestamp::from_ms),
        pause_id: blocker.pause.map(|id| id.to_string()),
        detail: Cow::Borrowed(&blocker.detail),
    }
}
