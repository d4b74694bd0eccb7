//! The HTTP API.
//!
//! A request passes the accept loop ([`serve`]), which cuts slow connections; the gate, which decides who is asking and
//! stamps every answer; and one handler, which reads the body within limits, decodes it member by member, and asks the
//! [`Backend`]. Handlers hold no state across a client's disconnect: what writes runs in the store's own tasks.

mod access;
mod answer;
mod backend;
mod body;
mod decode;
mod error_pages;
mod gate;
mod gauges;
mod html;
mod metric;
mod operations;
mod prefer;
mod probes;
mod rejection;
mod routes;
mod server;
mod settings;
mod timer;
mod unreadable;

pub use access::Peer;
pub use backend::{Backend, BoxFuture, StoreBackend};
pub use metric::{METRICS, describe_metrics};
pub use operations::Operations;
pub use probes::{Probes, serve_probes};
pub use routes::{openapi_json, router};
pub use server::serve;
pub use settings::{AppState, Settings};
