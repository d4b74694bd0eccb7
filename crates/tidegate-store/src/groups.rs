//! Cancelling groups: all tasks of a tenant with a cancellation token, or of a workflow.
//!
//! That a group is to be cancelled is recorded first, in a transaction of its own under the cell's lock: from then on no
//! task with the token is let in. Then its tasks are walked by id, the newest first, so that each is looked at once
//! wherever it moves meanwhile, and children go with the group they belong to before their parents' end reaches them.
//! The walk takes no lock; what it found living is cancelled in transactions of bounded size, each of which looks again.
//! The record goes when the walk is over. One that nobody has touched for a while was left by a process that died, and
//! is carried out by a keeper.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Row;
use tidegate_core::{Reason, TaskId, TenantId};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::cancel::{Ask, CANCEL_TASKS, Done, cancel_in};
use crate::children;
use crate::connection::Connections;
use crate::error::StoreError;
use crate::store::{Store, StoreInner};
use crate::types::CancelOutcome;

const ASK: &str = include_str!("ask_group.sql");
const BY_TOKEN: &str = include_str!("members_by_token.sql");
const BY_WORKFLOW: &str = include_str!("members_by_workflow.sql");
const TOUCH: &str = "UPDATE tidegate.cancel_group SET touched_ms = tidegate.now_ms() \
    WHERE tenant = $1 AND scope = $2 AND name = $3 AND call_id = $4";
/// A later call for the same group leaves its own record, which is not this one's to remove.
const OVER: &str = "DELETE FROM tidegate.cancel_group WHERE tenant = $1 AND scope = $2 AND name = $3 AND call_id = $4";
const TAKE_ABANDONED: &str = "UPDATE tidegate.cancel_group g SET touched_ms = n.now_ms \
    FROM (SELECT tidegate.now_ms() AS now_ms) n, (SELECT tenant, scope, name FROM tidegate.cancel_group \
        WHERE touched_ms < (SELECT tidegate.now_ms()) - $1 LIMIT 1 FOR UPDATE SKIP LOCKED) a \
    WHERE g.tenant = a.tenant AND g.scope = a.scope AND g.name = a.name RETURNING g.tenant, g.scope, g.name, g.call_id";

/// How long a cancelled token refuses what arrives with it: what belongs together arrives within a day, the longest that
/// a task may take.
const TOKEN_REFUSED_FOR: Duration = Duration::from_secs(86_400);
/// Most tasks of a group that one look goes over, living or not.
const LOOKED_AT: i64 = 5_000;
/// How often a workflow is walked for what came in during the walk before: whoever submits without end is not followed.
const MAX_WALKS: u32 = 3;
/// After how long untouched a group's record was left behind: longer than a transaction may take, and its retries.
const ABANDONED_AFTER: Duration = Duration::from_secs(10);
/// Most group cancels that one process has in hand; each waits for its turn at one connection.
const IN_HAND: usize = 256;

/// A group of a tenant's tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Group {
    /// Those with a cancellation token.
    Token(String),
    /// Those of a workflow.
    Workflow(String),
}

/// How many tasks the cancel of a group reached. Those that had ended before, and the children of those that it
/// reached, are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupCancelled {
    /// Tasks that waited and are CANCELLED now.
    pub cancelled: u64,
    /// Tasks that run and are asked to stop, by this call or an earlier one.
    pub requested: u64,
}

/// Cancels groups, page by page in turn.
#[derive(Clone)]
pub(crate) struct Groups {
    store: Arc<StoreInner>,
    connections: Connections,
    /// Who has it may use the connection.
    turn: Arc<Semaphore>,
    in_hand: Arc<Semaphore>,
}

impl Groups {
    pub(crate) fn new(store: Arc<StoreInner>, connections: Connections) -> Self {
        Self { store, connections, turn: Arc::new(Semaphore::new(1)), in_hand: Arc::new(Semaphore::new(IN_HAND)) }
    }

    pub(crate) async fn cancel(&self, tenant: &TenantId, group: Group) -> Result<GroupCancelled, StoreError> {
        let unavailable = || StoreError::Unavailable(None);
        let place = self.in_hand.clone().try_acquire_owned().map_err(|_| unavailable())?;
        let (scope, name) = match group {
            Group::Token(name) => (TOKEN, name),
            Group::Workflow(name) => (WORKFLOW, name),
        };
        let call = Call { tenant: tenant.as_str().to_owned(), scope, name, id: Uuid::now_v7() };
        let groups = self.clone();
        let carried_out = tokio::spawn(async move {
            let _place = place;
            call.ask(&groups).await?;
            // From here on a keeper goes on with it, should this process fail.
            call.carry_out(&groups).await.map_err(|error| {
                tracing::warn!(%error, "the cancel of a group is left to the keeper");
                StoreError::OutcomeUnknown(None)
            })
        });
        carried_out.await.unwrap_or(Err(StoreError::OutcomeUnknown(None)))
    }
}

impl Store {
    /// Carries out the cancel of a group whose process died before it was done. Returns how many tasks it reached; none
    /// where no such group is left.
    pub async fn cancel_abandoned_group(&self) -> Result<Option<u64>, StoreError> {
        let rows = self.read(sqlx::query(TAKE_ABANDONED).bind(ABANDONED_AFTER.as_millis() as i64)).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let call = Call { tenant: row.try_get(0)?, scope: row.try_get(1)?, name: row.try_get(2)?, id: row.try_get(3)? };
        let groups = Groups::new(self.inner(), self.inner_ref().connections.clone());
        call.carry_out(&groups).await.map(|reached| Some(reached.cancelled + reached.requested))
    }
}

/// The numbers of the two sorts of group in the table.
const TOKEN: i16 = 0;
const WORKFLOW: i16 = 1;

/// One call to cancel a group.
struct Call {
    tenant: String,
    scope: i16,
    name: String,
    id: Uuid,
}

impl Call {
    /// Records what is to be done.
    async fn ask(&self, groups: &Groups) -> Result<(), StoreError> {
        let _turn = groups.turn.acquire().await;
        let mut tries = groups.store.tries();
        loop {
            let asked = async {
                let mut tx = groups.connections.begin(true).await?;
                let query = self.bound(ASK).bind(TOKEN_REFUSED_FOR.as_millis() as i64);
                tx.call(|conn| query.execute(conn)).await?;
                tx.commit().await
            };
            match asked.await {
                Err(error) if tries.again(&error) => {}
                asked => return asked,
            }
        }
    }

    /// Cancels every task of the group that lives.
    async fn carry_out(&self, groups: &Groups) -> Result<GroupCancelled, StoreError> {
        let (mut reached, mut parents) = (GroupCancelled::default(), false);
        for walk in 0..MAX_WALKS {
            let before = reached;
            parents |= self.walk(groups, walk > 0, &mut reached).await?;
            // Nothing with the token has come in since the call was recorded. A workflow's tasks may have.
            if self.scope == TOKEN || reached == before {
                break;
            }
        }
        let _turn = groups.turn.acquire().await;
        if parents {
            children::follow(&groups.store, &groups.connections).await;
        }
        let mut tx = groups.connections.begin(false).await?;
        tx.call(|conn| self.bound(OVER).execute(conn)).await?;
        tx.commit().await?;
        Ok(reached)
    }

    /// Goes once over the whole group; with `again` over those only that nobody asked to stop yet. Tells whether some of
    /// those it reached have children.
    async fn walk(&self, groups: &Groups, again: bool, reached: &mut GroupCancelled) -> Result<bool, StoreError> {
        let (mut below, mut parents) = (Some(Uuid::max()), false);
        while let Some(before) = below {
            let living;
            (living, below) = self.look(groups, before, again).await?;
            for page in living.chunks(CANCEL_TASKS) {
                let done = self.cancel_page(groups, page).await?;
                reached.cancelled += done.count(CancelOutcome::Cancelled) as u64;
                reached.requested += done.count(CancelOutcome::Requested) as u64;
                parents |= done.parents();
            }
        }
        Ok(parents)
    }

    /// The next tasks of the group that live, and below which to go on.
    async fn look(&self, groups: &Groups, before: Uuid, again: bool) -> Result<(Vec<Uuid>, Option<Uuid>), StoreError> {
        let _turn = groups.turn.acquire().await;
        let sql = if self.scope == TOKEN { BY_TOKEN } else { BY_WORKFLOW };
        let query = sqlx::query(sql).bind(self.tenant.clone()).bind(self.name.clone());
        let query = query.bind(before).bind(LOOKED_AT).bind(again);
        let mut tx = groups.connections.begin(false).await?;
        let row = tx.call(|conn| query.fetch_one(conn)).await?;
        tx.rollback().await;
        Ok((row.try_get(0)?, row.try_get(1)?))
    }

    async fn cancel_page(&self, groups: &Groups, page: &[Uuid]) -> Result<Done, StoreError> {
        let _turn = groups.turn.acquire().await;
        let reason = if self.scope == TOKEN { Reason::TokenCancelled } else { Reason::WorkflowCancelled };
        let ask = |id: &Uuid| Ask { tenant: self.tenant.clone(), id: TaskId(*id), reason, detail: None };
        let asks: Vec<Ask> = page.iter().map(ask).collect();
        let mut tries = groups.store.tries();
        loop {
            let cancelled = async {
                let mut tx = groups.connections.begin(true).await?;
                let done = cancel_in(&groups.store, &asks, &mut tx).await?;
                tx.call(|conn| self.bound(TOUCH).execute(conn)).await?;
                tx.commit().await.map(|()| done)
            };
            match cancelled.await {
                Err(error) if tries.again(&error) => {}
                done => {
                    let done = done?;
                    done.ring(&groups.store);
                    return Ok(done);
                }
            }
        }
    }

    /// Binds what names this call, $1 to $4.
    fn bound(&self, sql: &'static str) -> sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments> {
        sqlx::query(sql).bind(self.tenant.clone()).bind(self.scope).bind(self.name.clone()).bind(self.id)
    }
}
