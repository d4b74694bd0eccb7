//! Reading tasks: one, its runs, or a page of them.

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use tidegate_core::slots::SlotCaps;
use tidegate_wire::{AttemptList, Problem, Task, TaskList};

use crate::answer;
use crate::decode;
use crate::rejection::Rejection;
use crate::routes::extract::{PathId, Tenant, no_such_task};
use crate::routes::poll;
use crate::settings::{App, Shared};

/// Reads a task, or waits for its end.
#[utoipa::path(
    get,
    path = "/v1/tasks/{id}",
    operation_id = "getTask",
    tag = "tasks",
    params(
        ("id" = String, Path, description = "The task"),
        ("wait_ms" = Option<u64>, Query, description = "Answer when the task has ended, or after so many milliseconds, at most 60000"),
        ("X-Tenant" = Option<String>, Header, description = "Without a key: the tenant that is asking")
    ),
    responses(
        (status = 200, description = "The task as it is", body = Task<'_>),
        (status = 404, description = "There is no such task", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A bad parameter", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["read"])),
    extensions(("x-auth-class" = json!("read")))
)]
pub(crate) async fn get(
    State(app): State<App>,
    Tenant(tenant): Tenant,
    PathId(id): PathId,
    uri: Uri,
) -> Result<Response, Rejection> {
    let wait = decode::wait(&uri)?;
    let record = poll::read_ended(&app, &tenant, id, wait).await?.ok_or_else(no_such_task)?;
    let mut task = answer::stored(&record);
    task.estimated_start_ms = record.queue_position.and_then(|position| expected_ms(&app, position));
    Ok(answer::task(StatusCode::OK, &task))
}

/// How long what stands at a place in the queue is expected to wait, where it is known how fast the queue drains.
pub(super) fn expected_ms(app: &Shared, position: u32) -> Option<i64> {
    let (policy, facts) = app.backend.facts()?;
    let rate = facts.pace.rate(SlotCaps::of(&policy.limits, facts.live_slots).total)?;
    Some((f64::from(position) / rate) as i64)
}

/// Lists tasks, newest first.
#[utoipa::path(
    get,
    path = "/v1/tasks",
    operation_id = "listTasks",
    tag = "tasks",
    params(
        ("status" = Option<String>, Query, description = "Only those that stand there"),
        ("kind" = Option<String>, Query, description = "Only those of the kind"),
        ("class" = Option<String>, Query, description = "Only those of the class"),
        ("peer" = Option<String>, Query, description = "Only those for the peer"),
        ("workflow_id" = Option<String>, Query, description = "Only those of the workflow"),
        ("label.{name}" = Option<String>, Query, description = "Only those with this label; may be there for several names"),
        ("from" = Option<String>, Query, description = "Only those that arrived then or later (RFC 3339)"),
        ("to" = Option<String>, Query, description = "Only those that arrived before then (RFC 3339)"),
        ("limit" = Option<u16>, Query, description = "Most tasks on the page, 1 to 200; 50 where nothing is said"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before"),
        ("X-Tenant" = Option<String>, Header, description = "Without a key: the tenant that is asking")
    ),
    responses(
        (status = 200, description = "A page", body = TaskList<'_>),
        (status = 422, description = "A bad or unknown parameter", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["read"])),
    extensions(("x-auth-class" = json!("read")))
)]
pub(crate) async fn list(State(app): State<App>, Tenant(tenant): Tenant, uri: Uri) -> Result<Response, Rejection> {
    let filter = decode::filter(&uri)?;
    let page = poll::within(&app, app.backend.tasks(&tenant, &filter)).await?;
    let list = TaskList {
        tasks: page.tasks.iter().map(answer::stored).collect(),
        next_cursor: page.next.map(|next| decode::id_cursor(next.0).into()),
    };
    Ok(answer::json(StatusCode::OK, &list))
}

/// Lists the runs of a task, oldest first.
#[utoipa::path(
    get,
    path = "/v1/tasks/{id}/attempts",
    operation_id = "listAttempts",
    tag = "tasks",
    params(
        ("id" = String, Path, description = "The task"),
        ("X-Tenant" = Option<String>, Header, description = "Without a key: the tenant that is asking")
    ),
    responses(
        (status = 200, description = "The runs", body = AttemptList<'_>),
        (status = 404, description = "There is no such task", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A parameter that is not known", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["read"])),
    extensions(("x-auth-class" = json!("read")))
)]
pub(crate) async fn attempts(
    State(app): State<App>,
    Tenant(tenant): Tenant,
    PathId(id): PathId,
    uri: Uri,
) -> Result<Response, Rejection> {
    decode::no_parameters(&uri)?;
    let records = poll::within(&app, app.backend.attempts(&tenant, id)).await?.ok_or_else(no_such_task)?;
    let list = AttemptList { attempts: records.iter().map(answer::attempt).collect() };
    Ok(answer::json(StatusCode::OK, &list))
}
