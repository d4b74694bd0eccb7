//! `tidegate limits`, `tenant` and `peer`.

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;
use tidegate_client::{Answer, Client, Named};

use super::client::{block_on, connect_as_operator, show_problem};
use crate::cli::{Global, LimitsArgs, LimitsCommand, NamedArgs, NamedCommand, Setting, patch_of};
use crate::exit::{Exit, Failure};
use crate::terminal::{Output, safe};

/// Shows or changes the limits of the cell.
pub(crate) fn limits(global: &Global, arguments: &LimitsArgs, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect_as_operator(global)?;
    block_on(async {
        let answer = match &arguments.command {
            None | Some(LimitsCommand::Get) => client.limits().await,
            Some(LimitsCommand::Set { settings }) => client.patch_limits(&patch(settings)?).await,
            Some(LimitsCommand::Patch { patch }) => client.patch_limits(patch).await,
        };
        show(&answer.map_err(|error| show_problem(error, output))?, output)?;
        Ok(Exit::Done)
    })
}

/// Lists, shows or changes tenants or peers.
pub(crate) fn named(global: &Global, what: Named, arguments: &NamedArgs, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect_as_operator(global)?;
    block_on(async {
        let answer = match &arguments.command {
            NamedCommand::List { limit, cursor } => {
                return list(&client, what, *limit, cursor.as_deref(), output).await;
            }
            NamedCommand::Delete { name } => {
                client.delete_named(what, name).await.map_err(|error| show_problem(error, output))?;
                return Ok(Exit::Done);
            }
            NamedCommand::Get { name } => client.get_named(what, name).await,
            NamedCommand::Set { name, settings } => client.patch_named(what, name, &patch(settings)?).await,
            NamedCommand::Patch { name, patch } => client.patch_named(what, name, patch).await,
        };
        show(&answer.map_err(|error| show_problem(error, output))?, output)?;
        Ok(Exit::Done)
    })
}

fn patch(settings: &[Setting]) -> Result<Value, Failure> {
    patch_of(settings).map_err(Failure::Usage)
}

async fn list(
    client: &Client,
    what: Named,
    limit: u16,
    cursor: Option<&str>,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let page = client.list_named(what, limit, cursor).await.map_err(|error| show_problem(error, output))?;
    if output.wants_json() {
        output.json_line(&page.json)?;
        return Ok(Exit::Done);
    }
    let columns: &[&str] = match what {
        Named::Tenant => &["weight", "max_queued", "max_running", "rate_per_minute", "usage.queued", "usage.running"],
        Named::Peer => &[
            "max_in_flight",
            "max_waiting",
            "max_wait_ms",
            "requests_per_minute",
            "tokens_per_minute",
            "usage.in_flight",
            "usage.waiting",
        ],
    };
    let items = page[what.plural()].as_array().map_or(&[][..], Vec::as_slice);
    if items.is_empty() {
        eprintln!("no {}", what.plural());
    } else {
        let mut table = plain_table();
        let heads = columns.iter().map(|column| column.trim_start_matches("usage.").to_uppercase());
        table.set_header(["NAME".to_owned()].into_iter().chain(heads));
        for item in items {
            let cell = |column: &&str| shown(item.pointer(&format!("/{}", column.replace('.', "/"))));
            table.add_row([shown(item.get("name"))].into_iter().chain(columns.iter().map(cell)));
        }
        print(&table, output)?;
    }
    if let Some(cursor) = page["next_cursor"].as_str() {
        eprintln!("more with --cursor {}", safe(cursor));
    }
    Ok(Exit::Done)
}

/// An object as its JSON, or as dotted keys and values for people.
fn show(answer: &Answer<Value>, output: &mut Output) -> Result<(), Failure> {
    if output.wants_json() {
        return output.json_line(&answer.json);
    }
    let mut table = plain_table();
    for (key, value) in flat(&answer.value) {
        table.add_row([safe(&key).into_owned(), shown(Some(value))]);
    }
    print(&table, output)
}

/// The leaves of an object, by their dotted keys. A schema is a leaf.
pub(super) fn flat(value: &Value) -> Vec<(String, &Value)> {
    let mut leaves = Vec::new();
    gather(value, "", &mut leaves);
    leaves
}

fn gather<'a>(value: &'a Value, above: &str, into: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(members) if above != "result_schema" => {
            for (name, value) in members {
                gather(value, &if above.is_empty() { name.clone() } else { format!("{above}.{name}") }, into);
            }
        }
        leaf => into.push((above.to_owned(), leaf)),
    }
}

/// A value for people: no limit is a dash.
pub(super) fn shown(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => safe(text).into_owned(),
        Some(Value::Array(items)) if items.is_empty() => "-".to_owned(),
        Some(Value::Array(items)) => items.iter().map(|item| shown(Some(item))).collect::<Vec<_>>().join(","),
        Some(other) => safe(&other.to_string()).into_owned(),
    }
}

/// Columns without borders, so that the lines can be cut and sorted by other programs; nothing is wrapped.
pub(super) fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// Prints such a table.
pub(super) fn print(table: &Table, output: &mut Output) -> Result<(), Failure> {
    let mut table = table.clone();
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    for line in table.to_string().lines() {
        output.line(line.trim_end())?;
    }
    Ok(())
}
