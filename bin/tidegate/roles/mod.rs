//! What keeps running: the parts of the program, each as a process of its own or all in one.

mod assemble;
mod banner;
mod database;
mod metrics;
mod own_postgres;
mod probes;
mod runtime;
mod shutdown;
mod up;

use std::process::ExitCode;

use tidegate_store::{Migrated, Store};
use tokio_util::sync::CancellationToken;

use crate::cli::{Database, DevPostgresArgs, KeeperArgs, MigrateArgs, ServeArgs, WorkerArgs};
use crate::config::{Config, refuse_open_to_all};
use crate::exit::{Exit, Failure};
use crate::terminal::Output;
use probes::ProbePort;

pub(crate) use database::named as named_database;
pub(crate) use shutdown::{Shutdown, on_signal};
pub(crate) use up::up;

/// The API, and the keeper unless that is left to others.
pub(crate) fn serve(mut config: Config, arguments: &ServeArgs) -> Result<Exit, Failure> {
    config.server.listen = arguments.listen.unwrap_or(config.server.listen);
    // Keys come with a later version: until then nobody has one.
    refuse_open_to_all(config.server.listen, false)?;
    database::required(&config, &arguments.database)?;
    runtime::run(&config, "serve", async |shutdown| {
        let prometheus = metrics::start()?;
        let listener = assemble::bind(config.server.listen).await?;
        let address = assemble::address(&listener)?;
        let store = open(&config, &arguments.database, &shutdown).await?;
        assemble::seed(&config, &store).await?;
        if !arguments.no_keeper {
            assemble::make_partitions(&config, &store).await;
        }
        let api = assemble::Api::start(&config, &store, listener, prometheus, &shutdown)?;
        tracing::info!(url = %format!("http://{address}"), "serving");
        if arguments.no_keeper {
            shutdown.stop.cancelled().await;
        } else {
            assemble::keep(&config, &store, shutdown.stop.clone()).await;
        }
        let stopped = api.stop().await;
        store.close().await;
        stopped.map(|()| Exit::Done)
    })
}

/// The worker.
pub(crate) fn worker(mut config: Config, arguments: &WorkerArgs) -> Result<Exit, Failure> {
    config.worker.slots = arguments.slots.unwrap_or(config.worker.slots);
    config.worker.metrics_listen = arguments.metrics_listen.or(config.worker.metrics_listen);
    database::required(&config, &arguments.database)?;
    runtime::run(&config, "worker", async |shutdown| {
        let port = ProbePort::bind(config.worker.metrics_listen).await?;
        let store = open(&config, &arguments.database, &shutdown).await?;
        let worker = assemble::worker(&config, &store)?;
        // Probes are answered until it has drained.
        let end = CancellationToken::new();
        if let Some(port) = port {
            port.serve(&store, shutdown.stop.clone(), end.clone())?;
        }
        let drained = worker.run(shutdown.stop).await;
        end.cancel();
        store.close().await;
        Ok(if drained.left.is_empty() { Exit::Done } else { Exit::Failed })
    })
}

/// The keeper.
pub(crate) fn keeper(config: &Config, arguments: &KeeperArgs) -> Result<Exit, Failure> {
    database::required(config, &arguments.database)?;
    runtime::run(config, "keeper", async |shutdown| {
        let port = ProbePort::bind(arguments.metrics_listen.or(config.keeper.metrics_listen)).await?;
        let store = open(config, &arguments.database, &shutdown).await?;
        if let Some(port) = port {
            port.serve(&store, shutdown.stop.clone(), shutdown.stop.clone())?;
        }
        tracing::info!("keeping");
        assemble::keep(config, &store, shutdown.stop).await;
        store.close().await;
        Ok(Exit::Done)
    })
}

/// The store on the database that is named, with its tables brought to this version.
async fn open(config: &Config, database: &Database, shutdown: &Shutdown) -> Result<Store, Failure> {
    let url = database::required(config, database)?.reveal();
    let direct = config.store.direct_url.as_ref().map(|url| url.reveal());
    database::prepare(direct.unwrap_or(url), &shutdown.stop).await?;
    assemble::store(config, url, direct)
}

/// The schema.
pub(crate) fn migrate(config: &Config, arguments: &MigrateArgs, output: &mut Output) -> Result<Exit, Failure> {
    let url = database::required(config, &arguments.database)?;
    let direct = config.store.direct_url.as_ref().unwrap_or(url);
    runtime::run(config, "migrate", async |shutdown| {
        let Migrated { applied, version } = database::bring_up(direct.reveal(), &shutdown.stop).await?;
        tracing::info!("the database is up to date");
        if output.wants_json() {
            output.json_line(&serde_json::json!({"applied": applied, "version": version}).to_string())?;
        } else {
            output.line(&format!("{} applied, the database is at version {version}", applied.len()))?;
        }
        Ok(Exit::Done)
    })
}

/// A command beside a throw-away Postgres. Ends with the command's own exit code.
pub(crate) fn dev_postgres(arguments: &DevPostgresArgs) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::other("cannot start", error))?;
    let run = crate::postgres::dev::run(arguments.data_dir.clone(), arguments.pg_bin.clone(), &arguments.command);
    let code = runtime.block_on(run)?;
    Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from))
}
