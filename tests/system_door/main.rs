//! The door of a whole cell: replicas of the API that are real processes, over one Postgres, with more at the door than
//! they can take. Every case has a form of some seconds, and its full size under `bin/test --long`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "../system_faults/caller.rs"]
#[allow(dead_code, reason = "shared with the tests of faults")]
mod caller;
#[path = "../system_faults/fleet.rs"]
#[allow(dead_code, reason = "shared with the tests of faults")]
mod fleet;

mod bodies;
mod bounds;
mod changes;
mod keys;
mod overload;
mod places;
