//! What a claim may still start at every level, and which flows it need not look at.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::Row;
use tidegate_core::order::{ClaimRoom, FlowHead};
use tidegate_core::pause::PauseTarget;
use tidegate_core::policy::Policy;
use tidegate_core::slots::SlotCaps;
use tidegate_core::{Class, EpochMs, Lane};

use crate::connection::Tx;
use crate::directory::FlowKey;
use crate::error::StoreError;
use crate::ledger::Ledger;
use crate::store::StoreInner;

const ROOM: &str = include_str!("claim_room.sql");

/// The room as it was when the turn began, and the names that its places stand for.
pub(crate) struct Limited {
    policy: Arc<Policy>,
    now: EpochMs,
    slots: i64,
    running: [i64; 3],
    tenants: Vec<(String, i64, [i64; 3])>,
    peers: Vec<(String, i64)>,
}

/// Flows that have no room, by what they have in common.
#[derive(Debug, Default)]
pub(crate) struct Blocked {
    pub(crate) kinds: Vec<String>,
    pub(crate) classes: Vec<i16>,
    pub(crate) tenants: Vec<String>,
    pub(crate) peers: Vec<String>,
}

impl Limited {
    /// Reads it inside the transaction that holds the cell's row.
    pub(crate) async fn read(store: &StoreInner, tx: &mut Tx) -> Result<Self, StoreError> {
        let known = store.policy();
        let mut limited = Self::read_for(known.clone(), tx).await?;
        let policy = store.policy_at(limited.0, tx).await?;
        if !Arc::ptr_eq(&known, &policy) {
            limited = Self::read_for(policy, tx).await?;
        }
        Ok(limited.1)
    }

    async fn read_for(policy: Arc<Policy>, tx: &mut Tx) -> Result<(i64, Self), StoreError> {
        let tenants: Vec<String> =
            policy.tenants.iter().filter(|(_, tenant)| tenant.limits_running()).map(|(name, _)| name.clone()).collect();
        let peers = policy.peers.iter().filter(|(_, peer)| peer.max_in_flight.is_some());
        let peers: Vec<String> = peers.map(|(name, _)| name.clone()).collect();
        let query = sqlx::query(ROOM).bind(tenants.clone()).bind(peers.clone());
        let row = tx.call(|conn| query.fetch_one(conn)).await?;
        let running: Vec<i64> = row.try_get(2)?;
        let at = |n: usize| running.get(n).copied().unwrap_or(0);
        let of_tenant = |(n, name): (usize, String)| {
            let first = 3 + 4 * n;
            (name, at(first), [at(first + 1), at(first + 2), at(first + 3)])
        };
        let after = 3 + 4 * tenants.len();
        let limited = Self {
            policy,
            now: row.try_get(3)?,
            slots: row.try_get(1)?,
            running: [at(0), at(1), at(2)],
            tenants: tenants.into_iter().enumerate().map(of_tenant).collect(),
            peers: peers.into_iter().enumerate().map(|(n, name)| (name, at(after + n))).collect(),
        };
        Ok((row.try_get(0)?, limited))
    }

    /// What a look may leave out, where so many of this turn's reports may still give room back.
    pub(crate) fn blocked(&self, reports: usize) -> Blocked {
        let back = i64::try_from(reports).unwrap_or(i64::MAX);
        let full = |running: i64, most: Option<u32>| most.is_some_and(|most| running - back >= i64::from(most));
        let caps = SlotCaps::of(&self.policy.limits, self.slots);
        let mut blocked = Blocked::default();
        for class in Class::ALL {
            let mut running = self.running;
            running.iter_mut().for_each(|running| *running = (*running - back).max(0));
            if caps.room(&running, class) == 0 {
                blocked.classes.push(class.code());
            }
        }
        for (name, running, _) in &self.tenants {
            if full(*running, self.policy.tenant(name).max_running) {
                blocked.tenants.push(name.clone());
            }
        }
        for (name, running) in &self.peers {
            if full(*running, self.policy.peer(name).and_then(|peer| peer.max_in_flight)) {
                blocked.peers.push(name.clone());
            }
        }
        for pause in self.policy.pauses.iter().filter(|pause| pause.in_effect(self.now)) {
            match &pause.target {
                PauseTarget::Kind(kind) => blocked.kinds.push(kind.as_str().to_owned()),
                PauseTarget::Class(class) => blocked.classes.push(class.code()),
                PauseTarget::Tenant(tenant) => blocked.tenants.push(tenant.as_str().to_owned()),
                PauseTarget::Peer(peer) => blocked.peers.push(peer.as_str().to_owned()),
            }
        }
        blocked
    }

    /// The room after what the turn has settled, and the places of the limited in it.
    pub(crate) fn room(&self, ledger: &Ledger) -> (ClaimRoom, Places<'_>) {
        let mut running = self.running;
        for class in Class::ALL {
            running[class as usize] += ledger.running(1, class.as_str());
        }
        let tenants = self.tenants.iter().map(|(name, all, classes)| {
            let limits = self.policy.tenant(name);
            let left = |most: Option<u32>, running: i64| most.map_or(i64::MAX, |most| i64::from(most) - running);
            let of_class = Class::ALL.map(|class| {
                let running = classes[class as usize] + ledger.running_of_class(class, name);
                left(limits.class(class).max_running, running)
            });
            (left(limits.max_running, all + ledger.running(2, name)), of_class)
        });
        let peers = self.peers.iter().map(|(name, running)| {
            let most = self.policy.peer(name).and_then(|peer| peer.max_in_flight).map_or(i64::MAX, i64::from);
            most - running - ledger.running(3, name)
        });
        let room = ClaimRoom {
            caps: SlotCaps::of(&self.policy.limits, self.slots),
            running,
            tenants: tenants.collect(),
            peers: peers.collect(),
        };
        let places = Places {
            policy: &self.policy,
            tenants: self.tenants.iter().enumerate().map(|(n, (name, ..))| (name.as_str(), n)).collect(),
            peers: self.peers.iter().enumerate().map(|(n, (name, _))| (name.as_str(), n)).collect(),
        };
        (room, places)
    }
}

/// Where the limited stand in a [`ClaimRoom`].
pub(crate) struct Places<'a> {
    policy: &'a Policy,
    tenants: HashMap<&'a str, usize>,
    peers: HashMap<&'a str, usize>,
}

impl Places<'_> {
    /// The head of a flow without its tasks; `None` where a pause holds it.
    pub(crate) fn head(&self, flow: i64, key: &FlowKey, queued: i64, now: EpochMs) -> Option<FlowHead> {
        let peer = (!key.peer.is_empty()).then_some(key.peer.as_str());
        if self.policy.held(&key.kind, key.class, &key.tenant, peer, now).is_some() {
            return None;
        }
        Some(FlowHead {
            flow,
            class: key.class,
            lane: key.lane,
            tenant: self.tenants.get(key.tenant.as_str()).copied(),
            peer: self.peers.get(key.peer.as_str()).copied(),
            queued: if key.lane == Lane::Admitted { 0 } else { queued },
            tasks: Vec::new(),
        })
    }
}
