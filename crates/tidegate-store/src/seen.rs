//! What a look saw, and what a claim makes of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::order::{FlowHead, TenantRoom, Waiting};
use tidegate_core::submission::Cost;
use tidegate_core::{Class, EpochMs, Fence, Kind, Lane, PeerName, TaskId, TenantId};
use uuid::Uuid;

use crate::changes::{Place, flow_of, holding_at};
use crate::claim_room::Limited;
use crate::directory::FlowKey;
use crate::error::StoreError;
use crate::ledger::{Holding, Ledger};
use crate::runs::RunTimes;
use crate::types::Claimed;

/// What a look saw: the heads of flows, what else is known of their tasks in the same places, and their tenants.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) heads: Vec<FlowHead>,
    pub(crate) keys: Vec<Arc<FlowKey>>,
    pub(crate) terms: Vec<Vec<Terms>>,
    /// Where each flow stands: its line, counted from 1, and its virtual time there.
    pub(crate) stands: Vec<(usize, i64)>,
    pub(crate) tenants: Vec<TenantRoom>,
    pub(crate) names: Vec<String>,
    /// The flows that were read of each line, and the first virtual time among them.
    pub(crate) lines: HashMap<usize, (usize, i64)>,
    /// Tasks for which slots of the session are reserved.
    pub(crate) reserved: usize,
}

/// What a task that waits, or is held, brings along for its next attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) deadline_ms: EpochMs,
    pub(crate) attempt_timeout_ms: Option<i64>,
    pub(crate) holding: Holding,
    pub(crate) deliveries: i32,
    pub(crate) failures: i16,
    pub(crate) max_attempts: i16,
    /// These two only of what waits.
    pub(crate) min_useful_ms: i64,
    pub(crate) losses: i16,
    /// Whether nothing waits before it in its flow that this claim does not take first.
    pub(crate) in_order: bool,
}

impl Terms {
    /// Reads them where they are next to each other, from this column on.
    pub(crate) fn at(row: &PgRow, first: usize) -> Result<Self, StoreError> {
        Ok(Self {
            deadline_ms: row.try_get(first)?,
            attempt_timeout_ms: row.try_get(first + 1)?,
            holding: holding_at(row, first + 2)?,
            deliveries: row.try_get(first + 5)?,
            failures: row.try_get(first + 6)?,
            max_attempts: row.try_get(first + 7)?,
            min_useful_ms: 0,
            losses: 0,
            in_order: true,
        })
    }
}

/// What is known beside the rows of a look.
pub(crate) struct Beside<'a> {
    pub(crate) limited: &'a Limited,
    pub(crate) ledger: &'a Ledger,
    pub(crate) flows: &'a HashMap<i64, Arc<FlowKey>>,
    pub(crate) peers: &'a HashMap<&'a str, usize>,
    pub(crate) kinds: &'a HashMap<String, usize>,
    pub(crate) session: Uuid,
    /// Most tasks that it takes of those for which slots of it are reserved.
    pub(crate) reserved: usize,
    pub(crate) now: EpochMs,
    pub(crate) runs: &'a RunTimes,
    pub(crate) reserve_ms: i64,
}

impl Seen {
    /// Reads the rows of `look.sql`, by place.
    pub(crate) fn read(rows: &[PgRow], beside: &Beside<'_>) -> Result<Self, StoreError> {
        let mut seen = Self::default();
        let mut tenants: HashMap<&str, usize> = HashMap::new();
        let (mut held, mut least_ms, mut in_order) = (None, 0, true);
        for row in rows {
            let Some(flow) = row.try_get::<Option<i64>, _>(3)? else { continue };
            if held == Some(flow) {
                continue;
            }
            if seen.heads.last().is_none_or(|head| head.flow != flow) {
                let key = flow_of(beside.flows, flow)?;
                seen.note_line(row)?;
                let peer = (!key.peer.is_empty()).then_some(key.peer.as_str());
                if beside.limited.policy.held(&key.kind, key.class, &key.tenant, peer, beside.now).is_some() {
                    held = Some(flow);
                    continue;
                }
                least_ms = beside.runs.typical_ms(&key.kind).unwrap_or(0) + beside.reserve_ms;
                in_order = true;
                let name = beside.flows.get(&flow).map(|key| key.tenant.as_str()).unwrap_or_default();
                let known = *tenants.entry(name).or_insert(seen.tenants.len());
                seen.add_flow(row, flow, &key, known, beside)?;
            }
            let (Some(head), Some(all)) = (seen.heads.last_mut(), seen.terms.last_mut()) else { continue };
            if head.lane == Lane::Admitted {
                if seen.reserved == beside.reserved || row.try_get::<Option<Uuid>, _>(16)? != Some(beside.session) {
                    // The slot of another session is reserved for it: what comes after it is taken out of turn.
                    in_order = false;
                    continue;
                }
                seen.reserved += 1;
            }
            let (min_useful_ms, losses) = (row.try_get(7)?, row.try_get(24)?);
            let terms = Terms { in_order, min_useful_ms, losses, ..Terms::at(row, 8)? };
            head.tasks.push(Waiting {
                id: TaskId(row.try_get(6)?),
                rank: row.try_get(5)?,
                enqueued: row.try_get(17)?,
                deadline: terms.deadline_ms,
                min_useful_ms: min_useful_ms.max(least_ms),
                tokens: terms.holding.tokens.unsigned_abs(),
            });
            all.push(terms);
        }
        Ok(seen)
    }

    fn note_line(&mut self, row: &PgRow) -> Result<(), StoreError> {
        let (line, stands): (i64, i64) = (row.try_get(18)?, row.try_get(19)?);
        let (flows, first) = self.lines.entry(line as usize).or_insert((0, stands));
        *flows += 1;
        *first = stands.min(*first);
        Ok(())
    }

    fn add_flow(
        &mut self,
        row: &PgRow,
        flow: i64,
        key: &Arc<FlowKey>,
        tenant: usize,
        beside: &Beside<'_>,
    ) -> Result<(), StoreError> {
        let name = key.tenant.as_str();
        if tenant == self.tenants.len() {
            self.tenants.push(beside.limited.tenant(name, row.try_get(23)?, beside.ledger));
            self.names.push(name.to_owned());
        }
        let at = key.class as usize;
        let room = &mut self.tenants[tenant];
        let turned = |class: Class| beside.ledger.turned(class, name);
        room.left_of_class[at] = beside.limited.left_of_class(name, key.class, row.try_get(22)?, beside.ledger);
        room.turns[at] = row.try_get::<i64, _>(20)? + turned(key.class);
        if key.class == Class::Background {
            room.turns[Class::Standard as usize] = row.try_get::<i64, _>(21)? + turned(Class::Standard);
        }
        self.heads.push(FlowHead {
            flow,
            class: key.class,
            lane: key.lane,
            tenant,
            peer: beside.peers.get(key.peer.as_str()).copied(),
            kind: beside.kinds.get(&key.kind).copied(),
            run_ms: beside.runs.expected_ms(&key.tenant, &key.kind),
            queued: if key.lane == Lane::Admitted { 0 } else { row.try_get(4)? },
            tasks: Vec::new(),
        });
        self.keys.push(key.clone());
        self.terms.push(Vec::new());
        self.stands.push((row.try_get::<i64, _>(18)? as usize, row.try_get(19)?));
        Ok(())
    }
}

/// Where a task of a head waits.
pub(crate) fn place_of(head: &FlowHead, task: usize, session: Uuid) -> Place {
    let reserved = (head.lane == Lane::Admitted).then_some(session);
    Place { flow: head.flow, rank: head.tasks[task].rank, id: head.tasks[task].id, reserved }
}

pub(crate) fn claimed_of(
    terms: &Terms,
    id: TaskId,
    key: &FlowKey,
    deliveries: i32,
    now: EpochMs,
) -> Result<Claimed, StoreError> {
    let bad = |_| StoreError::Schema("a name in a flow".into());
    Ok(Claimed {
        id,
        tenant: TenantId::parse(&key.tenant).map_err(bad)?,
        kind: Kind::parse(&key.kind).map_err(bad)?,
        peer: PeerName::parse(&key.peer).ok(),
        payload: String::new(),
        fence: Fence(i64::from(deliveries)),
        attempt: terms.failures as u32 + 1,
        max_attempts: terms.max_attempts as u32,
        remaining: Duration::from_millis(u64::try_from(terms.deadline_ms - now).unwrap_or(0)),
        deadline_ms: terms.deadline_ms,
        attempt_timeout: terms.attempt_timeout_ms.map(|ms| Duration::from_millis(ms as u64)),
        traceparent: None,
        depth: 0,
        fanout: 0,
        estimated: Cost::default(),
        suspect: key.lane == Lane::Suspect,
    })
}
