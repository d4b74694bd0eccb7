//! The routes. Each is registered once, together with its description in the OpenAPI document.

mod batch;
mod cancel;
mod docs;
mod extract;
mod plain;
mod poll;
mod pressure;
mod status_page;
mod submit;
mod tasks;

use std::sync::LazyLock;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use http::{Method, Uri};
use tidegate_wire::Fault;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::gate::gate;
use crate::rejection::Rejection;
use crate::settings::{App, AppState};

/// The name of the extension that says who may use an operation: a scope of API keys, or `public`.
#[cfg(test)]
const AUTH_CLASS: &str = "x-auth-class";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidegate",
        description = "A durable priority task queue. Every answer carries `X-Request-Id` and `X-Pressure` (how full \
            the queue is, 0.00 to 1.00). Errors are problem details (RFC 9457) with a `reason` from a closed \
            vocabulary. Unknown members of a request are refused; unknown members of an answer must be ignored.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    tags(
        (name = "tasks", description = "Submitting, reading and cancelling tasks"),
        (name = "system", description = "How the system is"),
        (name = "plain", description = "Pages and probes")
    ),
    modifiers(&Keys)
)]
struct Document;

/// Adds the security scheme that the operations speak of.
struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An API key with the scope named. From loopback no key is needed."))
            .build();
        let components = document.components.get_or_insert_with(Default::default);
        components.add_security_scheme("key", SecurityScheme::Http(scheme));
    }
}

fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(submit::submit, tasks::list))
        .routes(routes!(batch::submit_batch))
        .routes(routes!(tasks::get))
        .routes(routes!(tasks::attempts))
        .routes(routes!(cancel::cancel))
        .routes(routes!(pressure::pressure))
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

/// The patterns of the routes, for labels.
const PATTERNS: &[&str] = &[
    "/v1/tasks",
    "/v1/tasks/batch",
    "/v1/tasks/{id}",
    "/v1/tasks/{id}/attempts",
    "/v1/tasks/{id}/cancel",
    "/v1/pressure",
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

/// The OpenAPI document, with a line break at its end.
pub fn openapi_json() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let (_, document) = routes().split_for_parts();
        document.to_pretty_json().map(|text| text + "\n").unwrap_or_default()
    });
    &TEXT
}

async fn not_found(uri: Uri) -> Response {
    Rejection::fault(Fault::NotFound, format!("there is nothing at {}", shown(uri.path()))).into_response()
}

async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    let detail = format!("{} does not know {}", shown(uri.path()), shown(method.as_str()));
    Rejection::fault(Fault::MethodNotAllowed, detail).into_response()
}

/// As much of what a caller sent as fits a sentence.
fn shown(text: &str) -> &str {
    const LONGEST: usize = 200;
    // What comes here is ASCII: a path or a method.
    text.get(..LONGEST).unwrap_or(text)
}

#[cfg(test)]
mod tests;
