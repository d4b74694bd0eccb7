//! Whole systems, with real processes and a real Postgres, under the faults that systems of this kind have broken by:
//! processes that are killed or frozen, networks that go silent, databases that are slow, callers that hang up.
//!
//! Each test ends with the same question ([`verdict::assert_sound`]): has every task ended once, is nothing left running
//! or open, and does every counter say what the rows say? `verdict_twin` shows that the question can be answered with
//! no. Every case has a form of some seconds, and its full size under `bin/test --long`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod boot;
mod caller;
mod cancel;
mod crash;
mod deadline;
mod fleet;
mod holder;
mod lease;
mod network;
mod roll;
mod starve;
mod storm;
mod tool;
mod verdict;
mod verdict_twin;
