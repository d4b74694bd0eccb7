//! What every role runs in: a log, a runtime, and ears for signals.

use std::future::Future;

use super::shutdown::{Shutdown, on_signal};
use crate::config::Config;
use crate::exit::Failure;
use crate::logging;

/// Runs a role to its end.
pub(super) fn run<T, F>(config: &Config, role: &'static str, body: impl FnOnce(Shutdown) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    logging::start(&config.log)?;
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("tidegate")
        .enable_all()
        .build()
        .map_err(|error| Failure::other("cannot start", error))?;
    runtime.block_on(async {
        let shutdown = on_signal().map_err(|error| Failure::other("cannot listen to signals", error))?;
        tracing::info!(role, version = env!("CARGO_PKG_VERSION"), "starting");
        for section in config.dormant() {
            tracing::warn!(
                section,
                "this part of the configuration is read and kept, but not in effect in this version"
            );
        }
        body(shutdown).await
    })
}

/// Many systems start a process with a soft limit of 1,024 open files, which is fewer than the connections that are let
/// in, and leave it to the process to raise it. Where that fails the limit stays, and accepting pauses when it is hit.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    /// More than any configuration needs; some kernels take long to copy tables of a million entries.
    const ENOUGH: u64 = 65_536;
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        let wanted = hard.min(ENOUGH);
        if soft < wanted { setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}
