//! Why a task stands where it stands.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tidegate_core::{Reason, Status, TaskId};

use crate::time::Timestamp;

/// Why a task stands where it stands: what a waiting one waits for, and what any other does or did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Explanation<'a> {
    /// The task.
    #[schema(value_type = String, format = Uuid)]
    pub id: TaskId,
    /// Where it stands.
    #[schema(schema_with = crate::schema::status)]
    pub status: Status,
    /// Why, from a closed vocabulary.
    #[schema(value_type = Option<String>)]
    pub reason: Option<Reason>,
    /// Since when it waits or runs, or when it ended. A task that came back waits since its latest run ended.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// How long it has waited since then; `null` where it does not wait.
    pub waiting_ms: Option<i64>,
    /// When it may start, where it is DEFERRED.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub eligible_at: Option<Timestamp>,
    /// Its place in the queue, from 1, where it is QUEUED; `null` beyond 1,000.
    pub queue_position: Option<u32>,
    /// In how long it is expected to start; `null` where that is unknown, or where something other than its turn keeps
    /// it.
    pub estimated_start_ms: Option<i64>,
    /// All that it waits for, what holds it most first; empty where it does not wait.
    pub blockers: Vec<Blocker<'a>>,
    /// One sentence for people.
    pub summary: Cow<'a, str>,
}

/// One thing that a task waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Blocker<'a> {
    /// What sort of thing, such as `pause`, `peer_limit` or `queue_position`; docs/explain.md lists them. Later versions
    /// may know more.
    pub kind: Cow<'a, str>,
    /// The limit, as operators write it (`tenants.acme.max_running`), or what is paused; `null` where it has no name.
    pub name: Option<Cow<'a, str>>,
    /// What the limit is; of a place in the queue, the first.
    pub limit: Option<i64>,
    /// What is in use of it; of a place in the queue, the place.
    pub in_use: Option<i64>,
    /// When it is over; `null` where nobody knows.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
    /// The pause, where it is one.
    #[schema(format = Uuid)]
    pub pause_id: Option<String>,
    /// The same for people: a part of a sentence.
    pub detail: Cow<'a, str>,
}
