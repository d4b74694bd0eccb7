//! A snapshot that somebody holds open: a long report, a forgotten `psql`. Dead rows that it might still see cannot
//! be cleaned up, in any table, whether it reads it or not.

use sqlx::Connection;
use sqlx::postgres::PgConnection;

use super::{LONGEST, connect, run};
use crate::connection::call;
use crate::error::StoreError;

/// A REPEATABLE READ transaction that has read nothing of ours. Dropping it ends it with its connection.
pub struct HeldSnapshot {
    conn: PgConnection,
}

impl HeldSnapshot {
    /// Takes a snapshot and holds it from now on.
    pub async fn take(url: &str) -> Result<Self, StoreError> {
        let mut conn = connect(url).await?;
        // A server may be set up to end transactions that sit idle, which is what this one is for.
        run(&mut conn, "SET idle_in_transaction_session_timeout = 0").await?;
        run(&mut conn, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current_snapshot()").await?;
        Ok(Self { conn })
    }

    /// Lets it go.
    pub async fn release(mut self) -> Result<(), StoreError> {
        // That it is still there shows that it was held all the time.
        run(&mut self.conn, "COMMIT").await?;
        call(LONGEST, self.conn.close()).await
    }
}
