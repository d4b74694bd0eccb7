//! A running cluster of our own.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::geteuid;

use super::account::Account;
use super::command::wait_for;
use super::find::{Binaries, Found, Version};
use super::home::{self, Home};
use super::lock::DataDirLock;
use super::pidfile::{self, PidFile};
use super::process::{servers_on, signal};
use super::{OwnCluster, PostgresError, Purpose, initdb, install, log, settings};

/// Longest that a server may take to be ready. After a crash it first replays up to `max_wal_size` of its log.
const START_LIMIT: Duration = Duration::from_secs(300);

/// Longest that a fast shutdown may take: it writes back every changed page.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Longest that an immediate shutdown may take: it writes nothing, the next start recovers.
const QUIT_LIMIT: Duration = Duration::from_secs(15);

/// How long children of a dead server get to notice by themselves, before they are told.
const ORPHAN_PATIENCE: Duration = Duration::from_secs(3);

/// How often another port is tried when the chosen one is taken in the moment between choosing and binding.
const PORT_ATTEMPTS: usize = 5;

/// A cluster of our own, running. It is ours alone while this value lives: the data directory's lock is part of it.
/// Dropping it stops the server, as [`LocalPostgres::stop`] does with an answer.
#[derive(Debug)]
pub(crate) struct LocalPostgres {
    wanted: OwnCluster,
    home: Home,
    account: Account,
    binaries: Binaries,
    password: String,
    server: Option<Server>,
    adopted: bool,
    _lock: DataDirLock,
}

/// The postmaster and where it listens.
#[derive(Debug)]
struct Server {
    pid: i32,
    /// `None` for one that an earlier process of ours started.
    child: Option<Child>,
    port: u16,
    socket_dir: PathBuf,
}

impl LocalPostgres {
    /// Starts the cluster: makes it if there is none, adopts a server that an earlier process of ours left running, and
    /// otherwise starts one on what is there, recovering as Postgres does.
    pub(crate) fn start(mut wanted: OwnCluster) -> Result<Self, PostgresError> {
        wanted.data_dir = home::make_data_dir(&wanted.data_dir, geteuid().is_root())?;
        let lock = DataDirLock::acquire(&wanted.data_dir)?;
        home::sweep(&wanted.data_dir)?;
        let existing = match Home::existing(&wanted.data_dir)? {
            Some(old) if wanted.purpose != Purpose::Durable => discard(&wanted, &old)?,
            other => other,
        };
        let binaries = choose_binaries(&wanted, existing.as_ref())?;
        // Only now: installing Postgres brings the account it runs as.
        let account = Account::choose(existing.as_ref().map(|home| home.path.as_path()))?;
        let home = match existing {
            Some(home) => home,
            None => initdb::create(&wanted, &account, &binaries)?,
        };
        let password = home.password()?;
        let mut cluster =
            LocalPostgres { wanted, home, account, binaries, password, server: None, adopted: false, _lock: lock };
        cluster.server = cluster.adopt()?;
        cluster.adopted = cluster.server.is_some();
        if cluster.server.is_none() {
            let port = cluster.recorded_port();
            let socket_dir = cluster.home.make_socket_dir(&cluster.account)?;
            cluster.server = Some(cluster.launch_somewhere(port, &socket_dir)?);
        }
        Ok(cluster)
    }

    /// The connection URL over the Unix socket: the quickest way for processes of this user on this machine.
    pub(crate) fn url(&self) -> String {
        match &self.server {
            Some(server) => {
                let (authority, dir) = (self.authority("localhost", server.port), server.socket_dir.display());
                format!("{authority}/{}?host={dir}", initdb::NAME)
            }
            None => String::new(),
        }
    }

    /// The connection URL over TCP, for tools that know nothing of sockets. It listens on the loopback address only.
    pub(crate) fn tcp_url(&self) -> String {
        match &self.server {
            Some(server) => format!("{}/{}", self.authority("127.0.0.1", server.port), initdb::NAME),
            None => String::new(),
        }
    }

    fn authority(&self, host: &str, port: u16) -> String {
        format!("postgres://{}:{}@{host}:{port}", initdb::NAME, self.password)
    }

    /// The directory of the programs that run it.
    pub(crate) fn bin_dir(&self) -> &Path {
        &self.binaries.dir
    }

    /// The version of those programs.
    pub(crate) fn version(&self) -> &Version {
        &self.binaries.version
    }

    /// Where the cluster's files are.
    pub(crate) fn home(&self) -> &Path {
        &self.home.path
    }

    /// Where the server writes what it has to say.
    pub(crate) fn log_path(&self) -> PathBuf {
        self.wanted.data_dir.join("postgres.log")
    }

    /// The postmaster's process id.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.server.as_ref().map(|server| server.pid)
    }

    /// Whether the server was running already, left by a process of ours that was killed.
    pub(crate) fn was_adopted(&self) -> bool {
        self.adopted
    }

    /// Whether the server is still there.
    pub(crate) fn is_running(&mut self) -> bool {
        let data = self.home.data();
        self.server.as_mut().is_some_and(|server| server.is_running(&data))
    }

    /// Starts the server again if it has died, at the same addresses, so that pools heal by themselves. Says whether it
    /// had to.
    pub(crate) fn revive(&mut self) -> Result<bool, PostgresError> {
        if self.is_running() {
            return Ok(false);
        }
        let Some(dead) = self.server.take() else { return Ok(false) };
        self.clear_leftovers(&dead.socket_dir)?;
        self.server = Some(self.launch(dead.port, &dead.socket_dir)?);
        Ok(true)
    }

    /// Stops the server: a fast shutdown, which ends its connections and writes everything back; if that takes too long,
    /// an immediate one, from which the next start recovers.
    pub(crate) fn stop(mut self) -> Result<(), PostgresError> {
        self.stop_server()
    }

    /// Lets go of the server as a process that was killed does: it stays, the lock does not.
    #[cfg(test)]
    pub(crate) fn abandon(mut self) {
        std::mem::forget(self.server.take());
    }

    /// Stops it and removes all that was in it.
    pub(crate) fn destroy(mut self) -> Result<(), PostgresError> {
        self.stop_server()?;
        home::destroy(&self.wanted.data_dir, &self.home)
    }

    fn stop_server(&mut self) -> Result<(), PostgresError> {
        let data = self.home.data();
        let Some(mut server) = self.server.take() else { return Ok(()) };
        server.stop(&data)?;
        home::remove_short_socket_dir(&server.socket_dir);
        Ok(())
    }

    /// The server that is running on the cluster already, once it takes connections.
    fn adopt(&self) -> Result<Option<Server>, PostgresError> {
        let data = self.home.data();
        wait_for("the running Postgres to be ready or gone", START_LIMIT, || {
            let Some(file) = PidFile::read(&data)?.filter(|file| file.is_live(&data)) else { return Ok(Some(None)) };
            Ok(match (file.ready, file.port, file.socket_dir) {
                (true, Some(port), Some(socket_dir)) => {
                    Some(Some(Server { pid: file.pid, child: None, port, socket_dir }))
                }
                _ => None,
            })
        })
    }

    /// Makes way for a new server after one that died.
    fn clear_leftovers(&self, socket_dir: &Path) -> Result<(), PostgresError> {
        let data = self.home.data();
        self.end_orphans(&data)?;
        // Postgres only checks that some process has the pid in its file. It may be another's by now, or our own: in a
        // container pids are small and come back. An empty file stops it too. No server works in this directory (and no
        // other process of ours: we hold the lock), so the file can go.
        if let Some(dir) = PidFile::read(&data)?.and_then(|file| file.socket_dir).filter(|dir| dir != socket_dir) {
            home::remove_short_socket_dir(&dir);
        }
        let path = data.join(pidfile::NAME);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(PostgresError::io("removing", &path)(error));
            }
            _ => {}
        }
        home::clear_socket_dir(socket_dir)
    }

    /// When a postmaster is killed, its children end by themselves once they notice; one that is deep in a computation
    /// does not. No new server may start beside them.
    fn end_orphans(&self, data: &Path) -> Result<(), PostgresError> {
        let gone = || Ok(servers_on(data).is_empty().then_some(()));
        match wait_for("orphaned server processes", ORPHAN_PATIENCE, gone) {
            Ok(()) => Ok(()),
            Err(_) => quit_all(data),
        }
    }

    /// The port of the last start, if it is free: addresses that people noted down stay true.
    fn recorded_port(&self) -> Option<u16> {
        let text = std::fs::read_to_string(self.port_file()).ok()?;
        text.trim().parse().ok().filter(|port| *port > 0)
    }

    fn port_file(&self) -> PathBuf {
        self.wanted.data_dir.join("postgres.port")
    }

    fn launch_somewhere(&self, mut wish: Option<u16>, socket_dir: &Path) -> Result<Server, PostgresError> {
        self.clear_leftovers(socket_dir)?;
        let mut attempt = 1;
        loop {
            let port = free_port(wish.take())?;
            match self.launch(port, socket_dir) {
                Err(PostgresError::StartFailed { tail, .. }) if attempt < PORT_ATTEMPTS && is_port_taken(&tail) => {
                    attempt += 1;
                }
                Err(error) => {
                    home::remove_short_socket_dir(socket_dir);
                    return Err(error);
                }
                Ok(server) => {
                    let path = self.port_file();
                    std::fs::write(&path, format!("{port}\n")).map_err(PostgresError::io("writing", &path))?;
                    return Ok(server);
                }
            }
        }
    }

    fn launch(&self, port: u16, socket_dir: &Path) -> Result<Server, PostgresError> {
        let data = self.home.data();
        let log_path = self.log_path();
        let (log, start_of_ours) = log::open(&log_path)?;
        let mut command = self.server_command(port, socket_dir);
        let for_errors = log.try_clone().map_err(PostgresError::io("opening", &log_path))?;
        command.stdout(for_errors).stderr(log);
        // A group of its own: Ctrl-C on the terminal must reach us, not the database that we still need to drain.
        command.process_group(0);
        let failed = |status: String| PostgresError::StartFailed {
            status,
            log: log_path.clone(),
            tail: log::tail(&log_path, start_of_ours),
        };
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let pid = i32::try_from(child.id()).map_err(|error| failed(error.to_string()))?;
        let ready = wait_for("the start of Postgres", START_LIMIT, || {
            if let Some(status) = child.try_wait().map_err(|error| failed(error.to_string()))? {
                return Err(failed(status.to_string()));
            }
            Ok(PidFile::read(&data)?.filter(|file| file.pid == pid && file.ready).map(drop))
        });
        let mut server = Server { pid, child: Some(child), port, socket_dir: socket_dir.to_owned() };
        if let Err(error) = ready {
            // It is a child that nobody will ever use; what it recovered so far is not lost.
            let _ = server.stop(&data);
            return Err(error);
        }
        Ok(server)
    }

    fn server_command(&self, port: u16, socket_dir: &Path) -> Command {
        let data = self.home.data();
        let mut command = self.account.command(self.binaries.program("postgres"));
        command.arg("-D").arg(&data);
        for (name, value) in settings::of(self.wanted.purpose) {
            settings::set(&mut command, name, value);
        }
        if self.wanted.purpose != Purpose::ThrowAway
            && let Some(method) = settings::wal_compression(&self.account, &self.binaries, &data)
        {
            settings::set(&mut command, "wal_compression", method);
        }
        settings::set(&mut command, "port", port);
        settings::set(&mut command, "unix_socket_directories", socket_dir.display());
        command
    }
}

impl Drop for LocalPostgres {
    fn drop(&mut self) {
        if let Err(error) = self.stop_server() {
            tracing::warn!(%error, "the local Postgres could not be stopped");
        }
    }
}

impl Server {
    /// A child is asked by its handle, which also reaps it; an adopted server by its pid and what it is doing.
    fn is_running(&mut self, data: &Path) -> bool {
        match &mut self.child {
            Some(child) => matches!(child.try_wait(), Ok(None)),
            None => super::process::is_server_on(self.pid, data),
        }
    }

    fn stop(&mut self, data: &Path) -> Result<(), PostgresError> {
        for (how, what, limit) in [
            (Signal::SIGINT, "the fast shutdown of Postgres", STOP_LIMIT),
            (Signal::SIGQUIT, "the immediate shutdown of Postgres", QUIT_LIMIT),
        ] {
            if !self.is_running(data) {
                return Ok(());
            }
            signal(self.pid, how)?;
            let gone = wait_for(what, limit, || Ok((!self.is_running(data)).then_some(())));
            match gone {
                Err(PostgresError::TooSlow { .. }) if how == Signal::SIGINT => {}
                other => return other,
            }
        }
        Ok(())
    }
}

/// Ends and removes the throw-away cluster of an earlier run that did not get to do it itself.
fn discard(wanted: &OwnCluster, old: &Home) -> Result<Option<Home>, PostgresError> {
    // Fails where it is another user's.
    Account::choose(Some(&old.path))?;
    quit_all(&old.data())?;
    home::destroy(&wanted.data_dir, old)?;
    Ok(None)
}

/// Ends every server process on a data directory at once; the next start recovers.
fn quit_all(data: &Path) -> Result<(), PostgresError> {
    for pid in servers_on(data) {
        signal(pid, Signal::SIGQUIT)?;
        // One that was stopped takes no signal before it goes on.
        signal(pid, Signal::SIGCONT)?;
    }
    let gone = || Ok(servers_on(data).is_empty().then_some(()));
    wait_for("the end of the server processes left behind", QUIT_LIMIT, gone)
}

/// The binaries for a cluster: those of its own major version, or for a new one the best there are, installed if allowed.
fn choose_binaries(wanted: &OwnCluster, existing: Option<&Home>) -> Result<Binaries, PostgresError> {
    let found = Found::search(wanted.pg_bin.as_deref())?;
    if let Some(home) = existing {
        return found.into_major(home.major()?, &home.path);
    }
    match found.into_best() {
        Err(error @ (PostgresError::NotFound { .. } | PostgresError::TooOld { .. })) if wanted.may_install => {
            if !install::is_possible() {
                return Err(error);
            }
            install::install()?;
            Found::search(None)?.into_best()
        }
        other => other,
    }
}

/// A free port on the loopback address, the wished one if it is free.
fn free_port(wish: Option<u16>) -> Result<u16, PostgresError> {
    let bind = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = match wish.map(bind) {
        Some(Ok(listener)) => listener,
        _ => bind(0).map_err(PostgresError::io("binding a port of", Path::new("127.0.0.1")))?,
    };
    let address = listener.local_addr().map_err(PostgresError::io("binding a port of", Path::new("127.0.0.1")))?;
    Ok(address.port())
}

fn is_port_taken(tail: &str) -> bool {
    tail.contains("could not bind") || tail.contains("could not create any TCP/IP sockets")
}
