//! Order, leases and limits of a whole cell: real processes over one Postgres, whose work is done by a tool that counts how
//! many call it at once. What it sees is what counts, not what our own counters say.
//!
//! Every case has a form of some seconds, and its full size under `bin/test --long`. Each says which fault would break it;
//! [`permit`] puts one in, so that the tool's own count is known to notice.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "../system_faults/caller.rs"]
#[allow(dead_code, reason = "shared with the tests of faults")]
mod caller;
#[path = "../system_faults/fleet.rs"]
#[allow(dead_code, reason = "shared with the tests of faults")]
mod fleet;
#[path = "../system_faults/verdict.rs"]
#[allow(dead_code, reason = "shared with the tests of faults")]
mod verdict;

mod called;
mod crasher;
mod leak;
mod outage;
mod overlap;
mod overload;
mod permit;
mod rate;
mod roll;
mod snapshot;
mod upkeep;
