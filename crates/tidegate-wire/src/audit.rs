//! Who changed what.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::time::Timestamp;

/// A change that an operator made.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AuditEntry<'a> {
    /// Its number: later changes have larger ones.
    pub id: i64,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Who: `tenant/key`, or `local` for whoever asked without a key.
    pub actor: Cow<'a, str>,
    /// What was done: `limits.patch`, `tenant.patch`, `tenant.delete`, `peer.patch`, `peer.delete`, `pause.create`,
    /// `pause.delete` or `worker.drain`. Later versions may know more.
    pub action: Cow<'a, str>,
    /// To what: the name of a tenant or peer, the id of a pause or worker; `null` for the limits of the cell.
    pub target: Option<Cow<'a, str>>,
    /// What was in effect before; `null` where there was nothing. A tenant or peer that nobody configured has the
    /// defaults.
    #[schema(value_type = Option<serde_json::Value>)]
    pub before: Option<Cow<'a, RawValue>>,
    /// What is in effect since; `null` where it is gone. A tenant or peer that was deleted has the defaults.
    #[schema(value_type = Option<serde_json::Value>)]
    pub after: Option<Cow<'a, RawValue>>,
}

/// What operators changed, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AuditPage<'a> {
    /// The changes.
    pub entries: Vec<AuditEntry<'a>>,
    /// Where the next page begins; `null` on the last.
    pub next_cursor: Option<String>,
}
