//! `GET /`: how things stand, for people, without a script.

use std::fmt::Write;

use axum::extract::State;
use axum::response::Response;
use tidegate_store::{Gauges, StoreError, TaskFilter, TaskPage};
use tidegate_wire::Timestamp;

use crate::gauges;
use crate::html::{self, Escaped};
use crate::routes::extract::Tenant;
use crate::routes::poll;
use crate::settings::App;

/// How often the page loads itself again, in seconds.
const REFRESH: u32 = 2;
/// How many of the newest tasks it shows.
const NEWEST: u16 = 20;

/// Shows how things stand.
#[utoipa::path(
    get,
    path = "/",
    operation_id = "showStatus",
    tag = "plain",
    responses((status = 200, description = "A page for people", body = String, content_type = "text/html")),
    security((), ("key" = ["read"])),
    extensions(("x-auth-class" = json!("read")))
)]
pub(crate) async fn status_page(State(app): State<App>, Tenant(tenant): Tenant) -> Response {
    let filter = TaskFilter { limit: NEWEST, ..TaskFilter::default() };
    let (gauges, page) = tokio::join!(gauges::read(&app), poll::within(&app, app.backend.tasks(&tenant, &filter)));
    let mut body = String::from("<h1>Tidegate</h1>");
    // Writing to a string cannot fail.
    let _ = write_system(&mut body, app.backend.pressure(), gauges);
    let _ = write_tasks(&mut body, tenant.as_str(), page);
    let _ = write!(
        body,
        "<p class=\"soft\">Reloads every {REFRESH} s · <a href=\"/docs/\">API</a> · <a href=\"/metrics\">metrics</a> · \
         <a href=\"/docs/errors\">reasons</a></p>"
    );
    html::page("Tidegate", &body, Some(REFRESH))
}

fn write_system(out: &mut String, pressure: f64, gauges: Result<Gauges, StoreError>) -> std::fmt::Result {
    let pressure = pressure.clamp(0.0, 1.0);
    write!(out, "<p>Pressure {pressure:.2} <progress value=\"{pressure:.2}\" max=\"1\"></progress></p>")?;
    let gauges = match gauges {
        Ok(gauges) => gauges,
        Err(error) => return write!(out, "<p><strong>{}</strong></p>", Escaped(&error.to_string())),
    };
    out.push_str("<h2>Depth</h2><table><tr><th>Class</th><th class=\"n\">queued</th><th class=\"n\">running</th><th class=\"n\">deferred</th></tr>");
    for (class, counts) in &gauges.classes {
        write!(
            out,
            "<tr><td>{class}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            counts.queued, counts.running, counts.deferred
        )?;
    }
    out.push_str("</table>");
    write!(
        out,
        "<p>Oldest queued {} · oldest due {} · longest running {} · {} sessions · {} slots · {} leases · {} bytes held</p>",
        age(gauges.oldest_queued_ms),
        age(gauges.oldest_due_ms),
        age(gauges.oldest_running_ms),
        gauges.sessions,
        gauges.slots,
        gauges.leases,
        gauges.bytes
    )
}

fn age(ms: Option<i64>) -> String {
    ms.map_or("none".to_owned(), |ms| format!("{:.1} s", ms as f64 / 1_000.0))
}

fn write_tasks(out: &mut String, tenant: &str, page: Result<TaskPage, StoreError>) -> std::fmt::Result {
    write!(out, "<h2>Newest tasks of {}</h2>", Escaped(tenant))?;
    let page = match page {
        Ok(page) if page.tasks.is_empty() => return out.write_str("<p>None yet.</p>"),
        Ok(page) => page,
        Err(error) => return write!(out, "<p><strong>{}</strong></p>", Escaped(&error.to_string())),
    };
    out.push_str(
        "<table><tr><th>Arrived</th><th>Kind</th><th>Status</th><th>Reason</th><th>Worker</th><th>Id</th></tr>",
    );
    for task in &page.tasks {
        write!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td><a href=\"/v1/tasks/{id}\"><code>{id}</code></a></td></tr>",
            Timestamp::from_ms(task.enqueued_ms),
            Escaped(task.kind.as_str()),
            task.status,
            task.reason.map_or("", |reason| reason.as_str()),
            Escaped(task.worker.as_deref().unwrap_or_default()),
            id = task.id,
        )?;
    }
    out.write_str("</table>")
}
