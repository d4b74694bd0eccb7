//! Background upkeep: expire what waits too long, reap the leases of dead workers, promote what is due, carry on cancels,
//! audit the counters, prune what has been kept long enough, and watch for old snapshots.
//!
//! Any number of keepers may run at once, in every API process or on their own: each job is a guarded statement under
//! the cell's row, so two that try the same find nothing left to do. No leader is needed, so none can be lost.

mod snapshots;

use std::sync::Arc;
use std::time::Duration;

use tidegate_store::{Due, Retention, SWEEP, Store, StoreError, Swept, supervise};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How the keeper works.
#[derive(Debug, Clone)]
pub struct KeeperOptions {
    /// How long what has ended is kept.
    pub retention: Retention,
    /// The longest that something that is due waits for a sweep.
    pub sweep_interval: Duration,
    /// How often the leases of dead sessions are looked for.
    pub reap_interval: Duration,
    /// How often the counters are held against the rows.
    pub audit_interval: Duration,
    /// How often what has been kept long enough is pruned.
    pub prune_interval: Duration,
    /// How often snapshots that somebody holds are looked for.
    pub snapshot_interval: Duration,
    /// How long one is held before it is warned of.
    pub snapshot_alert: Duration,
}

impl Default for KeeperOptions {
    fn default() -> Self {
        Self {
            retention: Retention::default(),
            sweep_interval: Duration::from_millis(250),
            reap_interval: Duration::from_secs(1),
            audit_interval: Duration::from_secs(60),
            prune_interval: Duration::from_secs(60),
            snapshot_interval: Duration::from_secs(20),
            snapshot_alert: Duration::from_secs(30),
        }
    }
}

/// How often a sweep looks at everything that is due, and not only from where the last one ended.
const SWEEP_ALL_EVERY: Duration = Duration::from_secs(60);
/// Of so many looks for dead sessions one is for those that were removed altogether.
const THOROUGH_EVERY: u32 = 5;

/// Audits take at most one part in so many of the time.
const AUDIT_AT_MOST: u32 = 100;

/// Most looks at what is due in one round.
const MAX_LOOKS: u32 = 50;
/// The pause after a sweep that failed, so that a database in trouble is not asked without end.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// The pause after partitions could not be turned over because of somebody who reads: each try holds others up for 50 ms.
const AFTER_BUSY: Duration = Duration::from_secs(5);

/// Keeps a cell until `shutdown`. Errors are logged and tried again: a keeper never ends by itself.
pub async fn keep(store: Store, options: KeeperOptions, shutdown: CancellationToken) {
    let tracker = TaskTracker::new();
    // One that panics is begun again: what it left half-way was rolled back.
    macro_rules! job {
        ($name:literal, |$store:ident, $options:ident| $job:expr) => {{
            let ($store, $options) = (store.clone(), options.clone());
            tracker.spawn(supervise($name, shutdown.clone(), move || {
                let ($store, $options) = ($store.clone(), $options.clone());
                $job
            }));
        }};
    }
    let cancels = Arc::new(Notify::new());
    let (seen, told) = (cancels.clone(), cancels);
    job!("sweep", |store, options| Sweeper { store, options, cancels: seen.clone() }.run());
    job!("reap", |store, options| reap(store, options));
    job!("cancel", |store, _options| cancel(store, told.clone()));
    job!("audit", |store, options| audit(store, options));
    job!("prune", |store, options| prune(store, options));
    job!("snapshots", |store, options| snapshots::watch(store, options));
    tracker.close();
    tracker.wait().await;
}

/// Expires, promotes, and rejects what waits too long for its peer.
struct Sweeper {
    store: Store,
    options: KeeperOptions,
    /// Rung where cancels are under way.
    cancels: Arc<Notify>,
}

impl Sweeper {
    async fn run(self) {
        let (mut swept, mut since) = (Swept::default(), Instant::now());
        let mut returned = self.store.returned_bell();
        loop {
            if since.elapsed() > SWEEP_ALL_EVERY {
                // A clock that was set back may have put something behind what was swept.
                (swept, since) = (Swept::default(), Instant::now());
            }
            let pause = match self.sweep(&mut swept).await {
                Ok(due) => self.until_next(due),
                Err(error) => {
                    failed("sweep", &error);
                    AFTER_ERROR
                }
            };
            // What comes back to wait may be due at once.
            let _over = tokio::time::timeout(pause, returned.changed()).await;
        }
    }

    async fn sweep(&self, swept: &mut Swept) -> Result<Due, StoreError> {
        for _ in 0..MAX_LOOKS {
            let due = self.store.due(*swept).await?;
            let mut moved = 0;
            if due.late {
                let (expired, until) = self.store.expire_waiting(*swept).await?;
                metrics::counter!("tidegate_keeper_expired_total").increment(expired as u64);
                *swept = until;
                moved += expired;
            }
            if due.eligible.is_some_and(|eligible| eligible <= due.now) {
                let (promoted, until) = self.store.promote_due(*swept).await?;
                *swept = until;
                metrics::counter!("tidegate_keeper_promoted_total").increment(promoted as u64);
                moved += promoted;
            }
            let (rejected, until) = self.store.reject_overdue(*swept).await?;
            *swept = until;
            metrics::counter!("tidegate_keeper_rejected_total").increment(rejected as u64);
            moved += rejected;
            if due.reserved {
                moved += self.store.take_back_reserved().await?;
            }
            if due.cancels {
                self.cancels.notify_one();
            }
            if moved < SWEEP && !swept.has_more() {
                return Ok(due);
            }
        }
        // The rest is for the next round, which goes on from here.
        self.store.due(*swept).await
    }

    /// Sleeps until the next deferred task is due, but never longer than the interval: what comes in meanwhile may be
    /// due earlier, and deadlines are looked for by the clock.
    fn until_next(&self, due: Due) -> Duration {
        let next = due.eligible.filter(|at| *at > due.now);
        let until = next
            .map_or(self.options.sweep_interval, |at| Duration::from_millis(u64::try_from(at - due.now).unwrap_or(0)));
        until.clamp(Duration::from_millis(1), self.options.sweep_interval)
    }
}

async fn reap(store: Store, options: KeeperOptions) {
    let mut round = 0_u32;
    loop {
        let thorough = round.is_multiple_of(THOROUGH_EVERY);
        round = round.wrapping_add(1);
        match store.reap_lost(thorough).await {
            Ok(lost) => {
                metrics::counter!("tidegate_leases_reaped_total").increment(lost as u64);
                if lost > 0 {
                    tracing::warn!(tasks = lost, "workers were lost: their tasks were settled");
                }
                if lost >= SWEEP {
                    continue;
                }
            }
            Err(error) => failed("reap", &error),
        }
        match store.end_held().await {
            Ok(0) => {}
            Ok(tasks) => tracing::warn!(tasks, "waiting tasks were rejected: their input is held"),
            Err(error) => failed("quarantine", &error),
        }
        sleep(options.reap_interval).await;
    }
}

/// Carries on cancels that a process left half done: the children of what was cancelled, and groups.
async fn cancel(store: Store, under_way: Arc<Notify>) {
    loop {
        under_way.notified().await;
        let carried_on = async {
            let children = store.cancel_children().await?;
            let group = store.cancel_abandoned_group().await?;
            Ok::<_, StoreError>((children, group))
        };
        match carried_on.await {
            Ok((children, group)) => {
                let reached = children.unwrap_or_default() as u64 + group.unwrap_or_default();
                metrics::counter!("tidegate_keeper_cancelled_total").increment(reached);
                if reached > 0 {
                    // There may be more.
                    under_way.notify_one();
                }
            }
            Err(error) => {
                failed("cancel", &error);
                sleep(AFTER_ERROR).await;
            }
        }
    }
}

async fn audit(store: Store, options: KeeperOptions) {
    let mut pause = options.audit_interval;
    loop {
        sleep(pause).await;
        let started = Instant::now();
        match store.audit().await {
            Ok(drifts) => {
                metrics::gauge!("tidegate_drift").set(drifts.len() as f64);
                metrics::histogram!("tidegate_audit_seconds").record(started.elapsed().as_secs_f64());
                for drift in drifts.iter().take(10) {
                    tracing::error!(what = drift.what, counted = ?drift.counted, found = ?drift.found, "a counter drifted from its rows");
                }
            }
            Err(error) => failed("audit", &error),
        }
        // A full queue takes seconds to count: that must stay a small part of the database's time.
        pause = options.audit_interval.max(started.elapsed() * AUDIT_AT_MOST);
    }
}

async fn prune(store: Store, options: KeeperOptions) {
    loop {
        if let Err(error) = store.forget_turns().await {
            failed("prune", &error);
        }
        match store.prune(&options.retention).await {
            Ok(pruned) => {
                metrics::counter!("tidegate_partitions_dropped_total").increment(pruned.dropped.into());
                if pruned.dropped > 0 || pruned.made > 0 {
                    tracing::info!(
                        made = pruned.made,
                        dropped = pruned.dropped,
                        moved = pruned.moved,
                        "partitions were turned over"
                    );
                }
            }
            Err(error) => {
                failed("prune", &error);
                if let StoreError::Busy(_) = error {
                    // Somebody reads what is to be changed: until it is, the default partition grows.
                    sleep(options.prune_interval.min(AFTER_BUSY)).await;
                    continue;
                }
            }
        }
        sleep(options.prune_interval).await;
    }
}

fn failed(job: &'static str, error: &StoreError) {
    metrics::counter!("tidegate_keeper_errors_total", "job" => job).increment(1);
    tracing::warn!(job, %error, "upkeep failed and will be tried again");
}
