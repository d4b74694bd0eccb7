//! The Canceller: gathers cancels, and either ends what waits or tells the worker of what runs.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::{EpochMs, Reason, Status, TaskId, TenantId};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::bell::Topic;
use crate::changes::{Changes, Place, holding_of};
use crate::connection::Connections;
use crate::error::StoreError;
use crate::gather::{Flush, GatherLimits, Weighted, gather};
use crate::store::{Store, StoreInner};
use crate::types::CancelOutcome;

const FIND: &str = include_str!("find.sql");
/// Most cancels in one transaction, and most that wait for the next.
const LIMITS: GatherLimits = GatherLimits { items: 500, weight: usize::MAX, waiting: 10_000 };
/// How often a batch that another transaction was in the way of is tried again.
const MAX_TRIES: u32 = 5;
/// The longest a cancel waits for its answer: as long as a holder of the lock that was stopped is let live, and some.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Cancels tasks. Cheap to clone.
#[derive(Clone)]
pub struct Canceller {
    sender: mpsc::Sender<Item>,
}

struct Item {
    tenant: TenantId,
    id: TaskId,
    detail: Option<String>,
    reply: oneshot::Sender<Result<CancelOutcome, StoreError>>,
}

impl Weighted for Item {
    fn weight(&self) -> usize {
        1
    }
}

impl Canceller {
    /// Starts gathering.
    pub fn start(store: &Store) -> Result<Self, StoreError> {
        let desk = Desk { store: store.inner(), connections: Connections::new(store.options(), 1)? };
        Ok(Self { sender: gather(LIMITS, desk, CancellationToken::new()) })
    }

    /// Cancels one task of a tenant. `detail` is kept with the task. The cancel is made even if the caller goes away.
    pub async fn cancel(
        &self,
        tenant: &TenantId,
        id: TaskId,
        detail: Option<String>,
    ) -> Result<CancelOutcome, StoreError> {
        let (reply, answer) = oneshot::channel();
        let item = Item { tenant: tenant.clone(), id, detail, reply };
        let unavailable = || StoreError::Unavailable(None);
        tokio::time::timeout(ANSWER_TIMEOUT, async {
            self.sender.send(item).await.map_err(|_| unavailable())?;
            answer.await.map_err(|_| unavailable())?
        })
        .await
        .map_err(|_| unavailable())?
    }
}

struct Desk {
    store: Arc<StoreInner>,
    connections: Connections,
}

impl Flush<Item> for Desk {
    async fn flush(&mut self, batch: Vec<Item>) {
        let mut tries = 0;
        let outcomes = loop {
            tries += 1;
            match self.cancel(&batch).await {
                Err(StoreError::Busy(_)) if tries < MAX_TRIES => self.store.directory.forget(),
                outcomes => break outcomes,
            }
        };
        match outcomes {
            Ok(outcomes) => {
                batch.into_iter().zip(outcomes).for_each(|(item, outcome)| drop(item.reply.send(Ok(outcome))))
            }
            Err(error) => {
                tracing::warn!(%error, tasks = batch.len(), "cancels could not be made");
                let unknown = matches!(error, StoreError::OutcomeUnknown(_));
                let error = || if unknown { StoreError::OutcomeUnknown(None) } else { StoreError::Unavailable(None) };
                batch.into_iter().for_each(|item| drop(item.reply.send(Err(error()))));
            }
        }
    }
}

impl Desk {
    async fn cancel(&self, batch: &[Item]) -> Result<Vec<CancelOutcome>, StoreError> {
        let mut tx = self.connections.begin(true).await?;
        let ids: Vec<Uuid> = batch.iter().map(|item| item.id.0).collect();
        let tenants: Vec<String> = batch.iter().map(|item| item.tenant.as_str().to_owned()).collect();
        let rows = tx.call(|conn| sqlx::query(FIND).bind(ids).bind(tenants).fetch_all(conn)).await?;
        let mut outcomes = vec![CancelOutcome::Unknown; batch.len()];
        let mut changes = Changes::default();
        let mut now: EpochMs = 0;
        let flow_ids = rows.iter().map(|row| row.try_get("flow_id")).collect::<Result<Vec<i64>, _>>()?;
        let flows = self.store.directory.describe(&mut tx, flow_ids.into_iter()).await?;
        let mut seen = std::collections::HashMap::new();
        for row in &rows {
            now = row.try_get("now_ms")?;
            let n = (row.try_get::<i64, _>("n")? - 1) as usize;
            let id = batch[n].id;
            outcomes[n] = match seen.get(&id) {
                // The same task twice in a batch: the first did it.
                Some(CancelOutcome::Cancelled) => CancelOutcome::AlreadyCancelled,
                Some(outcome) => *outcome,
                None => {
                    let key = flows.get(&row.try_get::<i64, _>("flow_id")?);
                    cancel_one(row, id, key.map(|key| &**key), batch[n].detail.clone(), &mut changes)?
                }
            };
            seen.insert(id, outcomes[n]);
        }
        if changes.is_empty() {
            tx.rollback().await;
            return Ok(outcomes);
        }
        let rings = changes.write(&self.store, &mut tx, now).await?;
        tx.commit().await?;
        if outcomes.contains(&CancelOutcome::Cancelled) {
            self.store.bells.ring(Topic::Ended, rings.readers);
        }
        if outcomes.contains(&CancelOutcome::Requested) {
            self.store.bells.ring(Topic::Cancel, true);
        }
        Ok(outcomes)
    }
}

fn cancel_one(
    row: &PgRow,
    id: TaskId,
    key: Option<&crate::directory::FlowKey>,
    detail: Option<String>,
    changes: &mut Changes,
) -> Result<CancelOutcome, StoreError> {
    let status = row.try_get::<Option<String>, _>("status")?;
    if let Some(status) = status {
        return Ok(if status == Status::Cancelled.as_str() {
            CancelOutcome::AlreadyCancelled
        } else {
            CancelOutcome::Ended
        });
    }
    if let Some(session) = row.try_get::<Option<Uuid>, _>("session_id")? {
        changes.request_cancel(id, session, Reason::CancelRequested, detail);
        return Ok(CancelOutcome::Requested);
    }
    let (Some(key), Some(from)) = (key, waiting_status(row)?) else {
        return Err(StoreError::Schema(format!("task {id} is nowhere")));
    };
    let place =
        Place { flow: row.try_get("flow_id")?, rank: row.try_get("rank")?, id, reserved: row.try_get("reserved")? };
    changes.end_waiting(place, key, from, Status::Cancelled, Reason::CancelRequested, holding_of(row)?, detail, false);
    Ok(CancelOutcome::Cancelled)
}

fn waiting_status(row: &PgRow) -> Result<Option<Status>, StoreError> {
    let place: Option<String> = row.try_get("place")?;
    Ok(match place.as_deref() {
        Some("ready") => Some(Status::Queued),
        Some("deferred") => Some(Status::Deferred),
        _ => None,
    })
}
