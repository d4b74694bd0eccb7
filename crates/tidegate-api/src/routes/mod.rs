//! The routes. Each is registered once, together with its description in the OpenAPI document.

mod admin;
mod batch;
mod cancel;
mod cancellations;
mod docs;
mod document;
mod explain;
mod extract;
mod plain;
mod poll;
mod pressure;
mod status_page;
mod submit;
mod tasks;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use http::{Method, Uri};
use tidegate_wire::Fault;
use tower::ServiceExt;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use document::openapi_json;

use crate::backend::BoxFuture;
use crate::gate::{self, gate};
use crate::rejection::{Rejection, shown};
use crate::settings::{App, AppState};

fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(document::head())
        .routes(routes!(submit::submit, tasks::list))
        .routes(routes!(batch::submit_batch))
        .routes(routes!(tasks::get))
        .routes(routes!(tasks::attempts))
        .routes(routes!(explain::explain))
        .routes(routes!(cancel::cancel))
        .routes(routes!(cancellations::cancel))
        .routes(routes!(pressure::pressure))
        .routes(routes!(admin::limits::get, admin::limits::patch))
        .routes(routes!(admin::tenants::list))
        .routes(routes!(admin::tenants::get, admin::tenants::patch, admin::tenants::delete))
        .routes(routes!(admin::peers::list))
        .routes(routes!(admin::peers::get, admin::peers::patch, admin::peers::delete))
        .routes(routes!(admin::pauses::create, admin::pauses::list))
        .routes(routes!(admin::pauses::delete))
        .routes(routes!(admin::workers::list))
        .routes(routes!(admin::workers::drain))
        .routes(routes!(admin::audit::list))
        .routes(routes!(plain::livez))
        .routes(routes!(plain::readyz))
        .routes(routes!(plain::metrics))
        .routes(routes!(plain::openapi))
        .routes(routes!(status_page::status_page))
        .routes(routes!(docs::enter))
        .routes(routes!(docs::index))
        .routes(routes!(docs::file))
        .routes(routes!(docs::errors))
        .routes(routes!(docs::error))
}

/// The route on which tasks are submitted.
pub(crate) const SUBMIT: &str = "/v1/tasks";

/// The patterns of the routes, for labels.
const PATTERNS: &[&str] = &[
    SUBMIT,
    "/v1/tasks/batch",
    "/v1/tasks/{id}",
    "/v1/tasks/{id}/attempts",
    "/v1/tasks/{id}/explain",
    "/v1/tasks/{id}/cancel",
    "/v1/cancellations",
    "/v1/pressure",
    "/v1/admin/limits",
    "/v1/admin/tenants",
    "/v1/admin/tenants/{name}",
    "/v1/admin/peers",
    "/v1/admin/peers/{name}",
    "/v1/admin/pauses",
    "/v1/admin/pauses/{id}",
    "/v1/admin/workers",
    "/v1/admin/workers/{id}/drain",
    "/v1/admin/audit",
    "/livez",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/",
    "/docs",
    "/docs/",
    "/docs/{file}",
    "/docs/errors",
    "/docs/errors/{reason}",
];

/// The pattern as a label.
pub(crate) fn pattern(matched: &str) -> &'static str {
    PATTERNS.iter().find(|pattern| **pattern == matched).copied().unwrap_or("other")
}

/// The whole API as a router. Requests need a [`crate::Peer`] among their extensions: who has none is nobody.
pub fn router(state: AppState) -> Router {
    let (router, _) = routes().split_for_parts();
    router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(state.0.clone(), gate))
        .with_state(state.0)
}

/// The whole API as one connection asks it.
#[derive(Clone)]
pub(crate) struct Api {
    app: App,
    router: Router,
}

impl Api {
    pub(crate) fn new(state: AppState) -> Self {
        Self { app: state.0.clone(), router: router(state) }
    }

    /// Answers a request. A submission goes to its handler straight away: it is what is asked most, and the way through
    /// the router costs as much as reading it. What the router does besides finding the handler, it does not need.
    pub(crate) fn answer(&self, request: Request) -> BoxFuture<'static, Response> {
        if request.method() == Method::POST && request.uri().path() == SUBMIT {
            let app = self.app.clone();
            return Box::pin(async move {
                let submit = |request| async { submit::submit(State(app.clone()), request).await.into_response() };
                gate::around(&app, SUBMIT, request, submit).await
            });
        }
        let router = self.router.clone();
        Box::pin(async move { router.oneshot(request).await.unwrap_or_else(|never| match never {}) })
    }
}

async fn not_found(uri: Uri) -> Response {
    Rejection::fault(Fault::NotFound, format!("there is nothing at {}", shown(uri.path()))).into_response()
}

async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    let detail = format!("{} does not know {}", shown(uri.path()), shown(method.as_str()));
    Rejection::fault(Fault::MethodNotAllowed, detail).into_response()
}

#[cfg(test)]
mod tests;
