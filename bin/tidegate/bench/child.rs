//! Our own program as a process beside us, so that what is measured shares nothing with what measures.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::http::Connection;
use super::load::{MAX_BYTES, MAX_QUEUED};
use crate::exit::Failure;

/// The longest that it may take to be ready: it migrates first.
const READY: Duration = Duration::from_secs(60);
/// The pause between two looks whether it is.
const LOOK: Duration = Duration::from_millis(50);
/// The longest that it may take to end once it was told to.
const END: Duration = Duration::from_secs(20);
/// How much of what it says is kept, for when it fails.
const KEPT_LINES: usize = 15;

/// A server process of ours on a port of its own. Killed when dropped.
pub(super) struct Server {
    child: Child,
    pid: i32,
    address: SocketAddr,
    said: Arc<Mutex<VecDeque<String>>>,
}

impl Server {
    /// Starts it with these arguments and waits until it is ready. It listens where `--listen` says, which is added,
    /// and stands on this database.
    pub(super) async fn start(arguments: &[&str], database_url: &str) -> Result<Self, Failure> {
        Self::start_with(arguments, database_url, &[]).await
    }

    /// The same with settings of its own: keys of the configuration, as the environment spells them, and their values.
    pub(super) async fn start_with(
        arguments: &[&str],
        database_url: &str,
        settings: &[(&str, String)],
    ) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(|error| Failure::other("cannot find this program", error))?;
        let address = free_address()?;
        let mut command = Command::new(program);
        command.args(arguments).arg("--listen").arg(address.to_string());
        // Its configuration comes from here alone, whatever is set for the servers of this machine.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TIDEGATE_") {
                command.env_remove(name);
            }
        }
        command
            .env("DATABASE_URL", database_url)
            .env("TIDEGATE__LIMITS__MAX_QUEUED", MAX_QUEUED.to_string())
            .env("TIDEGATE__LIMITS__MAX_BYTES", MAX_BYTES.to_string())
            .env("TIDEGATE__LOG__LEVEL", "warn")
            .envs(settings.iter().map(|(name, value)| (name, value)));
        // A group of its own: Ctrl-C is for us, who end it.
        command.process_group(0).kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Failure::other("cannot start this program again", error))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        let said = Arc::default();
        listen_to(child.stdout.take(), &said);
        listen_to(child.stderr.take(), &said);
        let mut server = Self { child, pid, address, said };
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    async fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let started = Instant::now();
        let request = Connection::get(self.address, "/readyz");
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.failed(&format!("ended before it was ready ({status})")));
            }
            let asked = async {
                let mut connection = Connection::open(self.address).await?;
                let answer = connection.exchange(&request).await?;
                Ok::<_, std::io::Error>(answer.status == 200)
            };
            if matches!(timeout(READY, asked).await, Ok(Ok(true))) {
                return Ok(());
            }
            if started.elapsed() > READY {
                return Err(self.failed(&format!("was not ready within {} s", READY.as_secs())));
            }
            sleep(LOOK).await;
        }
    }

    /// Tells it to end, and waits.
    pub(super) async fn stop(mut self) -> Result<(), Failure> {
        // An error means that it is gone already, which the wait tells.
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGTERM);
        match timeout(END, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(self.failed(&format!("ended with {status}"))),
            Ok(Err(error)) => Err(Failure::other("cannot wait for the server", error)),
            Err(_) => Err(self.failed(&format!("did not end within {} s", END.as_secs()))),
        }
    }

    fn failed(&self, what: &str) -> Failure {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said: Vec<&str> = said.iter().map(String::as_str).collect();
        Failure::Other(format!("the server that is measured {what}\n{}", said.join("\n")))
    }
}

/// Keeps the last lines of a pipe, and keeps it from filling up.
fn listen_to(pipe: Option<impl AsyncRead + Unpin + Send + 'static>, said: &Arc<Mutex<VecDeque<String>>>) {
    let Some(pipe) = pipe else { return };
    let said = said.clone();
    tokio::spawn(async move {
        let mut lines = BufReader::new(pipe).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            if said.len() == KEPT_LINES {
                said.pop_front();
            }
            said.push_back(line);
        }
    });
}

/// A port of the loopback address that is free now.
fn free_address() -> Result<SocketAddr, Failure> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    bound.map_err(|error| Failure::other("no port is free", error))
}
