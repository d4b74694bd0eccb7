//! Reads why a task stands where it stands. Takes no lock, so what it tells held a moment ago.

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::admission::{Facts, Load, TenantFacts, Usage};
use tidegate_core::explain::{Explanation, Subject, Surroundings, explain};
use tidegate_core::policy::Policy;
use tidegate_core::quarantine::{Hold, fingerprint};
use tidegate_core::{Class, EpochMs, Reason, Status, TaskId, TenantId};

use crate::error::StoreError;
use crate::ledger::class_of;
use crate::promote::RESERVED_MS;
use crate::read;
use crate::store::Store;
use crate::types::TaskRecord;

const EXPLAIN: &str = include_str!("explain.sql");
const INPUT: &str = "SELECT t.payload FROM tidegate.task t WHERE t.id = $1";
/// The numbers of one level.
const WIDTH: usize = 8;

/// A task, and why it stands where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The task.
    pub id: TaskId,
    /// Where it stands.
    pub status: Status,
    /// Why.
    pub reason: Option<Reason>,
    /// Its place in the queue, from 1, where it is QUEUED; none beyond a thousand.
    pub queue_position: Option<u32>,
    /// What it waits for.
    pub explanation: Explanation,
}

impl Store {
    /// Why a tenant's task, or a refused submission, stands where it stands. Another tenant's task is as unknown as
    /// none.
    pub async fn explain(&self, tenant: &TenantId, id: TaskId) -> Result<Option<Explained>, StoreError> {
        let mut tx = self.inner_ref().connections.begin(false).await?;
        let query = sqlx::query(EXPLAIN).bind(id.0).bind(tenant.as_str().to_owned());
        let row = tx.call(|conn| query.fetch_optional(conn)).await?;
        tx.rollback().await;
        match row {
            Some(row) => self.explained(tenant, id, &row).await.map(Some),
            None => Ok(self.task(tenant, id).await?.as_ref().map(refused)),
        }
    }

    async fn explained(&self, tenant: &TenantId, id: TaskId, row: &PgRow) -> Result<Explained, StoreError> {
        let remembered = self.policy();
        let known = remembered.revision == row.try_get::<i64, _>("revision")?;
        let policy = if known { remembered } else { self.read_policy().await? };
        let class = class_of(row.try_get("class")?)?;
        let (status, reason) = (read::status(row)?, read::reason(row)?);
        let peer = row.try_get::<Option<&str>, _>("peer")?.unwrap_or_default();
        let position = match status {
            Status::Queued => self.position(class, row.try_get("rank")?, id).await?,
            _ => None,
        };
        let subject = Subject {
            status,
            reason,
            detail: row.try_get("detail")?,
            kind: row.try_get("kind")?,
            class,
            tenant: tenant.as_str(),
            peer,
            load: Load {
                tokens: row.try_get("tokens")?,
                usd_micros: row.try_get("usd_micros")?,
                bytes: row.try_get("bytes")?,
            },
            since: row.try_get("since_ms")?,
            eligible: row.try_get("eligible_ms")?,
            worker: row.try_get("worker")?,
            reserved_until: row.try_get::<Option<EpochMs>, _>("reserved_ms")?.map(|at| at + RESERVED_MS),
            attempt: row.try_get::<i32, _>("attempt")?.unsigned_abs(),
            max_attempts: row.try_get::<i16, _>("max_attempts")?.unsigned_abs().into(),
            cancel_requested: row.try_get("cancel_requested")?,
            suspect: row.try_get("suspect")?,
            position,
        };
        let (facts, mut around) = around(row, tenant, class, peer)?;
        if status.is_waiting() {
            around.held_until = self.held_until(&policy, &subject, id, facts.now).await?;
        }
        let explanation = explain(&policy, &facts, &around, &subject);
        Ok(Explained { id, status, reason, queue_position: position, explanation })
    }
}

impl Store {
    /// Until when the task's input is held. It is read only where some input of its kind is.
    async fn held_until(
        &self,
        policy: &Policy,
        task: &Subject<'_>,
        id: TaskId,
        now: EpochMs,
    ) -> Result<Option<EpochMs>, StoreError> {
        let concerns = |hold: &&Hold| hold.concerns(task.kind, task.tenant, now);
        let mut holds = policy.holds.iter().filter(concerns).peekable();
        if holds.peek().is_none() {
            return Ok(None);
        }
        let rows = self.ask(|| sqlx::query(INPUT).bind(id.0)).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let print = fingerprint(task.kind, row.try_get(0)?);
        Ok(holds.filter(|hold| hold.fingerprint == print).map(|hold| hold.until).max())
    }
}

/// What the row tells of the levels that the task counts at, and of the workers.
fn around(row: &PgRow, tenant: &TenantId, class: Class, peer: &str) -> Result<(Facts, Surroundings), StoreError> {
    let held: Vec<i64> = row.try_get("held")?;
    let number = |level: usize, at: usize| held.get(level * WIDTH + at).copied().unwrap_or(0);
    let usage = |level: usize| Usage {
        queued: number(level, 0),
        running: number(level, 1),
        deferred: number(level, 2),
        tokens: number(level, 3),
        usd_micros: number(level, 4),
        bytes: number(level, 5),
        ..Usage::default()
    };
    let mut facts = Facts {
        now: row.try_get("now_ms")?,
        live_slots: row.try_get("live_slots")?,
        cell: usage(0),
        classes: [usage(1), usage(2), usage(3)],
        ..Facts::default()
    };
    let mut own = TenantFacts { usage: usage(4), ..TenantFacts::default() };
    own.classes[class as usize] = usage(5);
    facts.tenants.insert(tenant.as_str().to_owned(), own);
    if !peer.is_empty() {
        facts.peers.insert(peer.to_owned(), usage(6));
    }
    let around = Surroundings {
        sessions: row.try_get("sessions")?,
        slots: row.try_get("slots")?,
        taken: row.try_get("taken")?,
        requests_full_ns: number(6, 6),
        tokens_full_ns: number(6, 7),
        // Nothing opens a breaker yet.
        breaker_until: None,
        held_until: None,
    };
    Ok((facts, around))
}

/// A submission that was refused at the door waits for nothing.
fn refused(record: &TaskRecord) -> Explained {
    let facts = Facts { now: record.now_ms, ..Facts::default() };
    let subject = Subject {
        status: record.status,
        reason: record.reason,
        detail: record.detail.as_deref(),
        kind: record.kind.as_str(),
        class: record.class,
        tenant: record.tenant.as_str(),
        peer: record.peer.as_ref().map_or("", |peer| peer.as_str()),
        load: Load::default(),
        since: record.finished_ms.unwrap_or(record.enqueued_ms),
        eligible: None,
        worker: None,
        reserved_until: None,
        attempt: 0,
        max_attempts: record.max_attempts,
        cancel_requested: false,
        suspect: false,
        position: None,
    };
    let explanation = explain(&Default::default(), &facts, &Surroundings::default(), &subject);
    let (id, status, reason) = (record.id, record.status, record.reason);
    Explained { id, status, reason, queue_position: None, explanation }
}
