//! The only crate that knows SQL.
