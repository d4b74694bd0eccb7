//! What operators send: changes of limits, and pauses.

use serde_json::{Map, Value};
use tidegate_core::pause::{MAX_REASON_BYTES, PauseMode, PauseTarget};
use tidegate_core::{Class, EpochMs, Kind, PeerName, TenantId};
use tidegate_wire::{Fault, Timestamp};

use crate::decode::members::{Members, array, duplicate, pointer_to, unknown};
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
