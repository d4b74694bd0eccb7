//! What operators read and change at run time: limits, tenants, peers, pauses.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tidegate_core::limits::Limits;
use tidegate_core::pause::{Pause as CorePause, PauseMode, PauseTarget};
use tidegate_core::peer::PeerLimits;
use tidegate_core::tenant::TenantLimits;
use tidegate_core::{Class, Kind, PeerName, TenantId};

use crate::time::Timestamp;

/// The media type of a JSON merge patch (RFC 7396).
pub const MERGE_PATCH_JSON: &str = "application/merge-patch+json";

/// The limits of the cell that are in effect, every key.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct LimitsDocument<'a>(pub Cow<'a, Limits>);

/// A change of the limits of the cell: some of their keys. Only its schema is of use.
#[derive(Debug)]
pub struct LimitsChange;

/// A tenant: its limits that are in effect, and what it holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantDocument<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
    /// Whether anybody configured it; if not, its limits are the defaults.
    pub configured: bool,
    /// Its limits.
    #[serde(flatten)]
    pub limits: TenantLimits,
    /// What it holds.
    pub usage: TenantUsage,
}

/// A change of a tenant's limits: some of their keys. Only its schema is of use.
#[derive(Debug)]
pub struct TenantChange;

/// What a tenant's tasks hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TenantUsage {
    /// Tasks that are QUEUED.
    pub queued: i64,
    /// Tasks that are ADMITTED or RUNNING.
    pub running: i64,
    /// Tasks that are DEFERRED.
    pub deferred: i64,
    /// Tokens that tasks in flight reserve.
    pub tokens: i64,
    /// Bytes of payload that tasks hold which have not ended.
    pub bytes: i64,
    /// Money that tasks in flight reserve, in millionths of a dollar.
    pub usd_micros: i64,
}

/// Tenants that somebody configured or that hold anything, by name.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct TenantPage<'a> {
    /// The tenants.
    pub tenants: Vec<TenantDocument<'a>>,
    /// Where the next page begins; `null` on the last.
    pub next_cursor: Option<String>,
}

/// A peer: its limits that are in effect, and what uses it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PeerDocument<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
    /// Whether anybody configured it; if not, it has no limits.
    pub configured: bool,
    /// Its limits.
    #[serde(flatten)]
    pub limits: PeerLimits,
    /// What uses it.
    pub usage: PeerUsage,
}

/// A change of a peer's limits: some of their keys. Only its schema is of use.
#[derive(Debug)]
pub struct PeerChange;

/// What uses a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PeerUsage {
    /// Its tasks that are ADMITTED or RUNNING.
    pub in_flight: i64,
    /// Its tasks that are QUEUED.
    pub waiting: i64,
}

/// Peers that somebody configured or that tasks use, by name.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct PeerPage<'a> {
    /// The peers.
    pub peers: Vec<PeerDocument<'a>>,
    /// Where the next page begins; `null` on the last.
    pub next_cursor: Option<String>,
}

/// A pause to make: exactly one of `kind`, `class`, `tenant` and `peer`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PauseRequest {
    /// Every task of a kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub kind: Option<Kind>,
    /// Every task of a class.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = crate::schema::class)]
    pub class: Option<Class>,
    /// Every task of a tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantId>,
    /// Every task that calls a peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub peer: Option<PeerName>,
    /// What happens to submissions meanwhile; `hold` where nothing is said. Either way nothing starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = crate::schema::pause_mode)]
    pub mode: Option<PauseMode>,
    /// When it ends by itself; when somebody ends it, where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
    /// Why, for whoever finds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1000)]
    pub reason: Option<String>,
}

/// A pause. One of `kind`, `class`, `tenant` and `peer` is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Pause {
    /// Names it.
    #[schema(format = Uuid)]
    pub id: String,
    /// Every task of a kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Every task of a class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Every task of a tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Every task that calls a peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// What happens to submissions meanwhile.
    #[schema(schema_with = crate::schema::pause_mode)]
    pub mode: PauseMode,
    /// When it ends by itself.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
    /// Why.
    pub reason: Option<String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

impl From<&CorePause> for Pause {
    fn from(pause: &CorePause) -> Self {
        let (member, value) = pause.target.parts();
        let named = |name: &str| (name == member).then(|| value.to_owned());
        Self {
            id: pause.id.to_string(),
            kind: named("kind"),
            class: named("class"),
            tenant: named("tenant"),
            peer: named("peer"),
            mode: pause.mode,
            until: pause.until.map(Timestamp::from_ms),
            reason: pause.reason.clone(),
            created_at: Timestamp::from_ms(pause.created),
        }
    }
}

impl PauseRequest {
    /// A pause of this.
    pub fn new(target: PauseTarget) -> Self {
        let mut request = Self::default();
        match target {
            PauseTarget::Kind(kind) => request.kind = Some(kind),
            PauseTarget::Class(class) => request.class = Some(class),
            PauseTarget::Tenant(tenant) => request.tenant = Some(tenant),
            PauseTarget::Peer(peer) => request.peer = Some(peer),
        }
        request
    }
}

/// The pauses that are in effect, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PauseList {
    /// The pauses, at most 1,000.
    pub pauses: Vec<Pause>,
}
