//! Claim, run, heartbeat, settle and drain.
//!
//! A [`Worker`] opens a session with the store, and then lives in *turns*: one transaction that settles what ended
//! and claims as many tasks as slots are free. Exactly one turn is in flight; what ends meanwhile joins the next, so
//! that batches grow with the load and no timer is needed.
//!
//! Each task runs its kind's [`Executor`] (or a typed [`Handler`]) under a [`Context`]: a deadline, a token that is
//! cancelled when it should stop, and the fence that makes a late writer change nothing. A heartbeat on a thread and
//! a runtime of its own keeps the session's leases alive, brings back cancels and losses, and stops all work when it
//! cannot be sure that the leases still live.
//!
//! On shutdown a worker stops claiming, goes on heartbeating and obeying cancels, lets its handlers finish within a
//! grace, hands back the rest without penalty, and closes its session.

mod attempt;
pub mod builtin;
mod context;
mod handler;
mod heartbeat;
pub mod http_tool;
mod measure;
mod options;
mod outbox;
mod permit;
mod permit_desk;
pub mod port;
mod registry;
mod report;
mod serving;
mod shift;
mod stop;
mod store_port;
mod worker;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use context::{Context, ProgressError};
pub use handler::{Executor, Handler, HandlerError, RunFuture, typed};
pub use options::{BadOptions, WorkerOptions};
pub use permit::{Permit, PermitError};
pub use registry::{DEFAULT_MAX_RESULT_BYTES, KindOptions, Registry};
pub use stop::Stop;
pub use store_port::StorePort;
pub use worker::{Drained, Worker};
