//! What can go wrong between "no database" and a running one, said so that the reader knows what to do next.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The three ways out whenever no usable Postgres is at hand.
const FIXES: &str = "Do one of these:\n  \
    - pass --database-url (or set DATABASE_URL) to use a Postgres that already runs\n  \
    - pass --pg-bin DIR, the directory that holds `postgres` and `initdb`\n  \
    - install it: on Debian, `apt-get install postgresql`";

/// Why no Postgres could be found, started or stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostgresError {
    /// Another process works on this data directory.
    #[error(
        "the data directory {dir} is in use by process {holder}; stop that one first, or choose another --data-dir"
    )]
    InUse {
        /// The data directory.
        dir: PathBuf,
        /// The pid in the lock file, or words where it could not be read.
        holder: String,
    },
    /// There is no Postgres here at all and it was not installed.
    #[error("no PostgreSQL found on this machine ({why}).\n{FIXES}")]
    NotFound {
        /// What was tried.
        why: String,
    },
    /// There is one, but it is too old.
    #[error("PostgreSQL {found} in {dir} is too old: tidegate needs {floor} or newer.\n{FIXES}")]
    TooOld {
        /// The version that was found.
        found: String,
        /// Where.
        dir: PathBuf,
        /// The oldest that will do.
        floor: u32,
    },
    /// `--pg-bin` does not name a directory with a usable Postgres.
    #[error("--pg-bin {dir}: {why}")]
    BadBinDir {
        /// The directory that was given.
        dir: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The cluster was made by another major version than the binaries at hand.
    #[error(
        "the cluster in {home} was made by PostgreSQL {wanted}, but only {found} is here. Install postgresql-{wanted} or \
         pass its --pg-bin; or move the directory away to start empty; or use pg_upgrade"
    )]
    WrongMajor {
        /// The cluster's home.
        home: PathBuf,
        /// The major version that made it.
        wanted: u32,
        /// The versions that were found.
        found: String,
    },
    /// The cluster belongs to somebody whose processes we may not start or signal.
    #[error(
        "the cluster in {home} belongs to user id {owner}; run as that user or as root, or choose another --data-dir"
    )]
    Foreign {
        /// The cluster's home.
        home: PathBuf,
        /// The owner's user id.
        owner: u32,
    },
    /// The directory is there, but it is not a cluster that we made.
    #[error("{home} is not a cluster of tidegate's ({why}); move it away, or choose another --data-dir")]
    NotACluster {
        /// The directory.
        home: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Root may not run Postgres, and there is no other account.
    #[error(
        "Postgres refuses to run as root and there is neither a `postgres` nor a `nobody` account to run it as.\n{FIXES}"
    )]
    NoAccount,
    /// The installation by the package manager failed.
    #[error("installing PostgreSQL failed: {why}.\n{FIXES}")]
    Install {
        /// What happened.
        why: String,
    },
    /// A program of Postgres failed.
    #[error("{program} failed ({status}):\n{output}")]
    Program {
        /// The program.
        program: String,
        /// How it ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// The server ended while it was starting.
    #[error("Postgres did not start ({status}); the end of {log}:\n{tail}")]
    StartFailed {
        /// How it ended.
        status: String,
        /// Its log file.
        log: PathBuf,
        /// The last lines of it.
        tail: String,
    },
    /// Something took longer than its limit.
    #[error("{what} took longer than {} s", limit.as_secs())]
    TooSlow {
        /// What was being waited for.
        what: String,
        /// The limit.
        limit: Duration,
    },
    /// The file system said no.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which path.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl PostgresError {
    /// Wraps an I/O error with what was being done, and to what.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| PostgresError::Io { action, path, source }
    }
}
