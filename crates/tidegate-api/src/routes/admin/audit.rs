//! Who changed what.

use std::borrow::Cow;

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use tidegate_store::AuditEntry as Stored;
use tidegate_wire::{AuditEntry, AuditPage, Problem, Timestamp};

use super::read;
use crate::rejection::Rejection;
use crate::settings::App;
use crate::{answer, decode};

/// Lists what operators changed, newest first.
#[utoipa::path(
    get,
    path = "/v1/admin/audit",
    operation_id = "listAudit",
    tag = "operators",
    params(
        ("limit" = Option<u16>, Query, description = "How many at most, 1 to 200; 50 where nothing is said"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")
    ),
    responses(
        (status = 200, description = "A page of changes: they are kept for 90 days, and 20000 at most", body = AuditPage<'_>),
        (status = 422, description = "A bad parameter", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, Rejection> {
    let (before, limit) = decode::number_page(&uri)?;
    let page = read(&app, app.backend.audit(before, limit)).await?;
    let entries = page.entries.iter().map(entry).collect();
    Ok(answer::json(StatusCode::OK, &AuditPage { entries, next_cursor: page.next.map(decode::cursor) }))
}

fn entry(entry: &Stored) -> AuditEntry<'_> {
    AuditEntry {
        id: entry.id,
        at: Timestamp::from_ms(entry.at_ms),
        actor: Cow::Borrowed(&entry.actor),
        action: Cow::Borrowed(&entry.action),
        target: entry.target.as_deref().map(Cow::Borrowed),
        before: entry.before.as_deref().and_then(answer::raw),
        after: entry.after.as_deref().and_then(answer::raw),
    }
}
