//! The order over hours of virtual time: a small cell that is simulated around the `choose` that runs in production, to
//! hold it to what docs/scheduling.md says. Seeded, so that every run is the same.

#![allow(clippy::unwrap_used, reason = "tests")]

mod ageing;
mod bound;
mod cell;
mod fairness;
mod rules;
