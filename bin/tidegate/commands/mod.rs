//! The commands that do one thing and end.

pub(crate) mod audit;
pub(crate) mod cancel;
mod client;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod openapi;
pub(crate) mod pause;
pub(crate) mod policy;
pub(crate) mod size;
pub(crate) mod submit;
mod task_view;
mod waiting;
pub(crate) mod workers;
