//! The documents that the server carries with it: the API's, shown by a Swagger UI of its own, and a page for each
//! reason.

use std::fmt::Write;
use std::sync::{Arc, LazyLock};

use axum::extract::RawPathParams;
use axum::response::Response;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION};
use http::{HeaderValue, StatusCode};
use tidegate_wire::{Fault, Problem};
use utoipa_swagger_ui::Config;

use crate::html::{self, Escaped};
use crate::rejection::Rejection;
use crate::{answer, error_pages};

/// What the Swagger UI needs: its own files, styles that its script sets, and pictures within its styles.
const UI_POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                         base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Leads to the shown document.
#[utoipa::path(
    get,
    path = "/docs",
    operation_id = "enterDocs",
    tag = "plain",
    responses((status = 303, description = "See /docs/")),
    security(()),
    extensions(("x-auth-class" = json!("public")))
)]
pub(crate) async fn enter() -> Response {
    let mut response = answer::respond(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", "see /docs/\n");
    response.headers_mut().insert(LOCATION, HeaderValue::from_static("/docs/"));
    response
}

/// Shows the OpenAPI document.
#[utoipa::path(
    get,
    path = "/docs/",
    operation_id = "showDocs",
    tag = "plain",
    responses((status = 200, description = "The document, for people", body = String, content_type = "text/html")),
    security(()),
    extensions(("x-auth-class" = json!("public")))
)]
pub(crate) async fn index() -> Result<Response, Rejection> {
    ui_file("index.html")
}

/// A part of the page at `/docs/`.
#[utoipa::path(
    get,
    path = "/docs/{file}",
    operation_id = "getDocsFile",
    tag = "plain",
    params(("file" = String, Path, description = "A script, style or picture")),
    responses(
        (status = 200, description = "The file"),
        (status = 404, description = "There is no such file", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security(()),
    extensions(("x-auth-class" = json!("public")))
)]
pub(crate) async fn file(params: RawPathParams) -> Result<Response, Rejection> {
    ui_file(param(&params))
}

fn ui_file(name: &str) -> Result<Response, Rejection> {
    static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| Arc::new(Config::from("/openapi.json")));
    let found = utoipa_swagger_ui::serve(name, Arc::clone(&CONFIG)).ok().flatten();
    let file = found.ok_or_else(|| Rejection::fault(Fault::NotFound, "there is no such file"))?;
    let mut response = Response::new(file.bytes.into_owned().into());
    let headers = response.headers_mut();
    if let Ok(content_type) = HeaderValue::try_from(file.content_type) {
        headers.insert(CONTENT_TYPE, content_type);
    }
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(UI_POLICY));
    Ok(response)
}

/// Lists the reasons.
#[utoipa::path(
    get,
    path = "/docs/errors",
    operation_id = "listReasons",
    tag = "plain",
    responses((status = 200, description = "A list of pages", body = String, content_type = "text/html")),
    security(()),
    extensions(("x-auth-class" = json!("public")))
)]
pub(crate) async fn errors() -> Response {
    let mut body = String::from("<h1>Reasons</h1><table>");
    for (reason, page) in error_pages::all() {
        let path = error_pages::path(reason);
        // Writing to a string cannot fail.
        let _ = write!(
            body,
            "<tr><td><a href=\"{path}\"><code>{reason}</code></a></td><td>{}</td></tr>",
            Escaped(page.summary)
        );
    }
    body.push_str("</table>");
    html::page("Tidegate: reasons", &body, None)
}

/// Explains a reason.
#[utoipa::path(
    get,
    path = "/docs/errors/{reason}",
    operation_id = "explainReason",
    tag = "plain",
    params(("reason" = String, Path, description = "A reason, such as queue_full")),
    responses(
        (status = 200, description = "What it means and what to do", body = String, content_type = "text/html"),
        (status = 404, description = "There is no such reason", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security(()),
    extensions(("x-auth-class" = json!("public")))
)]
pub(crate) async fn error(params: RawPathParams) -> Result<Response, Rejection> {
    let name = param(&params);
    let page = error_pages::find(name).ok_or_else(|| Rejection::fault(Fault::NotFound, "there is no such reason"))?;
    let body = format!("<p><a href=\"/docs/errors\">Reasons</a></p><pre>{}</pre>", Escaped(page.text));
    Ok(html::page(page.title, &body, None))
}

fn param(params: &RawPathParams) -> &str {
    params.iter().next().map_or("", |(_, value)| value)
}
