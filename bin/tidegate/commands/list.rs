//! `tidegate list`.

use chrono::Utc;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use tidegate_client::{Task, TaskQuery};

use super::client::{block_on, check_labels, connect, show_problem};
use super::task_view::{duration, status};
use crate::cli::{Global, ListArgs};
use crate::exit::{Exit, Failure};
use crate::terminal::{Output, safe};

/// The first of the columns that hold numbers.
const FIRST_NUMBER: usize = 4;

/// Most pages that are looked through for the first task: the server looks through so many tasks for each, and a page
/// without any says little about those behind it.
const MAX_PAGES: u32 = 100;

/// Prints a page of tasks: the first that holds any.
pub(crate) fn run(global: &Global, arguments: &ListArgs, output: &mut Output) -> Result<Exit, Failure> {
    check_labels(&arguments.label)?;
    let client = connect(global, &arguments.connection)?;
    let mut query = query(arguments);
    let page = block_on(async {
        let mut pages = 1;
        loop {
            let page = client.list(&query).await.map_err(|error| show_problem(error, output))?;
            if !page.tasks.is_empty() || page.next_cursor.is_none() || pages == MAX_PAGES {
                return Ok(page);
            }
            query.cursor = page.next_cursor.as_deref().map(str::to_owned);
            pages += 1;
        }
    })?;
    if output.wants_json() {
        output.json_line(&page.json)?;
        return Ok(Exit::Done);
    }
    if page.tasks.is_empty() {
        eprintln!("{}", if page.next_cursor.is_some() { "none so far" } else { "no tasks" });
    } else {
        for line in table(&page.tasks, Utc::now().timestamp_millis()).lines() {
            output.line(line.trim_end())?;
        }
    }
    if let Some(cursor) = &page.next_cursor {
        eprintln!("more with --cursor {}", safe(cursor));
    }
    Ok(Exit::Done)
}

fn query(arguments: &ListArgs) -> TaskQuery {
    TaskQuery {
        status: arguments.status.clone(),
        kind: arguments.kind.clone(),
        class: arguments.class.clone(),
        peer: arguments.peer.clone(),
        workflow_id: arguments.workflow.clone(),
        labels: arguments.label.clone(),
        from: arguments.from,
        to: arguments.to,
        limit: Some(arguments.limit),
        cursor: arguments.cursor.clone(),
    }
}

/// Columns without borders, so that the lines can be cut and sorted by other programs; nothing is wrapped.
fn table(tasks: &[Task], now_ms: i64) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["ID", "KIND", "STATUS", "CLASS", "PRIORITY", "ATTEMPT", "AGE", "WAITED", "RAN"]);
    for task in tasks {
        let time = |ms: Option<i64>| ms.map_or_else(|| "-".to_owned(), duration);
        table.add_row([
            task.id.to_string(),
            safe(&task.kind).into_owned(),
            status(task),
            task.class.to_string(),
            task.priority.to_string(),
            format!("{}/{}", task.attempt, task.max_attempts),
            duration((now_ms - task.enqueued_at.as_ms()).max(0)),
            time(task.queue_wait_ms),
            time(task.run_ms),
        ]);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index >= FIRST_NUMBER {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}
