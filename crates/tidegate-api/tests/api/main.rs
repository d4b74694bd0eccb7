//! The API over a fake store: in process, and on sockets where the connection itself is what matters.

mod access;
mod bad_values;
mod batch;
mod cancel;
mod every_answer;
mod fake;
mod harness;
mod openapi;
mod pages;
mod reading;
mod sockets;
mod submitting;
mod waiting;
