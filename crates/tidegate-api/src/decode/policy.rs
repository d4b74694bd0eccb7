//! What operators send: changes of limits, and pauses.

use http::Uri;
use serde_json::{Map, Value};
use tidegate_core::pause::{MAX_REASON_BYTES, PauseMode, PauseTarget};
use tidegate_core::{Class, EpochMs, Kind, PeerName, TenantId};
use tidegate_wire::{DEFAULT_PAGE, Fault, MAX_PAGE, Timestamp};
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use crate::decode::members::{Members, array, duplicate, pointer_to, unknown};
use crate::decode::query::parameters;
use crate::decode::value::{Bad, check_text, string};
use crate::rejection::Rejection;

/// A merge patch of the object with this name, as a value. A name in it has to be that name: objects are sent back as
/// they were read, but are not renamed. What each member may be is for the object to say.
pub(crate) fn change(document: &str, name: Option<&str>) -> Result<Value, Rejection> {
    let mut change = whole(document.trim_ascii(), "")?;
    if let (Some(name), Value::Object(members)) = (name, &mut change)
        && let Some(given) = members.shift_remove("name")
        && given != name
    {
        return Err(Bad::value("must be the name in the path, or absent").at("/name".to_owned()));
    }
    Ok(change)
}

/// A JSON value, without white space around it, of which no object has a member twice. Its depth has been checked.
fn whole(text: &str, pointer: &str) -> Result<Value, Rejection> {
    match text.as_bytes().first() {
        Some(b'{') => {
            let mut object = Map::new();
            for (name, value) in Members::of(text, pointer)?.iter() {
                let value = whole(value.get(), &pointer_to(pointer, name))?;
                if object.insert(name.to_owned(), value).is_some() {
                    return Err(duplicate(pointer, name));
                }
            }
            Ok(Value::Object(object))
        }
        Some(b'[') => {
            let items = array(text).map_err(|bad| bad.at(pointer.to_owned()))?;
            let items = items.into_iter().enumerate().map(|(n, item)| whole(item.get(), &format!("{pointer}/{n}")));
            items.collect::<Result<_, _>>().map(Value::Array)
        }
        _ => {
            serde_json::from_str(text).map_err(|_| Bad::value("is a number that cannot be kept").at(pointer.to_owned()))
        }
    }
}

/// A pause to make.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WantedPause {
    pub(crate) target: PauseTarget,
    pub(crate) mode: PauseMode,
    pub(crate) until: Option<EpochMs>,
    pub(crate) reason: Option<String>,
}

/// The pause that a body asks for.
pub(crate) fn pause(document: &str) -> Result<WantedPause, Rejection> {
    let mut seen: Vec<String> = Vec::new();
    let mut targets = Vec::new();
    let (mut mode, mut until, mut reason) = (PauseMode::Hold, None, None);
    for (name, raw) in Members::of(document, "")?.iter() {
        let at = |bad: Bad| bad.at(pointer_to("", name));
        if seen.iter().any(|before| before == name) {
            return Err(duplicate("", name));
        }
        seen.push(name.to_owned());
        if !matches!(name, "kind" | "class" | "tenant" | "peer" | "mode" | "until" | "reason") {
            return Err(unknown("", name));
        }
        if raw.get() == "null" {
            continue;
        }
        let text = string(raw).map_err(at)?;
        match name {
            "mode" => mode = PauseMode::parse(&text).ok_or_else(|| at(Bad::value("must be hold or refuse")))?,
            "until" => until = Some(Timestamp::parse(&text).map_err(|bad| at(named(bad)))?.as_ms()),
            "reason" => {
                check_text(&text, 0..=MAX_REASON_BYTES).map_err(at)?;
                reason = Some(text.into_owned()).filter(|reason| !reason.is_empty());
            }
            _ => targets.push((name.to_owned(), target(name, &text).map_err(at)?)),
        }
    }
    let mut targets = targets.into_iter();
    let bad = |pointer| Bad::value("must be there alone: one of kind, class, tenant and peer").at(pointer);
    let (_, target) = targets.next().ok_or_else(|| {
        Rejection::fault(Fault::MissingField, "one of kind, class, tenant and peer is missing")
            .at_pointer("".to_owned())
    })?;
    match targets.next() {
        Some((second, _)) => Err(bad(format!("/{second}"))),
        None => Ok(WantedPause { target, mode, until, reason }),
    }
}

fn target(member: &str, text: &str) -> Result<PauseTarget, Bad> {
    match member {
        "kind" => Kind::parse(text).map(PauseTarget::Kind).map_err(named),
        "tenant" => TenantId::parse(text).map(PauseTarget::Tenant).map_err(named),
        "peer" => PeerName::parse(text).map(PauseTarget::Peer).map_err(named),
        _ => Class::parse(text)
            .map(PauseTarget::Class)
            .ok_or_else(|| Bad::value("must be critical, standard or background")),
    }
}

fn named(bad: impl std::fmt::Display) -> Bad {
    Bad::value(bad.to_string())
}

/// A page of names: how many, and after which.
pub(crate) fn name_page(uri: &Uri) -> Result<(Option<String>, u16), Rejection> {
    let (mut after, mut limit) = (None, DEFAULT_PAGE);
    for (name, value) in parameters(uri)? {
        match name.as_str() {
            "limit" => limit = page_limit(&value).map_err(|bad| bad.at_parameter(&name))?,
            "cursor" => {
                let known = TenantId::parse(&value).ok();
                let bad = || Bad::value("must be a next_cursor as it was given").at_parameter(&name);
                after = Some(known.ok_or_else(bad)?.as_str().to_owned());
            }
            _ => return Err(super::query::unknown(name)),
        }
    }
    Ok((after, limit))
}

/// A page of things with ids: how many, and after which.
pub(crate) fn id_page(uri: &Uri) -> Result<(Option<Uuid>, u16), Rejection> {
    page_by(uri, |text| text.parse().ok().map(Hyphenated::into_uuid))
}

/// A page of things with numbers: how many, and before which.
pub(crate) fn number_page(uri: &Uri) -> Result<(Option<i64>, u16), Rejection> {
    page_by(uri, |text| text.parse().ok().filter(|number| *number >= 0))
}

fn page_by<T>(uri: &Uri, parse: impl Fn(&str) -> Option<T>) -> Result<(Option<T>, u16), Rejection> {
    let (cursor, limit) = name_page(uri)?;
    let bad = || Bad::value("must be a next_cursor as it was given").at_parameter("cursor");
    Ok((cursor.map(|text| parse(&text).ok_or_else(bad)).transpose()?, limit))
}

/// The number of items on a page.
pub(super) fn page_limit(value: &str) -> Result<u16, Bad> {
    let number = value.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
    let bad = || Bad::value(format!("must be a number from 1 to {MAX_PAGE}"));
    number.filter(|_| value.bytes().all(|b| b.is_ascii_digit())).ok_or_else(bad)
}
