//! The least that can be kept of a request: one narrow row.

use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::{LONGEST, connect, run};
use crate::connection::call;
use crate::error::StoreError;

const CREATE: &str = "CREATE SCHEMA IF NOT EXISTS tidegate_yardstick; \
    CREATE TABLE IF NOT EXISTS tidegate_yardstick.narrow (id uuid PRIMARY KEY, body text NOT NULL)";
const INSERT: &str = "INSERT INTO tidegate_yardstick.narrow (id, body) SELECT * FROM unnest($1::uuid[], $2::text[])";

/// A table of bodies by id.
pub struct NarrowTable {
    conn: PgConnection,
}

impl NarrowTable {
    /// Makes the table if it is not there.
    pub async fn create(url: &str) -> Result<Self, StoreError> {
        let mut conn = connect(url).await?;
        run(&mut conn, CREATE).await?;
        Ok(Self { conn })
    }

    /// Inserts a batch in one statement; it is committed when this returns.
    pub async fn insert(&mut self, ids: Vec<Uuid>, bodies: Vec<String>) -> Result<(), StoreError> {
        call(LONGEST, sqlx::query(INSERT).bind(ids).bind(bodies).execute(&mut self.conn)).await.map(drop)
    }
}
