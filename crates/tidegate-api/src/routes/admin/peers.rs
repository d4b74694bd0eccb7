//! Peers: the limits of each, and what it holds.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, Uri};
use tidegate_core::PeerName;
use tidegate_core::peer::PeerLimits;
use tidegate_store::Named;
use tidegate_wire::{PeerChange, PeerDocument, PeerPage, PeerUsage, Problem};

use super::{PathName, change, no_such, read, write};
use crate::rejection::Rejection;
use crate::routes::extract::By;
use crate::settings::App;
use crate::{answer, decode};

/// Lists peers that somebody configured or that hold anything, by name.
#[utoipa::path(
    get,
    path = "/v1/admin/peers",
    operation_id = "listPeers",
    tag = "operators",
    params(
        ("limit" = Option<u16>, Query, description = "How many at most, 1 to 200; 50 where nothing is said"),
        ("cursor" = Option<String>, Query, description = "The next_cursor of the page before")
    ),
    responses(
        (status = 200, description = "A page of peers", body = PeerPage<'_>),
        (status = 422, description = "A bad parameter", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, Rejection> {
    let (after, limit) = decode::name_page(&uri)?;
    let page = read(&app, app.backend.peers(after.as_deref(), limit)).await?;
    let peers = page.items.into_iter().map(document).collect();
    Ok(answer::json(StatusCode::OK, &PeerPage { peers, next_cursor: page.next.map(decode::cursor) }))
}

/// Reads a peer's limits that are in effect, and what it holds.
#[utoipa::path(
    get,
    path = "/v1/admin/peers/{name}",
    operation_id = "getPeer",
    tag = "operators",
    params(("name" = String, Path, description = "The peer")),
    responses(
        (status = 200, description = "The peer", body = PeerDocument<'_>),
        (status = 404, description = "Nobody configured it and it holds nothing", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 422, description = "What cannot be a name", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["admin"])),
    extensions(("x-auth-class" = json!("admin")))
)]
pub(crate) async fn get(
    State(app): State<App>,
    PathName(name): PathName<PeerName>,
    uri: Uri,
) -> Result<Response, Rejection> {
    decode::no_parameters(&uri)?;
    let peer = read(&app, app.backend.peer(&name)).await?.ok_or_else(no_such::<PeerName>)?;
    Ok(answer::json(StatusCode::OK, &document(peer)))
}

/// Changes a peer's limits, configured before or not.
#[utoipa::path(
    patch,
    path = "/v1/admin/peers/{name}",
    operation_id = "patchPeer",
    tag = "operators",
    params(("name" = String, Path, description = "The peer")),
    request_body(content((PeerChange = "application/merge-patch+json"), (PeerChange = "application/json")), description = "The keys to change; `null` is no limit"),
    responses(
        (status = 200, description = "The peer as it is now, in every replica within a second", body = PeerDocument<'_>),
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
    PathName(name): PathName<PeerName>,
    request: Request,
) -> Result<Response, Rejection> {
    let change = change(&app, request, Some(name.as_str())).await?;
    let limits = write(&app, app.backend.patch_peer(by, &name, &change)).await?;
    let held = read(&app, app.backend.peer(&name)).await?.map(|peer| peer.held).unwrap_or_default();
    let peer = Named { name: name.into(), configured: true, limits, held };
    Ok(answer::json(StatusCode::OK, &document(peer)))
}

/// Takes all limits from a peer, those of the configuration file too.
#[utoipa::path(
    delete,
    path = "/v1/admin/peers/{name}",
    operation_id = "deletePeer",
    tag = "operators",
    params(("name" = String, Path, description = "The peer")),
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
    PathName(name): PathName<PeerName>,
    uri: Uri,
) -> Result<Response, Rejection> {
    decode::no_parameters(&uri)?;
    match write(&app, app.backend.delete_peer(by, &name)).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(no_such::<PeerName>()),
    }
}

fn document(peer: Named<PeerLimits>) -> PeerDocument<'static> {
    PeerDocument {
        name: peer.name.into(),
        configured: peer.configured,
        limits: peer.limits,
        usage: PeerUsage { in_flight: peer.held.running, waiting: peer.held.queued },
    }
}
