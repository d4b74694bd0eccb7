//! The registry of workers.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// A live session: one boot of one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WorkerDocument<'a> {
    /// The session. A worker that starts again has another.
    #[schema(format = Uuid)]
    pub id: Cow<'a, str>,
    /// Its name for people: the machine and the process, where nothing else was said.
    pub worker: Cow<'a, str>,
    /// The kinds that it runs.
    pub kinds: Vec<Cow<'a, str>>,
    /// How many tasks it runs at once.
    pub slots: i64,
    /// Slots that are taken: tasks that it runs, or that a slot of it is reserved for.
    pub running: i64,
    /// Whether it takes nothing more, and leaves once it has finished.
    pub draining: bool,
    /// When it began.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// When its last heartbeat arrived.
    #[schema(value_type = String, format = DateTime)]
    pub last_beat_at: Timestamp,
    /// When its leases end unless it beats again.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
    /// How long its leases live after a heartbeat.
    pub lease_ms: i64,
}

/// The live sessions, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WorkerPage<'a> {
    /// The sessions.
    pub workers: Vec<WorkerDocument<'a>>,
    /// Where the next page begins; `null` on the last.
    pub next_cursor: Option<String>,
}
