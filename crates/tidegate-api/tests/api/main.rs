//! The API over a fake store: in process, and on sockets where the connection itself is what matters.

#![allow(clippy::unwrap_used, reason = "in a test an unwrap that fails is the failure")]

mod access;
mod bad_values;
mod batch;
mod cancel;
mod cancellations;
mod every_answer;
mod explaining;
mod fake;
mod fake_operations;
mod harness;
mod listings;
mod openapi;
mod operators;
mod pages;
mod reading;
mod real_store;
mod sockets;
mod submitting;
mod waiting;
