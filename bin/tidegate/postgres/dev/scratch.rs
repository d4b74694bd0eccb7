//! The temporary directory of one run. Tests make theirs in it, so that what killed tests leave is found and removed.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use super::super::PostgresError;
use super::super::process::{servers_below, signal};

/// How the directory is called, before a random ending. Short: sockets are made in it.
const PREFIX: &str = "tg-";

/// A directory that goes with the run. It is recorded in the data directory until then.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
    record: PathBuf,
}

impl Scratch {
    /// Makes one, and ends and removes what a run that was killed left in its own. The caller holds the lock of the data
    /// directory.
    pub(super) fn begin(data_dir: &Path) -> Result<Self, PostgresError> {
        let record = data_dir.join("tmp");
        if let Ok(path) = record.read_link() {
            Scratch { path, record: record.clone() }.end()?;
        }
        let base = std::env::temp_dir();
        // Free of links, since that is how the kernel names where processes work.
        let base = base.canonicalize().map_err(PostgresError::io("resolving", &base))?;
        let path = base.join(format!("{PREFIX}{:08x}", rand::random::<u32>()));
        std::fs::create_dir(&path).map_err(PostgresError::io("creating", &path))?;
        // Others may pass through: the account that runs Postgres for root has to.
        std::fs::set_permissions(&path, Permissions::from_mode(0o711)).map_err(PostgresError::io("opening", &path))?;
        std::os::unix::fs::symlink(&path, &record).map_err(PostgresError::io("linking", &record))?;
        Ok(Scratch { path, record })
    }

    /// The directory, for `TMPDIR`.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the servers that work below it, and removes it.
    pub(super) fn end(self) -> Result<(), PostgresError> {
        for pid in servers_below(&self.path) {
            signal(pid, Signal::SIGQUIT)?;
            signal(pid, Signal::SIGCONT)?;
        }
        // A server that is just ending may write once more; what stays is in /tmp, where the system cleans up.
        let _ = std::fs::remove_dir_all(&self.path);
        std::fs::remove_file(&self.record).map_err(PostgresError::io("removing", &self.record))
    }
}
