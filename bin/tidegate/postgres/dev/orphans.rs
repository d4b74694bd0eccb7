//! Everything that the command started and nobody waits for any more: servers and programs of tests that were
//! interrupted or killed at their time limit. They become our children, so that they can be told from all others.

use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::super::PostgresError;
use super::super::command::wait_for;
use super::super::process::{program_of, signal};

/// How long what is left gets to end in the way that suits it.
const GENTLE: Duration = Duration::from_secs(10);

/// How long the kernel gets to end what was killed.
const KILLED: Duration = Duration::from_secs(10);

/// From now on, processes that lose their parent become children of ours instead of init's.
pub(super) fn collect() -> Result<(), PostgresError> {
    nix::sys::prctl::set_child_subreaper(true)
        .map_err(|errno| PostgresError::io("becoming the parent of", Path::new("orphans"))(errno.into()))
}

/// Buries the dead among them. Our own children, which somebody does wait for, are passed over.
pub(super) fn reap(own: &[i32]) {
    for child in children().into_iter().filter(|child| child.is_zombie && !own.contains(&child.pid)) {
        // Whatever it answers, there is nothing to do about it.
        let _: Result<_, Errno> = waitpid(Pid::from_raw(child.pid), Some(WaitPidFlag::WNOHANG));
    }
}

/// Ends all that is left and waits for it. Servers shut down at once but in order, which frees their shared memory;
/// everything else is killed, as is what does not end in time.
pub(super) fn end_all() -> Result<(), PostgresError> {
    let mut ended = end(GENTLE, |pid| if is_postgres(pid) { Signal::SIGQUIT } else { Signal::SIGKILL });
    if ended.is_err() {
        ended = end(KILLED, |_| Signal::SIGKILL);
    }
    ended
}

/// Signals every child until there is none: the end of one may leave us its own children.
fn end(limit: Duration, how: impl Fn(i32) -> Signal) -> Result<(), PostgresError> {
    let mut told = Vec::new();
    wait_for("the end of what the command left running", limit, || {
        reap(&[]);
        let left = children();
        for child in left.iter().filter(|child| !child.is_zombie) {
            if !told.contains(&child.pid) {
                signal(child.pid, how(child.pid))?;
                // One that was stopped hears nothing before it goes on.
                signal(child.pid, Signal::SIGCONT)?;
                told.push(child.pid);
            }
        }
        Ok(left.is_empty().then_some(()))
    })
}

fn is_postgres(pid: i32) -> bool {
    program_of(pid).as_deref() == Some("postgres")
}

struct ChildProcess {
    pid: i32,
    is_zombie: bool,
}

/// All children of this process.
fn children() -> Vec<ChildProcess> {
    let me = std::process::id();
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let (state, parent) = state_and_parent(&stat)?;
            (parent == me).then_some(ChildProcess { pid, is_zombie: state == 'Z' })
        })
        .collect()
}

/// Reads `pid (name) S ppid …`. The name may hold anything, so what counts is the last parenthesis.
fn state_and_parent(stat: &str) -> Option<(char, u32)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_whatever_the_name() {
        assert_eq!(state_and_parent("12 (sh) S 1 12 12 0"), Some(('S', 1)));
        assert_eq!(state_and_parent("12 (a) Z 9 (b) ) Z 77 12"), Some(('Z', 77)));
        assert_eq!(state_and_parent("12 (sh"), None);
    }
}
