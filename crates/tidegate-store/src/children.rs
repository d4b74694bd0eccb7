//! Cancelling the children of what was cancelled, and theirs, a level at a time.
//!
//! The transaction that cancels a task, or asks it to stop, marks it if it has living children which nobody asked to
//! stop. Whoever finds a mark cancels those children, which marks those among them that have children of their own; the
//! mark goes in the transaction after which no such child is left. So a process may die between any two steps. It ends:
//! each step leaves fewer tasks that live and were not asked, and only such tasks are marked anew, so that not even
//! tasks that are their own ancestors could keep it going.

use std::time::Duration;

use sqlx::Row;
use tidegate_core::{Reason, TaskId};
use tokio::time::timeout;
use uuid::Uuid;

use crate::cancel::{Ask, CANCEL_TASKS, cancel_in};
use crate::connection::{Connections, Tx};
use crate::error::StoreError;
use crate::store::{Store, StoreInner};
use crate::types::CancelOutcome;

const MARK: &str = include_str!("mark_parents.sql");
const FIND: &str = include_str!("marked_children.sql");
const UNMARK: &str = include_str!("unmark_parents.sql");
/// Most levels, or pages of one, that a cancel goes down before its caller hears of it: the usual few children of a task
/// are cancelled by then, and a keeper goes on with the rest.
const FOLLOWED: u32 = 8;
/// The longest that it does so: the caller's own cancel is made already.
const FOLLOWED_FOR: Duration = Duration::from_secs(1);

/// Marks the parents among tasks that were stopped in this transaction. Tells whether there are any.
pub(crate) async fn mark(stopped: Vec<Uuid>, tx: &mut Tx) -> Result<bool, StoreError> {
    let marked = tx.call(|conn| sqlx::query(MARK).bind(stopped).execute(conn)).await?;
    Ok(marked.rows_affected() > 0)
}

/// Cancels marked children, as far as a caller is kept waiting for it. What fails here is done by a keeper.
pub(crate) async fn follow(store: &StoreInner, connections: &Connections) {
    let followed = timeout(FOLLOWED_FOR, async {
        for _ in 0..FOLLOWED {
            if cancel_page(store, connections).await?.is_none() {
                break;
            }
        }
        Ok::<_, StoreError>(())
    });
    if let Ok(Err(error)) = followed.await {
        tracing::warn!(%error, "children of cancelled tasks are left to the keeper");
    }
}

impl Store {
    /// Cancels children of cancelled tasks, at most [`SWEEP`](crate::SWEEP) of them. Returns how many; none where no
    /// parent is marked any more.
    pub async fn cancel_children(&self) -> Result<Option<usize>, StoreError> {
        cancel_page(self.inner_ref(), &self.inner_ref().connections).await
    }
}

async fn cancel_page(store: &StoreInner, connections: &Connections) -> Result<Option<usize>, StoreError> {
    let mut tx = connections.begin(false).await?;
    let rows = tx.call(|conn| sqlx::query(FIND).bind(CANCEL_TASKS as i64).fetch_all(conn)).await?;
    tx.rollback().await;
    if rows.is_empty() {
        return Ok(None);
    }
    let (mut parents, mut asks) = (Vec::new(), Vec::new());
    for row in &rows {
        parents.push(row.try_get::<Uuid, _>(0)?);
        if let Some(child) = row.try_get::<Option<Uuid>, _>(2)? {
            asks.push(Ask {
                tenant: row.try_get(1)?,
                id: TaskId(child),
                reason: Reason::ParentCancelled,
                detail: None,
            });
        }
    }
    parents.dedup();
    let mut tries = store.tries();
    loop {
        match cancel_and_unmark(store, connections, &parents, &asks).await {
            Err(error) if tries.again(&error) => {}
            done => return done.map(Some),
        }
    }
}

async fn cancel_and_unmark(
    store: &StoreInner,
    connections: &Connections,
    parents: &[Uuid],
    asks: &[Ask],
) -> Result<usize, StoreError> {
    let mut tx = connections.begin(true).await?;
    let done = match asks {
        [] => None,
        asks => Some(cancel_in(store, asks, &mut tx).await?),
    };
    tx.call(|conn| sqlx::query(UNMARK).bind(parents.to_vec()).execute(conn)).await?;
    tx.commit().await?;
    let Some(done) = done else { return Ok(0) };
    done.ring(store);
    Ok(done.count(CancelOutcome::Cancelled) + done.count(CancelOutcome::Requested))
}
