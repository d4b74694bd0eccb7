//! What handlers take from a request, refused in our words.

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;
use tidegate_core::{TaskId, TenantId};
use tidegate_store::Actor;
use tidegate_wire::Fault;

use crate::access::Caller;
use crate::rejection::Rejection;

/// The tenant that is asking. A request that did not pass the gate has none.
pub(crate) struct Tenant(pub(crate) TenantId);

impl Tenant {
    pub(crate) fn of(parts: &Parts) -> Result<Self, Rejection> {
        caller(parts).map(|caller| Self(caller.tenant.clone()))
    }
}

impl<S: Sync> FromRequestParts<S> for Tenant {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
        Self::of(parts)
    }
}

/// Who is asking, as changes are put down to them. A request that did not pass the gate is nobody's.
pub(crate) struct By(pub(crate) Actor);

impl<S: Sync> FromRequestParts<S> for By {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
        caller(parts).map(|caller| Self(caller.actor()))
    }
}

fn caller(parts: &Parts) -> Result<&Caller, Rejection> {
    let caller = parts.extensions.get::<Caller>();
    caller.ok_or_else(|| Rejection::fault(Fault::Internal, "the request did not pass the gate"))
}

/// The task that the path names. What is no id is answered as one that is unknown.
pub(crate) struct PathId(pub(crate) TaskId);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| no_such_task())?;
        let id = params.iter().find(|(name, _)| *name == "id").and_then(|(_, id)| id.parse().ok());
        id.map(Self).ok_or_else(no_such_task)
    }
}

/// The answer for a task that is unknown, malformed or another tenant's: always the same.
pub(crate) fn no_such_task() -> Rejection {
    Rejection::fault(Fault::NotFound, "there is no such task")
}
