//! Probes, metrics and the OpenAPI document.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use tidegate_core::Reason;
use tidegate_wire::Problem;

use crate::rejection::Rejection;
use crate::routes::openapi_json;
use crate::settings::App;
use crate::{answer, gauges, metric};

/// How long a probe waits for the database: probes ask every few seconds.
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// Says that the process lives.
#[utoipa::path(
    get,
    path = "/livez",
    operation_id = "getLiveness",
    tag = "plain",
    responses((status = 200, description = "It lives", body = String, content_type = "text/plain")),
    security(()),
    extensions(("x-auth-class" = json!("public")))
)]
pub(crate) async fn livez() -> Response {
    answer::respond(StatusCode::OK, "text/plain; charset=utf-8", "live\n")
}

/// Says whether the process can serve: not while it drains, nor without its database.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "getReadiness",
    tag = "plain",
    responses(
        (status = 200, description = "It can serve", body = String, content_type = "text/plain"),
        (status = 503, description = "It is draining, or its database does not answer", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security(()),
    extensions(("x-auth-class" = json!("public")))
)]
pub(crate) async fn readyz(State(app): State<App>) -> Result<Response, Rejection> {
    if app.draining.is_cancelled() {
        return Err(Rejection::unavailable(Reason::Draining));
    }
    match tokio::time::timeout(PING_TIMEOUT, app.backend.ping()).await {
        Ok(Ok(())) => Ok(answer::respond(StatusCode::OK, "text/plain; charset=utf-8", "ready\n")),
        _ => Err(Rejection::unavailable(Reason::StoreUnavailable)),
    }
}

/// Shows the metrics in the Prometheus text format. Without the database, those of the process alone.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "getMetrics",
    tag = "plain",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain")),
    security(()),
    extensions(("x-auth-class" = json!("public")))
)]
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    metric::set_process_gauges(&app);
    match gauges::read(&app).await {
        Ok(gauges) => metric::set_system_gauges(&gauges),
        Err(error) => tracing::warn!(%error, "the metrics lack what the database knows"),
    }
    let text = app.prometheus.as_ref().map(|handle| handle.render()).unwrap_or_default();
    answer::respond(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
}

/// Shows this document.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "getOpenapi",
    tag = "plain",
    responses((status = 200, description = "The OpenAPI document", body = serde_json::Value)),
    security(()),
    extensions(("x-auth-class" = json!("public")))
)]
pub(crate) async fn openapi() -> Response {
    answer::respond(StatusCode::OK, "application/json", openapi_json())
}
