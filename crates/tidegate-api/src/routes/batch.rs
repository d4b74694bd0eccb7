//! `POST /v1/tasks/batch`: many submissions in one request, each decided alone and in order.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::future::join_all;
use http::StatusCode;
use serde_json::value::RawValue;
use tidegate_core::TenantId;
use tidegate_store::Admission;
use tidegate_wire::{Batch, BatchAnswer, BatchItem, Fault, MAX_BATCH, MAX_PAYLOAD_DEPTH, Problem};

use crate::decode::{self, Members, SubmitHeaders};
use crate::rejection::Rejection;
use crate::routes::extract::Tenant;
use crate::routes::submit::{admit, before_reading, before_the_door};
use crate::settings::{App, Shared};
use crate::{answer, body};

/// A payload sits one level deep in its task.
const MAX_DEPTH: usize = MAX_PAYLOAD_DEPTH + 1;

/// Submits many tasks.
#[utoipa::path(
    post,
    path = "/v1/tasks/batch",
    operation_id = "submitTasks",
    tag = "tasks",
    params(
        ("X-Deadline-Epoch-Ms" = Option<i64>, Header, description = "When each must have ended; of several ends the smallest counts"),
        ("X-Budget" = Option<String>, Header, description = "The delegation budget of each"),
        ("traceparent" = Option<String>, Header, description = "The W3C trace context"),
        ("X-Tenant" = Option<String>, Header, description = "Without a key: the tenant that is asking")
    ),
    request_body(content = Batch, content_type = "application/json"),
    responses(
        (status = 200, description = "One answer for each task, in order", body = BatchAnswer<'_>),
        (status = "4XX", description = "The request as a whole is wrong", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "This server is busy or shutting down", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["submit"])),
    extensions(("x-auth-class" = json!("submit")))
)]
pub(crate) async fn submit_batch(State(app): State<App>, request: Request) -> Result<Response, Rejection> {
    let arrived = Instant::now();
    let (parts, body) = request.into_parts();
    let Tenant(tenant) = Tenant::of(&parts)?;
    let checked = before_reading(&parts)
        .and_then(|()| decode::no_idempotency_key(&parts.headers))
        .and_then(|()| SubmitHeaders::read(&parts.headers));
    let headers = match checked {
        Ok(headers) => headers,
        Err(rejection) => {
            body::discard(&parts.headers, body);
            return Err(rejection);
        }
    };
    let received = body::read(&app, &parts.headers, body, app.settings.max_body_bytes).await?;
    let document = decode::list_document(received.text()?)?;
    let tasks = tasks(document)?;
    // All are offered at once, so that they share a commit; they are taken in the order they are offered in.
    let offers = tasks.iter().enumerate().map(|(at, raw)| offer(&app, &tenant, &headers, raw, at, arrived));
    let results = join_all(offers).await;
    Ok(answer::json(StatusCode::OK, &BatchAnswer { results }))
}

/// The items of `{"tasks":[…]}`.
fn tasks(document: &str) -> Result<Vec<&RawValue>, Rejection> {
    let mut tasks = None;
    for (name, value) in Members::of(document, "")?.iter() {
        if name != "tasks" {
            return Err(decode::unknown("", name));
        }
        if tasks.replace(value).is_some() {
            return Err(decode::duplicate("", name));
        }
    }
    let raw = tasks.ok_or_else(|| decode::missing("", "tasks"))?;
    let tasks = decode::array(raw.get()).map_err(|bad| bad.at("/tasks".to_owned()))?;
    if tasks.len() > MAX_BATCH {
        let detail = format!("/tasks has {} items, at most {MAX_BATCH} are allowed", tasks.len());
        return Err(Rejection::fault(Fault::InvalidValue, detail).at_pointer("/tasks".to_owned()));
    }
    Ok(tasks)
}

async fn offer(
    app: &Shared,
    tenant: &TenantId,
    headers: &SubmitHeaders,
    raw: &RawValue,
    at: usize,
    arrived: Instant,
) -> BatchItem<'static> {
    match try_offer(app, tenant, headers, raw, at, arrived).await {
        Ok(item) => item,
        Err(rejection) => BatchItem::Refused(rejection.into_problem()),
    }
}

async fn try_offer(
    app: &Shared,
    tenant: &TenantId,
    headers: &SubmitHeaders,
    raw: &RawValue,
    at: usize,
    arrived: Instant,
) -> Result<BatchItem<'static>, Rejection> {
    let base = format!("/tasks/{at}");
    decode::check_item(raw, MAX_DEPTH, &base)?;
    let policy = app.backend.policy();
    let mut draft = decode::draft(app, &policy.limits, headers, raw.get(), &base)?;
    decode::earn_class(app, &policy, tenant, None, &mut draft);
    let submission = draft.submission(app.backend.next_id(), tenant, headers, None);
    before_the_door(app, &draft, &submission, arrived, &base)?;
    match admit(app, submission, arrived).await? {
        Admission::Decided { id, decision } if decision.status.is_final() => Err(Rejection::decided(&decision, id)),
        Admission::Decided { id, decision } => Ok(BatchItem::Accepted(answer::accepted(id, &decision))),
        // Without a key there is nothing to replay: the store broke its word.
        Admission::Replayed { id } | Admission::KeyReused { id } => {
            Err(Rejection::fault(Fault::Internal, "the store answered for another submission").about(id, None))
        }
    }
}
