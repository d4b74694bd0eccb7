//! `tidegate cancel`.

use tidegate_client::{Answer, Cancelled, Client, Error};

use super::client::{block_on, connect, show_problem, task_id};
use super::task_view::show;
use crate::cli::{CancelArgs, Global};
use crate::exit::{Exit, Failure};
use crate::terminal::Output;

/// Cancels a task, or all tasks of a token or workflow.
pub(crate) fn run(global: &Global, arguments: &CancelArgs, output: &mut Output) -> Result<Exit, Failure> {
    let id = arguments.id.as_deref().map(task_id).transpose()?;
    let client = connect(global, &arguments.connection)?;
    block_on(async {
        if let Some(id) = id {
            let task = client.cancel(id, arguments.reason.as_deref()).await;
            show(&task.map_err(|error| show_problem(error, output))?, output)?;
        } else {
            let cancelled = group(&client, arguments).await;
            show_group(&cancelled.map_err(|error| show_problem(error, output))?, output)?;
        }
        Ok(Exit::Done)
    })
}

async fn group(client: &Client, arguments: &CancelArgs) -> Result<Answer<Cancelled>, Error> {
    match (&arguments.token, &arguments.workflow) {
        (Some(token), _) => client.cancel_token(token).await,
        (None, Some(workflow)) => client.cancel_workflow(workflow).await,
        (None, None) => Err(Error::Invalid("name a task, a token or a workflow".to_owned())),
    }
}

fn show_group(cancelled: &Answer<Cancelled>, output: &mut Output) -> Result<(), Failure> {
    if output.wants_json() {
        return output.json_line(&cancelled.json);
    }
    let Cancelled { cancelled, requested } = cancelled.value;
    output.line(&format!("{cancelled} cancelled, {requested} running and asked to stop"))
}
