//! `/v1/admin/…`: what operators read and change while the cell runs. None of it passes through admission.

pub(super) mod audit;
pub(super) mod limits;
pub(super) mod pauses;
pub(super) mod peers;
pub(super) mod tenants;
pub(super) mod workers;

use std::future::Future;

use axum::extract::{FromRequestParts, RawPathParams, Request};
use http::request::Parts;
use serde_json::Value;
use tidegate_core::names::BadName;
use tidegate_core::{PeerName, TenantId};
use tidegate_store::{PolicyError, StoreError};
use tidegate_wire::{Fault, MAX_PAYLOAD_DEPTH, MERGE_PATCH_JSON};

use crate::decode::Members;
use crate::rejection::Rejection;
use crate::settings::Shared;
use crate::{body, decode};

/// Most bytes of a change: the longest result schema, and some.
const MAX_CHANGE: usize = 128 << 10;

/// Most bytes of a body in which nothing is to be said, so that what is said there can be named.
const MAX_NOTHING: usize = 16 << 10;

/// A change from a body, of the object with this name.
async fn change(app: &Shared, request: Request, name: Option<&str>) -> Result<Value, Rejection> {
    let (parts, body) = request.into_parts();
    decode::no_parameters(&parts.uri)?;
    body::check_type(&parts.headers, &["application/json", MERGE_PATCH_JSON])?;
    let received = body::read(app, &parts.headers, body, MAX_CHANGE).await?;
    decode::change(decode::document(received.text()?, MAX_PAYLOAD_DEPTH)?, name)
}

/// The body of a request that says nothing: there is none, or it is an object without members.
async fn nothing(app: &Shared, request: Request) -> Result<(), Rejection> {
    let (parts, body) = request.into_parts();
    decode::no_parameters(&parts.uri)?;
    let Some(received) = body::read_any(app, &parts.headers, body, MAX_NOTHING).await? else { return Ok(()) };
    let members = Members::of(decode::document(received.text()?, MAX_PAYLOAD_DEPTH)?, "")?;
    members.iter().next().map_or(Ok(()), |(name, _)| Err(decode::unknown("", name)))
}

/// Waits for a read of the store, as long as reads may take.
async fn read<T>(app: &Shared, asked: impl Future<Output = Result<T, StoreError>>) -> Result<T, Rejection> {
    let read = tokio::time::timeout(app.settings.read_timeout, asked).await;
    Ok(read.unwrap_or(Err(StoreError::Unavailable(None)))?)
}

/// Waits for a change of the store, as long as writes may take.
async fn write<T>(
    app: &Shared,
    asked: impl Future<Output = Result<T, impl Into<PolicyError>>>,
) -> Result<T, Rejection> {
    let written = tokio::time::timeout(app.settings.write_timeout, asked).await;
    written.map_or(Err(StoreError::OutcomeUnknown(None).into()), |result| result.map_err(Into::into)).map_err(refusal)
}

fn refusal(error: PolicyError) -> Rejection {
    match error {
        PolicyError::Store(error) => error.into(),
        PolicyError::Bad(bad) => {
            let fault = if bad.is_unknown() { Fault::UnknownField } else { Fault::InvalidValue };
            let what = if bad.pointer.is_empty() { "this" } else { &bad.pointer };
            Rejection::fault(fault, format!("{what} {}", bad.problem)).at_pointer(bad.pointer)
        }
    }
}

/// The tenant or peer that the path names. What cannot be a name is a bad value, not one that is unknown: a change would
/// have made what is unknown.
pub(crate) struct PathName<T>(pub(crate) T);

/// What a path may name.
pub(crate) trait Name: Sized {
    /// What a caller is told who names one that is not there.
    const UNKNOWN: &str;

    /// The name.
    fn parse_name(text: &str) -> Result<Self, BadName>;
}

impl Name for TenantId {
    const UNKNOWN: &str = "there is no such tenant";

    fn parse_name(text: &str) -> Result<Self, BadName> {
        Self::parse(text)
    }
}

impl Name for PeerName {
    const UNKNOWN: &str = "there is no such peer";

    fn parse_name(text: &str) -> Result<Self, BadName> {
        Self::parse(text)
    }
}

fn no_such<T: Name>() -> Rejection {
    Rejection::fault(Fault::NotFound, T::UNKNOWN)
}

/// The parameter of the path that holds a name.
const NAME: &str = "name";

fn no_name(bad: BadName) -> Rejection {
    Rejection::fault(Fault::InvalidValue, format!("the {NAME} in the path {bad}")).at_parameter(NAME.to_owned())
}

impl<S: Send + Sync, T: Name> FromRequestParts<S> for PathName<T> {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        // Parameters that cannot be read are bytes that are no text: no name either.
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| no_name(BadName::Characters))?;
        let text = params.iter().find(|(name, _)| *name == NAME).map_or("", |(_, text)| text);
        T::parse_name(text).map(Self).map_err(no_name)
    }
}
