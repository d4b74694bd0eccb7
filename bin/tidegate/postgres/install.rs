//! Installing Debian's package where there is no Postgres.
//!
//! The package would also create and start a cluster called `main`, which nobody asked for. Its own setting prevents
//! that, is set for the time of the installation, and put back as it was. Clusters that exist are not touched.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::unistd::geteuid;

use super::PostgresError;
use super::command::{run, wait_or_kill};
use super::find::{FLOOR, leading_number};

/// Longest that one step may take: a slow line and a slow disk are waited for, a dead mirror is not.
const STEP_LIMIT: Duration = Duration::from_secs(900);

/// Longest that a question to `sudo` or the package lists may take.
const ASK_LIMIT: Duration = Duration::from_secs(20);

/// Options for every call: wait for another package manager instead of failing, try a broken line again, give up on one
/// that hangs.
const APT_OPTIONS: [&str; 6] =
    ["-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=3", "-o", "Acquire::http::Timeout=30"];

/// Where Debian's packaging reads whether to create a cluster, and the line that says no.
const CREATE_CONFIG: &str = "/etc/postgresql-common/createcluster.conf";
const CREATE_NOTHING: &str = "create_main_cluster = false";

/// Whether this machine is a Debian or a relative of it, with its package manager.
pub(crate) fn is_possible() -> bool {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    is_debian(&release) && Path::new("/usr/bin/apt-get").exists()
}

fn is_debian(os_release: &str) -> bool {
    os_release
        .lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| matches!(*name, "ID" | "ID_LIKE"))
        .any(|(_, value)| value.trim_matches('"').split(' ').any(|word| word == "debian"))
}

/// Installs the package, as root or with a `sudo` that asks nothing. What the package manager prints is shown on standard
/// error: this takes a minute and nobody should wonder.
pub(crate) fn install() -> Result<(), PostgresError> {
    let root = Root::find()?;
    say(&format!("no PostgreSQL {FLOOR} or newer found; installing Debian's package (apt-get install postgresql)"));
    // Old lists are no reason to stop: the packages may still be there.
    if let Err(error) = root.apt(&["update"]) {
        say(&format!("{error}; going on with the package lists as they are"));
    }
    check_candidate()?;
    root.apt(&["install", "--yes", "--no-install-recommends", "postgresql-common"])?;
    let before = std::fs::read_to_string(CREATE_CONFIG).unwrap_or_default();
    root.write(CREATE_CONFIG, &without_main_cluster(&before))?;
    let installed = root.apt(&["install", "--yes", "--no-install-recommends", "postgresql"]);
    let restored = root.write(CREATE_CONFIG, &before);
    installed.and(restored)
}

/// An older Debian offers an older Postgres, which would be installed in vain.
fn check_candidate() -> Result<(), PostgresError> {
    let said = run(Command::new("apt-cache").args(["policy", "postgresql"]).stdin(Stdio::null()), ASK_LIMIT)?;
    match candidate_major(&said) {
        Some(major) if major < FLOOR => {
            let why = format!("this system's package is PostgreSQL {major}, and {FLOOR} or newer is needed");
            Err(PostgresError::Install { why })
        }
        // Where the answer is not understood, the installation itself will tell.
        _ => Ok(()),
    }
}

/// Reads the line `Candidate: 15+248+deb12u1`.
fn candidate_major(policy: &str) -> Option<u32> {
    let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    leading_number(candidate)
}

/// The same configuration with the one line last, where it counts.
fn without_main_cluster(before: &str) -> String {
    format!("{}\n{CREATE_NOTHING}\n", before.trim_end())
}

fn say(message: &str) {
    // Losing a progress line is no reason to fail.
    let _ = writeln!(std::io::stderr(), "tidegate: {message}");
}

/// The way to root's rights.
enum Root {
    /// We have them.
    Direct,
    /// `sudo` gives them without a question.
    Sudo,
}

impl Root {
    fn find() -> Result<Self, PostgresError> {
        if geteuid().is_root() {
            return Ok(Root::Direct);
        }
        match run(Command::new("sudo").args(["-n", "true"]).stdin(Stdio::null()), ASK_LIMIT) {
            Ok(_) => Ok(Root::Sudo),
            Err(_) => Err(PostgresError::Install {
                why: "it needs root, and `sudo -n` does not work for this user".to_owned(),
            }),
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = match self {
            Root::Direct => Command::new(program),
            Root::Sudo => {
                let mut command = Command::new("sudo");
                // sudo drops the environment; `env` sets it again on the other side.
                command.args(["-n", "env", "DEBIAN_FRONTEND=noninteractive", program]);
                command
            }
        };
        command.env("DEBIAN_FRONTEND", "noninteractive");
        // Ctrl-C must not leave packages half configured: the package manager finishes its step.
        command.process_group(0);
        command
    }

    fn apt(&self, arguments: &[&str]) -> Result<(), PostgresError> {
        let failed = |why: String| PostgresError::Install { why };
        let name = format!("apt-get {}", arguments.first().unwrap_or(&""));
        let mut command = self.command("apt-get");
        command.args(APT_OPTIONS).args(arguments);
        command.stdin(Stdio::null()).stdout(std::io::stderr()).stderr(std::io::stderr());
        let mut child = command.spawn().map_err(|error| failed(format!("{name}: {error}")))?;
        let status = wait_or_kill(&mut child, &name, STEP_LIMIT)?;
        if status.success() { Ok(()) } else { Err(failed(format!("{name} ended with {status}"))) }
    }

    fn write(&self, path: &str, text: &str) -> Result<(), PostgresError> {
        let failed = |why: String| PostgresError::Install { why: format!("writing {path}: {why}") };
        let mut command = self.command("tee");
        command.arg(path).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(text.as_bytes()).map_err(|error| failed(error.to_string()))?;
        }
        let status = wait_or_kill(&mut child, "tee", STEP_LIMIT)?;
        if status.success() { Ok(()) } else { Err(failed(status.to_string())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_and_its_relatives_are_known_and_others_are_not() {
        assert!(is_debian("PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n"));
        assert!(is_debian("ID=ubuntu\nID_LIKE=debian\n"));
        assert!(is_debian("ID=mint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian("ID=fedora\nID_LIKE=\"rhel centos\"\nHOME_URL=https://debian.example/\n"));
        assert!(!is_debian(""));
    }

    #[test]
    fn the_offered_version_is_read_from_the_policy() {
        let policy = "postgresql:\n  Installed: (none)\n  Candidate: 13+225+deb11u1\n  Version table:\n";
        assert_eq!(candidate_major(policy), Some(13));
        assert_eq!(candidate_major("postgresql:\n  Candidate: (none)\n"), None);
        assert_eq!(candidate_major(""), None);
    }

    #[test]
    fn the_setting_is_added_last_and_nothing_is_lost() {
        assert_eq!(without_main_cluster("ssl = on\n"), "ssl = on\ncreate_main_cluster = false\n");
        assert_eq!(without_main_cluster(""), "\ncreate_main_cluster = false\n");
    }
}
