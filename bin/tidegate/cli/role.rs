//! The options of what keeps running.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::config::{Listen, SecretUrl};

/// The database that a role uses.
#[derive(Debug, Clone, Args)]
pub(crate) struct Database {
    /// The database, as a URL; goes before [store] url.
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    pub(crate) database_url: Option<SecretUrl>,
}

impl Database {
    /// The database that is named; a variable that is set to nothing names none.
    pub(crate) fn named(&self) -> Option<&SecretUrl> {
        self.database_url.as_ref().filter(|url| !url.reveal().trim().is_empty())
    }
}

/// Where the Postgres of `up` keeps its data and finds its programs.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Where to listen; overrides [server] listen.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<Listen>,
    /// Where everything is kept.
    #[arg(long, value_name = "DIR", default_value = "./.tidegate")]
    pub(crate) data_dir: PathBuf,
    /// Where the programs of Postgres (initdb, postgres) are; found by itself where they are in a usual place.
    #[arg(long, value_name = "DIR")]
    pub(crate) pg_bin: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) database: Database,
}

/// `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen; overrides [server] listen.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<Listen>,
    /// Leave the upkeep to other processes.
    #[arg(long)]
    pub(crate) no_keeper: bool,
    #[command(flatten)]
    pub(crate) database: Database,
}

/// `worker`.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// Tasks that run at once; overrides [worker] slots.
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<u32>,
    /// Serve /metrics, /livez and /readyz there; overrides [worker] metrics_listen.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics_listen: Option<Listen>,
    #[command(flatten)]
    pub(crate) database: Database,
}

/// `keeper`.
#[derive(Debug, Args)]
pub(crate) struct KeeperArgs {
    /// Serve /metrics, /livez and /readyz there; overrides [keeper] metrics_listen.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics_listen: Option<Listen>,
    #[command(flatten)]
    pub(crate) database: Database,
}

/// `migrate`.
#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    pub(crate) database: Database,
}

/// `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Where `up` would keep everything.
    #[arg(long, value_name = "DIR", default_value = "./.tidegate")]
    pub(crate) data_dir: PathBuf,
    /// Where the programs of Postgres are.
    #[arg(long, value_name = "DIR")]
    pub(crate) pg_bin: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) database: Database,
}

/// `dev-postgres`.
#[derive(Debug, Args)]
pub(crate) struct DevPostgresArgs {
    /// Where the cluster is kept.
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// Where the programs of Postgres are.
    #[arg(long, value_name = "DIR")]
    pub(crate) pg_bin: Option<PathBuf>,
    /// The command to run, with its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
