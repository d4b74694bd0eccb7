//! Cancelling a group of tasks.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Which tasks to cancel: exactly one of the two.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(min_properties = 1, max_properties = 1)]
pub struct CancellationRequest<'a> {
    /// Those with this cancellation token. What arrives with it within a day is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub token: Option<Cow<'a, str>>,
    /// Those of this workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub workflow_id: Option<Cow<'a, str>>,
}

/// How many tasks the cancel of a group reached. Those that had ended before are not counted, nor are the children that
/// are cancelled with them without belonging to the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Cancelled {
    /// Tasks that waited and are CANCELLED now.
    pub cancelled: u64,
    /// Tasks that run and are asked to stop, now or before.
    pub requested: u64,
}
