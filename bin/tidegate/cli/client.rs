//! The options of what talks to a server.

use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::Args;
use tidegate_core::{Class, Priority};

use super::{Wait, duration};

/// Options of every command that talks to a server.
#[derive(Debug, Clone, Args)]
pub(crate) struct Connection {
    /// Act for this tenant: without a key on loopback, or with an admin's key.
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
}

/// `submit`.
#[derive(Debug, Args)]
pub(crate) struct SubmitArgs {
    /// What sort of work.
    pub(crate) kind: String,
    /// The input as JSON, or - to read it from standard input; null where nothing is said.
    #[arg(value_name = "JSON|-")]
    pub(crate) payload: Option<String>,
    /// How much it matters: 0 to 100, higher first, or critical, standard, background.
    #[arg(long, value_name = "N|CLASS", value_parser = parse_priority)]
    pub(crate) priority: Option<AskedPriority>,
    /// From arrival (or its start) to its end, as in 500ms, 30s, 5m; a number alone is milliseconds.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) timeout: Option<Duration>,
    /// When it must have ended: RFC 3339, or milliseconds since 1970.
    #[arg(long, value_name = "INSTANT", value_parser = parse_instant)]
    pub(crate) deadline: Option<DateTime<Utc>>,
    /// Start it so much later.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "not_before")]
    pub(crate) delay: Option<Duration>,
    /// Start it at this instant: RFC 3339, or milliseconds since 1970.
    #[arg(long, value_name = "INSTANT", value_parser = parse_instant)]
    pub(crate) not_before: Option<DateTime<Utc>>,
    /// The least time that must be left for a start to make sense.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) min_useful: Option<Duration>,
    /// Wait until it ends, or so many seconds at most: --wait, --wait 10, --wait 500ms. One that still runs then is no
    /// failure.
    #[arg(long, value_name = "SECONDS", require_equals = true)]
    pub(crate) wait: Option<Wait>,
    /// The same key again gives the same task again.
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    /// The group of tasks that it can be cancelled with.
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// The workflow it belongs to.
    #[arg(long, value_name = "ID")]
    pub(crate) workflow: Option<String>,
    /// The task that starts it.
    #[arg(long, value_name = "TASK")]
    pub(crate) parent: Option<String>,
    /// A label; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub(crate) label: Vec<(String, String)>,
    /// The dependency that it calls.
    #[arg(long, value_name = "NAME")]
    pub(crate) peer: Option<String>,
    /// Model tokens that it is thought to use.
    #[arg(long, value_name = "N")]
    pub(crate) cost_tokens: Option<u64>,
    /// Money that it is thought to use, in millionths of a dollar.
    #[arg(long, value_name = "N")]
    pub(crate) cost_usd_micros: Option<u64>,
    /// Failures before it ends FAILED.
    #[arg(long, value_name = "N")]
    pub(crate) max_attempts: Option<u16>,
    /// The longest one attempt may take.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) attempt_timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// A priority as a number or by the name of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskedPriority {
    /// 0 to 100.
    Number(Priority),
    /// The lowest of a class.
    Class(Class),
}

/// `get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The task.
    pub(crate) id: String,
    /// Wait until it ends, or so many seconds at most: --wait, --wait 10, --wait 500ms. One that still runs then is no
    /// failure.
    #[arg(long, value_name = "SECONDS", require_equals = true)]
    pub(crate) wait: Option<Wait>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// `explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The task.
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only tasks of this status, as in QUEUED.
    #[arg(long)]
    pub(crate) status: Option<String>,
    /// Only tasks of this kind.
    #[arg(long)]
    pub(crate) kind: Option<String>,
    /// Only tasks of this class.
    #[arg(long)]
    pub(crate) class: Option<String>,
    /// Only tasks that call this peer.
    #[arg(long)]
    pub(crate) peer: Option<String>,
    /// Only tasks of this workflow.
    #[arg(long)]
    pub(crate) workflow: Option<String>,
    /// Only tasks with this label; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub(crate) label: Vec<(String, String)>,
    /// Only tasks that arrived at this instant or later.
    #[arg(long, value_name = "INSTANT", value_parser = parse_instant)]
    pub(crate) from: Option<DateTime<Utc>>,
    /// Only tasks that arrived before this instant.
    #[arg(long, value_name = "INSTANT", value_parser = parse_instant)]
    pub(crate) to: Option<DateTime<Utc>>,
    /// So many at most.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub(crate) limit: u16,
    /// Go on where the list before ended.
    #[arg(long)]
    pub(crate) cursor: Option<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// `cancel`.
#[derive(Debug, Args)]
#[group(id = "what", required = true, multiple = false, args = ["id", "token", "workflow"])]
pub(crate) struct CancelArgs {
    /// The task.
    pub(crate) id: Option<String>,
    /// All tasks with this cancellation token, and those that arrive with it within a day.
    #[arg(long)]
    pub(crate) token: Option<String>,
    /// All tasks of this workflow.
    #[arg(long)]
    pub(crate) workflow: Option<String>,
    /// Why; kept with the task.
    #[arg(long, requires = "id")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

fn parse_priority(text: &str) -> Result<AskedPriority, String> {
    if let Some(class) = Class::parse(text) {
        return Ok(AskedPriority::Class(class));
    }
    let number = text.parse::<i64>().ok().and_then(|number| Priority::new(number).ok());
    number.map(AskedPriority::Number).ok_or_else(|| "must be 0 to 100, or critical, standard or background".to_owned())
}

pub(super) fn parse_instant(text: &str) -> Result<DateTime<Utc>, String> {
    let bad = || "must be as in 2030-01-31T12:00:00Z, or milliseconds since 1970".to_owned();
    if let Ok(millis) = text.parse::<i64>() {
        return DateTime::from_timestamp_millis(millis).ok_or_else(bad);
    }
    DateTime::parse_from_rfc3339(text).map(|instant| instant.to_utc()).map_err(|_| bad())
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be of the form key=value".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_numbers_or_classes() {
        assert_eq!(parse_priority("critical"), Ok(AskedPriority::Class(Class::Critical)));
        assert_eq!(parse_priority("100"), Ok(AskedPriority::Number(Priority::MAX)));
        for bad in ["101", "-1", "urgent", "", "1.5"] {
            assert!(parse_priority(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn instants_and_labels_are_parsed_or_refused() {
        let millis = |text| parse_instant(text).map(|instant| instant.timestamp_millis());
        assert_eq!(millis("1790000000123"), Ok(1_790_000_000_123));
        assert_eq!(millis("2026-09-21T13:33:20+00:00"), Ok(1_789_997_600_000));
        assert!(parse_instant("tomorrow").is_err());
        assert_eq!(parse_label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(parse_label("a="), Ok(("a".to_owned(), String::new())));
        assert!(parse_label("a").is_err());
        assert!(parse_label("=b").is_err());
    }
}
