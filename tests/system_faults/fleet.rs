//! The processes of one cell, on a database of their own.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tidegate_testkit::{Proc, TestDb, poll_until};

use crate::caller::Caller;

/// More than any single step takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// How to start the processes of a cell.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) db: TestDb,
    env: Vec<(String, String)>,
}

/// A process that serves the API.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Proc,
    pub(crate) caller: Caller,
}

impl Fleet {
    /// A cell with its tables and no process yet.
    pub(crate) async fn new() -> Self {
        Self { db: TestDb::migrated().await, env: Vec::new() }
    }

    /// With one key of the configuration set for every process that is started from now on.
    pub(crate) fn with(mut self, key: &str, value: impl ToString) -> Self {
        self.env.push((format!("TIDEGATE__{key}"), value.to_string()));
        self
    }

    /// With a kind that calls a tool on this machine.
    pub(crate) fn with_tool(mut self, kind: &str, url: &str) -> Self {
        self.env.extend(kind_with_tool(kind, url));
        self
    }

    /// With leases that live for so long.
    pub(crate) fn with_lease(self, lease: Duration) -> Self {
        self.with("WORKER__LEASE_MS", lease.as_millis())
    }

    /// Starts a role that reaches the database by this URL.
    pub(crate) fn start_on(&self, url: &str, arguments: &[&str]) -> Proc {
        let mut builder = tidegate().args(arguments).env("DATABASE_URL", url);
        for (name, value) in &self.env {
            builder = builder.env(name, value);
        }
        builder.spawn()
    }

    /// Starts an API with a keeper, and waits until it serves.
    pub(crate) async fn serve(&self) -> Server {
        self.serve_on(self.db.url()).await
    }

    /// Starts an API with a keeper that reaches the database by this URL, and waits until it serves.
    pub(crate) async fn serve_on(&self, url: &str) -> Server {
        let mut process = self.start_on(url, &["serve", "--listen", "127.0.0.1:0"]);
        let caller = Caller::new(process.wait_for_url(LIMIT).await);
        Server { process, caller }
    }

    /// Starts a worker and waits until it serves.
    pub(crate) async fn worker(&self, slots: u32) -> Proc {
        self.worker_on(self.db.url(), slots).await
    }

    /// Starts a worker that reaches the database by this URL, and waits until it serves.
    pub(crate) async fn worker_on(&self, url: &str, slots: u32) -> Proc {
        let mut process = self.start_on(url, &["worker", "--slots", &slots.to_string()]);
        process.wait_for_line("\"serving\"", LIMIT).await;
        process
    }
}

/// Our program, in the words that tests wait for.
pub(crate) fn tidegate() -> tidegate_testkit::ProcBuilder {
    Proc::builder(env!("CARGO_BIN_EXE_tidegate")).env("TIDEGATE__LOG__FORMAT", "json")
}

/// The environment that makes a kind call a tool on this machine.
pub(crate) fn kind_with_tool(kind: &str, url: &str) -> [(String, String); 3] {
    let key = |name: &str| format!("TIDEGATE__KINDS__{}__{name}", kind.to_uppercase());
    [
        ("TIDEGATE__OUTBOUND__ALLOW_NETWORKS".to_owned(), "[\"127.0.0.0/8\"]".to_owned()),
        (key("EXECUTOR"), "http".to_owned()),
        (key("HTTP__URL"), url.to_owned()),
    ]
}

/// A connection to a database.
pub(crate) async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap()
}

/// Runs a statement.
pub(crate) async fn execute(url: &str, sql: &str) {
    let mut connection = connect(url).await;
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// The one number that a statement returns.
pub(crate) async fn number(url: &str, sql: &str) -> i64 {
    let mut connection = connect(url).await;
    let number = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    number
}

/// Waits until a statement returns this number.
pub(crate) async fn wait_for_number(url: &str, sql: &str, wanted: i64) {
    let mut connection = connect(url).await;
    let what = format!("{wanted} from {sql}");
    poll_until(LIMIT, &what, async || {
        let number: i64 = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut connection).await.unwrap();
        (number == wanted).then_some(())
    })
    .await;
    connection.close().await.unwrap();
}

/// Tasks that run.
pub(crate) const RUNNING: &str = "SELECT count(*) FROM tidegate.lease";
/// Tasks that have not ended.
pub(crate) const ALIVE: &str = "SELECT count(*) FROM tidegate.task WHERE status IS NULL";
