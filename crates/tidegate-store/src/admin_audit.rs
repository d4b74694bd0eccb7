//! Who changed what: every change of an operator leaves a row, written in the transaction that made it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::{EpochMs, TenantId};

use crate::connection::Tx;
use crate::error::StoreError;
use crate::store::Store;

/// How long a row is kept.
pub(crate) const KEPT: Duration = Duration::from_secs(90 * 86_400);
/// Most rows: a change every six minutes for as long as they are kept. Beyond it the oldest go.
const MAX_ROWS: i64 = 20_000;
/// The longest document that is kept, in bytes of JSON text. All but a peer's result schema is far below it; of a longer
/// one its long members' lengths are kept, and the rest as it is.
const MAX_DOCUMENT_BYTES: usize = 16 << 10;
/// The longest member of a document that is too long.
const MAX_MEMBER_BYTES: usize = MAX_DOCUMENT_BYTES / 4;

const WRITE: &str = "WITH made AS (INSERT INTO tidegate.admin_audit (at_ms, actor, action, target, before, after) \
        VALUES (tidegate.now_ms(), $1, $2, $3, $4::jsonb, $5::jsonb) RETURNING id) \
    DELETE FROM tidegate.admin_audit a WHERE a.id <= (SELECT id FROM made) - $6";
const PAGE: &str = "SELECT a.id, a.at_ms, a.actor, a.action, a.target, a.before::text AS before, a.after::text AS after \
    FROM tidegate.admin_audit a WHERE a.id < $1 ORDER BY a.id DESC LIMIT $2";
/// The oldest go first, so the look ends with what is kept.
pub(crate) const PRUNE: &str = "DELETE FROM tidegate.admin_audit WHERE id IN (SELECT o.id FROM \
    (SELECT a.id, a.at_ms FROM tidegate.admin_audit a ORDER BY a.id LIMIT $2) o WHERE o.at_ms < $1)";

/// Who changes something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor(Arc<str>);

impl Actor {
    /// Whoever sits at the machine: without a key, over loopback or with the database itself.
    pub fn local() -> Self {
        Self("local".into())
    }

    /// The holder of a tenant's key.
    pub fn key(tenant: &TenantId, key: &str) -> Self {
        Self(format!("{tenant}/{key}").into())
    }

    /// As it is written down.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A change that somebody made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number: later changes have larger ones.
    pub id: i64,
    /// When.
    pub at_ms: EpochMs,
    /// Who.
    pub actor: String,
    /// What was done, such as `tenant.patch`.
    pub action: String,
    /// To what: the name of a tenant or peer, the id of a pause or worker; none for the limits of the cell.
    pub target: Option<String>,
    /// What was in effect before, as JSON text; none where there was nothing. Tenants and peers that nobody configured have
    /// the defaults.
    pub before: Option<String>,
    /// What is in effect since, as JSON text; none where it is gone. Tenants and peers that were deleted have the defaults.
    pub after: Option<String>,
}

/// A page of changes, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuditPage {
    /// The changes.
    pub entries: Vec<AuditEntry>,
    /// The change after which the next page begins, if there are more.
    pub next: Option<i64>,
}

/// What is written down of a change.
pub(crate) struct Change<'a> {
    pub(crate) action: &'static str,
    pub(crate) target: Option<&'a str>,
    pub(crate) before: Option<Value>,
    pub(crate) after: Option<Value>,
}

impl Store {
    /// The same store for somebody else: what is changed through it is put down to them. Until then it is to
    /// [`Actor::local`].
    #[must_use]
    pub fn acting_as(&self, actor: Actor) -> Self {
        let mut store = self.clone();
        store.actor = actor;
        store
    }

    /// A page of what operators changed, from the last change before `before`.
    pub async fn admin_audit(&self, before: Option<i64>, limit: u16) -> Result<AuditPage, StoreError> {
        let (before, limit) = (before.unwrap_or(i64::MAX), limit.max(1));
        let rows = self.ask(|| sqlx::query(PAGE).bind(before).bind(i64::from(limit) + 1)).await?;
        let entries = rows.iter().take(limit.into()).map(entry_of).collect::<Result<Vec<_>, _>>()?;
        let more = rows.len() > entries.len();
        let next = entries.last().filter(|_| more).map(|last| last.id);
        Ok(AuditPage { entries, next })
    }

    /// Writes a change down in the transaction that makes it.
    pub(crate) async fn write_down(&self, change: Change<'_>, tx: &mut Tx) -> Result<(), StoreError> {
        let query = sqlx::query(WRITE)
            .bind(self.actor.as_str().to_owned())
            .bind(change.action)
            .bind(change.target.map(str::to_owned))
            .bind(change.before.map(bounded))
            .bind(change.after.map(bounded))
            .bind(MAX_ROWS);
        tx.call(|conn| query.execute(conn)).await.map(drop)
    }
}

/// What is in effect, as a document. Ours have string keys and cannot fail to be written.
pub(crate) fn document(object: &impl Serialize) -> Option<Value> {
    serde_json::to_value(object).ok()
}

fn bounded(mut document: Value) -> String {
    let omitted = |bytes: usize| json!({ "omitted_bytes": bytes });
    let text = document.to_string();
    if text.len() <= MAX_DOCUMENT_BYTES {
        return text;
    }
    for member in document.as_object_mut().into_iter().flat_map(|members| members.values_mut()) {
        let bytes = member.to_string().len();
        if bytes > MAX_MEMBER_BYTES {
            *member = omitted(bytes);
        }
    }
    let text = document.to_string();
    match text.len() {
        ..=MAX_DOCUMENT_BYTES => text,
        bytes => omitted(bytes).to_string(),
    }
}

fn entry_of(row: &PgRow) -> Result<AuditEntry, StoreError> {
    Ok(AuditEntry {
        id: row.try_get("id")?,
        at_ms: row.try_get("at_ms")?,
        actor: row.try_get("actor")?,
        action: row.try_get("action")?,
        target: row.try_get("target")?,
        before: row.try_get("before")?,
        after: row.try_get("after")?,
    })
}
