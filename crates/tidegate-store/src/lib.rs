//! The only crate that knows SQL.
//!
//! Every change of state takes one path: a transaction that first locks the cell's row, reads what it decides on, asks
//! a pure function in core, and writes the outcome, the counters and the outbox together. Submissions, cancels and
//! settlements are gathered while the transaction before is committing, so a transaction carries as many as arrived.

mod admin_audit;
mod admit;
mod admit_write;
mod audit;
mod background;
mod bell;
mod cancel;
mod changes;
mod children;
mod claim;
mod claim_room;
mod connection;
mod directory;
mod door;
mod error;
mod explain;
mod facts;
mod gather;
mod groups;
mod heart;
mod hold;
mod inspect;
mod keep;
mod ledger;
mod look;
mod migrate;
mod overdue;
mod partition;
mod permits;
mod policy;
mod promote;
mod question;
mod read;
mod records;
mod recover;
mod refusal;
mod released;
mod retry_budget;
mod runs;
mod seen;
mod session;
mod settle;
mod snapshots;
mod store;
mod together;
mod types;
mod watch;
mod work_bell;
mod workers;
pub mod yardstick;

pub use admin_audit::{Actor, AuditEntry, AuditPage};
pub use admit::{Admitter, AdmitterOptions};
pub use audit::Drift;
pub use background::supervise;
pub use cancel::Canceller;
pub use connection::StoreOptions;
pub use error::{AdmitError, PolicyError, StoreError};
pub use explain::Explained;
pub use groups::{Group, GroupCancelled};
pub use heart::Heart;
pub use inspect::{Inspection, Work, inspect};
pub use keep::{Due, SWEEP, Swept};
pub use migrate::{Migrated, SchemaState, migrate, schema_state};
pub use partition::{Pruned, Retention};
pub use permits::{PermitAnswer, PermitCall};
pub use policy::{Held, MAX_PAUSES, Named, NamedPage};
pub use session::Session;
pub use snapshots::SnapshotHolder;
pub use store::{CLOSE_LIMIT, Store};
pub use types::*;
pub use work_bell::WorkBell;
pub use workers::{WorkerPage, WorkerRecord};
