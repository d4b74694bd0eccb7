//! `tidegate audit`.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use tidegate_client::AuditEntry;

use super::client::{block_on, connect_as_operator, show_problem};
use super::policy::{flat, plain_table, print, shown};
use crate::cli::{AuditArgs, Global};
use crate::exit::{Exit, Failure};
use crate::terminal::{Output, safe};

/// Lists what operators changed, newest first.
pub(crate) fn run(global: &Global, arguments: &AuditArgs, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect_as_operator(global)?;
    block_on(async {
        let page = client.audit(arguments.limit, arguments.cursor.as_deref()).await;
        let page = page.map_err(|error| show_problem(error, output))?;
        if output.wants_json() {
            output.json_line(&page.json)?;
            return Ok(Exit::Done);
        }
        if page.entries.is_empty() {
            eprintln!("nothing was changed");
        } else {
            let mut table = plain_table();
            table.set_header(["AT", "ACTOR", "ACTION", "TARGET", "CHANGE"]);
            for entry in &page.entries {
                table.add_row([
                    entry.at.to_string(),
                    safe(&entry.actor).into_owned(),
                    safe(&entry.action).into_owned(),
                    entry.target.as_deref().map_or_else(|| "-".to_owned(), |target| safe(target).into_owned()),
                    differences(entry),
                ]);
            }
            print(&table, output)?;
        }
        if let Some(cursor) = &page.next_cursor {
            eprintln!("more with --cursor {}", safe(cursor));
        }
        Ok(Exit::Done)
    })
}

/// The keys that differ, as in `max_queued: 5 → 7`.
fn differences(entry: &AuditEntry) -> String {
    let document = |raw: Option<&str>| raw.and_then(|raw| serde_json::from_str::<Value>(raw).ok()).unwrap_or_default();
    let before = document(entry.before.as_deref().map(|raw| raw.get()));
    let after = document(entry.after.as_deref().map(|raw| raw.get()));
    let leaves = |value: &Value| match value {
        Value::Object(_) => flat(value).into_iter().map(|(key, value)| (key, value.clone())).collect(),
        _ => Map::new(),
    };
    let (before, after) = (leaves(&before), leaves(&after));
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differing = keys
        .into_iter()
        .filter(|key| before.get(*key) != after.get(*key))
        .map(|key| format!("{}: {} → {}", safe(key), shown(before.get(key)), shown(after.get(key))));
    let differing: Vec<_> = differing.collect();
    if differing.is_empty() { "-".to_owned() } else { differing.join(", ") }
}
