//! The only crate that knows SQL.
//!
//! Every change of state takes one path: a transaction that first locks the cell's row, reads what it decides on, asks
//! a pure function in core, and writes the outcome, the counters and the outbox together. Submissions, cancels and
//! settlements are gathered while the transaction before is committing, so a transaction carries as many as arrived.

mod types;

pub use types::*;
