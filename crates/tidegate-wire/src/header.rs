//! The names of the headers, in lower case as HTTP/2 writes them.

/// The caller's name for a submission: the same key and body again is the same task.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Says that an answer is that of an earlier submission with the same key.
pub const IDEMPOTENT_REPLAYED: &str = "idempotent-replayed";
/// The absolute end of a task, in milliseconds since the epoch.
pub const X_DEADLINE_EPOCH_MS: &str = "x-deadline-epoch-ms";
/// The delegation budget, as JSON: [`tidegate_core::budget::Budget`].
pub const X_BUDGET: &str = "x-budget";
/// The W3C trace context.
pub const TRACEPARENT: &str = "traceparent";
/// Preferences of RFC 7240: `wait=N`, in seconds.
pub const PREFER: &str = "prefer";
/// The preferences that were followed.
pub const PREFERENCE_APPLIED: &str = "preference-applied";
/// How full the queue is, 0.00 to 1.00.
pub const X_PRESSURE: &str = "x-pressure";
/// Why a 429 or 503 was given.
pub const X_SHED_REASON: &str = "x-shed-reason";
/// The tenant's limits, as structured fields.
pub const RATE_LIMIT_POLICY: &str = "ratelimit-policy";
/// What is left of them.
pub const RATE_LIMIT: &str = "ratelimit";
/// The name of a request in logs.
pub const X_REQUEST_ID: &str = "x-request-id";
/// The tenant that a request without a key is made for.
pub const X_TENANT: &str = "x-tenant";
