//! `tidegate config`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use tidegate_core::policy::Policy;
use tidegate_store::{Store, StoreError, StoreOptions};
use tidegate_wire::Pause;

use super::client::block_on;
use super::policy::{flat, shown};
use crate::cli::ConfigArgs;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::roles::named_database;
use crate::terminal::{Output, safe};

/// Prints the configuration that is in effect. Secrets replace themselves. Where a database is named and answers, what
/// it has in effect is shown too: it wins.
pub(crate) fn run(config: &Config, arguments: &ConfigArgs, output: &mut Output) -> Result<Exit, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::other("cannot print the configuration", error);
    let stored = match named_database(config, &arguments.database)? {
        Some(url) => read_policy(url.reveal()),
        None => None,
    };
    if output.wants_json() {
        let mut whole = serde_json::to_value(config).map_err(|error| failed(&error))?;
        if let (Some(stored), Value::Object(whole)) = (&stored, &mut whole) {
            whole.insert("in_effect".to_owned(), in_effect(stored));
        }
        output.json_line(&serde_json::to_string_pretty(&whole).map_err(|error| failed(&error))?)?;
        return Ok(Exit::Done);
    }
    let text = toml::to_string_pretty(config).map_err(|error| failed(&error))?;
    for line in text.lines() {
        output.line(&safe(line))?;
    }
    if let Some(stored) = stored {
        output.line("")?;
        for line in differences(config, &stored) {
            output.line(&safe(&line))?;
        }
    }
    Ok(Exit::Done)
}

/// What the database has in effect; `None`, said on standard error, where it does not tell.
fn read_policy(url: &str) -> Option<Policy> {
    let read = block_on(async {
        let store = Store::open(StoreOptions::new(url));
        let policy = match store {
            Ok(store) => store.read_policy().await,
            Err(error) => Err(error),
        };
        Ok(policy.map(|policy| (*policy).clone()))
    });
    match read {
        Ok(Ok(policy)) => return Some(policy),
        Ok(Err(StoreError::Schema(_))) => {
            eprintln!("tidegate: the database has no limits of its own yet: this is what it starts with");
        }
        Ok(Err(error)) => eprintln!("tidegate: this is what the files say; what the database has may differ: {error}"),
        Err(failure) => eprintln!("tidegate: {failure}"),
    }
    None
}

/// The parts of the policy, under the names that the configuration has for them.
fn in_effect(policy: &Policy) -> Value {
    let tenants: BTreeMap<_, _> =
        policy.tenants.iter().map(|(name, tenant)| (name.clone(), tenant.clone().shown())).collect();
    json!({
        "revision": policy.revision,
        "limits": policy.limits,
        "tenants": tenants,
        "peers": policy.peers,
        "pauses": policy.pauses.iter().map(Pause::from).collect::<Vec<_>>(),
    })
}

/// What the database has in effect beside what the files say, as comments of the TOML.
fn differences(config: &Config, policy: &Policy) -> Vec<String> {
    let files = json!({ "limits": config.limits, "tenants": config.tenants, "peers": config.peers });
    let stored = json!({ "limits": policy.limits, "tenants": policy.tenants, "peers": policy.peers });
    let (files, stored) = (leaves(&files), leaves(&stored));
    let keys: BTreeSet<_> = files.keys().chain(stored.keys()).collect();
    let differing = keys.into_iter().filter(|key| files.get(*key) != stored.get(*key)).map(|key| {
        let of =
            |leaves: &Map<String, Value>| leaves.get(key).map_or("not there".to_owned(), |value| shown(Some(value)));
        format!("# {key}: {} (the files: {})", of(&stored), of(&files))
    });
    let differing: Vec<_> = differing.collect();
    let mut lines = match differing.is_empty() {
        true => vec!["# The database has the same limits, tenants and peers in effect.".to_owned()],
        false => vec!["# What the database has in effect, and wins:".to_owned()],
    };
    lines.extend(differing);
    for pause in &policy.pauses {
        let (member, value) = pause.target.parts();
        lines.push(format!("# paused: {member} {value} ({})", pause.mode.as_str()));
    }
    lines
}

fn leaves(value: &Value) -> Map<String, Value> {
    flat(value).into_iter().map(|(key, value)| (key, value.clone())).collect()
}
