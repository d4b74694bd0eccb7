//! The values of the configuration file, under which an operator's changes go on holding.

use std::collections::BTreeMap;

use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::limits::Limits;
use tidegate_core::merge_patch::{BadValue, Patched, compose_stored, difference};
use tidegate_core::peer::PeerLimits;
use tidegate_core::tenant::TenantLimits;
use tidegate_core::{PeerName, TenantId};

use crate::connection::Tx;
use crate::error::{PolicyError, StoreError};
use crate::policy::change::MAX_NAMED;
use crate::policy::stored::{Documents, Scope, nothing};
use crate::store::Store;

const ALL: &str = "SELECT scope, name, seed::text AS seed, patch::text AS patch FROM tidegate.policy";
const SEED: &str = "INSERT INTO tidegate.policy (scope, name, seed, changed_ms) \
    SELECT d.scope, d.name, d.seed::jsonb, tidegate.now_ms() FROM unnest($1::smallint[], $2::text[], $3::text[]) AS d(scope, name, seed) \
    ON CONFLICT (scope, name) DO UPDATE SET seed = excluded.seed, seed_off = false, changed_ms = excluded.changed_ms";
const UNSEED: &str = "UPDATE tidegate.policy p SET seed = NULL, seed_off = false, changed_ms = tidegate.now_ms() \
    FROM unnest($1::smallint[], $2::text[]) AS d(scope, name) WHERE p.scope = d.scope AND p.name = d.name AND p.patch IS NOT NULL";
const FORGET: &str = "DELETE FROM tidegate.policy p USING unnest($1::smallint[], $2::text[]) AS d(scope, name) \
    WHERE p.scope = d.scope AND p.name = d.name AND p.patch IS NULL";

/// What a document is about: a scope's number, and a name.
type Key = (i16, String);
/// What the file says.
type Seeds = BTreeMap<Key, Value>;

impl Store {
    /// Puts the values of the configuration file under the operator's changes, at the start of whoever serves the API.
    /// The same file changes nothing; another replaces the values of the one before. Where they contradict what an
    /// operator changed, nothing is stored; the pointer of the error begins with the section of the file.
    pub async fn seed_policy(
        &self,
        limits: &Limits,
        tenants: &BTreeMap<TenantId, TenantLimits>,
        peers: &BTreeMap<PeerName, PeerLimits>,
    ) -> Result<(), PolicyError> {
        for (scope, named) in [(Scope::Tenant, tenants.len()), (Scope::Peer, peers.len())] {
            if named as i64 > MAX_NAMED {
                let (pointer, problem) = (format!("/{}", scope.plural()), format!("must be at most {MAX_NAMED}"));
                return Err(PolicyError::Bad(BadValue::new(pointer, problem)));
            }
        }
        let mut seeds = Seeds::from([((Scope::Limits.code(), String::new()), difference(limits))]);
        let tenants = tenants.iter().map(|(name, tenant)| (Scope::Tenant, name.to_string(), difference(tenant)));
        let peers = peers.iter().map(|(name, peer)| (Scope::Peer, name.to_string(), difference(peer)));
        seeds.extend(tenants.chain(peers).map(|(scope, name, document)| ((scope.code(), name), document)));
        let mut tx = self.inner_ref().connections.begin(true).await?;
        match replace(&mut tx, seeds).await {
            Ok(true) => drop(self.inner_ref().publish(tx).await?),
            Ok(false) => {
                tx.rollback().await;
                self.read_policy().await?;
            }
            Err(error) => {
                tx.rollback().await;
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Writes the seeds that differ from those that are stored. Tells whether any did.
async fn replace(tx: &mut Tx, mut seeds: Seeds) -> Result<bool, PolicyError> {
    let mut gone = Vec::new();
    for row in tx.call(|conn| sqlx::query(ALL).fetch_all(conn)).await? {
        let (key, stored, patch) = stored_seed(&row)?;
        match seeds.get(&key) {
            Some(seed) if Some(seed) == stored.as_ref() => drop(seeds.remove(&key)),
            Some(seed) => check(&key, seed, &patch)?,
            None if stored.is_some() => {
                check(&key, &nothing(), &patch)?;
                gone.push(key);
            }
            None => {}
        }
    }
    if seeds.is_empty() && gone.is_empty() {
        return Ok(false);
    }
    let (scopes, names): (Vec<i16>, Vec<String>) = gone.into_iter().unzip();
    for sql in [FORGET, UNSEED] {
        let query = sqlx::query(sql).bind(scopes.clone()).bind(names.clone());
        tx.call(|conn| query.execute(conn)).await?;
    }
    let texts: Vec<String> = seeds.values().map(Value::to_string).collect();
    let (scopes, names): (Vec<i16>, Vec<String>) = seeds.into_keys().unzip();
    let query = sqlx::query(SEED).bind(scopes).bind(names).bind(texts);
    tx.call(|conn| query.execute(conn)).await?;
    Ok(true)
}

/// What a row is about, what the file said of it, if it did, and what operators changed.
fn stored_seed(row: &PgRow) -> Result<(Key, Option<Value>, Value), StoreError> {
    let seed: Option<&str> = row.try_get("seed")?;
    let documents = Documents::parse(seed, row.try_get("patch")?)?;
    let key = (row.try_get("scope")?, row.try_get("name")?);
    Ok((key, seed.is_some().then_some(documents.seed), documents.patch))
}

/// Refuses values of the file that contradict what operators changed.
fn check((scope, name): &Key, seed: &Value, patch: &Value) -> Result<(), PolicyError> {
    fn composed<T: Patched>(seed: &Value, patch: &Value) -> Result<(), BadValue> {
        compose_stored::<T>(&[seed, patch]).map(drop)
    }
    let (section, checked) = match scope {
        2 => (format!("/tenants/{name}"), composed::<TenantLimits>(seed, patch)),
        3 => (format!("/peers/{name}"), composed::<PeerLimits>(seed, patch)),
        _ => ("/limits".to_owned(), composed::<Limits>(seed, patch)),
    };
    checked.map_err(|bad| {
        let problem = format!("{} (the file's values together with an operator's changes)", bad.problem);
        PolicyError::Bad(BadValue::new(format!("{section}{}", bad.pointer), problem))
    })
}
