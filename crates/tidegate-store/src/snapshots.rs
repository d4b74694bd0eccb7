//! Old snapshots: who keeps dead rows from being cleaned up.

use sqlx::Row;

use crate::connection::APPLICATION;
use crate::error::StoreError;
use crate::store::Store;

const HOLDERS: &str = include_str!("snapshots.sql");
/// Most that are told of: the oldest decides what can be cleaned up.
const MOST: i64 = 16;

/// Somebody who keeps rows that died from being cleaned up: a session with a snapshot or an open transaction that wrote, a
/// prepared transaction, a replication slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotHolder {
    /// Who it is, for people.
    pub who: String,
    /// The transaction that it goes back to. While it stays the same, it is the same snapshot.
    pub xid: String,
    /// Since when, in milliseconds before now, where the database says so: of other users' sessions it does only to
    /// superusers and members of `pg_read_all_stats`, of a replication slot to nobody.
    pub age_ms: Option<i64>,
}

impl Store {
    /// Those who hold an old snapshot in this database, or another's that counts here, the oldest first; not our own
    /// processes, whose transactions are bounded.
    pub async fn snapshot_holders(&self) -> Result<Vec<SnapshotHolder>, StoreError> {
        let rows = self.ask(|| sqlx::query(HOLDERS).bind(APPLICATION).bind(MOST)).await?;
        let holder = |row: &sqlx::postgres::PgRow| {
            Ok(SnapshotHolder { who: row.try_get("who")?, xid: row.try_get("xid")?, age_ms: row.try_get("age_ms")? })
        };
        rows.iter().map(holder).collect()
    }
}
