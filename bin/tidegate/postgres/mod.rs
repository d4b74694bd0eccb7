//! A Postgres to stand on: found, installed where that is possible, started as a cluster of our own, and stopped again.
//!
//! Any Postgres of version 15 or newer will do. Whoever has one passes its URL and nothing here runs. Everyone else gets
//! a cluster of their own under the data directory, so that one command on an empty machine is enough:
//!
//! ```text
//! <data_dir>/lock             held while a process uses the directory, names its pid
//! <data_dir>/postgres.log     what the server said (the one before it: postgres.log.1)
//! <data_dir>/postgres.port    the TCP port of the last start, tried first at the next
//! <data_dir>/postgres/        the cluster's home, mode 0700 (or a link to it, see `home`)
//!     data/                   what initdb made
//!     run/                    the Unix socket
//!     password                of the superuser `tidegate`, mode 0600
//! ```
//!
//! All functions block, and wait no longer than the named limits beside them; async callers use `spawn_blocking`.
//! Linux is assumed in one place: processes are told apart through `/proc`.

mod account;
mod cluster;
mod command;
pub(crate) mod dev;
mod error;
mod find;
mod home;
mod initdb;
mod install;
mod lock;
mod log;
mod pidfile;
mod process;
mod settings;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

pub(crate) use cluster::LocalPostgres;
pub(crate) use error::PostgresError;
pub(crate) use find::Found;

/// How to make, or find again, a cluster of our own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnCluster {
    /// Where everything is kept. Made if missing.
    pub(crate) data_dir: PathBuf,
    /// The directory with `postgres` and `initdb` (`--pg-bin`); searched for where it is not given.
    pub(crate) pg_bin: Option<PathBuf>,
    /// Whether Debian's package may be installed where no Postgres is found.
    pub(crate) may_install: bool,
    /// What the cluster is for, which decides how it is tuned.
    pub(crate) purpose: Purpose,
    /// Where the cluster's home goes if the account that runs it cannot reach the data directory.
    pub(crate) fallback_base: PathBuf,
}

impl OwnCluster {
    /// A durable cluster under `data_dir`, with whatever Postgres can be found or installed.
    pub(crate) fn durable(data_dir: impl Into<PathBuf>, pg_bin: Option<PathBuf>) -> Self {
        OwnCluster {
            data_dir: data_dir.into(),
            pg_bin,
            may_install: true,
            purpose: Purpose::Durable,
            fallback_base: PathBuf::from("/var/lib/tidegate"),
        }
    }

    /// A cluster for tests: fast, and lost with the machine.
    pub(crate) fn throw_away(data_dir: impl Into<PathBuf>, pg_bin: Option<PathBuf>) -> Self {
        OwnCluster {
            purpose: Purpose::ThrowAway,
            fallback_base: std::env::temp_dir(),
            ..OwnCluster::durable(data_dir, pg_bin)
        }
    }

    /// A cluster to measure on: as durable as one that is kept, but new each time.
    pub(crate) fn measured(data_dir: impl Into<PathBuf>, pg_bin: Option<PathBuf>) -> Self {
        OwnCluster { purpose: Purpose::Measured, ..OwnCluster::durable(data_dir, pg_bin) }
    }
}

/// What a cluster is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// What it acknowledged survives a power cut.
    Durable,
    /// Nothing in it is worth an fsync.
    ThrowAway,
    /// It runs as a durable one does, and what an earlier run left is thrown away.
    Measured,
}
