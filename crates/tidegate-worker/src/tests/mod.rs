//! The worker over the store in memory, mostly with a paused clock: its minutes take no time.

mod handlers;
mod http;
mod life;
mod limits;
mod loss;
mod outage;
mod permits;

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Kind;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fake::FakeStore;
use crate::{
    Context, Drained, Executor, HandlerError, KindOptions, Registry, RunFuture, Worker, WorkerOptions, builtin,
};

/// A running worker.
struct Running {
    store: FakeStore,
    shutdown: CancellationToken,
    life: JoinHandle<Drained>,
}

impl Running {
    async fn shut_down(self) -> Drained {
        self.shutdown.cancel();
        self.life.await.unwrap()
    }
}

/// An executor that is a closure.
struct Closure<F>(F);

impl<F, R> Executor for Closure<F>
where
    F: Fn(Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<String, HandlerError>> + Send + 'static,
{
    fn execute(&self, ctx: Context, _: String) -> RunFuture<'_> {
        Box::pin((self.0)(ctx))
    }
}

fn executor<F, R>(run: F) -> Arc<dyn Executor>
where
    F: Fn(Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<String, HandlerError>> + Send + 'static,
{
    Arc::new(Closure(run))
}

fn options() -> WorkerOptions {
    WorkerOptions { slots: 4, ..WorkerOptions::default() }
}

/// The built-ins, and `own` under the kind `own`.
fn registry(own: Arc<dyn Executor>) -> Registry {
    let mut registry = Registry::new();
    for (kind, executor) in
        [("echo", builtin::echo()), ("sleep", builtin::sleep()), ("fail", builtin::fail()), ("own", own)]
    {
        registry.register(Kind::parse(kind).unwrap(), KindOptions::default(), executor);
    }
    registry
}

/// A worker whose heartbeat is on this runtime, with its clock.
fn start(options: WorkerOptions, own: Arc<dyn Executor>) -> Running {
    let store = FakeStore::default();
    let worker = Worker::new(Arc::new(store.clone()), registry(own), options).unwrap().with_heart_here();
    launch(store, worker)
}

fn launch(store: FakeStore, worker: Worker<FakeStore>) -> Running {
    let shutdown = CancellationToken::new();
    let life = tokio::spawn(worker.run(shutdown.clone()));
    Running { store, shutdown, life }
}

/// Does nothing at once.
fn nothing() -> Arc<dyn Executor> {
    executor(|_| async { Ok("null".to_owned()) })
}

/// Never ends by itself, and does not listen.
fn deaf() -> Arc<dyn Executor> {
    executor(|_| std::future::pending())
}

/// Ends when it is told to stop, `slow` later.
fn obedient(slow: Duration) -> Arc<dyn Executor> {
    executor(move |ctx: Context| async move {
        ctx.cancelled().await;
        tokio::time::sleep(slow).await;
        ctx.checkpoint()?;
        Ok("null".to_owned())
    })
}
