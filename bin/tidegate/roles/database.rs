//! Finding the database, and bringing its tables to this version.

use std::error::Error as _;
use std::time::{Duration, Instant};

use tidegate_core::backoff::{BackoffPolicy, delay_ms};
use tidegate_store::{Migrated, SchemaState, StoreError, migrate, schema_state};
use tokio_util::sync::CancellationToken;

use crate::cli::Database;
use crate::config::{Config, ConfigError, Problem, SecretUrl};
use crate::exit::Failure;

/// How long a database that cannot be reached is waited for: long enough for one that starts beside us.
const PATIENCE: Duration = Duration::from_secs(10);
/// The delays between looks.
const LOOKS: BackoffPolicy = BackoffPolicy { base_ms: 200, max_ms: 1_000 };

/// The database that is named: by the command line, the environment or the configuration.
pub(crate) fn named<'a>(config: &'a Config, database: &'a Database) -> Result<Option<&'a SecretUrl>, ConfigError> {
    match database.named() {
        Some(url) if !url.is_postgres() => {
            let what = "must begin with postgres:// or postgresql://";
            Err(Problem::new("", Some("--database-url or DATABASE_URL".to_owned()), what).into())
        }
        Some(url) => Ok(Some(url)),
        None => Ok(config.store.url.as_ref()),
    }
}

/// The database of a role that cannot do without.
pub(super) fn required<'a>(config: &'a Config, database: &'a Database) -> Result<&'a SecretUrl, ConfigError> {
    let missing = "is missing: name the database with --database-url, DATABASE_URL or [store] url";
    named(config, database)?.ok_or_else(|| Problem::new("store.url", None, missing).into())
}

/// Makes sure that the tables are those of this version: waits for the database, looks, and migrates where they are
/// older. Any number of processes may do so at once.
pub(super) async fn prepare(url: &str, stop: &CancellationToken) -> Result<(), Failure> {
    match look(url, stop).await? {
        SchemaState::Current => Ok(()),
        SchemaState::Ahead => {
            tracing::warn!("a newer version has migrated this database; going on, as during a rolling update");
            Ok(())
        }
        SchemaState::Empty | SchemaState::Behind => {
            tracing::info!("migrating");
            migrate_now(url).await.map(drop)
        }
    }
}

/// The same for whoever wants to know what was done: waits for the database, and migrates whatever is missing.
pub(super) async fn bring_up(url: &str, stop: &CancellationToken) -> Result<Migrated, Failure> {
    if look(url, stop).await? == SchemaState::Ahead {
        tracing::warn!("a newer version has migrated this database");
    }
    migrate_now(url).await
}

async fn migrate_now(url: &str) -> Result<Migrated, Failure> {
    migrate(url).await.map_err(|error| failed("the database could not be migrated", &error))
}

async fn look(url: &str, stop: &CancellationToken) -> Result<SchemaState, Failure> {
    let started = Instant::now();
    let mut looks = 0;
    loop {
        let error = match schema_state(url).await {
            Ok(state) => return Ok(state),
            Err(error) => error,
        };
        looks += 1;
        let delay = Duration::from_millis(delay_ms(LOOKS, looks, None, rand::random_range(0.5..1.0)));
        if !error.is_transient() || started.elapsed() + delay > PATIENCE || stop.is_cancelled() {
            return Err(failed("the database cannot be used", &error));
        }
        tracing::info!(error = %cause(&error), "waiting for the database");
        stop.run_until_cancelled(tokio::time::sleep(delay)).await;
    }
}

/// A failure of the store as the command line tells it.
pub(super) fn failed(what: &str, error: &StoreError) -> Failure {
    let text = format!("{what}: {}", cause(error));
    match error {
        StoreError::Unavailable(_) => Failure::Unreachable(text),
        StoreError::BadUrl(_) => {
            Failure::Config(Problem::new("store.url", None, &format!("is not usable: {}", cause(error))).into())
        }
        _ => Failure::Other(text),
    }
}

fn cause(error: &StoreError) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| cause.to_string())
}
