//! What keeps running: the parts of the program, each as a process of its own or all in one.

mod assemble;
mod backend;
mod banner;
mod database;
mod metrics;
mod own_postgres;
mod runtime;
mod shutdown;
mod up;

use std::process::ExitCode;

use crate::cli::{DevPostgresArgs, KeeperArgs, MigrateArgs, ServeArgs, WorkerArgs};
use crate::config::{Config, refuse_open_to_all};
use crate::exit::{Exit, Failure};

pub(crate) use up::up;

/// The API.
pub(crate) fn serve(mut config: Config, arguments: &ServeArgs) -> Result<Exit, Failure> {
    config.server.listen = arguments.listen.unwrap_or(config.server.listen);
    // Keys come with a later version: until then nobody has one.
    refuse_open_to_all(config.server.listen, false)?;
    let url = database::required(&config, &arguments.database)?.clone();
    runtime::run(&config, "serve", async |shutdown| {
        let prometheus = metrics::start()?;
        let listener = assemble::bind(config.server.listen).await?;
        let direct = config.store.direct_url.as_ref().map(|url| url.reveal());
        database::prepare(direct.unwrap_or(url.reveal()), &shutdown.stop).await?;
        let store = assemble::store(&config, url.reveal(), direct)?;
        let api = assemble::Api::start(&config, &store, listener, prometheus)?;
        tracing::info!(address = %config.server.listen, "serving");
        shutdown.stop.cancelled().await;
        api.stop().await?;
        Ok(Exit::Done)
    })
}

/// The worker.
pub(crate) fn worker(_: Config, _: &WorkerArgs) -> Result<Exit, Failure> {
    Err(Failure::Other("waits for the worker".to_owned()))
}

/// The keeper.
pub(crate) fn keeper(_: Config, _: &KeeperArgs) -> Result<Exit, Failure> {
    Err(Failure::Other("waits for the keeper".to_owned()))
}

/// The schema.
pub(crate) fn migrate(config: &Config, arguments: &MigrateArgs) -> Result<Exit, Failure> {
    let url = database::required(config, &arguments.database)?;
    let direct = config.store.direct_url.as_ref().unwrap_or(url);
    runtime::run(config, "migrate", async |shutdown| {
        database::prepare(direct.reveal(), &shutdown.stop).await?;
        tracing::info!("the database is up to date");
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
