//! How the program is told to stop: SIGTERM or Ctrl-C once to drain, twice to leave at once.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code after a second signal: what a shell shows for a program that SIGTERM ended.
const LEFT_AT_ONCE: i32 = 143;

/// Listens from now on. The token is cancelled by the first SIGTERM, SIGINT or SIGHUP; a second one ends the process
/// where it stands, which is as safe as a crash: leases run out, nothing that was acknowledged is lost.
pub(super) fn on_signal() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                _ = hang_up.recv() => "SIGHUP",
            }
        };
        let name = next().await;
        tracing::info!(signal = name, "stopping; another signal leaves at once");
        told.cancel();
        let name = next().await;
        tracing::warn!(signal = name, "leaving at once");
        std::process::exit(LEFT_AT_ONCE);
    });
    Ok(stop)
}
