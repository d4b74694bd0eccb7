//! Tenants: the limits of each, and what it holds.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, Uri};
use tidegate_core::TenantId;
use tidegate_core::tenant::TenantLimits;
use tidegate_store::Named;
use tidegate_wire::{Problem, TenantChange, TenantDocument, TenantPage, TenantUsage};

use super::{PathName, change, no_such, read, write};
use crate::rejection::Rejection;
use crate::routes::extract::By;
use crate::settings::App;
use crate::{answer, decode};

/// Lists tenants that somebody configured or that hold anything, by name.
#[utoipa::path(
    get,
    path = "/v1/admin/tenants",
    operation_id = "listTenants",
    tag = "operators",
    params(
        ("limit" = Option<u16>, Query, description = "How many at most, 1 to 200; 50 where nothing is said"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")
    ),
    responses(
        (status = 200, description = "A page of tenants", body = TenantPage<'_>),
        (status = 422, description = "A bad parameter", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, Rejection> {
    let (after, limit) = decode::name_page(&uri)?;
    let page = read(&app, app.backend.tenants(after.as_deref(), limit)).await?;
    let tenants = page.items.into_iter().map(document).collect();
    Ok(answer::json(StatusCode::OK, &TenantPage { tenants, next_cursor: page.next.map(decode::cursor) }))
}

/// Reads a tenant's limits that are in effect, and what it holds.
#[utoipa::path(
    get,
    path = "/v1/admin/tenants/{name}",
    operation_id = "getTenant",
    tag = "operators",
    params(("name" = String, Path, description = "The tenant")),
    responses(
        (status = 200, description = "The tenant", body = TenantDocument<'_>),
        (status = 404, description = "Nobody configured it and it holds nothing", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "What cannot be a name", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn get(
    State(app): State<App>,
    PathName(name): PathName<TenantId>,
    uri: Uri,
) -> Result<Response, Rejection> {
    decode::no_parameters(&uri)?;
    let tenant = read(&app, app.backend.tenant(&name)).await?.ok_or_else(no_such::<TenantId>)?;
    Ok(answer::json(StatusCode::OK, &document(tenant)))
}

/// Changes a tenant's limits, configured before or not.
#[utoipa::path(
    patch,
    path = "/v1/admin/tenants/{name}",
    operation_id = "patchTenant",
    tag = "operators",
    params(("name" = String, Path, description = "The tenant")),
    request_body(content((TenantChange = "application/merge-patch+json"), (TenantChange = "application/json")), description = "The keys to change; `null` is no limit"),
    responses(
        (status = 200, description = "The tenant as it is now, in every replica within a second", body = TenantDocument<'_>),
        (status = 400, description = "Not JSON, or not UTF-8", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 413, description = "Too large", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 415, description = "Neither application/merge-patch+json nor application/json", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A key that is not known, a value that it cannot have, or what cannot be a name", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn patch(
    State(app): State<App>,
    By(by): By,
    PathName(name): PathName<TenantId>,
    request: Request,
) -> Result<Response, Rejection> {
    let change = change(&app, request, Some(name.as_str())).await?;
    let limits = write(&app, app.backend.patch_tenant(by, &name, &change)).await?;
    let held = read(&app, app.backend.tenant(&name)).await?.map(|tenant| tenant.held).unwrap_or_default();
    let tenant = Named { name: name.into(), configured: true, limits, held };
    Ok(answer::json(StatusCode::OK, &document(tenant)))
}

/// Takes all limits from a tenant, those of the configuration file too.
#[utoipa::path(
    delete,
    path = "/v1/admin/tenants/{name}",
    operation_id = "deleteTenant",
    tag = "operators",
    params(("name" = String, Path, description = "The tenant")),
    responses(
        (status = 204, description = "It has no limits of its own any more"),
        (status = 404, description = "Nobody configured it", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "What cannot be a name", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn delete(
    State(app): State<App>,
    By(by): By,
    PathName(name): PathName<TenantId>,
    uri: Uri,
) -> Result<Response, Rejection> {
    decode::no_parameters(&uri)?;
    match write(&app, app.backend.delete_tenant(by, &name)).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(no_such::<TenantId>()),
    }
}

fn document(tenant: Named<TenantLimits>) -> TenantDocument<'static> {
    let held = tenant.held;
    TenantDocument {
        name: tenant.name.into(),
        configured: tenant.configured,
        limits: tenant.limits.shown(),
        usage: TenantUsage {
            queued: held.queued,
            running: held.running,
            deferred: held.deferred,
            tokens: held.tokens,
            bytes: held.bytes,
            usd_micros: held.usd_micros,
        },
    }
}
