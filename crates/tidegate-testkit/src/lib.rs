//! For tests only: what a test of a whole system needs around it.
//!
//! * [`TestDb`]: a database of its own for each test, with or without our tables.
//! * [`FaultProxy`]: a TCP proxy that fails as networks do, for the way to Postgres or anywhere.
//! * [`FakeTool`]: an HTTP server that misbehaves as told and remembers what it was asked.
//! * [`Proc`] and [`DataDir`]: our program as a real process that can be killed, stopped and looked at, and the data
//!   directory that it works in.
//! * [`poll_until`]: waiting for a condition, never longer than a deadline.
//!
//! A helper that cannot do its work panics with the reason: in a test that is the failure, and the name of the test says
//! the rest.

use std::path::PathBuf;

mod data_dir;
mod database;
mod fake_tool;
mod fault_proxy;
mod poll;
mod proc;

pub use data_dir::DataDir;
pub use database::TestDb;
pub use fake_tool::{Behaviour, FakeTool, Seen};
pub use fault_proxy::{Fault, FaultProxy};
pub use poll::{POLL_INTERVAL, poll_until};
pub use proc::{Proc, ProcBuilder};

/// Whether tests of whole systems run in full size (`bin/test --long`).
pub fn is_long() -> bool {
    std::env::var_os("TIDEGATE_LONG").is_some_and(|value| value != "0")
}

/// One of two values: for the everyday run, and for `bin/test --long`.
pub fn short_or_long<T>(short: T, long: T) -> T {
    if is_long() { long } else { short }
}

/// The programs of the Postgres that the tests run on, for `--pg-bin`, so that servers which tests start are of the same
/// version. `None` where the tests were not run by `bin/test`.
pub fn pg_bin() -> Option<PathBuf> {
    std::env::var_os("TIDEGATE_PG_BIN").map(PathBuf::from)
}
