//! A database for each test.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};
use url::Url;

use crate::poll::poll_until;

/// How test databases begin, so that they can be told from anybody's.
const PREFIX: &str = "tg_test_";

/// How templates begin, and how those that are not finished do.
const TEMPLATE_PREFIX: &str = "tg_template_";
const UNFINISHED_PREFIX: &str = "tg_unfinished_";

/// The key of the lock under which one process makes a template: "template" in ASCII.
const TEMPLATE_LOCK: i64 = 0x7465_6d70_6c61_7465;

/// Longest that any statement about a whole database may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Longest that a test waits for its database to be dropped. The server does so only once every connection that is just
/// being opened has got on, and one of those may be of the very runtime whose thread waits here: it would take until the
/// server gives that connection up, after a minute. The server goes on with it when the test has ended.
const DROP_PATIENCE: Duration = Duration::from_secs(3);

/// SQLSTATE "object in use": somebody is still connected, which after a close is so for a moment.
const IN_USE: &str = "55006";

/// Set to keep databases after their test, to look at them.
const KEEP: &str = "TIDEGATE_TEST_KEEP";

/// A database of its own on the server of `DATABASE_URL`. It is dropped with this value, whoever is still connected.
#[derive(Debug)]
pub struct TestDb {
    server: Url,
    name: String,
    url: String,
}

impl TestDb {
    /// An empty database.
    ///
    /// # Panics
    /// Without `DATABASE_URL`, or if the server does not answer.
    pub async fn new() -> Self {
        TestDb::create(None).await
    }

    /// A database with our tables, as a fresh installation has them. The first test to ask makes a template, the others
    /// copy it.
    ///
    /// # Panics
    /// As [`TestDb::new`], and if a migration fails.
    pub async fn migrated() -> Self {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
        let key = fingerprint(&directory);
        TestDb::from_template(&format!("{key:016x}"), async |url: &str| {
            tidegate_store::migrate(url).await.unwrap_or_else(|error| panic!("migrating {url}: {error}"));
        })
        .await
    }

    /// A copy of the template named by `key`, which `fill` makes from an empty database if it does not exist on this
    /// server. `fill` must close every connection that it opened.
    ///
    /// # Panics
    /// As [`TestDb::new`].
    pub async fn from_template(key: &str, fill: impl AsyncFnOnce(&str)) -> Self {
        let template = format!("{TEMPLATE_PREFIX}{key}");
        ensure_template(&server(), &template, fill).await;
        TestDb::create(Some(&template)).await
    }

    async fn create(template: Option<&str>) -> Self {
        let server = server();
        let name = random_name(PREFIX);
        let mut admin = connect(server.as_str()).await;
        let from = template.map(|template| format!(" TEMPLATE {template}")).unwrap_or_default();
        execute_when_unused(&mut admin, &format!("CREATE DATABASE {name}{from}")).await;
        close(admin).await;
        let url = with_database(&server, &name);
        TestDb { server, name, url }
    }

    /// Its connection URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its name on the server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A connection to it.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn connect(&self) -> PgConnection {
        connect(&self.url).await
    }
}

impl Drop for TestDb {
    /// Best effort, on a thread of its own since a drop cannot wait: a database that stays is removed with its cluster.
    fn drop(&mut self) {
        if std::env::var_os(KEEP).is_some() {
            return;
        }
        let (server, name) = (self.server.clone(), self.name.clone());
        let (done, dropped) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            let _done = done;
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            let _ = runtime.block_on(async { tokio::time::timeout(LIMIT, drop_database(&server, &name)).await });
        });
        // Either it is done, which closes the channel, or it took too long.
        let _ = dropped.recv_timeout(DROP_PATIENCE);
    }
}

async fn drop_database(server: &Url, name: &str) -> sqlx::Result<()> {
    let mut admin = PgConnection::connect(server.as_str()).await?;
    admin.execute(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))).await?;
    admin.close().await
}

fn server() -> Url {
    let Ok(url) = std::env::var("DATABASE_URL") else {
        panic!("DATABASE_URL is not set. Run the tests with bin/test, which starts a Postgres for them");
    };
    Url::parse(&url).unwrap_or_else(|error| panic!("DATABASE_URL is not a URL: {error}"))
}

fn with_database(server: &Url, name: &str) -> String {
    let mut url = server.clone();
    url.set_path(name);
    url.into()
}

async fn connect(url: &str) -> PgConnection {
    let connecting = async {
        let options: sqlx::postgres::PgConnectOptions = url.parse()?;
        options.connect().await
    };
    match tokio::time::timeout(LIMIT, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => panic!("connecting to the Postgres of the tests: {error}"),
        Err(_) => panic!("the Postgres of the tests did not answer within {LIMIT:?}"),
    }
}

async fn close(connection: PgConnection) {
    connection.close().await.unwrap_or_else(|error| panic!("closing a connection of the tests: {error}"));
}

/// Makes the template if it does not exist. It gets its name when it is complete, so a process that was killed half-way
/// leaves nothing that others would copy.
async fn ensure_template(server: &Url, template: &str, fill: impl AsyncFnOnce(&str)) {
    let mut lock = connect(server.as_str()).await;
    let mut lock_held = lock.begin().await.unwrap_or_else(|error| panic!("locking the template: {error}"));
    let locked = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(TEMPLATE_LOCK).execute(&mut *lock_held).await;
    locked.unwrap_or_else(|error| panic!("locking the template: {error}"));
    let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(template)
        .fetch_one(&mut *lock_held)
        .await
        .unwrap_or_else(|error| panic!("looking for the template: {error}"));
    if !exists {
        let unfinished = random_name(UNFINISHED_PREFIX);
        // A second connection: no transaction may create a database, and the lock is one.
        let mut admin = connect(server.as_str()).await;
        execute_when_unused(&mut admin, &format!("CREATE DATABASE {unfinished}")).await;
        fill(&with_database(server, &unfinished)).await;
        execute_when_unused(&mut admin, &format!("ALTER DATABASE {unfinished} RENAME TO {template}")).await;
        close(admin).await;
    }
    lock_held.rollback().await.unwrap_or_else(|error| panic!("unlocking the template: {error}"));
    close(lock).await;
}

/// Runs a statement about a whole database, again while somebody is just leaving it.
async fn execute_when_unused(admin: &mut PgConnection, statement: &str) {
    poll_until(LIMIT, statement, async || match admin.execute(AssertSqlSafe(statement.to_owned())).await {
        Ok(_) => Some(()),
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(IN_USE) => None,
        Err(error) => panic!("{statement}: {error}"),
    })
    .await;
}

/// What the migrations are, by name and content: a server that outlives a change of them must not serve an old template.
fn fingerprint(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.file_name().hash(&mut hasher);
        std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())).hash(&mut hasher);
    }
    hasher.finish()
}

fn random_name(prefix: &str) -> String {
    format!("{prefix}{:016x}", rand::random::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn exists(db: &TestDb, name: &str) -> bool {
        let mut admin = connect(db.server.as_str()).await;
        let exists = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
            .bind(name)
            .fetch_one(&mut admin)
            .await
            .unwrap();
        close(admin).await;
        exists
    }

    #[tokio::test]
    async fn a_database_is_empty_apart_from_the_others_and_gone_afterwards() {
        let (first, second) = (TestDb::new().await, TestDb::new().await);
        let mut left_open = first.connect().await;
        left_open.execute("CREATE TABLE here ()").await.unwrap();
        let mut connection = second.connect().await;
        let found: Option<String> =
            sqlx::query_scalar("SELECT to_regclass('here')::text").fetch_one(&mut connection).await.unwrap();
        assert_eq!(found, None);
        let name = first.name().to_owned();
        assert!(exists(&second, &name).await);
        drop(first);
        assert!(!exists(&second, &name).await, "even though a connection was still open");
    }

    #[tokio::test]
    async fn a_template_is_filled_once_however_many_ask_at_once() {
        let key = random_name("once_");
        let fills = std::sync::atomic::AtomicUsize::new(0);
        let ask = || {
            TestDb::from_template(&key, async |url: &str| {
                fills.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let mut connection = connect(url).await;
                connection.execute("CREATE TABLE filled AS SELECT 'yes' AS answer").await.unwrap();
                close(connection).await;
            })
        };
        let (a, b, c) = tokio::join!(ask(), ask(), ask());
        for db in [&a, &b, &c] {
            let mut connection = db.connect().await;
            let answer: String =
                sqlx::query_scalar("SELECT answer FROM filled").fetch_one(&mut connection).await.unwrap();
            assert_eq!(answer, "yes");
        }
        assert_eq!(fills.into_inner(), 1);
        drop_database(&a.server, &format!("{TEMPLATE_PREFIX}{key}")).await.unwrap();
    }

    #[tokio::test]
    async fn a_migrated_database_knows_that_it_is() {
        let db = TestDb::migrated().await;
        let mut connection = db.connect().await;
        let failed: i64 = sqlx::query_scalar("SELECT count(*) FROM tidegate.migration WHERE NOT success")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(failed, 0);
    }
}
