//! How the program is told to stop: SIGTERM or Ctrl-C once to drain, twice to leave at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use futures_util::future::OptionFuture;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code after a second signal: what a shell shows for a program that SIGTERM ended.
const LEFT_AT_ONCE: i32 = 143;

/// Tells the parts to stop.
#[derive(Debug, Clone)]
pub(crate) struct Shutdown {
    /// Cancelled by the first signal, or by a part that cannot go on.
    pub(crate) stop: CancellationToken,
    own_postgres: Arc<AtomicI32>,
}

impl Shutdown {
    /// The process of our own Postgres: it must not stay behind when we leave at once. It recovers at its next start.
    pub(crate) fn takes_along(&self, postgres: Option<i32>) {
        self.own_postgres.store(postgres.unwrap_or(0), Ordering::Relaxed);
    }

    fn leave_at_once(&self) -> ! {
        let postgres = self.own_postgres.load(Ordering::Relaxed);
        if postgres > 0 {
            // An error means that it is gone.
            let _ = kill(Pid::from_raw(postgres), Signal::SIGQUIT);
        }
        std::process::exit(LEFT_AT_ONCE);
    }
}

/// Listens from now on. The first SIGTERM, SIGINT or SIGHUP cancels the token; a second one ends the process where it
/// stands, which is as safe as a crash: leases run out, nothing that was acknowledged is lost.
pub(crate) fn on_signal() -> io::Result<Shutdown> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = if ignores_hang_up() { None } else { Some(signal(SignalKind::hangup())?) };
    let shutdown = Shutdown { stop: CancellationToken::new(), own_postgres: Arc::default() };
    let told = shutdown.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                Some(_) = OptionFuture::from(hang_up.as_mut().map(|hang_up| hang_up.recv())) => "SIGHUP",
            }
        };
        let name = next().await;
        told.stop.cancel();
        tracing::info!(signal = name, "stopping; another signal leaves at once");
        let name = next().await;
        tracing::warn!(signal = name, "leaving at once");
        told.leave_at_once();
    });
    Ok(shutdown)
}

/// Whether whoever started us wants us to outlive the terminal (`nohup`): SIGHUP is ignored from the start, and listening
/// to it would undo that.
fn ignores_hang_up() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignored(&status, 1))
}

/// Whether the status of a process says that it ignores a signal.
fn ignored(status: &str, signal: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_read_from_the_mask() {
        assert!(ignored("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0", 1));
        assert!(!ignored("SigIgn:\t0000000000001000", 1));
        assert!(!ignored("Name:\tx", 1));
    }
}
