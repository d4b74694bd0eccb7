//! The data directory of a real process.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::poll::POLL_INTERVAL;

/// Longest that an immediate shutdown of a server is waited for when the directory goes.
const QUIT_LIMIT: Duration = Duration::from_secs(10);

/// A temporary `--data-dir`. The Postgres that a process runs there outlives it by design; it is ended, and the directory
/// removed, with this value.
#[derive(Debug)]
pub struct DataDir {
    directory: TempDir,
}

impl DataDir {
    /// A new one, which the account that runs Postgres for root can reach.
    ///
    /// # Panics
    /// If it cannot be made.
    #[allow(clippy::new_without_default)] // A default that touches the disk would surprise.
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("tidegate-data-").tempdir();
        let directory = directory.unwrap_or_else(|error| panic!("a data directory: {error}"));
        let mode = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(directory.path(), mode).unwrap_or_else(|error| panic!("opening it: {error}"));
        DataDir { directory }
    }

    /// Its path, for `--data-dir`.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The process id of the Postgres that works here, if one does. A pid file that a dead server left does not count.
    pub fn postgres_pid(&self) -> Option<i32> {
        let data = self.data()?;
        let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
        let pid: i32 = text.lines().next()?.trim().parse().ok()?;
        let works_in = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        (works_in == data).then_some(pid)
    }

    /// The connection URL of that Postgres, with every right.
    ///
    /// # Panics
    /// If none works here.
    pub fn database_url(&self) -> String {
        let read = |path: &str| {
            let path = self.path().join("postgres").join(path);
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let (password, pid_file) = (read("password"), read("data/postmaster.pid"));
        // The fourth line is the port, by the format of Postgres.
        let Some(port) = pid_file.lines().nth(3) else { panic!("no Postgres works in {}", self.path().display()) };
        format!("postgres://tidegate:{}@127.0.0.1:{}/tidegate", password.trim(), port.trim())
    }

    /// Sends a signal to that Postgres: SIGKILL is a crash, SIGSTOP a machine that hangs, SIGINT a fast shutdown.
    ///
    /// # Panics
    /// If none works here.
    pub fn signal_postgres(&self, signal: Signal) {
        let Some(pid) = self.postgres_pid() else { panic!("no Postgres works in {}", self.path().display()) };
        kill(Pid::from_raw(pid), signal).unwrap_or_else(|errno| panic!("sending {signal} to Postgres: {errno}"));
    }

    fn data(&self) -> Option<PathBuf> {
        self.path().join("postgres/data").canonicalize().ok()
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        let started = Instant::now();
        while let Some(pid) = self.postgres_pid().filter(|_| started.elapsed() < QUIT_LIMIT) {
            // Again each time: a server in the midst of its start may miss one. A stopped one must go on to hear it.
            let _ = kill(Pid::from_raw(pid), Signal::SIGQUIT);
            let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
