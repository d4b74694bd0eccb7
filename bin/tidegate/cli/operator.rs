//! The options of what operators change while a cell runs, and of `size`.

use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use serde_json::{Map, Value};
use tidegate_core::pause::PauseTarget;
use tidegate_core::{Class, Kind, PeerName, TenantId};

use super::client::parse_instant;
use super::{Database, duration};

/// `config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    pub(crate) database: Database,
}

/// `limits`.
#[derive(Debug, Args)]
pub(crate) struct LimitsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<LimitsCommand>,
}

/// What to do with the limits of the cell.
#[derive(Debug, Subcommand)]
pub(crate) enum LimitsCommand {
    /// Show the limits that are in effect.
    Get,
    /// Change limits, as in max_queued=5000 classes.standard.max_running=8 max_tokens=none.
    Set {
        /// Keys and their new values; none is no limit, or the default where there has to be one.
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = parse_setting)]
        settings: Vec<Setting>,
    },
    /// Change limits by a JSON merge patch in which null is no limit, or the default where there has to be one.
    Patch {
        /// The patch.
        #[arg(value_name = "JSON", value_parser = parse_patch)]
        patch: Value,
    },
}

/// `tenant` and `peer`.
#[derive(Debug, Args)]
pub(crate) struct NamedArgs {
    #[command(subcommand)]
    pub(crate) command: NamedCommand,
}

/// What to do with tenants or peers.
#[derive(Debug, Subcommand)]
pub(crate) enum NamedCommand {
    /// List those that are configured or hold anything, by name.
    List {
        /// So many at most.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
        limit: u16,
        /// Go on where the list before ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show the limits of one, and what it holds.
    Get {
        /// Its name.
        name: String,
    },
    /// Change the limits of one, configured before or not, as in max_waiting=100 max_in_flight=none for a peer, or
    /// max_queued=5000 trusted_labels=team,safety for a tenant.
    Set {
        /// Its name.
        name: String,
        /// Keys and their new values; none is no limit, or the default where there has to be one. A list is JSON, or
        /// names with commas between them.
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = parse_setting)]
        settings: Vec<Setting>,
    },
    /// Change the limits of one by a JSON merge patch in which null is no limit, or the default where there has to be one.
    Patch {
        /// Its name.
        name: String,
        /// The patch.
        #[arg(value_name = "JSON", value_parser = parse_patch)]
        patch: Value,
    },
    /// Take all limits from one, those of the configuration file too.
    Delete {
        /// Its name.
        name: String,
    },
}

/// The key whose value is a list of names.
const LABELS: &str = "trusted_labels";

/// A dotted key and its new value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Setting {
    key: Vec<String>,
    value: Value,
}

/// The merge patch that these settings make together.
pub(crate) fn patch_of(settings: &[Setting]) -> Result<Value, String> {
    let mut patch = Map::new();
    for setting in settings {
        insert(&mut patch, &setting.key, &setting.value)
            .ok_or_else(|| format!("{} is said twice, or as part of another", setting.key.join(".")))?;
    }
    Ok(Value::Object(patch))
}

fn insert(into: &mut Map<String, Value>, key: &[String], value: &Value) -> Option<()> {
    let (first, rest) = key.split_first()?;
    if rest.is_empty() {
        return into.insert(first.clone(), value.clone()).is_none().then_some(());
    }
    insert(into.entry(first).or_insert_with(|| Value::Object(Map::new())).as_object_mut()?, rest, value)
}

fn parse_setting(text: &str) -> Result<Setting, String> {
    let bad = || "must be of the form key=value, as in max_queued=5000 or classes.critical.reserve=0.2".to_owned();
    let (key, value) = text.split_once('=').ok_or_else(bad)?;
    let key: Vec<_> = key.split('.').map(str::to_owned).collect();
    if key.iter().any(String::is_empty) {
        return Err(bad());
    }
    // What is no JSON is text: names need no quotes.
    let value = match value {
        "none" => Value::Null,
        value if key == [LABELS] => names(value),
        value => serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned())),
    };
    Ok(Setting { key, value })
}

/// A list of names: as JSON, or with commas between them.
fn names(value: &str) -> Value {
    match serde_json::from_str(value) {
        Ok(list @ Value::Array(_)) => list,
        Ok(Value::String(name)) => vec![name].into(),
        _ => value.split(',').map(str::trim).filter(|name| !name.is_empty()).collect(),
    }
}

fn parse_patch(text: &str) -> Result<Value, String> {
    let patch: Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
    if patch.is_object() { Ok(patch) } else { Err("must be a JSON object".to_owned()) }
}

/// What a pause stops; one of these.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Paused {
    /// Every task of a kind.
    #[arg(long, value_parser = parse_kind)]
    pub(crate) kind: Option<Kind>,
    /// Every task of a class.
    #[arg(long, value_parser = parse_class)]
    pub(crate) class: Option<Class>,
    /// Every task of a tenant.
    #[arg(long, value_parser = parse_tenant)]
    pub(crate) tenant: Option<TenantId>,
    /// Every task that calls a peer.
    #[arg(long, value_parser = parse_peer)]
    pub(crate) peer: Option<PeerName>,
}

impl Paused {
    /// What is meant.
    pub(crate) fn target(&self) -> Option<PauseTarget> {
        let kind = self.kind.clone().map(PauseTarget::Kind);
        let class = self.class.map(PauseTarget::Class);
        let tenant = self.tenant.clone().map(PauseTarget::Tenant);
        let peer = self.peer.clone().map(PauseTarget::Peer);
        kind.or(class).or(tenant).or(peer)
    }
}

/// `pause`.
#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    pub(crate) paused: Paused,
    /// Refuse submissions meanwhile; where nothing is said they queue.
    #[arg(long)]
    pub(crate) refuse: bool,
    /// End it by itself after so long, as in 10m.
    #[arg(long = "for", value_name = "TIME", value_parser = duration::parse, conflicts_with = "until")]
    pub(crate) lasting: Option<Duration>,
    /// End it by itself at this instant: RFC 3339, or milliseconds since 1970.
    #[arg(long, value_name = "INSTANT", value_parser = parse_instant)]
    pub(crate) until: Option<DateTime<Utc>>,
    /// Why, for whoever finds it.
    #[arg(long)]
    pub(crate) reason: Option<String>,
}

/// `resume`.
#[derive(Debug, Args)]
#[group(id = "resumed", required = true, multiple = false, args = ["id", "kind", "class", "tenant", "peer"])]
pub(crate) struct ResumeArgs {
    /// The pause, as `pauses` shows it.
    pub(crate) id: Option<String>,
    /// All pauses of a kind.
    #[arg(long, value_parser = parse_kind)]
    kind: Option<Kind>,
    /// All pauses of a class.
    #[arg(long, value_parser = parse_class)]
    class: Option<Class>,
    /// All pauses of a tenant.
    #[arg(long, value_parser = parse_tenant)]
    tenant: Option<TenantId>,
    /// All pauses of a peer.
    #[arg(long, value_parser = parse_peer)]
    peer: Option<PeerName>,
}

impl ResumeArgs {
    /// What the pauses to end have stopped, where they were not named themselves.
    pub(crate) fn target(&self) -> Option<PauseTarget> {
        let Self { kind, class, tenant, peer, .. } = self;
        Paused { kind: kind.clone(), class: *class, tenant: tenant.clone(), peer: peer.clone() }.target()
    }
}

fn parse_kind(text: &str) -> Result<Kind, String> {
    Kind::parse(text).map_err(|bad| bad.to_string())
}

fn parse_class(text: &str) -> Result<Class, String> {
    Class::parse(text).ok_or_else(|| "must be critical, standard or background".to_owned())
}

fn parse_tenant(text: &str) -> Result<TenantId, String> {
    TenantId::parse(text).map_err(|bad| bad.to_string())
}

fn parse_peer(text: &str) -> Result<PeerName, String> {
    PeerName::parse(text).map_err(|bad| bad.to_string())
}

/// `size`.
#[derive(Debug, Args)]
pub(crate) struct SizeArgs {
    /// Tasks that arrive in a second.
    #[arg(long, value_name = "N")]
    pub(crate) rate: f64,
    /// How long one runs, on average, in milliseconds.
    #[arg(long, value_name = "MS")]
    pub(crate) run_ms: f64,
    /// The slots there are; those that are needed, where nothing is said.
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<u32>,
    /// The wait in the queue that you accept, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1_000.0)]
    pub(crate) wait_ms: f64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patch(settings: &[&str]) -> Result<Value, String> {
        let settings: Result<Vec<_>, _> = settings.iter().map(|setting| parse_setting(setting)).collect();
        patch_of(&settings?)
    }

    #[test]
    fn settings_make_one_patch() {
        let said =
            ["max_queued=5", "classes.critical.reserve=0.2", "classes.critical.max_queued=none", "a=x y", "b=[\"q\"]"];
        let expected = json!({
            "max_queued": 5, "classes": {"critical": {"reserve": 0.2, "max_queued": null}}, "a": "x y", "b": ["q"]
        });
        assert_eq!(patch(&said), Ok(expected));
        for bad in [&["max_queued"][..], &["=1"], &["a..b=1"], &["a=1", "a=2"], &["a=1", "a.b=2"], &["a.b=1", "a=2"]] {
            assert!(patch(bad).is_err(), "{bad:?}");
        }
        for (said, labels) in [
            ("a,b", json!(["a", "b"])),
            ("a, b,", json!(["a", "b"])),
            ("a", json!(["a"])),
            ("7", json!(["7"])),
            ("1,true", json!(["1", "true"])),
            ("[\"a,b\", \"c\"]", json!(["a,b", "c"])),
            ("\"a,b\"", json!(["a,b"])),
            ("", json!([])),
            ("none", Value::Null),
        ] {
            assert_eq!(patch(&[&format!("trusted_labels={said}")]), Ok(json!({"trusted_labels": labels})));
        }
        assert_eq!(patch(&["a=x,y"]), Ok(json!({"a": "x,y"})), "only where names are meant");
        assert!(parse_patch("[]").is_err() && parse_patch("{").is_err() && parse_patch("{}").is_ok());
    }
}
