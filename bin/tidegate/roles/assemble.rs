//! Puts the parts together: what the configuration says, in the words of each part.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusHandle;
use tidegate_api::{AppState, Settings, StoreBackend};
use tidegate_keeper::KeeperOptions;
use tidegate_store::{Admitter, AdmitterOptions, Canceller, PolicyError, Retention, Store, StoreOptions};
use tidegate_worker::{StorePort, Worker, WorkerOptions};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::database::failed;
use super::shutdown::Shutdown;
use crate::config::{Config, Listen, Problem, ms};
use crate::exit::Failure;

/// Opens the store on a database.
pub(super) fn store(config: &Config, url: &str, direct_url: Option<&str>) -> Result<Store, Failure> {
    let store = &config.store;
    let options = StoreOptions {
        url: url.to_owned(),
        direct_url: direct_url.map(str::to_owned),
        connections: store.max_connections,
        connect_timeout: ms(store.connect_timeout_ms),
        statement_timeout: ms(store.statement_timeout_ms),
        lock_timeout: ms(store.lock_timeout_ms),
        idle_in_transaction_timeout: ms(store.idle_in_transaction_timeout_ms),
        quarantine_hold: ms(config.quarantine.hold_ms),
    };
    Store::open(options).map_err(|error| failed("the store could not be opened", &error))
}

/// How often the start of the API tries to store what the file says, where another transaction is in the way.
const SEED_TRIES: u32 = 5;

/// Puts the limits, tenants and peers of the configuration under what operators changed.
pub(super) async fn seed(config: &Config, store: &Store) -> Result<(), Failure> {
    let mut tries = 0;
    loop {
        tries += 1;
        match store.seed_policy(&config.limits, &config.tenants, &config.peers).await {
            Ok(()) => return Ok(()),
            Err(PolicyError::Bad(bad)) => {
                return Err(Failure::Config(Problem::new(&bad.key(), None, &bad.problem).into()));
            }
            Err(PolicyError::Store(error)) if error.is_transient() && tries < SEED_TRIES => {
                tracing::info!(%error, "storing the limits of the configuration is tried again");
            }
            Err(PolicyError::Store(error)) => {
                return Err(failed("the limits of the configuration could not be stored", &error));
            }
        }
    }
}

/// The API, serving.
pub(super) struct Api {
    state: AppState,
    door: Admitter,
    stop: CancellationToken,
    served: JoinHandle<std::io::Result<()>>,
}

impl Api {
    /// Serves on a listener. Where the server ends by itself, everything else is told to stop: without it the process is
    /// of no use, and [`Api::stop`] says what happened.
    pub(super) fn start(
        config: &Config,
        store: &Store,
        listener: TcpListener,
        prometheus: PrometheusHandle,
        shutdown: &Shutdown,
    ) -> Result<Self, Failure> {
        let opened = |error| failed("the door could not be opened", &error);
        let door = Admitter::start(store, admitter_options(config)).map_err(opened)?;
        let canceller = Canceller::start(store).map_err(opened)?;
        let backend = StoreBackend { store: store.clone(), admitter: door.clone(), canceller };
        tidegate_api::describe_metrics();
        let state = AppState::new(Arc::new(backend), settings(config), Some(prometheus));
        let stop = CancellationToken::new();
        let serving = tidegate_api::serve(listener, state.clone(), stop.clone());
        let gone = shutdown.stop.clone().drop_guard();
        let served = tokio::spawn(async move {
            let _gone = gone;
            serving.await
        });
        Ok(Self { state, door, stop, served })
    }

    /// Lets nobody in any more; everything else is still answered.
    pub(super) fn start_draining(&self) {
        self.state.start_draining();
    }

    /// Lets open requests finish and ends.
    pub(super) async fn stop(self) -> Result<(), Failure> {
        self.stop.cancel();
        let served = self.served.await;
        self.door.close();
        match served {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure::other("the server ended", error)),
            Err(error) => Err(Failure::other("the server broke off", error)),
        }
    }
}

/// The longest that a start waits for the partitions.
const PARTITIONS_WITHIN: Duration = Duration::from_secs(2);

fn retention(config: &Config) -> Retention {
    let retention = &config.retention;
    Retention {
        finished: ms(retention.finished_ms),
        refused: ms(retention.refused_ms),
        partition: ms(retention.partition_ms),
    }
}

/// Makes the partitions before anybody comes, so that no task has to be moved into them. Where that is not possible now,
/// the keeper does it later.
pub(super) async fn make_partitions(config: &Config, store: &Store) {
    match timeout(PARTITIONS_WITHIN, store.make_partitions(&retention(config))).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::info!(%error, "the partitions are left to the keeper"),
        Err(_) => tracing::info!("the partitions are left to the keeper: they took too long"),
    }
}

/// Keeps the cell until told to stop.
pub(super) async fn keep(config: &Config, store: &Store, stop: CancellationToken) {
    let keeper = &config.keeper;
    let options = KeeperOptions {
        retention: retention(config),
        sweep_interval: ms(keeper.sweep_interval_ms),
        reap_interval: ms(keeper.reap_interval_ms),
        audit_interval: ms(keeper.audit_interval_ms),
        prune_interval: ms(keeper.prune_interval_ms),
        snapshot_interval: ms(keeper.snapshot_interval_ms),
        snapshot_alert: ms(keeper.snapshot_alert_ms),
    };
    tidegate_keeper::keep(store.clone(), options, stop).await;
}

/// A worker on the store.
pub(super) fn worker(config: &Config, store: &Store) -> Result<Worker<StorePort>, Failure> {
    let worker = &config.worker;
    let options = WorkerOptions {
        name: worker_name(),
        slots: worker.slots,
        lease: ms(worker.lease_ms),
        shutdown_grace: ms(worker.shutdown_grace_ms),
        settle_reserve: ms(worker.settle_reserve_ms),
        stop_grace: ms(worker.stop_grace_ms),
        cancel_grace: ms(worker.cancel_grace_ms),
        at_once: config.at_once(),
        kinds: (!worker.kinds.is_empty()).then(|| worker.kinds.clone()),
    };
    let registry = config.registry().map_err(|problems| {
        Failure::Other(problems.into_iter().map(|(key, what)| format!("{key}: {what}")).collect::<Vec<_>>().join("\n"))
    })?;
    Worker::new(Arc::new(StorePort::new(store.clone())), registry, options)
        .map_err(|error| Failure::Config(Problem::new("worker", None, &error.to_string()).into()))
}

/// A name that tells people which process it is: the machine and the process id.
fn worker_name() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    format!("{}-{}", host.as_deref().unwrap_or("worker"), std::process::id())
}

/// How long a port that is taken is waited for: a process that was just killed lets go of it within that.
const PORT_PATIENCE: Duration = Duration::from_secs(2);
/// How often it is tried.
const PORT_TRIES: Duration = Duration::from_millis(50);

/// Takes the port, before anything slow is done: whoever else has it should be known at once.
pub(super) async fn bind(listen: Listen) -> Result<TcpListener, Failure> {
    let started = Instant::now();
    loop {
        let error = match TcpListener::bind(listen.0).await {
            Ok(listener) => return Ok(listener),
            Err(error) => error,
        };
        let taken = error.kind() == std::io::ErrorKind::AddrInUse;
        if !taken || started.elapsed() > PORT_PATIENCE {
            let hint = if taken { "; another program listens there: stop it, or choose another --listen" } else { "" };
            return Err(Failure::Other(format!("cannot listen on {listen}: {error}{hint}")));
        }
        tokio::time::sleep(PORT_TRIES).await;
    }
}

/// The address that a listener got.
pub(super) fn address(listener: &TcpListener) -> Result<SocketAddr, Failure> {
    listener.local_addr().map_err(|error| Failure::other("cannot tell the address", error))
}

fn admitter_options(config: &Config) -> AdmitterOptions {
    AdmitterOptions {
        batch_tasks: config.store.batch_max_tasks as usize,
        batch_bytes: config.store.batch_max_bytes as usize,
        waiting: config.store.max_waiting_submissions as usize,
        key_retention: ms(config.retention.idempotency_ms),
    }
}

fn settings(config: &Config) -> Settings {
    let server = &config.server;
    Settings {
        keyless: server.listen.is_loopback(),
        class_rules: config.class_rules.clone(),
        kinds: config.kinds.iter().map(|(name, kind)| (name.clone(), kind.policy())).collect(),
        max_payload_bytes: server.max_payload_bytes as usize,
        max_body_bytes: server.max_body_bytes as usize,
        max_ingest_bytes: usize::try_from(server.max_ingest_bytes).unwrap_or(usize::MAX),
        body_timeout: ms(server.body_timeout_ms),
        first_request_timeout: ms(server.header_timeout_ms),
        header_timeout: ms(server.header_timeout_ms),
        write_stall_timeout: ms(server.write_stall_timeout_ms),
        max_header_bytes: server.max_header_bytes,
        max_connections: server.max_connections as usize,
        max_long_polls: server.max_long_polls as usize,
        drain_timeout: ms(server.shutdown_grace_ms),
        ..Settings::default()
    }
}
