//! The Rust client of Tidegate.
//!
//! It is a thin layer over HTTP: every call is one request, nothing is retried behind the caller's back, redirects
//! are not followed, and neither the time nor the size of an answer is unbounded. What the server says about trying
//! again is data ([`Refusal::retry_after`]), so that the one who knows how urgent the work is can decide.
//!
//! ```no_run
//! use std::time::Duration;
//! use tidegate_client::{Client, Error, NewTask, Status};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new("http://127.0.0.1:8080", None)?;
//! let task = NewTask::new("echo")
//!     .payload(&["hello"])?
//!     .timeout(Duration::from_secs(30))
//!     .idempotency_key("greeting-1")
//!     .wait(Duration::from_secs(10));
//! match client.submit(&task).await {
//!     Ok(task) if task.status == Status::Completed => println!("{:?}", task.result),
//!     Ok(task) => println!("{} is {}", task.id, task.status),
//!     Err(Error::Refused(refusal)) => println!("{}, again in {:?}", refusal.reason(), refusal.retry_after()),
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok(())
//! # }
//! ```

mod answer;
mod calls;
mod client;
mod error;
mod list;
mod new_task;
mod operator;
mod transport;

pub use answer::Answer;
pub use client::{Client, ClientBuilder};
pub use error::{Error, Refusal};
pub use list::TaskQuery;
pub use new_task::NewTask;
pub use operator::Named;

pub use tidegate_core::pause::{PauseMode, PauseTarget};
pub use tidegate_core::{Class, Priority, Reason, Status, TaskId};
pub use tidegate_wire::{Cancelled, Pause, PauseList, PauseRequest, Timestamp};

/// A task, as the server shows it.
pub type Task = tidegate_wire::Task<'static>;
/// A page of tasks.
pub type TaskList = tidegate_wire::TaskList<'static>;
/// The runs of a task.
pub type AttemptList = tidegate_wire::AttemptList<'static>;
/// Why a task stands where it stands.
pub type Explanation = tidegate_wire::Explanation<'static>;
/// A change that an operator made.
pub type AuditEntry = tidegate_wire::AuditEntry<'static>;
/// What operators changed.
pub type AuditPage = tidegate_wire::AuditPage<'static>;
/// A live session of a worker.
pub type WorkerDocument = tidegate_wire::WorkerDocument<'static>;
/// The live sessions of workers.
pub type WorkerPage = tidegate_wire::WorkerPage<'static>;
/// How full the system is.
pub type Pressure = tidegate_wire::Pressure<'static>;
/// Why a request was refused.
pub type Problem = tidegate_wire::Problem<'static>;
/// The answer to one submission of a batch.
pub type BatchItem = tidegate_wire::BatchItem<'static>;
