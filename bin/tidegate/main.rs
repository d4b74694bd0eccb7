//! Tidegate: a durable priority task queue and worker system.

mod config;

fn main() {}
