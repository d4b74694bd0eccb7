//! The bare handler that submissions over HTTP are measured beside: it keeps each body as one narrow row, gathered as
//! ours are and committed before it answers, and knows nothing of JSON, limits, order or state.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use tidegate_store::yardstick::NarrowTable;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::super::ground::broken;
use crate::cli::BareArgs;
use crate::exit::Failure;
use crate::roles::Shutdown;

/// Most rows in one insert: as many as a batch of ours holds.
const BATCH: usize = 500;
/// Requests that wait for their insert: as many as wait at our door.
const WAITING: usize = 10_000;

struct Item {
    id: Uuid,
    body: String,
    kept: oneshot::Sender<()>,
}

/// Serves until told to stop.
pub(in crate::bench) async fn serve(arguments: &BareArgs, shutdown: &Shutdown) -> Result<(), Failure> {
    let table = NarrowTable::create(arguments.rows_in.reveal()).await.map_err(|error| broken("no table", &error))?;
    let listener = TcpListener::bind(arguments.listen).await.map_err(|error| Failure::other("cannot listen", error))?;
    let (sender, receiver) = mpsc::channel(WAITING);
    let gathering = tokio::spawn(gather(table, receiver));
    let router =
        Router::new().route("/v1/tasks", post(keep)).route("/readyz", get(async || "ready")).with_state(sender);
    let stop = shutdown.stop.clone();
    let served = axum::serve(listener, router).with_graceful_shutdown(async move { stop.cancelled().await });
    served.await.map_err(|error| Failure::other("the bare handler ended", error))?;
    gathering.await.map_err(|error| Failure::other("the gathering broke off", error))?
}

async fn keep(State(sender): State<mpsc::Sender<Item>>, body: String) -> impl IntoResponse {
    let (kept, told) = oneshot::channel();
    let id = Uuid::now_v7();
    if sender.try_send(Item { id, body, kept }).is_err() || told.await.is_err() {
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::CONTENT_TYPE, "application/json")], "{}".to_owned());
    }
    (StatusCode::ACCEPTED, [(header::CONTENT_TYPE, "application/json")], format!("{{\"id\":\"{id}\"}}"))
}

/// While one batch is committing, what arrives joins the next.
async fn gather(mut table: NarrowTable, mut receiver: mpsc::Receiver<Item>) -> Result<(), Failure> {
    while let Some(first) = receiver.recv().await {
        tokio::task::yield_now().await;
        let mut batch = vec![first];
        while batch.len() < BATCH
            && let Ok(item) = receiver.try_recv()
        {
            batch.push(item);
        }
        let mut waiting = Vec::with_capacity(batch.len());
        let (ids, bodies) = batch
            .into_iter()
            .map(|item| {
                waiting.push(item.kept);
                (item.id, item.body)
            })
            .unzip();
        table.insert(ids, bodies).await.map_err(|error| broken("the bare insert failed", &error))?;
        for kept in waiting {
            // A caller that left does not undo its row.
            let _ = kept.send(());
        }
    }
    Ok(())
}
