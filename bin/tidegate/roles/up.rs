//! `tidegate up`: everything in one process.

use std::path::Path;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::banner::Banner;
use super::own_postgres::OwnPostgres;
use super::shutdown::Shutdown;
use super::{assemble, database, metrics, runtime};
use crate::cli::UpArgs;
use crate::config::{Config, refuse_open_to_all};
use crate::exit::{Exit, Failure};
use crate::terminal::Output;

/// Runs everything, on a Postgres of its own where none is named.
pub(crate) fn up(mut config: Config, arguments: &UpArgs, output: &mut Output) -> Result<Exit, Failure> {
    config.server.listen = arguments.listen.unwrap_or(config.server.listen);
    // Keys come with a later version: until then nobody has one.
    refuse_open_to_all(config.server.listen, false)?;
    let named = database::named(&config, &arguments.database)?;
    runtime::run(&config, "up", async |shutdown| {
        let listener = assemble::bind(config.server.listen).await?;
        if let Some(url) = named {
            let home = Home {
                url: url.reveal(),
                direct_url: config.store.direct_url.as_ref().map(|url| url.reveal()),
                data: url.to_string(),
                postgres: None,
            };
            live(&config, listener, &home, &shutdown, output).await?;
        } else {
            let own = OwnPostgres::start(&arguments.data_dir, arguments.pg_bin.as_deref(), &shutdown).await?;
            let home = Home {
                url: &own.url,
                direct_url: None,
                data: whole(&arguments.data_dir),
                postgres: Some((&own.version, &own.log)),
            };
            let lived = live(&config, listener, &home, &shutdown, output).await;
            // It stops whatever became of the rest; what went wrong first is told.
            let stopped = own.stop().await;
            lived.and(stopped)?;
        }
        Ok(Exit::Done)
    })
}

/// Where the data is.
struct Home<'a> {
    url: &'a str,
    direct_url: Option<&'a str>,
    /// For people.
    data: String,
    /// The version and the log of our own Postgres.
    postgres: Option<(&'a str, &'a str)>,
}

/// Starts all parts, tells where they are, and takes them down in order once told to stop.
async fn live(
    config: &Config,
    listener: TcpListener,
    home: &Home<'_>,
    shutdown: &Shutdown,
    output: &mut Output,
) -> Result<(), Failure> {
    let prometheus = metrics::start()?;
    let address = assemble::address(&listener)?;
    database::prepare(home.direct_url.unwrap_or(home.url), &shutdown.stop).await?;
    let store = assemble::store(config, home.url, home.direct_url)?;
    assemble::seed(config, &store).await?;
    assemble::make_partitions(config, &store).await;
    let worker = assemble::worker(config, &store)?;
    let api = assemble::Api::start(config, &store, listener, prometheus, shutdown)?;
    Banner { address, data: home.data.clone(), postgres: home.postgres }.show(output)?;
    let draining = async {
        shutdown.stop.cancelled().await;
        // Nobody is let in any more, but who waits for a task that still runs can ask how it ends.
        api.start_draining();
    };
    // Upkeep goes on until the worker has drained: its leases are still being renewed. Where an operator drained it alone,
    // everything else goes on.
    let upkeep = CancellationToken::new();
    let working = async {
        worker.run(shutdown.stop.clone()).await;
        if !shutdown.stop.is_cancelled() {
            tracing::info!("the worker was drained: tasks wait for another");
        }
        shutdown.stop.cancelled().await;
        upkeep.cancel();
    };
    let keeping = assemble::keep(config, &store, upkeep.clone());
    tokio::join!(draining, working, keeping);
    let stopped = api.stop().await;
    store.close().await;
    stopped
}

fn whole(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
