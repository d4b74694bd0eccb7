//! `tidegate bench`: every measurement in its smallest form, and what it leaves behind. What it measures is not tested:
//! that depends on the machine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use sqlx::{Connection, PgConnection};
use tidegate_testkit::{DataDir, Proc, TestDb, pg_bin};
use tokio::process::Command;

/// More than any of these takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(100);

/// Runs a measurement on a database and returns its report.
async fn bench(database: &TestDb, arguments: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["bench", "--json", "--database-url", database.url()]).args(arguments);
    let output = tokio::time::timeout(LIMIT, command.kill_on_drop(true).output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// The figure of a section.
fn figure<'a>(section: &'a Value, what: &str) -> &'a Value {
    let figures = section["figures"].as_array().unwrap();
    figures.iter().find(|figure| figure["what"] == what).unwrap_or_else(|| panic!("{what} in {section}"))
}

fn is_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|value| value > 0.0)
}

async fn relations(database: &TestDb) -> Vec<String> {
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let sql = "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
        WHERE n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%' AND c.relkind = 'r'";
    sqlx::query_scalar(sql).fetch_all(&mut connection).await.unwrap()
}

#[tokio::test]
async fn the_store_is_held_against_plain_sql_and_nothing_stays() {
    let database = TestDb::new().await;
    let arguments = ["store", "--tasks", "1000", "--rounds", "1", "--flows", "2,1", "--submitters", "100"];
    let report = bench(&database, &[&arguments[..], &["--backlog", "1000"]].concat()).await;
    let sections = report["sections"].as_array().unwrap();
    assert_eq!(sections.len(), 2, "one for each number of flows");
    for section in sections {
        for what in ["admission", "claim + settle", "claim + settle, 1,000 waiting"] {
            let figure = figure(section, what);
            assert!(is_positive(&figure["value"]) && is_positive(&figure["baseline"]["value"]), "{figure}");
            assert!(is_positive(&figure["ratio"]) && figure["met"].is_boolean(), "{figure}");
        }
        // A sample, a round to warm up, one that counts, one before the backlog, the backlog, and one after it.
        let kept = "kept: 6,000 outcomes with results, 18,000 transitions in the outbox; no counter drifted";
        assert!(section["notes"].as_array().unwrap().contains(&kept.into()), "{section}");
    }
    assert_eq!(relations(&database).await, Vec::<String>::new());
}

#[tokio::test]
async fn claims_are_measured_past_what_may_not_run() {
    let database = TestDb::new().await;
    let report = bench(&database, &["claim", "--samples", "10", "--blocked", "200", "--tenants", "20"]).await;
    let section = &report["sections"][0];
    for blocked in ["in one flow for a full peer", "of 20 tenants for a full peer", "of 20 capped tenants"] {
        let figure = figure(section, &format!("claim p99, 200 {blocked}"));
        assert!(is_positive(&figure["value"]) && is_positive(&figure["ratio"]), "{figure}");
    }
    assert_eq!(relations(&database).await, Vec::<String>::new());
}

#[tokio::test]
async fn ever_more_claimers_are_held_against_the_best_number_of_them() {
    let database = TestDb::new().await;
    let report = bench(&database, &["claimers", "--tasks", "1000", "--rounds", "1", "--sessions", "1,2,6"]).await;
    let section = &report["sections"][0];
    for what in ["1 session", "2 sessions", "6 sessions"] {
        assert!(is_positive(&figure(section, what)["value"]), "{section}");
    }
    let most = section["figures"].as_array().unwrap().last().unwrap();
    assert!(is_positive(&most["ratio"]) && most["met"].is_boolean(), "{most}");
    let notes = section["notes"].as_array().unwrap();
    assert!(notes.contains(&"no turn failed, and the database ended no deadlock".into()), "{section}");
    assert_eq!(relations(&database).await, Vec::<String>::new());
}

#[tokio::test]
async fn submissions_over_http_are_held_against_a_bare_handler() {
    let database = TestDb::new().await;
    let report = bench(&database, &["http", "--connections", "8", "--seconds", "1", "--rounds", "1"]).await;
    let section = &report["sections"][0];
    for what in ["POST /v1/tasks", "p50", "p99", "p99.9"] {
        let figure = figure(section, what);
        assert!(is_positive(&figure["value"]) && is_positive(&figure["baseline"]["value"]), "{figure}");
    }
    assert_eq!(section["notes"], serde_json::json!([]), "every request was accepted");

    let rate = ["--connections", "8", "--seconds", "1", "--rounds", "1", "--rate", "50"];
    let report = bench(&database, &[&["http"], &rate[..]].concat()).await;
    let accepted = figure(&report["sections"][0], "POST /v1/tasks");
    let per_second = accepted["value"].as_f64().unwrap();
    assert!((40.0..=51.0).contains(&per_second), "{accepted}");
    assert_eq!(relations(&database).await, Vec::<String>::new());
}

#[tokio::test]
async fn pickups_and_idleness_are_measured() {
    let database = TestDb::new().await;
    let report = bench(&database, &["pickup", "--samples", "10", "--idle", "2s"]).await;
    let section = &report["sections"][0];
    let round = figure(section, "POST to its result in hand, p50");
    assert!(is_positive(&round["value"]), "{round}");
    assert!(is_positive(&figure(section, "idle: statements")["value"]), "the counter sees what the server asks");
    assert!(figure(section, "idle: processor time of tidegate")["met"].is_boolean());
    assert_eq!(relations(&database).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_stream_under_an_old_snapshot_is_held_against_a_plain_queue() {
    let database = TestDb::new().await;
    let report = bench(&database, &["snapshot", "--seconds", "6", "--waiting", "1000", "--priorities", "5"]).await;
    let section = &report["sections"][0];
    for what in ["tidegate, a snapshot held: last", "plain queue, a snapshot held: last", "tidegate at the end"] {
        let figure = figure(section, what);
        assert!(is_positive(&figure["value"]) && is_positive(&figure["ratio"]), "{figure}");
    }
    assert_eq!(relations(&database).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_flood_is_held_against_a_plain_queue_and_drawn() {
    let database = TestDb::new().await;
    let directory = DataDir::new();
    std::fs::create_dir_all(directory.path()).unwrap();
    let plot = directory.path().join("overload.svg");
    let flood = ["overload", "--seconds", "2", "--loads", "0.5,3", "--spread", "--plot", plot.to_str().unwrap()];
    let report = bench(&database, &flood).await;
    let sections = report["sections"].as_array().unwrap();
    assert_eq!(sections.len(), 2, "one for each load");
    for section in sections {
        for what in ["offered", "accepted", "done in time", "plain queue: done in time"] {
            assert!(is_positive(&figure(section, what)["value"]), "{section}");
        }
        assert!(figure(section, "accepted that ended in time")["met"].is_boolean(), "{section}");
    }
    let sized = sections[0]["notes"][0].as_str().unwrap();
    assert!(sized.contains("says max_queued 37"), "{sized}");
    let refused = sections[1]["notes"].to_string();
    assert!(refused.contains("refused: "), "three times what it can do is not let in: {refused}");
    assert_eq!(std::fs::read_to_string(&plot).unwrap().matches("<circle").count(), 4);
    assert_eq!(relations(&database).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_database_that_somebody_uses_is_refused_and_left_as_it_is() {
    let database = TestDb::migrated().await;
    let before = relations(&database).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command.args(["bench", "store", "--database-url", database.url()]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("name an empty database") && said.contains("redacted"), "{said}");
    assert!(!before.is_empty());
    assert_eq!(relations(&database).await, before);
}

#[tokio::test]
async fn an_interrupt_takes_the_cluster_away() {
    let data_dir = DataDir::new();
    let own = data_dir.path().join("bench");
    let mut arguments =
        vec!["bench".to_owned(), "store".to_owned(), "--data-dir".to_owned(), own.display().to_string()];
    if let Some(pg_bin) = pg_bin() {
        arguments.extend(["--pg-bin".to_owned(), pg_bin.display().to_string()]);
    }
    let mut proc = Proc::builder(env!("CARGO_BIN_EXE_tidegate")).args(arguments).spawn();
    let settings = proc.wait_for_line("settings", LIMIT).await;
    assert!(settings.contains("fsync=on") && settings.contains("synchronous_commit=on"), "{settings}");
    assert!(own.exists());
    proc.signal(Signal::SIGINT);
    assert_eq!(proc.wait(LIMIT).await.code(), Some(1));
    assert!(proc.output().contains("stopped before everything was measured"), "{}", proc.output());
    assert!(!own.exists(), "nothing is left of the cluster");
}
