//! A worker: session after session until it is shut down.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::backoff::{self, BackoffPolicy};
use tidegate_core::{Fence, TaskId};
use tidegate_store::{SessionSpec, supervise};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::heartbeat::{self, Home};
use crate::options::{BadOptions, WorkerOptions};
use crate::port::{SessionPort, WorkPort};
use crate::registry::Registry;
use crate::serving::{Desk, Served, Serving};
use crate::shift::Shift;

/// The delays between tries to open a session.
const OPEN_RETRY: BackoffPolicy = BackoffPolicy { base_ms: 100, max_ms: 5_000 };
/// How long one wait for cancels takes. Only a bound: nothing happens when it is over.
const CANCEL_WAIT: Duration = Duration::from_secs(30);

/// Runs the tasks of its kinds, as many at once as it has slots.
#[derive(Debug)]
pub struct Worker<P> {
    port: Arc<P>,
    registry: Registry,
    options: WorkerOptions,
    home: Home,
}

/// How a worker ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Drained {
    /// Tasks whose leases it could not give back: their handlers did not stop, or the store could not be reached.
    /// Others will find them once the session has lapsed.
    pub left: Vec<(TaskId, Fence)>,
}

impl<P: WorkPort> Worker<P> {
    /// A worker that serves the kinds of `registry` which the options name.
    pub fn new(port: Arc<P>, registry: Registry, options: WorkerOptions) -> Result<Self, BadOptions> {
        let registry = options.checked(registry)?;
        Ok(Self { port, registry, options, home: Home::Thread })
    }

    /// Heartbeats on the runtime of the caller, whose clock may be paused.
    #[cfg(test)]
    pub(crate) fn with_heart_here(mut self) -> Self {
        self.home = Home::Here;
        self
    }

    /// Claims and runs tasks until `shutdown`, or until an operator has its session drain, then drains. Dropping the future drains as well, unobserved.
    pub async fn run(self, shutdown: CancellationToken) -> Drained {
        let shutdown = shutdown.child_token();
        let _shut_down_when_dropped = shutdown.clone().drop_guard();
        // A task of its own, so that its polls take turns with those of its handlers.
        match tokio::spawn(self.live(shutdown)).await {
            Ok(drained) => drained,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is being torn down.
            Err(_) => Drained::default(),
        }
    }

    async fn live(self, shutdown: CancellationToken) -> Drained {
        let Self { port, registry, options, home } = self;
        // One message for each slot, so sending never waits.
        let (done, finished) = mpsc::channel(options.slots as usize);
        let mut desk = Desk { registry, options, busy: 0, done, finished };
        let mut short_lives = 0;
        while let Some((session, shift, opened)) = open(&port, &desk, home, &shutdown, short_lives).await {
            tracing::info!(
                session.id = %session.id().0, worker = desk.options.name, slots = desk.options.slots,
                kinds = ?desk.registry.kinds(), "serving"
            );
            match Serving::new(port.clone(), &mut desk, session, shift.clone()).serve(&shutdown).await {
                Served::Drained(left) => return Drained { left },
                // Who was told to leave does not come back under another id.
                Served::Lost if shift.is_draining() => break,
                Served::Lost if opened.elapsed() < desk.options.lease => short_lives += 1,
                Served::Lost => short_lives = 0,
            }
        }
        see_off(&mut desk).await;
        Drained::default()
    }
}

/// Opens a session and starts its heartbeat; tries until it succeeds or there is a shutdown. After sessions that were
/// lost at once it waits first.
async fn open<P: WorkPort>(
    port: &Arc<P>,
    desk: &Desk,
    home: Home,
    shutdown: &CancellationToken,
    short_lives: u32,
) -> Option<(P::Session, Arc<Shift>, Instant)> {
    let mut failures = short_lives;
    loop {
        if failures > 0 {
            let delay = backoff::delay_ms(OPEN_RETRY, failures, None, rand::random_range(0.5..1.0));
            shutdown.run_until_cancelled(sleep(Duration::from_millis(delay))).await?;
        }
        failures = failures.saturating_add(1);
        let spec = SessionSpec {
            worker: desk.options.name.clone(),
            kinds: desk.registry.session_kinds(),
            slots: desk.options.slots,
            lease: desk.options.lease,
            settle_reserve: desk.options.settle_reserve,
            at_once: desk.options.at_once.clone(),
        };
        // The lease is counted from before it was asked for.
        let opened = Instant::now();
        let opening = tokio::spawn({
            let port = port.clone();
            async move { port.open_session(spec).await }
        });
        let session = match shutdown.run_until_cancelled(opening).await? {
            Ok(Ok(session)) => session,
            Ok(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "no session could be opened");
                continue;
            }
            Err(error) => {
                tracing::error!(%error, "opening a session broke off");
                continue;
            }
        };
        let shift = Arc::new(Shift::default());
        match heartbeat::start(home, session.heart(), shift.clone(), desk.options.lease, opened) {
            Ok(()) => {
                tokio::spawn(pass_on_cancels(port.clone(), shift.clone()));
                return Some((session, shift, opened));
            }
            Err(error) => tracing::error!(%error, "no thread for the heartbeat"),
        }
    }
}

/// Has a heartbeat sent at once when a cancel was asked for: its answer says whose.
async fn pass_on_cancels<P: WorkPort>(port: Arc<P>, shift: Arc<Shift>) {
    let passing = || async {
        loop {
            if port.wait_for_cancel(CANCEL_WAIT).await {
                shift.beat_now.notify_one();
            }
        }
    };
    tokio::select! {
        () = shift.over() => {}
        () = supervise("cancels", CancellationToken::new(), passing) => {}
    }
}

/// Waits for handlers of a lost session to stop, within their grace.
async fn see_off(desk: &mut Desk) {
    let grace = desk.options.stop_grace * 2;
    let leaving = async {
        while desk.busy > 0 && desk.finished.recv().await.is_some() {
            desk.busy -= 1;
        }
    };
    if timeout(grace, leaving).await.is_err() {
        tracing::warn!("handlers of a lost session have not stopped");
    }
}
