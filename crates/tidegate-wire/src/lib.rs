//! The JSON on the wire, shared by the API and the client.
//!
//! Answers borrow where they can, so that the server writes a task without copying it; a client reads the same types
//! with `'static` in place of the lifetime. Readers ignore members that they do not know.

mod attempt;
mod audit;
mod cancellation;
mod explanation;
pub mod header;
mod policy;
mod policy_schema;
mod pressure;
mod problem;
mod schema;
mod submission;
mod task;
mod time;
mod worker;

pub use attempt::{Attempt, AttemptList};
pub use audit::{AuditEntry, AuditPage};
pub use cancellation::{CancellationRequest, Cancelled};
pub use explanation::{Blocker, Explanation};
pub use policy::{
    LimitsChange, LimitsDocument, MERGE_PATCH_JSON, Pause, PauseList, PauseRequest, PeerChange, PeerDocument, PeerPage,
    PeerUsage, TenantChange, TenantDocument, TenantPage, TenantUsage,
};
pub use pressure::{ClassWaits, Pressure};
pub use problem::{Fault, PROBLEM_JSON, Problem};
pub use submission::{
    Accepted, Batch, BatchAnswer, BatchItem, CancelRequest, CostEstimate, OnFull, SubmitRequest, WantedPriority,
};
pub use task::{Cancel, Cost, CostReport, Labels, Task, TaskError, TaskList};
pub use time::{BadTimestamp, Timestamp};
pub use worker::{WorkerDocument, WorkerPage};

/// The longest payload nesting that is let in, in levels of arrays and objects.
pub const MAX_PAYLOAD_DEPTH: usize = tidegate_core::json::MAX_DEPTH;
/// Most tasks in one batch.
pub const MAX_BATCH: usize = 1_000;
/// Most tasks on one page of a listing.
pub const MAX_PAGE: u16 = 200;
/// Tasks on a page where the caller names no number.
pub const DEFAULT_PAGE: u16 = 50;
/// The longest wait of one long-poll, in milliseconds.
pub const MAX_WAIT_MS: u64 = 60_000;
