//! Waiting for tasks to end: one look for all who wait, when the doorbell rings and by the clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Row;
use tidegate_core::TaskId;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use crate::background::supervise;
use crate::bell::Topic;
use crate::connection::call;
use crate::error::StoreError;
use crate::store::{Store, StoreInner};

/// Most callers of one process that wait for tasks to end.
const MAX_WAITING: usize = 10_000;
/// How often those who wait look by the clock.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The least time between two looks, however often the bell rings.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(3);
/// How long this process stays on the list of those who want the bell rung, and when it is put there again.
const LISTED_FOR: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(7));
const ENDED: &str =
    "SELECT t.id FROM unnest($1::uuid[]) AS d(id) JOIN tidegate.task t ON t.id = d.id WHERE t.status IS NOT NULL";

struct Waiter {
    id: TaskId,
    ended: oneshot::Sender<()>,
}

/// Those who wait for tasks to end.
pub(crate) struct Watch {
    sender: mpsc::Sender<Waiter>,
}

impl Watch {
    pub(crate) fn start(store: Arc<StoreInner>) -> Self {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let (closed, tasks) = (store.closed.clone(), store.tasks.clone());
        tasks.spawn(async move {
            let arrivals = Mutex::new(receiver);
            supervise("watch for ended tasks", closed, || watch(&store, &arrivals)).await;
        });
        Self { sender }
    }
}

impl Store {
    /// Waits until a task has ended, at most so long. Tells whether it has, as far as this was seen.
    pub async fn wait_for_end(&self, id: TaskId, longest: Duration) -> Result<bool, StoreError> {
        let (ended, heard) = oneshot::channel();
        self.watch().sender.try_send(Waiter { id, ended }).map_err(|_| StoreError::Unavailable(None))?;
        Ok(matches!(timeout(longest, heard).await, Ok(Ok(()))))
    }
}

/// Goes on until the store is closed. Where it breaks off, those who wait hear so, and look for themselves.
async fn watch(store: &StoreInner, arrivals: &Mutex<mpsc::Receiver<Waiter>>) {
    let mut arrivals = arrivals.lock().await;
    let mut bell = store.bells.hear(Topic::Ended);
    let mut waiting: HashMap<Uuid, Vec<oneshot::Sender<()>>> = HashMap::new();
    let mut listed: Option<Instant> = None;
    loop {
        if waiting.is_empty() {
            match arrivals.recv().await {
                Some(waiter) => waiting.entry(waiter.id.0).or_default().push(waiter.ended),
                None => std::future::pending().await,
            }
        }
        while let Ok(waiter) = arrivals.try_recv() {
            waiting.entry(waiter.id.0).or_default().push(waiter.ended);
        }
        if listed.is_none_or(|at| at.elapsed() > LISTED_FOR.1) && store.list_waiting(1, LISTED_FOR.0).await.is_ok() {
            listed = Some(Instant::now());
        }
        bell.mark_unchanged();
        let looked = Instant::now();
        if let Err(error) = look(store, &mut waiting).await {
            tracing::debug!(%error, "could not look for ended tasks");
        }
        sleep_until(looked + LOOK_AT_MOST_EVERY).await;
        tokio::select! {
            _ = bell.changed() => {}
            waiter = arrivals.recv() => match waiter {
                Some(waiter) => waiting.entry(waiter.id.0).or_default().push(waiter.ended),
                None => std::future::pending().await,
            },
            () = sleep_until(looked + LOOK_EVERY) => {}
        }
        waiting.retain(|_, callers| {
            callers.retain(|caller| !caller.is_closed());
            !callers.is_empty()
        });
    }
}

async fn look(store: &StoreInner, waiting: &mut HashMap<Uuid, Vec<oneshot::Sender<()>>>) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = waiting.keys().copied().collect();
    let mut conn = store.connections.get().await?;
    let rows = call(store.connections.call_timeout(), sqlx::query(ENDED).bind(ids).fetch_all(&mut *conn)).await?;
    conn.release();
    for row in rows {
        for caller in waiting.remove(&row.try_get(0)?).unwrap_or_default() {
            let _gone = caller.send(());
        }
    }
    Ok(())
}
