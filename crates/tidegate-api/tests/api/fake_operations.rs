//! What operators ask of the fake: the real rules of changes, in memory.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidegate_api::{BoxFuture, Operations};
use tidegate_core::limits::Limits;
use tidegate_core::merge_patch::{Patched, amend};
use tidegate_core::pause::{Pause, PauseMode, PauseTarget};
use tidegate_core::peer::PeerLimits;
use tidegate_core::policy::Policy;
use tidegate_core::tenant::TenantLimits;
use tidegate_core::{EpochMs, PeerName, TenantId};
use tidegate_store::{
    Actor, AuditEntry, AuditPage, Held, Named, NamedPage, PolicyError, StoreError, WorkerPage, WorkerRecord,
};
use uuid::Uuid;

use crate::fake::{Fake, NOW};

/// What operators decided, and the changes that it is made of, by what they are about.
#[derive(Default)]
pub(crate) struct Decided {
    pub(crate) policy: Policy,
    changes: BTreeMap<String, Value>,
    /// Live sessions.
    pub(crate) workers: Vec<WorkerRecord>,
    /// Changes, oldest first.
    audit: Vec<AuditEntry>,
}

impl Decided {
    fn amend<T: Patched>(&mut self, about: String, change: &Value) -> Result<T, PolicyError> {
        let before = self.changes.entry(about).or_insert_with(|| json!({}));
        let (after, object) = amend::<T>(&json!({}), before, change)?;
        *before = after;
        Ok(object)
    }

    fn put_down(
        &mut self,
        by: &Actor,
        action: &str,
        target: Option<String>,
        before: Option<String>,
        after: Option<String>,
    ) {
        let (id, actor, action) = (self.audit.len() as i64 + 1, by.as_str().to_owned(), action.to_owned());
        self.audit.push(AuditEntry { id, at_ms: NOW, actor, action, target, before, after });
    }
}

fn named<T: Clone>(all: &BTreeMap<String, T>, name: &str) -> Option<Named<T>> {
    let limits = all.get(name)?.clone();
    Some(Named { name: name.into(), configured: true, limits, held: Held { queued: 3, running: 2, ..Held::default() } })
}

fn page<T: Clone>(all: &BTreeMap<String, T>, after: Option<&str>, limit: u16) -> NamedPage<T> {
    let mut names = all.keys().filter(|name| after.is_none_or(|after| name.as_str() > after));
    let items: Vec<_> = names.by_ref().take(limit.into()).filter_map(|name| named(all, name)).collect();
    let next = names.next().and_then(|_| items.last()).map(|last| last.name.clone());
    NamedPage { items, next }
}

impl Fake {
    async fn decided<T>(&self, then: impl FnOnce(&mut Decided) -> T) -> Result<T, StoreError> {
        self.trouble_with_reading().await?;
        Ok(then(&mut self.decided.lock().unwrap()))
    }
}

impl Operations for Fake {
    fn limits(&self) -> BoxFuture<'_, Result<Limits, StoreError>> {
        Box::pin(self.decided(|decided| decided.policy.limits.clone()))
    }

    fn patch_limits<'a>(&'a self, by: Actor, change: &'a Value) -> BoxFuture<'a, Result<Limits, PolicyError>> {
        Box::pin(async move {
            self.decided(|decided| {
                let before = serde_json::to_string(&decided.policy.limits).ok();
                decided.policy.limits = decided.amend("limits".into(), change)?;
                let after = serde_json::to_string(&decided.policy.limits).ok();
                decided.put_down(&by, "limits.patch", None, before, after);
                Ok(decided.policy.limits.clone())
            })
            .await?
        })
    }

    fn tenants<'a>(
        &'a self,
        after: Option<&'a str>,
        limit: u16,
    ) -> BoxFuture<'a, Result<NamedPage<TenantLimits>, StoreError>> {
        Box::pin(self.decided(move |decided| page(&decided.policy.tenants, after, limit)))
    }

    fn tenant<'a>(&'a self, name: &'a TenantId) -> BoxFuture<'a, Result<Option<Named<TenantLimits>>, StoreError>> {
        Box::pin(self.decided(|decided| named(&decided.policy.tenants, name.as_str())))
    }

    fn patch_tenant<'a>(
        &'a self,
        by: Actor,
        name: &'a TenantId,
        change: &'a Value,
    ) -> BoxFuture<'a, Result<TenantLimits, PolicyError>> {
        Box::pin(async move {
            self.decided(|decided| {
                let limits: TenantLimits = decided.amend(format!("tenant {name}"), change)?;
                let before = decided.policy.tenants.insert(name.to_string(), limits.clone()).unwrap_or_default();
                let (before, after) = (serde_json::to_string(&before).ok(), serde_json::to_string(&limits).ok());
                decided.put_down(&by, "tenant.patch", Some(name.to_string()), before, after);
                Ok(limits)
            })
            .await?
        })
    }

    fn delete_tenant<'a>(&'a self, _by: Actor, name: &'a TenantId) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.decided(move |decided| {
            decided.changes.remove(&format!("tenant {name}"));
            decided.policy.tenants.remove(name.as_str()).is_some()
        }))
    }

    fn peers<'a>(
        &'a self,
        after: Option<&'a str>,
        limit: u16,
    ) -> BoxFuture<'a, Result<NamedPage<PeerLimits>, StoreError>> {
        Box::pin(self.decided(move |decided| page(&decided.policy.peers, after, limit)))
    }

    fn peer<'a>(&'a self, name: &'a PeerName) -> BoxFuture<'a, Result<Option<Named<PeerLimits>>, StoreError>> {
        Box::pin(self.decided(|decided| named(&decided.policy.peers, name.as_str())))
    }

    fn patch_peer<'a>(
        &'a self,
        by: Actor,
        name: &'a PeerName,
        change: &'a Value,
    ) -> BoxFuture<'a, Result<PeerLimits, PolicyError>> {
        Box::pin(async move {
            self.decided(|decided| {
                let limits: PeerLimits = decided.amend(format!("peer {name}"), change)?;
                let before = decided.policy.peers.insert(name.to_string(), limits.clone()).unwrap_or_default();
                let (before, after) = (serde_json::to_string(&before).ok(), serde_json::to_string(&limits).ok());
                decided.put_down(&by, "peer.patch", Some(name.to_string()), before, after);
                Ok(limits)
            })
            .await?
        })
    }

    fn delete_peer<'a>(&'a self, _by: Actor, name: &'a PeerName) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.decided(move |decided| {
            decided.changes.remove(&format!("peer {name}"));
            decided.policy.peers.remove(name.as_str()).is_some()
        }))
    }

    fn pauses(&self) -> BoxFuture<'_, Result<Vec<Pause>, StoreError>> {
        Box::pin(self.decided(|decided| decided.policy.pauses.clone()))
    }

    fn create_pause(
        &self,
        _by: Actor,
        target: PauseTarget,
        mode: PauseMode,
        until: Option<EpochMs>,
        reason: Option<String>,
    ) -> BoxFuture<'_, Result<Pause, PolicyError>> {
        Box::pin(async move {
            let pause = Pause { id: Uuid::from_u128(7), target, mode, until, reason, created: NOW };
            self.decided(|decided| decided.policy.pauses.push(pause.clone())).await?;
            Ok(pause)
        })
    }

    fn delete_pause(&self, _by: Actor, id: Uuid) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(self.decided(move |decided| {
            let before = decided.policy.pauses.len();
            decided.policy.pauses.retain(|pause| pause.id != id);
            decided.policy.pauses.len() < before
        }))
    }

    fn workers(&self, after: Option<Uuid>, limit: u16) -> BoxFuture<'_, Result<WorkerPage, StoreError>> {
        Box::pin(self.decided(move |decided| {
            let mut later = decided.workers.iter().filter(|worker| after.is_none_or(|after| worker.id > after));
            let workers: Vec<_> = later.by_ref().take(limit.into()).cloned().collect();
            let next = later.next().and_then(|_| workers.last()).map(|last| last.id);
            WorkerPage { workers, next }
        }))
    }

    fn audit(&self, before: Option<i64>, limit: u16) -> BoxFuture<'_, Result<AuditPage, StoreError>> {
        Box::pin(self.decided(move |decided| {
            let mut older = decided.audit.iter().rev().filter(|entry| before.is_none_or(|before| entry.id < before));
            let entries: Vec<_> = older.by_ref().take(limit.into()).cloned().collect();
            let next = older.next().and_then(|_| entries.last()).map(|last| last.id);
            AuditPage { entries, next }
        }))
    }

    fn drain_worker(&self, _by: Actor, id: Uuid) -> BoxFuture<'_, Result<Option<WorkerRecord>, StoreError>> {
        Box::pin(self.decided(move |decided| {
            let worker = decided.workers.iter_mut().find(|worker| worker.id == id)?;
            worker.draining = true;
            Some(worker.clone())
        }))
    }
}
