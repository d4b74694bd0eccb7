//! `tidegate completions`.

use clap::CommandFactory;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};
use crate::terminal::Output;

/// Prints the completions of a shell.
pub(crate) fn run(shell: clap_complete::Shell, output: &mut Output) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tidegate", &mut script);
    output.line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(Exit::Done)
}
