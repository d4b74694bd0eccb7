//! A Postgres of our own beside the roles, watched while they run.

use std::path::Path;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::shutdown::Shutdown;
use crate::exit::Failure;
use crate::postgres::{LocalPostgres, OwnCluster};

/// How often to see whether the server is still there.
const WATCH: Duration = Duration::from_millis(500);

/// The server, and who watches it.
pub(super) struct OwnPostgres {
    pub(super) url: String,
    pub(super) version: String,
    pub(super) log: String,
    stop: CancellationToken,
    watch: JoinHandle<Result<(), Failure>>,
}

impl OwnPostgres {
    /// Starts it, or adopts the one that an earlier process left.
    pub(super) async fn start(data_dir: &Path, pg_bin: Option<&Path>, shutdown: &Shutdown) -> Result<Self, Failure> {
        let cluster = OwnCluster::durable(data_dir, pg_bin.map(Path::to_owned));
        let postgres = blocking(move || LocalPostgres::start(cluster)).await??;
        shutdown.takes_along(postgres.pid());
        tracing::info!(
            version = postgres.version().text, home = %postgres.home().display(), adopted = postgres.was_adopted(),
            "Postgres runs"
        );
        let stop = CancellationToken::new();
        let (url, version) = (postgres.url(), postgres.version().text.clone());
        let log = postgres.log_path().display().to_string();
        let watch = tokio::spawn(watch(postgres, stop.clone(), shutdown.clone()));
        Ok(Self { url, version, log, stop, watch })
    }

    /// Stops it once nobody uses it any more.
    pub(super) async fn stop(self) -> Result<(), Failure> {
        self.stop.cancel();
        self.watch.await.map_err(|error| Failure::other("the watch over Postgres broke off", error))?
    }
}

/// Starts the server again where it died, until it is to stop. One that cannot be started ends the program.
async fn watch(mut postgres: LocalPostgres, stop: CancellationToken, shutdown: Shutdown) -> Result<(), Failure> {
    // However the watch ends, nothing goes on unwatched.
    let _gone = shutdown.stop.clone().drop_guard();
    while stop.run_until_cancelled(tokio::time::sleep(WATCH)).await.is_some() {
        let (returned, revived) = blocking(move || {
            let revived = postgres.revive();
            (postgres, revived)
        })
        .await?;
        postgres = returned;
        match revived {
            Ok(false) => {}
            Ok(true) => {
                shutdown.takes_along(postgres.pid());
                tracing::error!(log = %postgres.log_path().display(), "Postgres had died and was started again");
            }
            Err(error) => return Err(error.into()),
        }
    }
    let stopped = blocking(move || postgres.stop()).await?;
    shutdown.takes_along(None);
    Ok(stopped?)
}

/// Runs what blocks away from the runtime.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Failure::other("a thread broke off", error))
}
