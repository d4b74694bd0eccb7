//! Tenants and peers with what is in effect for them and what they hold.

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::merge_patch::Patched;
use tidegate_core::peer::PeerLimits;
use tidegate_core::tenant::TenantLimits;
use tidegate_core::{PeerName, TenantId};

use crate::error::StoreError;
use crate::policy::stored::{Documents, Scope};
use crate::store::Store;

const ONE: &str = concat!("WITH asked AS (SELECT $2::text AS name) ", include_str!("named.sql"));
const PAGE: &str = concat!(
    "WITH asked AS (SELECT p.name FROM tidegate.policy p WHERE p.scope = $1 AND p.name > $2 \
        UNION SELECT u.key FROM tidegate.usage u WHERE u.scope = $1 AND u.key > $2) ",
    include_str!("named.sql"),
    " LIMIT $3"
);

/// A tenant or peer: its limits, and what it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Named<T> {
    /// Its name.
    pub name: String,
    /// Whether anybody configured it; if not, the limits are the defaults.
    pub configured: bool,
    /// What is in effect for it.
    pub limits: T,
    /// What it holds now.
    pub held: Held,
}

/// What a tenant's or a peer's tasks hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Tasks that are QUEUED.
    pub queued: i64,
    /// Tasks that are ADMITTED or RUNNING.
    pub running: i64,
    /// Tasks that are DEFERRED.
    pub deferred: i64,
    /// Tokens that tasks in flight reserve.
    pub tokens: i64,
    /// Money that tasks in flight reserve, in millionths of a dollar.
    pub usd_micros: i64,
    /// Bytes of payload that tasks hold which have not ended.
    pub bytes: i64,
}

/// A page of tenants or peers, by name.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedPage<T> {
    /// Those that somebody configured or that hold anything.
    pub items: Vec<Named<T>>,
    /// The name after which the next page begins, if there are more.
    pub next: Option<String>,
}

impl Store {
    /// A tenant that somebody configured or that holds anything.
    pub async fn tenant(&self, tenant: &TenantId) -> Result<Option<Named<TenantLimits>>, StoreError> {
        self.named(Scope::Tenant, tenant.as_str()).await
    }

    /// A peer that somebody configured or that tasks use.
    pub async fn peer(&self, peer: &PeerName) -> Result<Option<Named<PeerLimits>>, StoreError> {
        self.named(Scope::Peer, peer.as_str()).await
    }

    /// A page of tenants, from the first name after `after`.
    pub async fn tenants(&self, after: Option<&str>, limit: u16) -> Result<NamedPage<TenantLimits>, StoreError> {
        self.names(Scope::Tenant, after, limit).await
    }

    /// A page of peers, from the first name after `after`.
    pub async fn peers(&self, after: Option<&str>, limit: u16) -> Result<NamedPage<PeerLimits>, StoreError> {
        self.names(Scope::Peer, after, limit).await
    }

    async fn named<T: Patched>(&self, scope: Scope, name: &str) -> Result<Option<Named<T>>, StoreError> {
        let rows = self.ask(|| sqlx::query(ONE).bind(scope.code()).bind(name.to_owned())).await?;
        rows.first().map(|row| named_of(row, scope)).transpose()
    }

    async fn names<T: Patched>(
        &self,
        scope: Scope,
        after: Option<&str>,
        limit: u16,
    ) -> Result<NamedPage<T>, StoreError> {
        let after = after.unwrap_or_default().to_owned();
        let limit = limit.max(1);
        let query = || sqlx::query(PAGE).bind(scope.code()).bind(after.clone()).bind(i64::from(limit) + 1);
        let rows = self.ask(query).await?;
        let items = rows.iter().take(limit.into()).map(|row| named_of(row, scope)).collect::<Result<Vec<_>, _>>()?;
        let more = rows.len() > items.len();
        let next = items.last().filter(|_| more).map(|last: &Named<T>| last.name.clone());
        Ok(NamedPage { items, next })
    }
}

fn named_of<T: Patched>(row: &PgRow, scope: Scope) -> Result<Named<T>, StoreError> {
    let name: String = row.try_get("name")?;
    let documents = Documents::parse(row.try_get("seed")?, row.try_get("patch")?)?;
    let held = Held {
        queued: row.try_get("queued")?,
        running: row.try_get("running")?,
        deferred: row.try_get("deferred")?,
        tokens: row.try_get("tokens")?,
        usd_micros: row.try_get("usd_micros")?,
        bytes: row.try_get("bytes")?,
    };
    let limits = documents.effective(scope, &name);
    Ok(Named { name, configured: row.try_get("configured")?, limits, held })
}
