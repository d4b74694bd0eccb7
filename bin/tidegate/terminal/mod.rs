//! What is written for people and for programs.

mod output;
mod safe;

pub(crate) use output::Output;
pub(crate) use safe::{safe, safe_json};
