//! Pauses: an operator says that something shall not start for a while.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::EpochMs;
use crate::names::{Class, Kind, PeerName, TenantId};

/// The longest reason, in bytes.
pub const MAX_REASON_BYTES: usize = 1_000;

/// A pause of everything of one kind, class, tenant or peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// Names it.
    pub id: Uuid,
    /// What it stops.
    pub target: PauseTarget,
    /// What happens to submissions meanwhile.
    pub mode: PauseMode,
    /// When it ends by itself; `None` is when somebody ends it.
    pub until: Option<EpochMs>,
    /// Why, in the operator's words.
    pub reason: Option<String>,
    /// When it was made.
    pub created: EpochMs,
}

/// What a pause stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PauseTarget {
    /// Every task of a kind.
    Kind(Kind),
    /// Every task of a class.
    Class(Class),
    /// Every task of a tenant.
    Tenant(TenantId),
    /// Every task that calls a peer.
    Peer(PeerName),
}

impl PauseTarget {
    /// The member that names it on the wire, and its value.
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Kind(kind) => ("kind", kind.as_str()),
            Self::Class(class) => ("class", class.as_str()),
            Self::Tenant(tenant) => ("tenant", tenant.as_str()),
            Self::Peer(peer) => ("peer", peer.as_str()),
        }
    }

    /// The target of these parts, unless they name none.
    pub fn of_parts(member: &str, value: &str) -> Option<Self> {
        match member {
            "kind" => Kind::parse(value).ok().map(Self::Kind),
            "class" => Class::parse(value).map(Self::Class),
            "tenant" => TenantId::parse(value).ok().map(Self::Tenant),
            "peer" => PeerName::parse(value).ok().map(Self::Peer),
            _ => None,
        }
    }
}

/// What happens to submissions during a pause. Either way nothing starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PauseMode {
    /// They queue.
    #[default]
    Hold,
    /// They are refused.
    Refuse,
}

impl PauseMode {
    /// The name on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Refuse => "refuse",
        }
    }

    /// The mode of that name.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Hold, Self::Refuse].into_iter().find(|mode| mode.as_str() == text)
    }
}

impl Pause {
    /// Whether it holds at this time.
    pub fn in_effect(&self, now: EpochMs) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Whether it stops a task of this kind, class, tenant and peer, while it is in effect.
    pub fn stops(&self, kind: &str, class: Class, tenant: &str, peer: Option<&str>) -> bool {
        match &self.target {
            PauseTarget::Kind(paused) => paused.as_str() == kind,
            PauseTarget::Class(paused) => *paused == class,
            PauseTarget::Tenant(paused) => paused.as_str() == tenant,
            PauseTarget::Peer(paused) => peer == Some(paused.as_str()),
        }
    }
}
