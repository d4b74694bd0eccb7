//! A plain queue: one table with a state, claimed with SKIP LOCKED. As good as such a queue gets: a partial index in
//! the order of the claim, ids taken by key, an autovacuum that is never far behind.

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};
use uuid::Uuid;

use super::{LONGEST, connect, run};
use crate::connection::call;
use crate::error::StoreError;

const CREATE: &str = "CREATE SCHEMA IF NOT EXISTS tidegate_yardstick; \
    DROP TABLE IF EXISTS tidegate_yardstick.job; \
    CREATE TABLE tidegate_yardstick.job ( \
        id uuid PRIMARY KEY, rank bigint NOT NULL, state smallint NOT NULL DEFAULT 0, kind text NOT NULL, \
        payload text NOT NULL, pad text NOT NULL \
    ) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0); \
    CREATE INDEX job_waiting ON tidegate_yardstick.job (rank) WHERE state = 0";
const INSERT: &str = "INSERT INTO tidegate_yardstick.job (id, rank, kind, payload, pad) \
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[])";
/// `= ANY(ARRAY(…))` keeps the planner from joining with the whole table.
const CLAIM: &str = "UPDATE tidegate_yardstick.job SET state = 1 WHERE id = ANY(ARRAY( \
        SELECT id FROM tidegate_yardstick.job WHERE state = 0 ORDER BY rank LIMIT $1 FOR UPDATE SKIP LOCKED \
    )) RETURNING id, payload";
const FINISH: &str = "DELETE FROM tidegate_yardstick.job WHERE id = ANY($1)";
const LOCK: &str =
    "SELECT id, payload FROM tidegate_yardstick.job WHERE state = 0 ORDER BY rank LIMIT $1 FOR UPDATE SKIP LOCKED";
const ROW_BYTES: &str = "SELECT avg(pg_column_size(j.*))::float8 FROM tidegate_yardstick.job j";

/// Rows that are enough to measure one by: they are all alike.
const PROBE_ROWS: usize = 10;

/// A claimed row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its id.
    pub id: Uuid,
    /// What was to be done.
    pub payload: String,
}

/// A connection to the plain queue.
pub struct PlainQueue {
    conn: PgConnection,
    kind: String,
    payload: String,
    pad: String,
    rank: i64,
}

impl PlainQueue {
    /// Makes the queue anew, empty, and connects to it. Its rows hold this payload.
    pub async fn create(url: &str, payload: &str) -> Result<Self, StoreError> {
        let mut conn = connect(url).await?;
        run(&mut conn, CREATE).await?;
        Ok(Self::on(conn, payload))
    }

    /// Another connection to the queue that is there.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Ok(Self::on(connect(url).await?, "null"))
    }

    fn on(conn: PgConnection, payload: &str) -> Self {
        Self { conn, kind: "bench".to_owned(), payload: payload.to_owned(), pad: String::new(), rank: 0 }
    }

    /// Pads the rows that are inserted from now on so that each takes as many bytes, if it is shorter. Returns what it
    /// takes now. The queue must be empty, and is afterwards.
    pub async fn pad_to(&mut self, bytes: f64) -> Result<f64, StoreError> {
        self.pad.clear();
        let mut size = self.measure().await?;
        // A longer text has a longer header and other alignment: the second step corrects the first.
        for _ in 0..2 {
            let length = (self.pad.len() as f64 + bytes - size).round().max(0.0);
            self.pad = "0123456789abcdef".chars().cycle().take(length as usize).collect();
            size = self.measure().await?;
        }
        Ok(size)
    }

    async fn measure(&mut self) -> Result<f64, StoreError> {
        self.insert(PROBE_ROWS).await?;
        let size = call(LONGEST, sqlx::query_scalar(ROW_BYTES).fetch_one(&mut self.conn)).await?;
        run(&mut self.conn, "TRUNCATE tidegate_yardstick.job").await?;
        Ok(size)
    }

    /// Inserts so many rows with one UNNEST and commits.
    pub async fn insert(&mut self, rows: usize) -> Result<(), StoreError> {
        let payloads = vec![self.payload.clone(); rows];
        self.insert_each(payloads).await
    }

    /// The same, a row for each of these payloads.
    pub async fn insert_each(&mut self, payloads: Vec<String>) -> Result<(), StoreError> {
        let rows = payloads.len();
        let ids: Vec<Uuid> = (0..rows).map(|_| Uuid::now_v7()).collect();
        let ranks: Vec<i64> = (self.rank..self.rank + rows as i64).collect();
        self.rank += rows as i64;
        let query = sqlx::query(INSERT)
            .bind(ids)
            .bind(ranks)
            .bind(vec![self.kind.as_str(); rows])
            .bind(payloads)
            .bind(vec![self.pad.as_str(); rows]);
        call(LONGEST, query.execute(&mut self.conn)).await.map(drop)
    }

    /// Claims the first rows, durably: it is committed when this returns.
    pub async fn claim(&mut self, most: usize) -> Result<Vec<Job>, StoreError> {
        let rows = call(LONGEST, sqlx::query(CLAIM).bind(most as i64).fetch_all(&mut self.conn)).await?;
        rows.iter().map(|row| Ok(Job { id: row.try_get(0)?, payload: row.try_get(1)? })).collect()
    }

    /// Deletes what is done, and commits.
    pub async fn finish(&mut self, jobs: &[Job]) -> Result<(), StoreError> {
        let ids: Vec<Uuid> = jobs.iter().map(|job| job.id).collect();
        call(LONGEST, sqlx::query(FINISH).bind(ids).execute(&mut self.conn)).await.map(drop)
    }

    /// Takes and deletes rows in one transaction, in which the work would have to be done: no claim outlives a crash
    /// and no connection is free meanwhile. The least that any queue on Postgres can do.
    pub async fn take(&mut self, most: usize) -> Result<usize, StoreError> {
        let mut tx = call(LONGEST, self.conn.begin()).await?;
        let rows = call(LONGEST, sqlx::query(LOCK).bind(most as i64).fetch_all(&mut *tx)).await?;
        let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<Uuid>, _>>()?;
        call(LONGEST, sqlx::query(FINISH).bind(ids).execute(&mut *tx)).await?;
        call(LONGEST, tx.commit()).await?;
        Ok(rows.len())
    }

    /// Clears the dead away, as autovacuum would in its own time.
    pub async fn vacuum(&mut self) -> Result<(), StoreError> {
        run(&mut self.conn, "VACUUM tidegate_yardstick.job").await
    }

    /// Tells the planner what is in the table.
    pub async fn analyze(&mut self) -> Result<(), StoreError> {
        run(&mut self.conn, "ANALYZE tidegate_yardstick.job").await
    }
}
