//! `tidegate explain`.

use tidegate_client::{Answer, Explanation};

use super::client::{block_on, connect, show_problem, task_id};
use super::policy::{plain_table, print};
use super::task_view::duration;
use crate::cli::{ExplainArgs, Global};
use crate::exit::{Exit, Failure};
use crate::terminal::{Output, safe};

/// Tells why a task stands where it stands.
pub(crate) fn run(global: &Global, arguments: &ExplainArgs, output: &mut Output) -> Result<Exit, Failure> {
    let id = task_id(&arguments.id)?;
    let client = connect(global, &arguments.connection)?;
    block_on(async {
        let told = client.explain(id).await.map_err(|error| show_problem(error, output))?;
        show(&told, output)?;
        Ok(Exit::Done)
    })
}

/// The server's JSON, or the sentence and what it is made of.
fn show(told: &Answer<Explanation>, output: &mut Output) -> Result<(), Failure> {
    if output.wants_json() {
        return output.json_line(&told.json);
    }
    output.line(&safe(&told.summary))?;
    if let Some(ms) = told.estimated_start_ms {
        output.line(&format!("It is expected to start in {}.", duration(ms)))?;
    }
    if told.blockers.is_empty() {
        return Ok(());
    }
    output.line("")?;
    let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let mut table = plain_table();
    table.set_header(["WAITS FOR", "NAME", "IN USE", "LIMIT", "UNTIL"]);
    for blocker in &told.blockers {
        table.add_row([
            safe(&blocker.kind).into_owned(),
            blocker.name.as_deref().map_or_else(|| "-".to_owned(), |name| safe(name).into_owned()),
            number(blocker.in_use),
            number(blocker.limit),
            blocker.until.map_or_else(|| "-".to_owned(), |until| until.to_string()),
        ]);
    }
    print(&table, output)
}
