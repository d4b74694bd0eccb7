//! The rules of Tidegate, as pure functions.
//!
//! Nothing here does I/O, reads a clock or draws a random number: `now` and random numbers are arguments. A rule
//! takes a policy and a snapshot of facts and returns a decision, so it can be tested by the million without a
//! database and simulated with the code that runs in production.

pub mod admission;
pub mod backoff;
pub mod bucket;
pub mod budget;
pub mod call;
pub mod class_rules;
pub mod explain;
pub mod id;
pub mod json;
pub mod kind_policy;
pub mod limits;
pub mod merge_patch;
pub mod names;
pub mod order;
pub mod pause;
pub mod peer;
pub mod policy;
pub mod quarantine;
pub mod reason;
pub mod settlement;
pub mod size;
pub mod slots;
pub mod state;
pub mod strict;
pub mod submission;
pub mod tenant;

pub use id::TaskId;
pub use names::{Class, Fence, Kind, Lane, PeerName, Priority, TenantId};
pub use reason::Reason;
pub use state::Status;

/// Milliseconds since the Unix epoch, by the clock of whoever says so: the database's once a task is stored.
pub type EpochMs = i64;
