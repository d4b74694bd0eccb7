//! The schemas of core's enums, which know nothing of OpenAPI.

use tidegate_core::{Class, Status};
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

/// A status.
pub(crate) fn status() -> Object {
    let description = "ADMITTED, QUEUED, DEFERRED and RUNNING tasks may change; the others have ended for good";
    names(Status::ALL.map(Status::as_str), description)
}

/// A class.
pub(crate) fn class() -> Object {
    names(Class::ALL.map(Class::as_str), "The band of its priority, most important first")
}

/// What happens to submissions during a pause.
pub(crate) fn pause_mode() -> Object {
    names(["hold", "refuse"], "Whether submissions queue or are refused meanwhile; either way nothing starts")
}

fn names<const N: usize>(names: [&'static str; N], description: &str) -> Object {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).description(Some(description)).build()
}
