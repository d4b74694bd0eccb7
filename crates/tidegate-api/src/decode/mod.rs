//! From what callers send to types that cannot hold nonsense. Every complaint names its place.

mod class;
mod group;
mod headers;
mod members;
mod page;
mod policy;
mod query;
mod submission;
mod value;

pub(crate) use class::earn_class;
pub(crate) use group::group;
pub(crate) use headers::{SubmitHeaders, no_idempotency_key, only};
pub(crate) use members::{Members, array, check_item, document, duplicate, list_document, missing, unknown};
pub(crate) use page::{cursor, id_cursor, id_page, name_page, number_page};
pub(crate) use policy::{change, pause};
pub(crate) use query::{filter, no_parameters, wait};
#[cfg(test)]
pub(crate) use submission::NAMES as MEMBER_NAMES;
pub(crate) use submission::{Draft, draft, payload_too_large};
pub(crate) use value::{Bad, string};
