//! How full the system is.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tidegate_core::limits::Limits;

/// How full the system is, so that producers can slow down before they are refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Pressure<'a> {
    /// 0 is idle, 1 is full.
    #[schema(minimum = 0.0, maximum = 1.0)]
    pub pressure: f64,
    /// Tasks that are QUEUED.
    pub queued: i64,
    /// Tasks that are ADMITTED or RUNNING.
    pub running: i64,
    /// Tasks that are DEFERRED.
    pub deferred: i64,
    /// The bounds of the cell and its classes; `null` is no limit.
    #[schema(value_type = crate::policy::LimitsDocument<'_>)]
    pub limits: Cow<'a, Limits>,
    /// The priority below which submissions are shed; `null` where none are.
    pub shed_from_priority: Option<u8>,
    /// How long a newcomer of each class is expected to wait; `null` where that is unknown.
    pub estimated_wait_ms: ClassWaits,
}

/// An expected wait for each class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ClassWaits {
    /// Of critical work.
    pub critical: Option<u64>,
    /// Of standard work.
    pub standard: Option<u64>,
    /// Of background work.
    pub background: Option<u64>,
}
