//! A group of tasks to cancel.

use serde_json::value::RawValue;
use tidegate_store::Group;
use tidegate_wire::Fault;

use crate::decode::members::{Members, duplicate, unknown};
use crate::decode::submission::MAX_NAME;
use crate::decode::value::{Bad, text};
use crate::rejection::Rejection;

/// The group that a body names: by `token` or by `workflow_id`, not both. `null` is as good as absent.
pub(crate) fn group(document: &str) -> Result<Group, Rejection> {
    let (mut token, mut workflow_id) = (None, None);
    for (name, value) in Members::of(document, "")?.iter() {
        let slot = match name {
            "token" => &mut token,
            "workflow_id" => &mut workflow_id,
            _ => return Err(unknown("", name)),
        };
        if slot.replace(value).is_some() {
            return Err(duplicate("", name));
        }
    }
    let name = |raw: &RawValue, pointer: &str| {
        text(raw, 1..=MAX_NAME).map(|name| name.into_owned()).map_err(|bad| bad.at(pointer.to_owned()))
    };
    let given = |raw: Option<&'_ RawValue>| raw.is_some_and(|raw| raw.get() != "null");
    match (token.filter(|_| given(token)), workflow_id.filter(|_| given(workflow_id))) {
        (Some(token), None) => name(token, "/token").map(Group::Token),
        (None, Some(workflow_id)) => name(workflow_id, "/workflow_id").map(Group::Workflow),
        (Some(_), Some(_)) => Err(Bad::value("must not be there beside token").at("/workflow_id".to_owned())),
        (None, None) => {
            Err(Rejection::fault(Fault::MissingField, "token or workflow_id is missing").at_pointer(String::new()))
        }
    }
}
