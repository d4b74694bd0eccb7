//! Which tasks to list.

use chrono::{DateTime, SecondsFormat, Utc};

/// Which tasks to list. Everything that is said must hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskQuery {
    /// The status, as in `QUEUED`.
    pub status: Option<String>,
    /// The kind.
    pub kind: Option<String>,
    /// The class.
    pub class: Option<String>,
    /// The peer.
    pub peer: Option<String>,
    /// The workflow.
    pub workflow_id: Option<String>,
    /// Labels that it must have.
    pub labels: Vec<(String, String)>,
    /// Arrived at this instant or later.
    pub from: Option<DateTime<Utc>>,
    /// Arrived before this instant.
    pub to: Option<DateTime<Utc>>,
    /// So many at most, up to 200; 50 where nothing is said.
    pub limit: Option<u16>,
    /// Where the page before ended: its `next_cursor`.
    pub cursor: Option<String>,
}

impl TaskQuery {
    /// The query parameters.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        let instant = |at: &DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Millis, true);
        let named = [
            ("status", self.status.clone()),
            ("kind", self.kind.clone()),
            ("class", self.class.clone()),
            ("peer", self.peer.clone()),
            ("workflow_id", self.workflow_id.clone()),
            ("from", self.from.as_ref().map(instant)),
            ("to", self.to.as_ref().map(instant)),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("cursor", self.cursor.clone()),
        ];
        let named = named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        named.chain(self.labels.iter().map(|(name, value)| (format!("label.{name}"), value.clone()))).collect()
    }
}
