//! What operators ask of the store, as a port of its own beside [`crate::Backend`].

use serde_json::Value;
use tidegate_core::limits::Limits;
use tidegate_core::pause::{Pause, PauseMode, PauseTarget};
use tidegate_core::peer::PeerLimits;
use tidegate_core::tenant::TenantLimits;
use tidegate_core::{EpochMs, PeerName, TenantId};
use tidegate_store::{Actor, AuditPage, Named, NamedPage, PolicyError, StoreError, WorkerPage, WorkerRecord};
use uuid::Uuid;

use crate::backend::{BoxFuture, StoreBackend};

/// Reading and changing what is decided at run time. Every change is put down to somebody. Those of limits are JSON merge patches in which `null` is "no limit".
pub trait Operations: Send + Sync + 'static {
    /// The limits of the cell that are in effect.
    fn limits(&self) -> BoxFuture<'_, Result<Limits, StoreError>>;

    /// Changes the limits of the cell.
    fn patch_limits<'a>(&'a self, by: Actor, change: &'a Value) -> BoxFuture<'a, Result<Limits, PolicyError>>;

    /// A page of tenants.
    fn tenants<'a>(
        &'a self,
        after: Option<&'a str>,
        limit: u16,
    ) -> BoxFuture<'a, Result<NamedPage<TenantLimits>, StoreError>>;

    /// A tenant that somebody configured or that holds anything.
    fn tenant<'a>(&'a self, name: &'a TenantId) -> BoxFuture<'a, Result<Option<Named<TenantLimits>>, StoreError>>;

    /// Changes the limits of a tenant, configured before or not.
    fn patch_tenant<'a>(
        &'a self,
        by: Actor,
        name: &'a TenantId,
        change: &'a Value,
    ) -> BoxFuture<'a, Result<TenantLimits, PolicyError>>;

    /// Takes all limits from a tenant. Returns whether it had any.
    fn delete_tenant<'a>(&'a self, by: Actor, name: &'a TenantId) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// A page of peers.
    fn peers<'a>(
        &'a self,
        after: Option<&'a str>,
        limit: u16,
    ) -> BoxFuture<'a, Result<NamedPage<PeerLimits>, StoreError>>;

    /// A peer that somebody configured or that tasks use.
    fn peer<'a>(&'a self, name: &'a PeerName) -> BoxFuture<'a, Result<Option<Named<PeerLimits>>, StoreError>>;

    /// Changes the limits of a peer, configured before or not.
    fn patch_peer<'a>(
        &'a self,
        by: Actor,
        name: &'a PeerName,
        change: &'a Value,
    ) -> BoxFuture<'a, Result<PeerLimits, PolicyError>>;

    /// Takes all limits from a peer. Returns whether it had any.
    fn delete_peer<'a>(&'a self, by: Actor, name: &'a PeerName) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// The pauses that are in effect, oldest first.
    fn pauses(&self) -> BoxFuture<'_, Result<Vec<Pause>, StoreError>>;

    /// Makes a pause.
    fn create_pause(
        &self,
        by: Actor,
        target: PauseTarget,
        mode: PauseMode,
        until: Option<EpochMs>,
        reason: Option<String>,
    ) -> BoxFuture<'_, Result<Pause, PolicyError>>;

    /// Ends a pause. Returns whether there was one.
    fn delete_pause(&self, by: Actor, id: Uuid) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// A page of the live sessions of workers.
    fn workers(&self, after: Option<Uuid>, limit: u16) -> BoxFuture<'_, Result<WorkerPage, StoreError>>;

    /// A page of what operators changed, newest first.
    fn audit(&self, before: Option<i64>, limit: u16) -> BoxFuture<'_, Result<AuditPage, StoreError>>;

    /// Has a session drain; `None` where no such session lives.
    fn drain_worker(&self, by: Actor, id: Uuid) -> BoxFuture<'_, Result<Option<WorkerRecord>, StoreError>>;
}

impl Operations for StoreBackend {
    fn limits(&self) -> BoxFuture<'_, Result<Limits, StoreError>> {
        Box::pin(self.store.limits())
    }

    fn patch_limits<'a>(&'a self, by: Actor, change: &'a Value) -> BoxFuture<'a, Result<Limits, PolicyError>> {
        Box::pin(async move { self.store.acting_as(by).patch_limits(change).await })
    }

    fn tenants<'a>(
        &'a self,
        after: Option<&'a str>,
        limit: u16,
    ) -> BoxFuture<'a, Result<NamedPage<TenantLimits>, StoreError>> {
        Box::pin(self.store.tenants(after, limit))
    }

    fn tenant<'a>(&'a self, name: &'a TenantId) -> BoxFuture<'a, Result<Option<Named<TenantLimits>>, StoreError>> {
        Box::pin(self.store.tenant(name))
    }

    fn patch_tenant<'a>(
        &'a self,
        by: Actor,
        name: &'a TenantId,
        change: &'a Value,
    ) -> BoxFuture<'a, Result<TenantLimits, PolicyError>> {
        Box::pin(async move { self.store.acting_as(by).patch_tenant(name, change).await })
    }

    fn delete_tenant<'a>(&'a self, by: Actor, name: &'a TenantId) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move { self.store.acting_as(by).delete_tenant(name).await })
    }

    fn peers<'a>(
        &'a self,
        after: Option<&'a str>,
        limit: u16,
    ) -> BoxFuture<'a, Result<NamedPage<PeerLimits>, StoreError>> {
        Box::pin(self.store.peers(after, limit))
    }

    fn peer<'a>(&'a self, name: &'a PeerName) -> BoxFuture<'a, Result<Option<Named<PeerLimits>>, StoreError>> {
        Box::pin(self.store.peer(name))
    }

    fn patch_peer<'a>(
        &'a self,
        by: Actor,
        name: &'a PeerName,
        change: &'a Value,
    ) -> BoxFuture<'a, Result<PeerLimits, PolicyError>> {
        Box::pin(async move { self.store.acting_as(by).patch_peer(name, change).await })
    }

    fn delete_peer<'a>(&'a self, by: Actor, name: &'a PeerName) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move { self.store.acting_as(by).delete_peer(name).await })
    }

    fn pauses(&self) -> BoxFuture<'_, Result<Vec<Pause>, StoreError>> {
        Box::pin(self.store.list_pauses())
    }

    fn create_pause(
        &self,
        by: Actor,
        target: PauseTarget,
        mode: PauseMode,
        until: Option<EpochMs>,
        reason: Option<String>,
    ) -> BoxFuture<'_, Result<Pause, PolicyError>> {
        Box::pin(async move { self.store.acting_as(by).create_pause(target, mode, until, reason).await })
    }

    fn delete_pause(&self, by: Actor, id: Uuid) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move { self.store.acting_as(by).delete_pause(id).await })
    }

    fn workers(&self, after: Option<Uuid>, limit: u16) -> BoxFuture<'_, Result<WorkerPage, StoreError>> {
        Box::pin(self.store.workers(after, limit))
    }

    fn audit(&self, before: Option<i64>, limit: u16) -> BoxFuture<'_, Result<AuditPage, StoreError>> {
        Box::pin(self.store.admin_audit(before, limit))
    }

    fn drain_worker(&self, by: Actor, id: Uuid) -> BoxFuture<'_, Result<Option<WorkerRecord>, StoreError>> {
        Box::pin(async move { self.store.acting_as(by).drain_worker(id).await })
    }
}
