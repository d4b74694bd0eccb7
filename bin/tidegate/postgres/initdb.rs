//! Making a cluster.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::account::Account;
use super::command::{last_lines, run, wait_or_kill};
use super::find::Binaries;
use super::home::{Home, Staging};
use super::{OwnCluster, PostgresError, Purpose};

/// The superuser of a cluster of ours, and the database in it.
pub(crate) const NAME: &str = "tidegate";

/// Longest that making a cluster may take; a second is usual, a slow disk with fsync needs some more.
const LIMIT: Duration = Duration::from_secs(120);

/// Makes the home of a new cluster. Until it is complete it lies under another name, so an interrupted attempt is simply
/// made again at the next start.
pub(crate) fn create(wanted: &OwnCluster, account: &Account, binaries: &Binaries) -> Result<Home, PostgresError> {
    let staging = Staging::begin(&wanted.data_dir, account, &wanted.fallback_base)?;
    let made = fill(&staging.home, wanted.purpose, account, binaries);
    if let Err(error) = made {
        // What is left would be swept at the next start; now is sooner.
        let _ = staging.abandon();
        return Err(error);
    }
    staging.finish()
}

fn fill(home: &Home, purpose: Purpose, account: &Account, binaries: &Binaries) -> Result<(), PostgresError> {
    write_password(&home.password_file(), account)?;
    let mut command = account.command(binaries.program("initdb"));
    command.arg("--pgdata").arg(home.data());
    command.arg("--pwfile").arg(home.password_file());
    // One rule for the socket and for TCP: the password. Then no file permission is the last line of defence.
    command.args(["--username", NAME, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]);
    if purpose == Purpose::ThrowAway {
        command.arg("--no-sync");
    }
    run(&mut command, LIMIT)?;
    create_database(home, account, binaries)
}

/// 256 random bits, readable by the account alone.
fn write_password(path: &Path, account: &Account) -> Result<(), PostgresError> {
    let bytes: [u8; 32] = rand::random();
    let password: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut options = std::fs::OpenOptions::new();
    let mut file =
        options.write(true).create_new(true).mode(0o600).open(path).map_err(PostgresError::io("creating", path))?;
    writeln!(file, "{password}").map_err(PostgresError::io("writing", path))?;
    account.own(path)
}

/// Creates our database with the server in single-user mode: no port, no socket, nothing to wait for.
fn create_database(home: &Home, account: &Account, binaries: &Binaries) -> Result<(), PostgresError> {
    let program = binaries.program("postgres");
    let failed = |status: String, output: &str| PostgresError::Program {
        program: format!("{} --single", program.display()),
        status,
        output: last_lines(output),
    };
    let mut command = account.command(&program);
    // Without exit_on_error a failed statement would still end in success.
    command.args(["--single", "-c", "exit_on_error=on", "-D"]).arg(home.data()).arg("postgres");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string(), ""))?;
    if let Some(mut stdin) = child.stdin.take() {
        // Dropping it ends the session. A server that is gone already says why in its own output.
        let _ = writeln!(stdin, "CREATE DATABASE {NAME};");
    }
    let status = wait_or_kill(&mut child, "creating the database", LIMIT)?;
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // A few lines at most: they fit into the pipe while nobody reads. No output is an answer too.
        let _ = std::io::Read::read_to_string(&mut stderr, &mut said);
    }
    if status.success() { Ok(()) } else { Err(failed(status.to_string(), &said)) }
}
