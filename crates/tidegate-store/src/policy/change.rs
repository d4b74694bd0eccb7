//! Changing limits key by key. A change is a merge patch that is added to those made before.

use serde_json::Value;
use sqlx::Row;
use tidegate_core::limits::Limits;
use tidegate_core::merge_patch::{BadValue, Patched, amend};
use tidegate_core::peer::PeerLimits;
use tidegate_core::tenant::TenantLimits;
use tidegate_core::{PeerName, TenantId};

use crate::admin_audit::{Change, document};
use crate::connection::Tx;
use crate::error::{PolicyError, StoreError};
use crate::policy::stored::{Documents, Scope};
use crate::store::Store;

/// Most tenants, and most peers, that may be configured: every process remembers them all.
pub(super) const MAX_NAMED: i64 = 10_000;

const ONE: &str = "SELECT CASE WHEN seed_off THEN NULL ELSE seed::text END AS seed, patch::text AS patch \
    FROM tidegate.policy WHERE scope = $1 AND name = $2";
const COUNT: &str = "SELECT count(*) FROM tidegate.policy WHERE scope = $1";
const CHANGE: &str = "INSERT INTO tidegate.policy (scope, name, patch, changed_ms) VALUES ($1, $2, $3::jsonb, tidegate.now_ms()) \
    ON CONFLICT (scope, name) DO UPDATE SET patch = excluded.patch, changed_ms = excluded.changed_ms";
// What the file says is kept aside, so that a start with the same file does not bring it back.
const DROP_PATCHED: &str = "DELETE FROM tidegate.policy WHERE scope = $1 AND name = $2 AND seed IS NULL";
const DROP_SEEDED: &str = "UPDATE tidegate.policy SET patch = NULL, seed_off = true, changed_ms = tidegate.now_ms() \
    WHERE scope = $1 AND name = $2 AND (patch IS NOT NULL OR NOT seed_off)";

impl Store {
    /// The limits of the cell that are in effect.
    pub async fn limits(&self) -> Result<Limits, StoreError> {
        let rows = self.ask(|| sqlx::query(ONE).bind(Scope::Limits.code()).bind("")).await?;
        let documents = match rows.first() {
            Some(row) => Documents::parse(row.try_get("seed")?, row.try_get("patch")?)?,
            None => Documents::default(),
        };
        Ok(documents.effective(Scope::Limits, ""))
    }

    /// Changes the limits of the cell, and returns those that are in effect then.
    pub async fn patch_limits(&self, change: &Value) -> Result<Limits, PolicyError> {
        self.patch("limits.patch", Scope::Limits, "", change).await
    }

    /// Changes the limits of a tenant, configured before or not.
    pub async fn patch_tenant(&self, tenant: &TenantId, change: &Value) -> Result<TenantLimits, PolicyError> {
        self.patch("tenant.patch", Scope::Tenant, tenant.as_str(), change).await
    }

    /// Changes the limits of a peer, configured before or not.
    pub async fn patch_peer(&self, peer: &PeerName, change: &Value) -> Result<PeerLimits, PolicyError> {
        self.patch("peer.patch", Scope::Peer, peer.as_str(), change).await
    }

    /// Takes all limits from a tenant, those of the file too. Tells whether it had any.
    pub async fn delete_tenant(&self, tenant: &TenantId) -> Result<bool, StoreError> {
        self.drop_named::<TenantLimits>("tenant.delete", Scope::Tenant, tenant.as_str()).await
    }

    /// Takes all limits from a peer, those of the file too. Tells whether it had any.
    pub async fn delete_peer(&self, peer: &PeerName) -> Result<bool, StoreError> {
        self.drop_named::<PeerLimits>("peer.delete", Scope::Peer, peer.as_str()).await
    }

    async fn patch<T: Patched>(
        &self,
        action: &'static str,
        scope: Scope,
        name: &str,
        change: &Value,
    ) -> Result<T, PolicyError> {
        let mut tx = self.inner_ref().connections.begin(true).await?;
        match write::<T>(&mut tx, scope, name, change).await {
            Ok((before, object)) => {
                let target = Some(name).filter(|name| !name.is_empty());
                let change = Change { action, target, before, after: document(&object) };
                self.write_down(change, &mut tx).await?;
                self.inner_ref().publish(tx).await?;
                Ok(object)
            }
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }

    async fn drop_named<T: Patched>(&self, action: &'static str, scope: Scope, name: &str) -> Result<bool, StoreError> {
        let mut tx = self.inner_ref().connections.begin(true).await?;
        let before = stored(&mut tx, scope, name).await?.map(|before| before.effective::<T>(scope, name));
        let mut dropped = 0;
        for sql in [DROP_PATCHED, DROP_SEEDED] {
            let query = sqlx::query(sql).bind(scope.code()).bind(name.to_owned());
            dropped += tx.call(|conn| query.execute(conn)).await?.rows_affected();
        }
        match dropped {
            0 => tx.rollback().await,
            _ => {
                let before = before.as_ref().and_then(document);
                let after = document(&Documents::default().effective::<T>(scope, name));
                self.write_down(Change { action, target: Some(name), before, after }, &mut tx).await?;
                drop(self.inner_ref().publish(tx).await?);
            }
        }
        Ok(dropped > 0)
    }
}

/// What is stored of one thing.
async fn stored(tx: &mut Tx, scope: Scope, name: &str) -> Result<Option<Documents>, StoreError> {
    let query = sqlx::query(ONE).bind(scope.code()).bind(name.to_owned());
    let row = tx.call(|conn| query.fetch_optional(conn)).await?;
    row.map(|row| Documents::parse(row.try_get("seed")?, row.try_get("patch")?)).transpose()
}

/// Adds a change to those that are stored, and returns what was in effect before and what is now. What nobody configured
/// has the defaults: they were in effect, and only what differs from them was changed. Nothing is stored where it is
/// refused.
async fn write<T: Patched>(
    tx: &mut Tx,
    scope: Scope,
    name: &str,
    change: &Value,
) -> Result<(Option<Value>, T), PolicyError> {
    let known = stored(tx, scope, name).await?;
    let before = match known {
        Some(known) => known,
        None => {
            let query = sqlx::query_scalar(COUNT).bind(scope.code());
            let named: i64 = tx.call(|conn| query.fetch_one(conn)).await?;
            if named >= MAX_NAMED {
                let problem = format!("would exceed the {MAX_NAMED} {} that there may be", scope.plural());
                return Err(PolicyError::Bad(BadValue::new("", problem)));
            }
            Documents::default()
        }
    };
    let in_effect = before.effective::<T>(scope, name);
    let (changes, object) = amend::<T>(&before.seed, &before.patch, change).map_err(PolicyError::Bad)?;
    let query = sqlx::query(CHANGE).bind(scope.code()).bind(name.to_owned()).bind(changes.to_string());
    tx.call(|conn| query.execute(conn)).await?;
    Ok((document(&in_effect), object))
}
