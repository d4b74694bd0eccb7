//! What is measured on: a Postgres of its own or an empty database, and the machine below it.

use std::path::PathBuf;

use tidegate_store::{StoreError, yardstick};

use crate::cli::GroundArgs;
use crate::exit::Failure;
use crate::postgres::{LocalPostgres, OwnCluster};
use crate::roles::Shutdown;

/// A database that is empty at first, and gone or empty again at the end.
pub(super) struct Ground {
    url: String,
    own: Option<Own>,
}

/// A cluster of our own.
struct Own {
    postgres: LocalPostgres,
    data_dir: PathBuf,
    /// Whether its directory was made for it, and goes with it.
    is_new: bool,
}

impl Ground {
    /// Finds the ground: the database that is named, if it is empty, or a new cluster.
    pub(super) async fn find(arguments: &GroundArgs, shutdown: &Shutdown) -> Result<Self, Failure> {
        if let Some(url) = &arguments.database_url {
            let is_empty = yardstick::is_empty(url.reveal()).await;
            if !is_empty.map_err(|error| broken("the database cannot be used", &error))? {
                return Err(Failure::Usage(format!(
                    "there is something in {url}: name an empty database to measure on"
                )));
            }
            return Ok(Self { url: url.reveal().to_owned(), own: None });
        }
        let data_dir = arguments.data_dir.clone();
        let is_new = !data_dir.exists();
        let cluster = OwnCluster::measured(&data_dir, arguments.pg_bin.clone());
        let postgres = blocking(move || LocalPostgres::start(cluster)).await??;
        shutdown.takes_along(postgres.pid());
        Ok(Self { url: postgres.url(), own: Some(Own { postgres, data_dir, is_new }) })
    }

    /// The database.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The database over TCP.
    pub(super) fn tcp_url(&self) -> String {
        self.own.as_ref().map_or_else(|| self.url.clone(), |own| own.postgres.tcp_url())
    }

    /// The process of our own Postgres.
    pub(super) fn postmaster(&self) -> Option<i32> {
        self.own.as_ref().and_then(|own| own.postgres.pid())
    }

    /// Makes the database empty again, for the next measurement.
    pub(super) async fn clear(&self) -> Result<(), Failure> {
        yardstick::sweep_away(&self.url).await.map_err(|error| broken("the database cannot be emptied", &error))
    }

    /// Takes everything away that was made.
    pub(super) async fn leave(self, shutdown: &Shutdown) -> Result<(), Failure> {
        let Some(own) = self.own else { return self.clear().await };
        blocking(move || {
            own.postgres.destroy()?;
            if own.is_new {
                // What is left is a lock, a log and a port; that it cannot be removed harms nobody.
                let _ = std::fs::remove_dir_all(&own.data_dir);
            }
            Ok::<_, Failure>(())
        })
        .await??;
        shutdown.takes_along(None);
        Ok(())
    }

    /// What this is measured on, by name.
    pub(super) async fn facts(&self, commit: Option<&str>) -> Result<Vec<(String, String)>, Failure> {
        let facts = yardstick::facts(&self.url).await;
        let facts = facts.map_err(|error| broken("the database cannot be asked what it is", &error))?;
        let settings: Vec<_> = facts.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let built = if cfg!(debug_assertions) { " (built WITHOUT optimisation)" } else { "" };
        let commit = commit.map(|commit| format!(", commit {commit}")).unwrap_or_default();
        let all = [
            ("tidegate", format!("{}{commit}{built}", env!("CARGO_PKG_VERSION"))),
            ("machine", format!("{cores} cores, {}, Linux {}", cpu_model(), kernel())),
            (
                "postgres",
                format!(
                    "{}, on the same machine: {}",
                    facts.version,
                    if self.own.is_some() { "yes" } else { "not known" }
                ),
            ),
            ("settings", settings.join(" ")),
        ];
        Ok(all.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

/// A failure of the store while it is measured.
pub(super) fn broken(what: &str, error: &StoreError) -> Failure {
    use std::error::Error as _;
    let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    Failure::Other(format!("{what}: {error}{cause}"))
}

/// Runs what blocks away from the runtime.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Failure::other("a thread broke off", error))
}

fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| "an unknown processor".to_owned(), |(_, name)| name.trim().to_owned())
}

fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()).unwrap_or_default()
}
