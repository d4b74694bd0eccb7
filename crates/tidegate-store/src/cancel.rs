//! The Canceller: gathers cancels, and either ends what waits or tells the worker of what runs.

use std::collections::HashMap;
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
use crate::children;
use crate::connection::{Connections, Tx};
use crate::directory::FlowKey;
use crate::error::StoreError;
use crate::gather::{Flush, GatherLimits, Weighted, gather};
use crate::groups::{Group, GroupCancelled, Groups};
use crate::ledger::Rings;
use crate::store::{Store, StoreInner};
use crate::types::CancelOutcome;

const FIND: &str = include_str!("find.sql");
/// Most cancels in one transaction: it holds the cell's row meanwhile.
pub(crate) const CANCEL_TASKS: usize = 500;
/// Most cancels in one transaction, and most that wait for the next.
const LIMITS: GatherLimits = GatherLimits { items: CANCEL_TASKS, weight: usize::MAX, waiting: 10_000 };
/// The longest a cancel waits for its answer: as long as a holder of the lock that was stopped is let live, and some.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Cancels tasks. Cheap to clone.
#[derive(Clone)]
pub struct Canceller {
    sender: mpsc::Sender<Item>,
    groups: Groups,
    store: Store,
}

struct Item {
    ask: Ask,
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
        // One for the tasks that are named one by one, and one for groups: neither waits for the other, or for reads.
        let connections = Connections::new(store.options(), 2)?;
        let groups = Groups::new(store.inner(), connections.clone());
        let desk = Desk { store: store.inner(), connections };
        Ok(Self { sender: gather(LIMITS, desk, CancellationToken::new()), groups, store: store.clone() })
    }

    /// Cancels one task of a tenant, and the tasks that it started. `detail` is kept with the task. The cancel is made
    /// even if the caller goes away. What was refused at the door has ended.
    pub async fn cancel(
        &self,
        tenant: &TenantId,
        id: TaskId,
        detail: Option<String>,
    ) -> Result<CancelOutcome, StoreError> {
        let (reply, answer) = oneshot::channel();
        let ask = Ask { tenant: tenant.as_str().to_owned(), id, reason: Reason::CancelRequested, detail };
        let item = Item { ask, reply };
        let unavailable = || StoreError::Unavailable(None);
        tokio::time::timeout(ANSWER_TIMEOUT, async {
            self.sender.send(item).await.map_err(|_| unavailable())?;
            match answer.await.map_err(|_| unavailable())? {
                // Only what is no task is looked for among the refusals, and outside the cell's row.
                Ok(CancelOutcome::Unknown) => self.refused(tenant, id).await,
                outcome => outcome,
            }
        })
        .await
        .map_err(|_| unavailable())?
    }

    /// What cancelling says of an id that is no task's: a refused submission's, or nobody's.
    async fn refused(&self, tenant: &TenantId, id: TaskId) -> Result<CancelOutcome, StoreError> {
        Ok(match self.store.refused(tenant, id).await?.map(|refused| refused.status) {
            Some(Status::Cancelled) => CancelOutcome::AlreadyCancelled,
            Some(_) => CancelOutcome::Ended,
            None => CancelOutcome::Unknown,
        })
    }

    /// Cancels all tasks of a tenant with a token or of a workflow, and the tasks that they started; with a token, what
    /// arrives later is refused for a day. Repeating it is harmless. It is carried out even if the caller goes away,
    /// and after [`StoreError::OutcomeUnknown`] by a keeper, if it was recorded.
    pub async fn cancel_group(&self, tenant: &TenantId, group: Group) -> Result<GroupCancelled, StoreError> {
        self.groups.cancel(tenant, group).await
    }
}

struct Desk {
    store: Arc<StoreInner>,
    connections: Connections,
}

impl Flush<Item> for Desk {
    async fn flush(&mut self, batch: Vec<Item>) {
        let mut tries = self.store.tries();
        let outcomes = loop {
            match self.cancel(&batch).await {
                Err(error) if tries.again(&error) => {}
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
        let asks: Vec<Ask> = batch.iter().map(|item| item.ask.clone()).collect();
        let mut tx = self.connections.begin(true).await?;
        let done = cancel_in(&self.store, &asks, &mut tx).await?;
        if done.is_nothing() {
            tx.rollback().await;
            return Ok(done.outcomes);
        }
        tx.commit().await?;
        done.ring(&self.store);
        if done.parents() {
            children::follow(&self.store, &self.connections).await;
        }
        Ok(done.outcomes)
    }
}

/// A cancel that is asked of one task.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) tenant: String,
    pub(crate) id: TaskId,
    pub(crate) reason: Reason,
    /// Free text that is kept with the task.
    pub(crate) detail: Option<String>,
}

/// What became of each of some cancels. Nobody has been told of it yet.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) outcomes: Vec<CancelOutcome>,
    rings: Rings,
}

impl Done {
    /// Whether nothing was changed.
    pub(crate) fn is_nothing(&self) -> bool {
        self.count(CancelOutcome::Cancelled) + self.count(CancelOutcome::Requested) == 0
    }

    /// Whether some of the tasks have children that are to be cancelled too, and were marked.
    pub(crate) fn parents(&self) -> bool {
        self.rings.parents
    }

    /// Tells those who wait, once the transaction is committed.
    pub(crate) fn ring(&self, store: &StoreInner) {
        if self.count(CancelOutcome::Cancelled) > 0 {
            store.bells.ring(Topic::Ended, self.rings.readers);
        }
        if self.count(CancelOutcome::Requested) > 0 {
            store.bells.ring(Topic::Cancel, true);
        }
    }

    /// How many came out like this.
    pub(crate) fn count(&self, outcome: CancelOutcome) -> usize {
        self.outcomes.iter().filter(|became| **became == outcome).count()
    }
}

/// Cancels tasks wherever they are, inside a transaction that holds the cell's row.
pub(crate) async fn cancel_in(store: &StoreInner, asks: &[Ask], tx: &mut Tx) -> Result<Done, StoreError> {
    let ids: Vec<Uuid> = asks.iter().map(|ask| ask.id.0).collect();
    let tenants: Vec<String> = asks.iter().map(|ask| ask.tenant.clone()).collect();
    let rows = tx.call(|conn| sqlx::query(FIND).bind(ids).bind(tenants).fetch_all(conn)).await?;
    let mut outcomes = vec![CancelOutcome::Unknown; asks.len()];
    let mut changes = Changes::default();
    let mut now: EpochMs = 0;
    let flow_ids = rows.iter().map(|row| row.try_get("flow_id")).collect::<Result<Vec<i64>, _>>()?;
    let flows = store.directory.describe(tx, flow_ids.into_iter()).await?;
    let mut seen = HashMap::new();
    for row in &rows {
        now = row.try_get("now_ms")?;
        let n = (row.try_get::<i64, _>("n")? - 1) as usize;
        let ask = &asks[n];
        outcomes[n] = match seen.get(&ask.id) {
            // The same task twice in a batch: the first did it.
            Some(CancelOutcome::Cancelled) => CancelOutcome::AlreadyCancelled,
            Some(outcome) => *outcome,
            None => cancel_one(row, ask, flows.get(&row.try_get::<i64, _>("flow_id")?), &mut changes)?,
        };
        seen.insert(ask.id, outcomes[n]);
    }
    let rings = if changes.is_empty() { Rings::default() } else { changes.write(store, tx, now).await? };
    Ok(Done { outcomes, rings })
}

fn cancel_one(
    row: &PgRow,
    ask: &Ask,
    key: Option<&Arc<FlowKey>>,
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
    let id = ask.id;
    if let Some(session) = row.try_get::<Option<Uuid>, _>("session_id")? {
        changes.request_cancel(id, session, ask.reason, ask.detail.clone());
        return Ok(CancelOutcome::Requested);
    }
    let (Some(key), Some((place, from))) = (key, place_found(row, id)?) else {
        // One record that is out of step must not keep a whole group from being cancelled.
        tracing::error!(task.id = %id, "a task that has not ended is nowhere");
        return Ok(CancelOutcome::Unknown);
    };
    if row.try_get::<Option<i32>, _>("deliveries")?.is_some_and(|deliveries| deliveries > 0) {
        changes.stops(id);
    }
    changes.end_waiting(place, key, from, Status::Cancelled, ask.reason, holding_of(row)?, ask.detail.clone(), false);
    Ok(CancelOutcome::Cancelled)
}

/// Where a task waits, by its row of `find.sql`; nothing where it does not wait.
pub(crate) fn place_found(row: &PgRow, id: TaskId) -> Result<Option<(Place, Status)>, StoreError> {
    let ended = row.try_get::<Option<String>, _>("status")?.is_some();
    let Some(from) = waiting_status(row)?.filter(|_| !ended) else { return Ok(None) };
    let (flow, rank) = (row.try_get("flow_id")?, row.try_get("rank")?);
    Ok(Some((Place { flow, rank, id, reserved: row.try_get("reserved")? }, from)))
}

fn waiting_status(row: &PgRow) -> Result<Option<Status>, StoreError> {
    let place: Option<String> = row.try_get("place")?;
    Ok(match place.as_deref() {
        Some("ready") => Some(Status::Queued),
        Some("deferred") => Some(Status::Deferred),
        _ => None,
    })
}
