//! `tidegate workers`.

use tidegate_client::{Client, WorkerDocument};

use super::client::{block_on, connect_as_operator, show_problem};
use super::policy::{plain_table, print};
use crate::cli::{Global, WorkersArgs, WorkersCommand, WorkersPage};
use crate::exit::{Exit, Failure};
use crate::terminal::{Output, safe};

/// Lists the live workers, or has one leave.
pub(crate) fn run(global: &Global, arguments: &WorkersArgs, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect_as_operator(global)?;
    block_on(async {
        match &arguments.command {
            None => list(&client, &arguments.page, output).await,
            Some(WorkersCommand::List(page)) => list(&client, page, output).await,
            Some(WorkersCommand::Drain { id }) => drain(&client, id, output).await,
        }
    })
}

async fn list(client: &Client, page: &WorkersPage, output: &mut Output) -> Result<Exit, Failure> {
    let answer = client.workers(page.limit, page.cursor.as_deref()).await;
    let answer = answer.map_err(|error| show_problem(error, output))?;
    if output.wants_json() {
        output.json_line(&answer.json)?;
        return Ok(Exit::Done);
    }
    if answer.workers.is_empty() {
        eprintln!("no workers");
    } else {
        show(&answer.workers, output)?;
    }
    if let Some(cursor) = &answer.next_cursor {
        eprintln!("more with --cursor {}", safe(cursor));
    }
    Ok(Exit::Done)
}

async fn drain(client: &Client, id: &str, output: &mut Output) -> Result<Exit, Failure> {
    let worker = client.drain_worker(id).await.map_err(|error| show_problem(error, output))?;
    match output.wants_json() {
        true => output.json_line(&worker.json)?,
        false => show(&[worker.value], output)?,
    }
    Ok(Exit::Done)
}

fn show(workers: &[WorkerDocument], output: &mut Output) -> Result<(), Failure> {
    let mut table = plain_table();
    table.set_header(["ID", "WORKER", "RUNNING", "SLOTS", "STATE", "SINCE", "LAST BEAT", "KINDS"]);
    for worker in workers {
        table.add_row([
            safe(&worker.id).into_owned(),
            safe(&worker.worker).into_owned(),
            worker.running.to_string(),
            worker.slots.to_string(),
            if worker.draining { "draining" } else { "working" }.to_owned(),
            worker.started_at.to_string(),
            worker.last_beat_at.to_string(),
            safe(&worker.kinds.join(",")).into_owned(),
        ]);
    }
    print(&table, output)
}
