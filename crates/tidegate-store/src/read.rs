//! Reading tasks back: one, a page of a tenant's, the attempts of one. Reads take no lock.

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::submission::Cost;
use tidegate_core::{Class, EpochMs, Fence, Kind, PeerName, Reason, Status, TaskId, TenantId};
use uuid::Uuid;

use crate::connection::{PgQuery, call};
use crate::error::StoreError;
use crate::ledger::class_of;
use crate::store::Store;
use crate::types::{AttemptRecord, TaskError, TaskFilter, TaskPage, TaskRecord};

const ONE: &str = concat!(
    include_str!("task_columns.sql"),
    ", ARRAY(SELECT c.id FROM tidegate.task c WHERE c.parent_id = t.id ORDER BY c.id LIMIT 1000) AS children, t.rank FROM tidegate.task t ",
    include_str!("task_joins.sql"),
    " WHERE t.id = $1 AND t.tenant = $2"
);
/// Most tasks that one page looks through for those that match. A page may be shorter than asked for, but never slow.
const MAX_EXAMINED: i64 = 10_000;
/// Most bytes of payloads and results in one page, which holds at least one task.
const MAX_PAGE_BYTES: i64 = 8 << 20;
const PAGE: &str = concat!(
    "SELECT p.* FROM (SELECT q.*, count(*) OVER () AS matched, \
        sum(octet_length(q.payload) + coalesce(octet_length(q.result), 0)) OVER (ORDER BY q.id DESC) AS bytes, \
        row_number() OVER (ORDER BY q.id DESC) AS n FROM (SELECT m.* FROM (",
    include_str!("task_columns.sql"),
    ", NULL::uuid[] AS children FROM (SELECT * FROM tidegate.task t WHERE t.tenant = $1 AND t.id < $2 AND t.id >= $3 \
        AND ($8::text IS NULL OR t.workflow_id = $8) ORDER BY t.id DESC LIMIT $10) t ",
    include_str!("task_joins.sql"),
    ") m WHERE ($4::text IS NULL OR m.status = $4) AND ($5::text IS NULL OR m.kind = $5) AND ($6::smallint IS NULL OR m.class = $6) \
        AND ($7::text IS NULL OR m.peer = $7) AND ($9::jsonb IS NULL OR m.labels::jsonb @> $9::jsonb) ORDER BY m.id DESC LIMIT $11) q) p \
        WHERE p.n = 1 OR p.bytes <= $12 ORDER BY p.n"
);
/// Where the look through a page's tasks ended, and the next task, if there is one.
const PAGE_END: &str = "SELECT t.id FROM tidegate.task t WHERE t.tenant = $1 AND t.id < $2 AND t.id >= $3 \
    AND ($4::text IS NULL OR t.workflow_id = $4) ORDER BY t.id DESC OFFSET $5 LIMIT 2";
const REFUSED: &str = "SELECT r.*, r.labels::text AS label_text, tidegate.now_ms() AS now_ms FROM tidegate.refusal r WHERE r.id = $1 AND r.tenant = $2";
const REFUSED_PAGE: &str = "SELECT r.*, r.labels::text AS label_text, tidegate.now_ms() AS now_ms FROM tidegate.refusal r \
    WHERE r.tenant = $1 AND r.id < $2 AND r.id >= $3 AND ($4::text IS NULL OR r.status = $4) AND ($5::text IS NULL OR r.kind = $5) \
        AND ($6::smallint IS NULL OR r.class = $6) AND ($7::text IS NULL OR r.peer = $7) AND ($8::text IS NULL OR r.workflow_id = $8) \
        AND ($9::jsonb IS NULL OR r.labels @> $9::jsonb) ORDER BY r.id DESC LIMIT $10";
const ATTEMPTS: &str = include_str!("attempts.sql");
const POSITION: &str = include_str!("position.sql");
/// The furthest place in the queue that is counted.
const MAX_POSITION: i64 = 1_000;

impl Store {
    /// A task of a tenant, or the record of a refused submission. Another tenant's task is as unknown as none.
    pub async fn task(&self, tenant: &TenantId, id: TaskId) -> Result<Option<TaskRecord>, StoreError> {
        if let Some(row) = self.ask(|| sqlx::query(ONE).bind(id.0).bind(tenant.as_str().to_owned())).await?.first() {
            let mut task = task_of(row)?;
            if task.status == Status::Queued {
                task.queue_position = self.position(task.class, row.try_get("rank")?, id).await?;
            }
            return Ok(Some(task));
        }
        self.refused(tenant, id).await
    }

    /// The record of a tenant's refused submission, written or not.
    pub(crate) async fn refused(&self, tenant: &TenantId, id: TaskId) -> Result<Option<TaskRecord>, StoreError> {
        // The memory first: what leaves it has been written.
        if let Some(refused) = self.inner_ref().unwritten.find(tenant, id) {
            return Ok(Some(refused));
        }
        let rows = self.ask(|| sqlx::query(REFUSED).bind(id.0).bind(tenant.as_str().to_owned())).await?;
        rows.first().map(refused_of).transpose()
    }

    /// The place of a waiting task among all that wait, from 1; none beyond a thousand.
    pub(crate) async fn position(&self, class: Class, rank: i64, id: TaskId) -> Result<Option<u32>, StoreError> {
        let query = || sqlx::query(POSITION).bind(class.code()).bind(rank).bind(id.0).bind(MAX_POSITION);
        let before: i64 = self.ask(query).await?.first().map_or(Ok(0), |row| row.try_get(0))?;
        Ok((before < MAX_POSITION).then(|| u32::try_from(before + 1).unwrap_or(1)))
    }

    /// A page of a tenant's tasks, newest first, refused submissions among them.
    pub async fn tasks(&self, tenant: &TenantId, filter: &TaskFilter) -> Result<TaskPage, StoreError> {
        let before = match (filter.before, filter.to_ms) {
            (Some(before), Some(to)) => before.0.min(TaskId::floor(to)),
            (Some(before), None) => before.0,
            (None, Some(to)) => TaskId::floor(to),
            (None, None) => Uuid::max(),
        };
        let from = filter.from_ms.map_or(Uuid::nil(), TaskId::floor);
        // One more than is asked for tells whether another page follows.
        let wanted = filter.limit.saturating_add(1);
        let labels = (!filter.labels.is_empty()).then(|| {
            let labels: serde_json::Map<_, _> =
                filter.labels.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
            serde_json::Value::Object(labels).to_string()
        });
        let bound = |sql: &'static str| {
            sqlx::query(sql)
                .bind(tenant.as_str().to_owned())
                .bind(before)
                .bind(from)
                .bind(filter.status.map(Status::as_str))
                .bind(filter.kind.as_ref().map(|kind| kind.as_str().to_owned()))
                .bind(filter.class.map(|class| class.code()))
                .bind(filter.peer.as_ref().map(|peer| peer.as_str().to_owned()))
                .bind(filter.workflow_id.clone())
        };
        let cast = |sql: &'static str| bound(sql).bind(labels.clone());
        let rows = self.ask(|| cast(PAGE).bind(MAX_EXAMINED).bind(i64::from(wanted)).bind(MAX_PAGE_BYTES)).await?;
        let mut tasks = rows.iter().map(task_of).collect::<Result<Vec<_>, _>>()?;
        let mut next = None;
        let matched: i64 = rows.first().map(|row| row.try_get("matched")).transpose()?.unwrap_or(0);
        if matched > rows.len() as i64 {
            // The page is full by its size.
            next = tasks.last().map(|task| task.id);
        } else if tasks.len() < wanted.into() {
            let end = || {
                sqlx::query(PAGE_END)
                    .bind(tenant.as_str().to_owned())
                    .bind(before)
                    .bind(from)
                    .bind(filter.workflow_id.clone())
                    .bind(MAX_EXAMINED - 1)
            };
            if let [last, _more] = &*self.ask(end).await? {
                next = Some(TaskId(last.try_get(0)?));
            }
        }
        let refusable = filter.status.is_none_or(|status| {
            matches!(status, Status::Rejected | Status::Shed | Status::Expired | Status::Cancelled)
        });
        if refusable {
            // What is not written yet is asked first, since it may be written meanwhile: then it is there twice.
            let mut refused = self.inner_ref().unwritten.list(tenant, filter, from..before, wanted);
            for row in &self.ask(|| cast(REFUSED_PAGE).bind(i64::from(wanted))).await? {
                refused.push(refused_of(row)?);
            }
            // What lies beyond the part of the tasks that was looked through belongs to the next page.
            tasks.extend(refused.into_iter().filter(|refused| next.is_none_or(|next| refused.id >= next)));
            tasks.sort_by_key(|task| std::cmp::Reverse(task.id));
            tasks.dedup_by_key(|task| task.id);
        }
        if tasks.len() > filter.limit.into() {
            tasks.truncate(filter.limit.into());
            next = tasks.last().map(|task| task.id);
        }
        Ok(TaskPage { tasks, next })
    }

    /// The attempts of a tenant's task, oldest first; none for an unknown task.
    pub async fn attempts(&self, tenant: &TenantId, id: TaskId) -> Result<Option<Vec<AttemptRecord>>, StoreError> {
        let rows = self.ask(|| sqlx::query(ATTEMPTS).bind(id.0).bind(tenant.as_str().to_owned())).await?;
        if rows.is_empty() && self.task(tenant, id).await?.is_none() {
            return Ok(None);
        }
        rows.iter().map(attempt_of).collect::<Result<_, _>>().map(Some)
    }

    /// Asks something that changes nothing, again where the connection had died while it waited.
    pub(crate) async fn ask(&self, query: impl Fn() -> PgQuery) -> Result<Vec<PgRow>, StoreError> {
        self.inner_ref().connections.ask(query).await
    }

    /// Runs one statement of the upkeep, which comes back to what failed by itself.
    pub(crate) async fn read(&self, query: PgQuery) -> Result<Vec<PgRow>, StoreError> {
        let connections = &self.inner_ref().connections;
        let mut conn = connections.get().await?;
        let rows = call(connections.call_timeout(), query.fetch_all(&mut *conn)).await?;
        conn.release();
        Ok(rows)
    }
}

fn task_of(row: &PgRow) -> Result<TaskRecord, StoreError> {
    let children: Option<Vec<Uuid>> = row.try_get("children")?;
    Ok(TaskRecord {
        id: TaskId(row.try_get("id")?),
        tenant: name(TenantId::parse, row.try_get("tenant")?)?,
        kind: name(Kind::parse, row.try_get("kind")?)?,
        peer: row.try_get::<Option<&str>, _>("peer")?.map(|peer| name(PeerName::parse, peer)).transpose()?,
        class: class_of(row.try_get("class")?)?,
        priority: row.try_get::<i16, _>("priority")? as u8,
        priority_notes: row.try_get::<Option<Vec<String>>, _>("priority_notes")?.unwrap_or_default(),
        status: status(row)?,
        reason: reason(row)?,
        detail: row.try_get("detail")?,
        note: row.try_get("note")?,
        enqueued_ms: row.try_get("enqueued_ms")?,
        not_before_ms: row.try_get("not_before_ms")?,
        queue_position: None,
        started_ms: row.try_get("started_ms")?,
        finished_ms: row.try_get("finished_ms")?,
        deadline_ms: row.try_get("deadline_ms")?,
        now_ms: row.try_get("now_ms")?,
        admission_wait_ms: row.try_get::<i32, _>("admission_wait_ms")?.into(),
        attempt: row.try_get::<i32, _>("attempt")? as u32,
        max_attempts: row.try_get::<i16, _>("max_attempts")? as u32,
        deliveries: row.try_get::<i32, _>("deliveries")? as u32,
        fence: Fence(row.try_get::<i32, _>("deliveries")?.into()),
        attempt_timeout_ms: row.try_get("attempt_timeout_ms")?,
        min_useful_ms: row.try_get("min_useful_ms")?,
        cancel_requested_ms: row.try_get("cancel_requested_ms")?,
        cancel_delivered_ms: row.try_get("cancel_delivered_ms")?,
        cancel_acknowledged_ms: row.try_get("cancel_acknowledged_ms")?,
        estimated: cost(row, "tokens", "usd_micros")?.unwrap_or_default(),
        actual: cost(row, "actual_tokens", "actual_usd_micros")?,
        worker: row.try_get("worker")?,
        progress: row.try_get("progress")?,
        payload: row.try_get("payload")?,
        result: row.try_get("result")?,
        error: error(row)?,
        labels: row.try_get("labels")?,
        workflow_id: row.try_get("workflow_id")?,
        parent_id: row.try_get::<Option<Uuid>, _>("parent_id")?.map(TaskId),
        children: children.unwrap_or_default().into_iter().map(TaskId).collect(),
        cancellation_token: row.try_get("cancellation_token")?,
        idempotency_key: row.try_get("idempotency_key")?,
        redriven_from: row.try_get::<Option<Uuid>, _>("redriven_from")?.map(TaskId),
    })
}

fn refused_of(row: &PgRow) -> Result<TaskRecord, StoreError> {
    let decided: EpochMs = row.try_get("refused_ms")?;
    let admission_wait_ms = i64::from(row.try_get::<i32, _>("admission_wait_ms")?);
    let (tenant, kind) = (name(TenantId::parse, row.try_get("tenant")?)?, name(Kind::parse, row.try_get("kind")?)?);
    Ok(TaskRecord {
        peer: row.try_get::<Option<&str>, _>("peer")?.map(|peer| name(PeerName::parse, peer)).transpose()?,
        class: class_of(row.try_get("class")?)?,
        priority: row.try_get::<i16, _>("priority")? as u8,
        reason: reason(row)?,
        detail: row.try_get("detail")?,
        enqueued_ms: decided - admission_wait_ms,
        not_before_ms: row.try_get("not_before_ms")?,
        deadline_ms: row.try_get("deadline_ms")?,
        now_ms: row.try_get("now_ms")?,
        admission_wait_ms,
        max_attempts: row.try_get::<i16, _>("max_attempts")? as u32,
        estimated: cost(row, "tokens", "usd_micros")?.unwrap_or_default(),
        labels: row.try_get("label_text")?,
        workflow_id: row.try_get("workflow_id")?,
        parent_id: row.try_get::<Option<Uuid>, _>("parent_id")?.map(TaskId),
        cancellation_token: row.try_get("cancellation_token")?,
        ..TaskRecord::refused(TaskId(row.try_get("id")?), tenant, kind, status(row)?, decided)
    })
}

fn attempt_of(row: &PgRow) -> Result<AttemptRecord, StoreError> {
    Ok(AttemptRecord {
        number: row.try_get::<i32, _>("number")? as u32,
        fence: Fence(row.try_get::<i32, _>("fence")?.into()),
        worker: row.try_get("worker")?,
        started_ms: row.try_get("started_ms")?,
        ended_ms: row.try_get("ended_ms")?,
        outcome: row.try_get("outcome")?,
        reason: reason(row)?,
        error: error(row)?,
        result: row.try_get("result")?,
    })
}

fn name<T, E>(parse: impl Fn(&str) -> Result<T, E>, text: &str) -> Result<T, StoreError> {
    parse(text).map_err(|_| StoreError::Schema(format!("the name {text:?}")))
}

pub(crate) fn status(row: &PgRow) -> Result<Status, StoreError> {
    let text: &str = row.try_get("status")?;
    Status::parse(text).ok_or_else(|| StoreError::Schema(format!("the status {text:?}")))
}

pub(crate) fn reason(row: &PgRow) -> Result<Option<Reason>, StoreError> {
    let text: Option<&str> = row.try_get("reason")?;
    text.map(|text| Reason::parse(text).ok_or_else(|| StoreError::Schema(format!("the reason {text:?}")))).transpose()
}

fn error(row: &PgRow) -> Result<Option<TaskError>, StoreError> {
    let Some(kind) = row.try_get("error_type")? else { return Ok(None) };
    let message = row.try_get::<Option<String>, _>("error_message")?.unwrap_or_default();
    Ok(Some(TaskError {
        kind,
        message,
        retryable: row.try_get::<Option<bool>, _>("error_retryable")?.unwrap_or_default(),
    }))
}

fn cost(row: &PgRow, tokens: &str, usd_micros: &str) -> Result<Option<Cost>, StoreError> {
    let (tokens, usd_micros): (Option<i64>, Option<i64>) = (row.try_get(tokens)?, row.try_get(usd_micros)?);
    if tokens.is_none() && usd_micros.is_none() {
        return Ok(None);
    }
    let number = |value: Option<i64>| value.unwrap_or_default().unsigned_abs();
    Ok(Some(Cost { tokens: number(tokens), usd_micros: number(usd_micros) }))
}
