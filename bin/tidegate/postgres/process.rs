//! Telling our Postgres processes from others, through `/proc`. A pid by itself proves nothing: it may have been given to
//! another process since it was written down.

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::PostgresError;

/// Whether the process is a server (or one of its children) on this data directory: every one of them runs the program
/// `postgres` and works in that directory. Where there is no `/proc`, a live process counts as ours: better to refuse a
/// start than to remove the pid file of a live server.
pub(crate) fn is_server_on(pid: i32, data: &Path) -> bool {
    if !Path::new("/proc/self").exists() {
        return kill(Pid::from_raw(pid), None).is_ok();
    }
    is_server(pid, |cwd| cwd == data)
}

/// All server processes on this data directory, the postmaster and its children alike.
pub(crate) fn servers_on(data: &Path) -> Vec<i32> {
    servers(|cwd| cwd == data)
}

/// All server processes on data directories below this one.
pub(crate) fn servers_below(directory: &Path) -> Vec<i32> {
    servers(|cwd| cwd.starts_with(directory))
}

/// The name of the program that a process runs. After an upgrade of its package the link reads `…/postgres (deleted)`.
pub(crate) fn program_of(pid: i32) -> Option<String> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    exe.file_name()?.to_str()?.split(' ').next().map(str::to_owned)
}

fn is_server(pid: i32, works_in: impl Fn(&Path) -> bool) -> bool {
    let cwd = std::fs::read_link(format!("/proc/{pid}/cwd"));
    cwd.is_ok_and(|cwd| works_in(&cwd)) && program_of(pid).as_deref() == Some("postgres")
}

fn servers(works_in: impl Fn(&Path) -> bool) -> Vec<i32> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| is_server(*pid, &works_in))
        .collect()
}

/// Sends a signal. That the process is gone already is not an error.
pub(crate) fn signal(pid: i32, signal: Signal) -> Result<(), PostgresError> {
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
        Err(errno) => Err(PostgresError::io("signalling the server", Path::new(&format!("/proc/{pid}")))(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_program_in_the_directory_and_a_dead_pid_are_not_servers() {
        let cwd = std::env::current_dir().unwrap().canonicalize().unwrap();
        assert!(!is_server_on(std::process::id() as i32, &cwd));
        assert!(!is_server_on(i32::MAX, &cwd));
        assert!(servers_on(&cwd).is_empty());
    }

    #[test]
    fn signalling_a_dead_process_is_no_error() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        signal(child.id() as i32, Signal::SIGTERM).unwrap();
    }
}
