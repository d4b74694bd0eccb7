//! From the documents in the database to the policy that they make.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::EpochMs;
use tidegate_core::limits::Limits;
use tidegate_core::merge_patch::{Patched, compose_stored};
use tidegate_core::pause::{Pause, PauseMode, PauseTarget};
use tidegate_core::peer::PeerLimits;
use tidegate_core::policy::Policy;
use tidegate_core::quarantine::Hold;
use tidegate_core::tenant::TenantLimits;
use uuid::Uuid;

use crate::connection::Tx;
use crate::error::StoreError;

pub(super) const WHOLE: &str = include_str!("whole.sql");

/// What a document is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// The cell and its classes.
    Limits,
    /// One tenant.
    Tenant,
    /// One peer.
    Peer,
}

impl Scope {
    /// The number that the database stores.
    pub(super) fn code(self) -> i16 {
        match self {
            Self::Limits => 0,
            Self::Tenant => 2,
            Self::Peer => 3,
        }
    }

    /// What logs and errors call one.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Limits => "limits",
            Self::Tenant => "tenants",
            Self::Peer => "peers",
        }
    }
}

/// The two documents about one thing: of the file, and of the operators. Missing ones are empty.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Documents {
    pub(super) seed: Value,
    pub(super) patch: Value,
}

impl Default for Documents {
    fn default() -> Self {
        Self { seed: nothing(), patch: nothing() }
    }
}

/// A document that says nothing.
pub(super) fn nothing() -> Value {
    Value::Object(Map::new())
}

impl Documents {
    pub(super) fn of(seed: Option<Value>, patch: Option<Value>) -> Self {
        Self { seed: seed.unwrap_or_else(nothing), patch: patch.unwrap_or_else(nothing) }
    }

    /// The same from the text of a row.
    pub(super) fn parse(seed: Option<&str>, patch: Option<&str>) -> Result<Self, StoreError> {
        let parse = |text: Option<&str>| text.map(serde_json::from_str::<Value>).transpose().map_err(not_ours);
        Ok(Self::of(parse(seed)?, parse(patch)?))
    }

    /// What is in effect. All that is stored was checked; should it make no sense to this version all the same, the
    /// cell goes on with as much of it as does.
    pub(super) fn effective<T: Patched>(&self, scope: Scope, name: &str) -> T {
        let attempts: [&[&Value]; 2] = [&[&self.seed, &self.patch], &[&self.seed]];
        for documents in attempts {
            match compose_stored(documents) {
                Ok((object, unknown)) => {
                    if !unknown.is_empty() {
                        let scope = scope.plural();
                        tracing::debug!(scope, name, keys = ?unknown, "this version does not know some stored keys");
                    }
                    return object;
                }
                Err(bad) => {
                    tracing::error!(scope = scope.plural(), name, %bad, "stored values make no sense and are not in effect");
                }
            }
        }
        T::default()
    }
}

/// Reads the policy that is in effect, in a transaction.
pub(super) async fn load(tx: &mut Tx) -> Result<Policy, StoreError> {
    let row = tx.call(|conn| sqlx::query(WHOLE).fetch_one(conn)).await?;
    policy_of(&row)
}

#[derive(Deserialize)]
struct DocumentRow {
    scope: i16,
    name: String,
    seed: Option<Value>,
    patch: Option<Value>,
}

#[derive(Deserialize)]
struct PauseRow {
    id: Uuid,
    target: String,
    value: String,
    mode: String,
    until_ms: Option<EpochMs>,
    reason: Option<String>,
    created_ms: EpochMs,
}

#[derive(Deserialize)]
struct HoldRow {
    fingerprint: String,
    tenant: String,
    kind: String,
    until_ms: EpochMs,
}

impl HoldRow {
    fn hold(self) -> Result<Hold, StoreError> {
        let mut fingerprint = [0; 32];
        for (n, byte) in fingerprint.iter_mut().enumerate() {
            let digits = self.fingerprint.get(2 * n..2 * n + 2);
            *byte = digits
                .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                .ok_or_else(|| StoreError::Schema("a fingerprint".into()))?;
        }
        let tenant = (!self.tenant.is_empty()).then_some(self.tenant);
        Ok(Hold { fingerprint, tenant, kind: self.kind, until: self.until_ms })
    }
}

/// The policy that a row of `whole.sql` makes.
pub(super) fn policy_of(row: &PgRow) -> Result<Policy, StoreError> {
    let documents: Vec<DocumentRow> = serde_json::from_str(row.try_get("documents")?).map_err(not_ours)?;
    let pauses: Vec<PauseRow> = serde_json::from_str(row.try_get("pauses")?).map_err(not_ours)?;
    let mut limits = Limits::default();
    let (mut tenants, mut peers) = (BTreeMap::<String, TenantLimits>::new(), BTreeMap::<String, PeerLimits>::new());
    for DocumentRow { scope, name, seed, patch } in documents {
        let documents = Documents::of(seed, patch);
        match scope {
            0 => limits = documents.effective(Scope::Limits, &name),
            2 => drop(tenants.insert(name.clone(), documents.effective(Scope::Tenant, &name))),
            3 => drop(peers.insert(name.clone(), documents.effective(Scope::Peer, &name))),
            _ => {}
        }
    }
    let pauses = pauses.into_iter().map(PauseRow::pause).collect::<Result<_, _>>()?;
    let holds: Vec<HoldRow> = serde_json::from_str(row.try_get("holds")?).map_err(not_ours)?;
    let holds = holds.into_iter().map(HoldRow::hold).collect::<Result<_, _>>()?;
    Ok(Policy { revision: row.try_get("n")?, limits, tenants, peers, pauses, holds })
}

impl PauseRow {
    fn pause(self) -> Result<Pause, StoreError> {
        pause_of(self.id, &self.target, &self.value, &self.mode, (self.until_ms, self.reason, self.created_ms))
    }
}

/// A pause from the columns of its row.
pub(super) fn pause_of(
    id: Uuid,
    target: &str,
    value: &str,
    mode: &str,
    (until, reason, created): (Option<EpochMs>, Option<String>, EpochMs),
) -> Result<Pause, StoreError> {
    let parts = PauseTarget::of_parts(target, value).zip(PauseMode::parse(mode));
    let (target, mode) = parts.ok_or_else(|| StoreError::Schema(format!("the pause {id}")))?;
    Ok(Pause { id, target, mode, until, reason, created })
}

fn not_ours(error: serde_json::Error) -> StoreError {
    StoreError::Schema(format!("a stored policy: {error}"))
}
