//! Our program as a real process.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::poll::poll_until;

/// How much of a process's output a failure shows.
const SHOWN_LINES: usize = 40;

/// A running program. Whatever happens to the test, the process and all in its group are killed and reaped with this value.
///
/// Its output goes to a file, never a pipe: nobody has to read it for the process to go on.
#[derive(Debug)]
pub struct Proc {
    child: Child,
    output: PathBuf,
    _directory: TempDir,
}

/// How to start a program.
#[derive(Debug)]
pub struct ProcBuilder {
    command: Command,
}

impl Proc {
    /// Prepares a program, given by its path: in tests of the root package `env!("CARGO_BIN_EXE_tidegate")`.
    pub fn builder(program: impl AsRef<OsStr>) -> ProcBuilder {
        let mut command = Command::new(program);
        // Configuration comes from the test alone, whatever the developer has set.
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            if name_text.starts_with("TIDEGATE_") || name_text == "DATABASE_URL" {
                command.env_remove(&name);
            }
        }
        ProcBuilder { command }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// All that it has printed so far, to standard output and standard error.
    pub fn output(&self) -> String {
        let bytes = std::fs::read(&self.output).unwrap_or_else(|error| panic!("{}: {error}", self.output.display()));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits for a complete line of output that contains `part`.
    ///
    /// # Panics
    /// When the limit passes, or the process ends, without such a line.
    pub async fn wait_for_line(&mut self, part: &str, limit: Duration) -> String {
        let find = |output: &str| {
            let complete = output.rsplit_once('\n').map_or("", |(complete, _)| complete);
            complete.lines().find(|line| line.contains(part)).map(str::to_owned)
        };
        let what = format!("a line with {part:?}");
        poll_until(limit, &what, async || {
            // The order matters: what it printed just before it ended counts.
            let ended = self.try_wait();
            let found = find(&self.output());
            if let (Some(status), None) = (ended, &found) {
                panic!("the process ended ({status}) without {what}:\n{}", self.last_lines());
            }
            found
        })
        .await
    }

    /// Waits for it to print an `http://` address and returns it without a closing slash.
    ///
    /// # Panics
    /// As [`Proc::wait_for_line`].
    pub async fn wait_for_url(&mut self, limit: Duration) -> String {
        let line = self.wait_for_line("http://", limit).await;
        let start = line.find("http://").unwrap_or_default();
        let url = line[start..].split(|c: char| c.is_whitespace() || "'\"`,)".contains(c)).next().unwrap_or_default();
        url.trim_end_matches(['/', '.']).to_owned()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process has ended and was reaped.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap_or_else(|errno| panic!("sending {signal}: {errno}"));
    }

    /// Freezes it, as a machine that hangs does.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on after [`Proc::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Kills it without a warning and reaps it. What it started in groups of their own lives on, as after a crash.
    pub fn kill9(&mut self) -> ExitStatus {
        self.signal(Signal::SIGKILL);
        self.child.wait().unwrap_or_else(|error| panic!("reaping a killed process: {error}"))
    }

    /// Whether it has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap_or_else(|error| panic!("waiting for a process: {error}"))
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When the limit passes.
    pub async fn wait(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("the end of process {}", self.pid());
        poll_until(limit, &what, async || self.try_wait()).await
    }

    fn last_lines(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }
}

impl ProcBuilder {
    /// Adds arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets one variable of its environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets its working directory.
    pub fn current_dir(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Starts it, with no input and in a process group of its own.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn(mut self) -> Proc {
        let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("a directory for output: {error}"));
        let output = directory.path().join("output");
        let file = File::create(&output).unwrap_or_else(|error| panic!("{}: {error}", output.display()));
        let again = file.try_clone().unwrap_or_else(|error| panic!("{}: {error}", output.display()));
        self.command.stdin(Stdio::null()).stdout(file).stderr(again).process_group(0);
        let program = self.command.get_program().to_string_lossy().into_owned();
        let child = self.command.spawn().unwrap_or_else(|error| panic!("starting {program}: {error}"));
        Proc { child, output, _directory: directory }
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        // SIGKILL ends a stopped process as well. The group may be gone, and the child reaped: both are what is wanted.
        let _ = killpg(Pid::from_raw(self.pid()), Signal::SIGKILL);
        let _ = self.child.wait();
        if std::thread::panicking() {
            let mut stderr = std::io::stderr();
            let _ = std::io::Write::write_all(
                &mut stderr,
                format!("--- process {} printed last:\n{}\n", self.pid(), self.last_lines()).as_bytes(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    const LIMIT: Duration = Duration::from_secs(20);

    fn sh(script: &str) -> Proc {
        Proc::builder("sh").args(["-c", script]).spawn()
    }

    #[tokio::test]
    async fn lines_and_addresses_are_found_in_the_output() {
        let mut proc = sh("echo 'listening on http://127.0.0.1:8080/.' >&2; echo ready; exec sleep 600");
        assert_eq!(proc.wait_for_line("ready", LIMIT).await, "ready");
        assert_eq!(proc.wait_for_url(LIMIT).await, "http://127.0.0.1:8080");
        assert_eq!(proc.try_wait(), None);
        assert_eq!(proc.kill9().signal(), Some(9));
    }

    #[tokio::test]
    #[should_panic(expected = "exit status: 3")]
    async fn a_process_that_ends_instead_is_not_waited_for() {
        sh("echo almost; exit 3").wait_for_line("ready", LIMIT).await;
    }

    #[tokio::test]
    async fn a_frozen_process_does_nothing_until_it_is_thawed() {
        let mut proc = sh("trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
        proc.wait_for_line("ready", LIMIT).await;
        proc.freeze();
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", proc.pid())).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        poll_until(LIMIT, "the freeze", async || state().then_some(())).await;
        proc.terminate();
        assert!(!proc.output().contains("told"));
        proc.thaw();
        assert_eq!(proc.wait(LIMIT).await.code(), Some(0));
        assert!(proc.output().contains("told"));
    }

    #[tokio::test]
    async fn nothing_of_a_dropped_process_is_left() {
        let mut proc = sh("sleep 600 & echo child $!; wait");
        let line = proc.wait_for_line("child", LIMIT).await;
        let child: i32 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
        drop(proc);
        poll_until(LIMIT, "the end of the child", async || {
            // It is another process's child now, and may stay a zombie where nobody reaps.
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            let is_gone = stat.is_empty() || stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'));
            is_gone.then_some(())
        })
        .await;
    }
}
