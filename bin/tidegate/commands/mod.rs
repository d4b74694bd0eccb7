//! The commands that do one thing and end.

pub(crate) mod completions;
pub(crate) mod config;
