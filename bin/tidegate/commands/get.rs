//! `tidegate get`.

use super::client::{block_on, connect, show_problem, task_id};
use super::task_view::show;
use super::waiting::{exit_of, tell_if_it_goes_on, until_it_ends};
use crate::cli::{GetArgs, Global};
use crate::exit::{Exit, Failure};
use crate::terminal::Output;

/// Prints a task, at its end where that was asked for.
pub(crate) fn run(global: &Global, arguments: &GetArgs, output: &mut Output) -> Result<Exit, Failure> {
    let id = task_id(&arguments.id)?;
    let client = connect(global, &arguments.connection)?;
    block_on(async {
        let answer = match arguments.wait {
            Some(wait) => until_it_ends(&client, id, wait).await,
            None => client.get(id).await,
        };
        let task = answer.map_err(|error| show_problem(error, output))?;
        show(&task, output)?;
        // Only who waited for the end asked how it ended.
        if arguments.wait.is_none() {
            return Ok(Exit::Done);
        }
        tell_if_it_goes_on(&task);
        Ok(exit_of(&task))
    })
}
