//! Tidegate: a durable priority task queue and worker system.

fn main() {}
