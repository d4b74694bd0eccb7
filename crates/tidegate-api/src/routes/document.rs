//! The OpenAPI document: its head, and what holds for all of it.

use std::sync::LazyLock;

use tidegate_wire::PROBLEM_JSON;
use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, Parameter};
use utoipa::openapi::schema::{Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi as Document, Ref, RefOr, ResponseBuilder};

use super::routes;

/// The name of the extension that says who may use an operation: a scope of API keys, or `public`.
#[cfg(test)]
pub(super) const AUTH_CLASS: &str = "x-auth-class";

/// Answers in which every member is always there, if only as `null`.
const WHOLE: &[&str] = &[
    "Accepted",
    "Attempt",
    "AttemptList",
    "AuditEntry",
    "AuditPage",
    "Blocker",
    "Cancel",
    "Cancelled",
    "ClassWaits",
    "Cost",
    "CostReport",
    "Explanation",
    "PauseList",
    "PeerPage",
    "PeerUsage",
    "Pressure",
    "Task",
    "TaskError",
    "TaskList",
    "TenantPage",
    "TenantUsage",
    "WorkerDocument",
    "WorkerPage",
];

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
        (name = "operators", description = "Limits, tenants, peers, pauses and workers, changed while the cell runs"),
        (name = "system", description = "How the system is"),
        (name = "plain", description = "Pages and probes")
    )
)]
struct Head;

/// The document before the routes are added.
pub(super) fn head() -> Document {
    Head::openapi()
}

/// The whole document.
pub(super) fn document() -> Document {
    let (_, mut document) = routes().split_for_parts();
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("An API key with the scope named. From loopback no key is needed."))
        .build();
    let components = document.components.get_or_insert_with(Default::default);
    components.add_security_scheme("key", SecurityScheme::Http(scheme));
    for name in WHOLE {
        if let Some(RefOr::T(Schema::Object(schema))) = components.schemas.get_mut(*name) {
            schema.required = schema.properties.keys().cloned().collect();
        }
    }
    for (path, item) in &mut document.paths.paths {
        for operation in [&mut item.get, &mut item.post, &mut item.patch, &mut item.delete].into_iter().flatten() {
            operation.parameters.iter_mut().flatten().for_each(refuse_null);
            if path.starts_with("/v1/") {
                may_be_kept_out(operation);
            }
        }
    }
    document
}

/// Says of an operation how callers are kept out, which is the same at all of them.
fn may_be_kept_out(operation: &mut Operation) {
    let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    for (status, why) in [("401", "No key, or an unknown one"), ("403", "Not from this machine itself")] {
        let response = ResponseBuilder::new().description(why).content(PROBLEM_JSON, problem.clone());
        operation.responses.responses.insert(status.to_owned(), response.build().into());
    }
}

/// A parameter that may be absent is not one that may be `null`, which a header or query cannot even say.
fn refuse_null(parameter: &mut RefOr<Parameter>) {
    if let RefOr::T(parameter) = parameter
        && let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema
        && let SchemaType::Array(types) = &schema.schema_type
        && let Some(only) = types.iter().find(|kind| !matches!(kind, Type::Null))
    {
        schema.schema_type = SchemaType::Type(only.clone());
    }
}

/// The OpenAPI document, with a line break at its end.
pub fn openapi_json() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| document().to_pretty_json().map(|text| text + "\n").unwrap_or_default());
    &TEXT
}
