//! What a look saw, and what a claim makes of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::order::{FlowHead, Waiting};
use tidegate_core::submission::Cost;
use tidegate_core::{EpochMs, Fence, Kind, Lane, PeerName, TaskId, TenantId};
use uuid::Uuid;

use crate::changes::{Place, flow_of, holding_at};
use crate::claim_room::Places;
use crate::directory::FlowKey;
use crate::error::StoreError;
use crate::ledger::Holding;
use crate::types::Claimed;

/// What a look saw: the heads of flows, and what else is known of their tasks in the same places.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) heads: Vec<FlowHead>,
    pub(crate) terms: Vec<Vec<Terms>>,
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
            in_order: true,
        })
    }
}

/// Reads the rows of `look.sql`, by place.
pub(crate) fn seen(
    rows: &[PgRow],
    flows: &HashMap<i64, Arc<FlowKey>>,
    places: &Places<'_>,
    session: Uuid,
    now: EpochMs,
    least_left_ms: impl Fn(&str) -> i64,
) -> Result<Seen, StoreError> {
    let mut seen = Seen::default();
    let (mut held, mut least_ms, mut in_order) = (None, 0, true);
    for row in rows {
        let Some(flow) = row.try_get::<Option<i64>, _>(3)? else { continue };
        if held == Some(flow) {
            continue;
        }
        if seen.heads.last().is_none_or(|head| head.flow != flow) {
            let key = flow_of(flows, flow)?;
            let Some(head) = places.head(flow, &key, row.try_get(4)?, now) else {
                held = Some(flow);
                continue;
            };
            (least_ms, in_order) = (least_left_ms(&key.kind), true);
            seen.heads.push(head);
            seen.terms.push(Vec::new());
        }
        let (Some(head), Some(all)) = (seen.heads.last_mut(), seen.terms.last_mut()) else { continue };
        if head.lane == Lane::Admitted && row.try_get::<Option<Uuid>, _>(16)? != Some(session) {
            // The slot of another session is reserved for it: what comes after it is taken out of turn.
            in_order = false;
            continue;
        }
        let terms = Terms { in_order, ..Terms::at(row, 8)? };
        head.tasks.push(Waiting {
            id: TaskId(row.try_get(6)?),
            rank: row.try_get(5)?,
            deadline: terms.deadline_ms,
            min_useful_ms: row.try_get::<i64, _>(7)?.max(least_ms),
        });
        all.push(terms);
    }
    Ok(seen)
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
    })
}

pub(crate) fn fill(task: &mut Claimed, row: &PgRow) -> Result<(), sqlx::Error> {
    task.payload = row.try_get(1)?;
    task.traceparent = row.try_get(2)?;
    task.depth = row.try_get::<i32, _>(3)? as u32;
    task.fanout = row.try_get::<i32, _>(4)? as u32;
    task.estimated = Cost { tokens: row.try_get::<i64, _>(5)? as u64, usd_micros: row.try_get::<i64, _>(6)? as u64 };
    Ok(())
}
