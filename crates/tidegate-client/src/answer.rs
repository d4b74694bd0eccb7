//! What comes back beside the value itself.

use std::ops::Deref;

use chrono::{DateTime, Utc};

/// A value that the server answered with, and what its headers said.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Answer<T> {
    /// The value.
    pub value: T,
    /// The body as it came: every number as it was written, and members that this client does not know.
    pub json: String,
    /// How full the queue is, from 0 to 1, so that a producer can slow down before it is refused.
    pub pressure: Option<f64>,
    /// Whether this is the task of an earlier submission with the same idempotency key.
    pub replayed: bool,
    /// The name of the request in the server's log.
    pub request_id: Option<String>,
    /// What the server's clock said, to the second.
    pub date: Option<DateTime<Utc>>,
}

impl<T> Answer<T> {
    /// The value alone.
    pub fn into_value(self) -> T {
        self.value
    }

    /// The same answer around another value.
    pub(crate) fn map<U>(self, value: impl FnOnce(T) -> U) -> Answer<U> {
        Answer {
            value: value(self.value),
            json: self.json,
            pressure: self.pressure,
            replayed: self.replayed,
            request_id: self.request_id,
            date: self.date,
        }
    }
}

impl<T> Deref for Answer<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}
