//! A command with a throw-away cluster beside it: what `./bin/test` runs the tests in.

mod orphans;
mod scratch;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use self::scratch::Scratch;
use super::{LocalPostgres, OwnCluster, PostgresError};

/// How long the command may take to end after it was told to. Tests clean up behind themselves in less.
const GRACE: Duration = Duration::from_secs(15);

/// What a shell adds to a signal's number to make an exit code.
const SIGNALLED: i32 = 128;

/// What is listened to: the signals that end the run, and the news that a process ended.
const HEARD: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGCHLD];

/// Starts an empty throw-away cluster under `data_dir` (what an earlier run left there is ended and removed), runs the
/// command with `DATABASE_URL` set to it, removes the cluster and all that the command left running, and returns the
/// command's exit code. SIGINT, SIGTERM and SIGHUP are passed on to the command and its process group.
pub(crate) async fn run(
    data_dir: PathBuf,
    pg_bin: Option<PathBuf>,
    command: &[OsString],
) -> Result<i32, PostgresError> {
    let Some((program, arguments)) = command.split_first() else { return Ok(0) };
    // First of all, so that a signal during the start does not kill us with a server half started.
    let mut signals = Signals::listen()?;
    orphans::collect()?;
    let start = move || {
        let postgres = LocalPostgres::start(OwnCluster::throw_away(&data_dir, pg_bin))?;
        Ok::<_, PostgresError>((postgres, Scratch::begin(&data_dir)?))
    };
    let (postgres, scratch) = blocking(start).await?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("DATABASE_URL", postgres.tcp_url())
        .env("TIDEGATE_PG_BIN", postgres.bin_dir())
        .env("TMPDIR", scratch.path())
        .process_group(0);
    let ended = match command.spawn().map_err(PostgresError::io("running", program.as_ref())) {
        Ok(mut child) => wait(&mut child, postgres.pid(), &mut signals).await,
        Err(error) => Err(error),
    };
    let clean_up = move || {
        let ends = [postgres.destroy(), orphans::end_all(), scratch.end()];
        ends.into_iter().collect::<Result<(), PostgresError>>()
    };
    blocking(clean_up).await?;
    ended
}

/// Waits for the command, or for a signal and then for the command.
async fn wait(child: &mut Child, server: Option<i32>, signals: &mut Signals) -> Result<i32, PostgresError> {
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    let to_group = |signal: Signal| {
        // An error means that the group is gone.
        let _ = pid.map(|pid| killpg(Pid::from_raw(pid), signal));
    };
    let own: Vec<i32> = pid.into_iter().chain(server).collect();
    let received = loop {
        tokio::select! {
            status = child.wait() => return status.map(exit_code).map_err(waiting),
            received = signals.next() => match received {
                Signal::SIGCHLD => orphans::reap(&own),
                ending => break ending,
            },
        }
    };
    to_group(received);
    if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
        to_group(Signal::SIGKILL);
        child.wait().await.map_err(waiting)?;
    }
    Ok(SIGNALLED + received as i32)
}

fn waiting(source: std::io::Error) -> PostgresError {
    PostgresError::io("waiting for", "the command".as_ref())(source)
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal)).unwrap_or(SIGNALLED)
}

/// The signals, listened to from the moment this is made.
struct Signals(Vec<(Signal, tokio::signal::unix::Signal)>);

impl Signals {
    fn listen() -> Result<Self, PostgresError> {
        let listen = |which: Signal| signal(SignalKind::from_raw(which as i32)).map(|stream| (which, stream));
        let streams: std::io::Result<_> = HEARD.into_iter().map(listen).collect();
        Ok(Signals(streams.map_err(PostgresError::io("listening to", "signals".as_ref()))?))
    }

    async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (which, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*which);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// Runs what blocks away from the runtime. A panic in there goes on here.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
