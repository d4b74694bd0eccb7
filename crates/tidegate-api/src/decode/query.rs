//! Query strings.

use std::time::Duration;

use axum::extract::Query;
use http::Uri;
use tidegate_core::{Class, Kind, PeerName, Status, TaskId};
use tidegate_store::TaskFilter;
use tidegate_wire::{DEFAULT_PAGE, Fault, MAX_WAIT_MS, Timestamp};

use crate::decode::page::{page_limit, read_id};
use crate::decode::submission::{MAX_LABEL_NAME, MAX_LABEL_VALUE, MAX_LABELS, MAX_NAME};
use crate::decode::value::{Bad, check_text};
use crate::rejection::{Rejection, shown};

/// The parameters of a query, each at most once.
pub(super) fn parameters(uri: &Uri) -> Result<Vec<(String, String)>, Rejection> {
    if uri.query().is_none() {
        return Ok(Vec::new());
    }
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|_| Rejection::fault(Fault::InvalidValue, "the query string cannot be read"))?;
    for (at, (name, _)) in pairs.iter().enumerate() {
        if pairs[..at].iter().any(|(before, _)| before == name) {
            let detail = format!("{} is there twice", shown(name));
            return Err(Rejection::fault(Fault::DuplicateField, detail).at_parameter(name.clone()));
        }
    }
    Ok(pairs)
}

pub(super) fn unknown(name: String) -> Rejection {
    Rejection::fault(Fault::UnknownField, format!("the query parameter {} is not known", shown(&name)))
        .at_parameter(name)
}

/// Refuses a query where none is known: whoever sent one relies on it.
pub(crate) fn no_parameters(uri: &Uri) -> Result<(), Rejection> {
    match parameters(uri)?.into_iter().next() {
        Some((name, _)) => Err(unknown(name)),
        None => Ok(()),
    }
}

/// How long to wait for a task's end: `wait_ms`, capped at a minute.
pub(crate) fn wait(uri: &Uri) -> Result<Option<Duration>, Rejection> {
    let mut wait = None;
    for (name, value) in parameters(uri)? {
        match name.as_str() {
            "wait_ms" => {
                let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
                if !digits {
                    return Err(Bad::value("must be a whole number of milliseconds").at_parameter("wait_ms"));
                }
                wait = Some(Duration::from_millis(value.parse().unwrap_or(u64::MAX).min(MAX_WAIT_MS)));
            }
            _ => return Err(unknown(name)),
        }
    }
    Ok(wait.filter(|wait| !wait.is_zero()))
}

/// The filter of a listing.
pub(crate) fn filter(uri: &Uri) -> Result<TaskFilter, Rejection> {
    let mut filter = TaskFilter { limit: DEFAULT_PAGE, ..TaskFilter::default() };
    for (name, value) in parameters(uri)? {
        match set(&mut filter, &name, value) {
            Ok(true) => {}
            Ok(false) => return Err(unknown(name)),
            Err(bad) => return Err(bad.at_parameter(&name)),
        }
    }
    Ok(filter)
}

/// Sets one part of the filter. Returns whether the parameter is known.
fn set(filter: &mut TaskFilter, name: &str, value: String) -> Result<bool, Bad> {
    match name {
        "status" => {
            filter.status = Some(Status::parse(&value).ok_or_else(|| Bad::value("must be a status, such as QUEUED"))?);
        }
        "class" => {
            let bad = || Bad::value("must be critical, standard or background");
            filter.class = Some(Class::parse(&value).ok_or_else(bad)?);
        }
        "kind" => filter.kind = Some(Kind::parse(&value).map_err(|bad| Bad::value(bad.to_string()))?),
        "peer" => filter.peer = Some(PeerName::parse(&value).map_err(|bad| Bad::value(bad.to_string()))?),
        "workflow_id" => {
            check_text(&value, 1..=MAX_NAME)?;
            filter.workflow_id = Some(value);
        }
        "from" => filter.from_ms = Some(instant(&value)?),
        "to" => filter.to_ms = Some(instant(&value)?),
        "limit" => filter.limit = page_limit(&value)?,
        "cursor" => {
            filter.before = Some(TaskId(read_id(&value)?));
        }
        _ => match name.strip_prefix("label.") {
            Some(label) => {
                if filter.labels.len() == MAX_LABELS {
                    return Err(Bad::value(format!("makes more than {MAX_LABELS} labels")));
                }
                check_text(label, 1..=MAX_LABEL_NAME)?;
                check_text(&value, 0..=MAX_LABEL_VALUE)?;
                filter.labels.push((label.to_owned(), value));
            }
            None => return Ok(false),
        },
    }
    Ok(true)
}

fn instant(text: &str) -> Result<i64, Bad> {
    Timestamp::parse(text).map(Timestamp::as_ms).map_err(|bad| Bad::value(bad.to_string()))
}
