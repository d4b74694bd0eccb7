//! Connections to Postgres, and the one way to begin a transaction.
//!
//! sqlx's own pool is not used for two reasons, both seen in its source: it pings a returned connection with no bound,
//! so a silently dead socket loses its permit for good; and a `begin()` that is dropped half-way leaves a session
//! inside a transaction. Here a connection goes back only when its user says that it is clean; one that is dropped for
//! any other reason is closed, and the server rolls back.

use std::ops::{Deref, DerefMut};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use uuid::Uuid;

use crate::error::StoreError;
use crate::question::{Opening, Question};

/// The name of our sessions in the database's statistics.
pub(crate) const APPLICATION: &str = "tidegate";
/// How long a connection that waited is taken to be alive without asking.
const TRUSTED_FOR: Duration = Duration::from_secs(1);
/// The longest that such a question may take.
const PING_TIMEOUT: Duration = Duration::from_millis(500);

/// How to reach Postgres.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The URL of the database; may go through PgBouncer in transaction mode.
    pub url: String,
    /// A URL that reaches Postgres itself, for LISTEN; `None` is the same URL.
    pub direct_url: Option<String>,
    /// Most connections of this process for reads and upkeep; the door, cancels and each worker have one more each.
    pub connections: u32,
    /// The longest wait for a connection, new or free.
    pub connect_timeout: Duration,
    /// The longest any statement may take.
    pub statement_timeout: Duration,
    /// The longest a transaction waits for a lock: longer than a stopped holder is let live.
    pub lock_timeout: Duration,
    /// How long a transaction that says nothing is let live.
    pub idle_in_transaction_timeout: Duration,
    /// How long an input is held that has cost three workers.
    pub quarantine_hold: Duration,
}

impl StoreOptions {
    /// The defaults for a database.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            direct_url: None,
            connections: 8,
            connect_timeout: Duration::from_millis(1_500),
            statement_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(3),
            idle_in_transaction_timeout: Duration::from_secs(2),
            quarantine_hold: Duration::from_millis(tidegate_core::quarantine::HOLD_MS),
        }
    }
}

/// A statement and its values.
pub(crate) type PgQuery = sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// A bounded set of connections.
#[derive(Clone)]
pub(crate) struct Connections {
    shared: Arc<Shared>,
}

struct Shared {
    options: PgConnectOptions,
    /// The same with our settings, for the session as a whole.
    set: PgConnectOptions,
    /// What a session says that has them.
    mark: String,
    /// Whether a pooler stands between, which hands one session to many: then settings are for a transaction each, and
    /// nothing is prepared under a name of ours.
    pooled: AtomicBool,
    idle: Mutex<Vec<(Session, Instant)>>,
    permits: Arc<Semaphore>,
    settings: Settings,
}

struct Settings {
    connect_timeout: Duration,
    /// A little more than the server's own limit: whoever is cut off by the network still gets an answer.
    call_timeout: Duration,
    /// Begins a transaction and limits it, where that is not done for the session.
    begin_limited: String,
}

/// A connection, and what its server has prepared under a name of ours.
struct Session {
    conn: PgConnection,
    prepared: Vec<&'static str>,
}

/// The cell's row: who holds it may change where tasks stand.
pub(crate) const LOCK: Opening =
    Opening { name: "tidegate_lock", sql: "SELECT 1 FROM tidegate.cell WHERE id = 1 FOR UPDATE" };
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

impl Connections {
    /// At most `size` connections. None is opened yet.
    pub(crate) fn new(options: &StoreOptions, size: u32) -> Result<Self, StoreError> {
        let ours = settings(options);
        let set: Vec<_> = ours.iter().map(|(name, value)| format!("set_config('{name}', '{value}', true)")).collect();
        let settings = Settings {
            connect_timeout: options.connect_timeout,
            call_timeout: options.statement_timeout + Duration::from_secs(1),
            begin_limited: format!("{BEGIN}; SELECT {}", set.join(", ")),
        };
        let direct = connect_options(&options.url)?;
        let mark = Uuid::now_v7().to_string();
        let shared = Shared {
            set: direct.clone().options(ours).options([(MARK, &mark)]),
            options: direct,
            mark,
            pooled: AtomicBool::new(false),
            idle: Mutex::new(Vec::new()),
            permits: Arc::new(Semaphore::new(size as usize)),
            settings,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A connection, free or new.
    pub(crate) async fn get(&self) -> Result<Conn, StoreError> {
        let unavailable = |_| StoreError::Unavailable(None);
        timeout(self.shared.settings.connect_timeout, async {
            let permit =
                self.shared.permits.clone().acquire_owned().await.map_err(|_| StoreError::Unavailable(None))?;
            let idle = self.shared.idle_alive().await;
            let reused = idle.is_some();
            let session = match idle {
                Some(session) => session,
                None => self.shared.connect().await?,
            };
            Ok(Conn { session: Some(session), shared: self.shared.clone(), reused, _permit: permit })
        })
        .await
        .map_err(unavailable)?
    }

    /// Begins a transaction with its time-outs; with `lock`, holding the cell's row on return.
    pub(crate) async fn begin(&self, lock: bool) -> Result<Tx, StoreError> {
        self.begin_with(lock, None).await.map(|(tx, _)| tx)
    }

    /// Begins one that holds the cell's row, and asks something under it: one round trip.
    pub(crate) async fn begin_asking(&self, question: &Question) -> Result<(Tx, Vec<PgRow>), StoreError> {
        self.begin_with(true, Some(question)).await
    }

    async fn begin_with(&self, lock: bool, question: Option<&Question>) -> Result<(Tx, Vec<PgRow>), StoreError> {
        loop {
            let conn = self.get().await?;
            let reused = conn.reused;
            match self.begin_on(conn, lock, question).await {
                // A connection that waited may have died meanwhile: that says nothing about the database.
                Err(StoreError::Unavailable(_)) if reused => {}
                // What was prepared went to another session than what runs it.
                Err(StoreError::Unavailable(Some(error))) if loses_prepared(&error) && !self.shared.is_pooled() => {
                    self.shared.pooled.store(true, Ordering::Relaxed);
                }
                begun => return begun,
            }
        }
    }

    async fn begin_on(
        &self,
        mut conn: Conn,
        lock: bool,
        question: Option<&Question>,
    ) -> Result<(Tx, Vec<PgRow>), StoreError> {
        let call_timeout = self.call_timeout();
        let pooled = self.shared.is_pooled();
        let mut sql = if pooled { self.shared.settings.begin_limited.clone() } else { BEGIN.to_owned() };
        if lock && pooled {
            sql.extend(["; ", LOCK.sql]);
        } else if lock {
            call(call_timeout, conn.prepare(&LOCK)).await?;
            sql.extend(["; EXECUTE ", LOCK.name]);
        }
        let execute = question.filter(|_| !pooled).and_then(|question| Some((question.opening, question.execute()?)));
        if let Some((opening, execute)) = &execute {
            call(call_timeout, conn.prepare(opening)).await?;
            sql.extend(["; ", execute]);
        }
        let mut rows = call(call_timeout, sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut *conn)).await?;
        let mut tx = Tx { conn, call_timeout };
        match (question, execute) {
            // The lock's row comes first.
            (_, Some(_)) => drop(rows.drain(..usize::from(lock))),
            (Some(question), None) => rows = tx.ask(question).await?,
            (None, None) => {}
        }
        Ok((tx, rows))
    }

    /// Commits one statement by itself, then begins a transaction without a lock and runs others in it, in one round trip.
    /// Nothing happens where that is not possible: behind a pooler, or with values that no statement can hold.
    pub(crate) async fn begin_behind(
        &self,
        first: &Question,
        then: &[&Question],
    ) -> Result<Option<(Tx, Vec<PgRow>)>, StoreError> {
        let mut conn = self.get().await?;
        let Some(post) = first.execute().filter(|_| !self.shared.is_pooled()) else {
            conn.release();
            return Ok(None);
        };
        let call_timeout = self.call_timeout();
        call(call_timeout, conn.prepare(first.opening)).await?;
        let mut tx = Tx { conn, call_timeout };
        let rows = tx.run_after(format!("BEGIN; {post}; COMMIT; {BEGIN}"), then).await?;
        Ok(Some((tx, rows)))
    }

    /// Begins a transaction without a lock on a connection that is at hand, and asks something in it; nothing where there
    /// is none, or it fails. For whoever holds the lock elsewhere and must not wait.
    pub(crate) async fn begin_at_hand(&self, question: &Question) -> Option<(Tx, Vec<PgRow>)> {
        let permit = self.shared.permits.clone().try_acquire_owned().ok()?;
        let (session, since) = self.shared.idle().pop()?;
        if since.elapsed() >= TRUSTED_FOR {
            return None;
        }
        let conn = Conn { session: Some(session), shared: self.shared.clone(), reused: true, _permit: permit };
        self.begin_on(conn, false, Some(question)).await.ok()
    }

    /// Asks something that changes nothing. A connection that waited may have died meanwhile, which says nothing about the
    /// database: then it is asked again, once, on a new one.
    pub(crate) async fn ask(&self, query: impl Fn() -> PgQuery) -> Result<Vec<PgRow>, StoreError> {
        let call_timeout = self.call_timeout();
        let mut conn = self.get().await?;
        let mut rows = call(call_timeout, query().fetch_all(&mut *conn)).await;
        if conn.reused && matches!(rows, Err(StoreError::Unavailable(Some(_)))) {
            conn.renew().await?;
            rows = call(call_timeout, query().fetch_all(&mut *conn)).await;
        }
        if rows.is_ok() {
            conn.release();
        }
        rows
    }

    /// Takes leave of the database on every connection that nobody uses.
    pub(crate) async fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.shared.idle());
        // An error means that it is gone already.
        futures_util::future::join_all(idle.into_iter().map(|(session, _)| sqlx::Connection::close(session.conn)))
            .await;
    }

    /// The longest that any call is waited for.
    pub(crate) fn call_timeout(&self) -> Duration {
        self.shared.settings.call_timeout
    }
}

impl Shared {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(Session, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Relaxed)
    }

    /// A new connection. A pooler that hands one session to many refuses settings for a session, or forgets them: then it
    /// goes without.
    async fn connect(&self) -> Result<Session, sqlx::Error> {
        if !self.is_pooled() {
            match self.set.connect().await {
                Err(error) if refuses_settings(&error) => {}
                Err(error) => return Err(error),
                Ok(mut conn) => {
                    let ask = sqlx::query_scalar("SELECT current_setting($1, true)").bind(MARK);
                    let mark: Option<String> = ask.fetch_one(&mut conn).await?;
                    if mark.as_ref() == Some(&self.mark) {
                        return Ok(Session { conn, prepared: Vec::new() });
                    }
                }
            }
            self.pooled.store(true, Ordering::Relaxed);
        }
        Ok(Session { conn: self.options.connect().await?, prepared: Vec::new() })
    }

    /// The connection that was used last, if it still answers. One that waited may have died meanwhile.
    async fn idle_alive(&self) -> Option<Session> {
        loop {
            let (mut session, since) = self.idle().pop()?;
            if since.elapsed() < TRUSTED_FOR {
                return Some(session);
            }
            if let Ok(Ok(())) = timeout(PING_TIMEOUT, sqlx::Connection::ping(&mut session.conn)).await {
                return Some(session);
            }
        }
    }
}

/// A connection that is closed when dropped, unless it was handed back clean.
pub(crate) struct Conn {
    session: Option<Session>,
    shared: Arc<Shared>,
    reused: bool,
    _permit: OwnedSemaphorePermit,
}

impl Conn {
    /// Hands it back for others to use.
    pub(crate) fn release(mut self) {
        if let Some(session) = self.session.take() {
            self.shared.idle().push((session, Instant::now()));
        }
    }

    /// Replaces it by a new one. Those that waited beside it are likely as dead: they are given up too.
    async fn renew(&mut self) -> Result<(), StoreError> {
        self.shared.idle().clear();
        let connecting = timeout(self.shared.settings.connect_timeout, self.shared.connect());
        self.session = Some(connecting.await.map_err(|_| StoreError::Unavailable(None))??);
        self.reused = false;
        Ok(())
    }

    /// Has the server prepare a statement under its name, if it has not yet.
    async fn prepare(&mut self, opening: &Opening) -> Result<(), sqlx::Error> {
        let Some(session) = self.session.as_mut().filter(|session| !session.prepared.contains(&opening.name)) else {
            return Ok(());
        };
        let sql = format!("PREPARE {} AS {}", opening.name, opening.sql);
        session.conn.execute(AssertSqlSafe(sql)).await?;
        session.prepared.push(opening.name);
        Ok(())
    }

    /// Whether it was used before.
    pub(crate) fn reused(&self) -> bool {
        self.reused
    }
}

#[allow(clippy::expect_used, reason = "the connection is taken only by release, which consumes the guard")]
impl Deref for Conn {
    type Target = PgConnection;
    fn deref(&self) -> &PgConnection {
        &self.session.as_ref().expect("held until released").conn
    }
}

#[allow(clippy::expect_used, reason = "the connection is taken only by release, which consumes the guard")]
impl DerefMut for Conn {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.session.as_mut().expect("held until released").conn
    }
}

/// A transaction. Dropped without a commit, its connection is closed and the server rolls back.
pub(crate) struct Tx {
    conn: Conn,
    call_timeout: Duration,
}

impl Tx {
    /// Runs one statement of the transaction.
    pub(crate) async fn call<'a, T, F>(
        &'a mut self,
        statement: impl FnOnce(&'a mut PgConnection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, sqlx::Error>>,
    {
        call(self.call_timeout, statement(&mut self.conn)).await
    }

    /// Asks something.
    pub(crate) async fn ask(&mut self, question: &Question) -> Result<Vec<PgRow>, StoreError> {
        self.call(|conn| question.query().fetch_all(conn)).await
    }

    /// Runs statements that give no text, one after the other in one round trip, and returns the rows of all of them.
    pub(crate) async fn run(&mut self, questions: &[&Question]) -> Result<Vec<PgRow>, StoreError> {
        self.run_after(String::new(), questions).await
    }

    async fn run_after(&mut self, mut sql: String, questions: &[&Question]) -> Result<Vec<PgRow>, StoreError> {
        for question in questions {
            call(self.call_timeout, self.conn.prepare(question.opening)).await?;
            let execute = question.execute().ok_or_else(|| StoreError::Schema("a text that holds NUL".into()))?;
            if !sql.is_empty() {
                sql.push_str("; ");
            }
            sql.push_str(&execute);
        }
        self.call(|conn| sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn)).await
    }

    /// The same for a statement that may take longer than others.
    pub(crate) async fn call_within<'a, T, F>(
        &'a mut self,
        limit: Duration,
        statement: impl FnOnce(&'a mut PgConnection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, sqlx::Error>>,
    {
        call(limit, statement(&mut self.conn)).await
    }

    /// Commits. An error other than the server's own refusal of it means that nobody knows: a server that is shut down,
    /// or a pooler that lost it, says so in the same form and may have committed before.
    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        match timeout(self.call_timeout, self.conn.execute("COMMIT")).await {
            Ok(Ok(_)) => {
                self.conn.release();
                Ok(())
            }
            Ok(Err(error)) if is_rolled_back(&error) => Err(StoreError::from(error)),
            Ok(Err(error)) => Err(StoreError::OutcomeUnknown(Some(error))),
            Err(_) => Err(StoreError::OutcomeUnknown(None)),
        }
    }

    /// Rolls back and keeps the connection.
    pub(crate) async fn rollback(mut self) {
        if call(self.call_timeout, self.conn.execute("ROLLBACK")).await.is_ok() {
            self.conn.release();
        }
    }
}

/// Whether a failed COMMIT surely left nothing: a conflict with another transaction, a broken constraint, or a
/// transaction that was over before (classes 40, 23 and 25 of SQLSTATE).
fn is_rolled_back(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| ["40", "23", "25"].iter().any(|class| code.starts_with(class)))
}

/// Waits for a call, but not for ever: a blackholed socket never answers.
pub(crate) async fn call<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, StoreError> {
    match timeout(limit, statement).await {
        Ok(result) => result.map_err(StoreError::from),
        Err(_) => Err(StoreError::Unavailable(None)),
    }
}

pub(crate) fn connect_options(url: &str) -> Result<PgConnectOptions, StoreError> {
    let options = PgConnectOptions::from_str(url).map_err(StoreError::BadUrl)?;
    Ok(options.application_name(APPLICATION).disable_statement_logging())
}

/// Whether this is how a pooler says that it passes on no settings: as a violation of the protocol, or as something that
/// it cannot do.
fn refuses_settings(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| ["08P01", "0A000"].contains(&&*code))
}

/// Whether what was prepared is not there, or was there already: the session is another one than it was.
fn loses_prepared(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| ["26000", "42P05"].contains(&&*code))
}

/// The setting by which a session is known again.
const MARK: &str = "tidegate.opened_by";

/// The planner is held to index scans and nested loops with a plan made once: the hot tables go from empty to a million
/// rows and back between two looks of ANALYZE, and a plan made for the one is ruin for the other.
const PLANNER: [(&str, &str); 8] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    // A sort over all that a flow holds, where an index gives the first rows in order.
    ("enable_bitmapscan", "off"),
    // Whole tables, kept aside to be joined with.
    ("enable_material", "off"),
    ("enable_memoize", "off"),
    ("jit", "off"),
];

/// What we set: for the session where it is ours, otherwise for each transaction.
fn settings(options: &StoreOptions) -> Vec<(&'static str, String)> {
    let ms = |duration: Duration| duration.as_millis().to_string();
    let limits = [
        ("idle_in_transaction_session_timeout", ms(options.idle_in_transaction_timeout)),
        ("statement_timeout", ms(options.statement_timeout)),
        ("lock_timeout", ms(options.lock_timeout)),
        ("tcp_user_timeout", "5000".to_owned()),
        ("synchronous_commit", "on".to_owned()),
    ];
    limits.into_iter().chain(PLANNER.map(|(name, value)| (name, value.to_owned()))).collect()
}
