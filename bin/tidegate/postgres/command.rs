//! Running the programs of Postgres and waiting for them, but never for ever.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use super::PostgresError;

/// How often a condition outside this process is looked at again while waiting for it.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// How much of a program's output is kept: enough for any error message.
const MAX_OUTPUT_BYTES: u64 = 64 * 1024;

/// How much of it is shown.
const SHOWN_LINES: usize = 15;

/// Looks until `ready` gives a value or the limit has passed.
pub(crate) fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> Result<Option<T>, PostgresError>,
) -> Result<T, PostgresError> {
    let started = Instant::now();
    loop {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if started.elapsed() >= limit {
            return Err(PostgresError::TooSlow { what: what.to_owned(), limit });
        }
        sleep(POLL);
    }
}

/// Runs a program to its end and returns what it printed to standard output. A failure carries the end of what it printed
/// to either stream; one that outlives the limit is killed.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<String, PostgresError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |status: String, output: &str| PostgresError::Program {
        program: program.clone(),
        status,
        output: last_lines(output),
    };
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|error| failed(error.to_string(), ""))?;
    let stdout = child.stdout.take().map(drain);
    let stderr = child.stderr.take().map(drain);
    let status = wait_or_kill(&mut child, &program, limit)?;
    let collect = |reader: Option<std::thread::JoinHandle<String>>| {
        reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
    };
    let (stdout, stderr) = (collect(stdout), collect(stderr));
    if status.success() { Ok(stdout) } else { Err(failed(status.to_string(), &format!("{stdout}{stderr}"))) }
}

/// Waits for the child; past the limit it is killed, reaped, and reported as too slow.
pub(crate) fn wait_or_kill(
    child: &mut Child,
    program: &str,
    limit: Duration,
) -> Result<std::process::ExitStatus, PostgresError> {
    let waited = wait_for(program, limit, || {
        child.try_wait().map_err(|error| PostgresError::Program {
            program: program.to_owned(),
            status: error.to_string(),
            output: String::new(),
        })
    });
    if waited.is_err() {
        // Both can only fail because it ended just now.
        let _ = child.kill();
        let _ = child.wait();
    }
    waited
}

/// The last lines of a text, without trailing blanks.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

/// Reads a pipe on a thread of its own, so that a program with much to say never blocks on a full one. What goes beyond
/// the cap is read and thrown away.
fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    spawn(move || {
        let mut kept = Vec::new();
        // An error here means that the pipe is gone, and with it what could be read.
        let _ = pipe.by_ref().take(MAX_OUTPUT_BYTES).read_to_end(&mut kept);
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        String::from_utf8_lossy(&kept).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_returned_even_when_it_fills_the_pipe() {
        let text = run(&mut sh("head -c 300000 /dev/zero | tr '\\0' x"), Duration::from_secs(20)).unwrap();
        assert_eq!(text.len(), MAX_OUTPUT_BYTES as usize);
    }

    #[test]
    fn a_failure_says_what_was_printed() {
        let error = run(&mut sh("echo the reason >&2; exit 3"), Duration::from_secs(20)).unwrap_err().to_string();
        assert!(error.contains("the reason") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_program_that_hangs_is_killed_at_the_limit() {
        let error = run(&mut sh("exec sleep 600"), Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, PostgresError::TooSlow { .. }), "{error}");
    }
}
