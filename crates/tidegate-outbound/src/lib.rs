//! One guarded HTTP client for everything that leaves: tool calls and webhooks.
//!
//! A URL that somebody else chose must not become a way into the operator's own network. So every request passes the
//! same guard, each time it is sent: scheme, port, credentials and length of the URL are checked; a literal address
//! is checked before anything is sent; a name is resolved by a resolver that hands the connection only addresses that
//! passed. Redirects are never followed, no proxy is used, bodies are never decompressed. Only networks that the
//! operator listed are exempt, and only from the check of addresses.
//!
//! Time and size are bounded by the caller: a deadline for the whole exchange, and the most bytes to read.

mod address;
mod client;
mod resolver;
mod target;

pub use address::{AddressPolicy, is_public};
pub use client::{Answer, Outbound, OutboundError, OutboundOptions, Request, SendError};
pub use target::{MAX_URL_BYTES, Refused};
