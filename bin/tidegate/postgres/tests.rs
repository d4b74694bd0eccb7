//! Real clusters, really killed. Each test makes its own, since each breaks it in its own way.

use std::fs::{Permissions, set_permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

use super::command::wait_for;
use super::home::Home;
use super::process::servers_on;
use super::{LocalPostgres, OwnCluster, PostgresError};

/// More than any single step here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A data directory that the account which runs Postgres can reach, as one made by `up` is.
fn data_dir() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
    dir
}

fn durable(dir: &Path) -> OwnCluster {
    OwnCluster::durable(dir, tidegate_testkit::pg_bin())
}

fn start(dir: &Path) -> LocalPostgres {
    LocalPostgres::start(durable(dir)).unwrap()
}

fn data_of(dir: &Path) -> std::path::PathBuf {
    Home::existing(dir).unwrap().unwrap().data()
}

/// Asks one question; a connection each, so that nothing is left open.
fn ask(url: &str, sql: &'static str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connection = PgConnection::connect(url).await.unwrap();
        let answer: String = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        answer
    })
}

fn execute(url: &str, sql: &'static str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    });
}

fn kill_server(postgres: &LocalPostgres) {
    kill(Pid::from_raw(postgres.pid().unwrap()), Signal::SIGKILL).unwrap();
}

#[test]
fn a_cluster_is_durable_reachable_both_ways_and_keeps_its_data_and_port() {
    let dir = data_dir();
    let postgres = start(dir.path());
    assert!(!postgres.was_adopted());
    for url in [postgres.url(), postgres.tcp_url()] {
        assert_eq!(ask(&url, "SELECT current_database() || '/' || current_user"), "tidegate/tidegate");
    }
    let settings = "SELECT string_agg(current_setting(name), ' ') FROM unnest(ARRAY['fsync', 'synchronous_commit', \
                    'full_page_writes', 'server_encoding', 'listen_addresses', 'password_encryption']) name";
    let said = ask(&postgres.url(), settings);
    assert_eq!(said, "on on on UTF8 127.0.0.1 scram-sha-256");
    let collation = "SELECT datcollate FROM pg_database WHERE datname = current_database()";
    assert_eq!(ask(&postgres.url(), collation), "C");
    let wrong = postgres.tcp_url().replacen("tidegate:", "tidegate:0", 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(PgConnection::connect(&wrong)).is_err(), "a wrong password must not get in");

    execute(&postgres.url(), "CREATE TABLE kept AS SELECT 'yes' AS answer");
    let (url, data) = (postgres.url(), data_of(dir.path()));
    postgres.stop().unwrap();
    assert_eq!(servers_on(&data), Vec::<i32>::new(), "stopped means that no process is left");

    let again = start(dir.path());
    assert_eq!(again.url(), url, "what people noted down stays true");
    assert_eq!(ask(&again.url(), "SELECT answer FROM kept"), "yes");
}

#[test]
fn the_home_is_closed_to_others_and_the_password_is_in_no_open_file() {
    let dir = data_dir();
    let postgres = start(dir.path());
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(postgres.home()), 0o700);
    assert_eq!(mode(&postgres.home().join("password")), 0o600);
    assert_eq!(mode(&postgres.log_path()), 0o600);
}

#[test]
fn a_server_that_outlived_its_process_is_adopted_and_a_second_process_is_refused() {
    let dir = data_dir();
    let first = start(dir.path());
    let refused = LocalPostgres::start(durable(dir.path())).unwrap_err();
    assert!(matches!(refused, PostgresError::InUse { .. }), "{refused}");
    assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");

    let (pid, url) = (first.pid(), first.url());
    first.abandon();
    let second = start(dir.path());
    assert!(second.was_adopted());
    assert_eq!((second.pid(), second.url()), (pid, url));
    assert_eq!(ask(&second.url(), "SELECT 'here'"), "here");
    second.stop().unwrap();
    assert_eq!(servers_on(&data_of(dir.path())), Vec::<i32>::new(), "an adopted server is stopped like our own");
}

#[test]
fn a_killed_server_is_revived_at_the_same_address_even_with_a_busy_orphan() {
    let dir = data_dir();
    let mut postgres = start(dir.path());
    let url = postgres.url();
    execute(&url, "CREATE TABLE kept AS SELECT 'yes' AS answer");
    // A backend that never looks up: it does not notice that its postmaster is gone.
    let busy_url = url.clone();
    let busy = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = PgConnection::connect(&busy_url).await.unwrap();
            sqlx::raw_sql("DO $$ BEGIN LOOP END LOOP; END $$").execute(&mut connection).await.is_err()
        })
    });
    let is_busy = "SELECT count(*)::text FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'DO %'";
    wait_for("the busy backend", LIMIT, || Ok((ask(&url, is_busy) == "1").then_some(()))).unwrap();

    assert!(!postgres.revive().unwrap(), "a live server is left alone");
    kill_server(&postgres);
    wait_for("the death of the server", LIMIT, || Ok((!postgres.is_running()).then_some(()))).unwrap();
    assert!(postgres.revive().unwrap());
    assert_eq!(postgres.url(), url);
    assert_eq!(ask(&url, "SELECT answer FROM kept"), "yes");
    assert!(busy.join().unwrap(), "the orphan was ended");
}

#[test]
fn what_a_crash_leaves_behind_does_not_block_the_next_start() {
    let dir = data_dir();
    let postgres = start(dir.path());
    let (url, data) = (postgres.url(), data_of(dir.path()));
    execute(&url, "CREATE TABLE kept AS SELECT 'yes' AS answer");
    kill_server(&postgres);
    postgres.abandon();
    let pid_file = data.join("postmaster.pid");
    assert!(pid_file.exists(), "a killed server leaves its pid file");

    // The pid is dead.
    let postgres = start(dir.path());
    assert!(!postgres.was_adopted());
    assert_eq!(ask(&postgres.url(), "SELECT answer FROM kept"), "yes");
    let text = std::fs::read_to_string(&pid_file).unwrap();
    postgres.stop().unwrap();

    // The pid is alive, but another program's: ours.
    let (_, rest) = text.split_once('\n').unwrap();
    std::fs::write(&pid_file, format!("{}\n{rest}", std::process::id())).unwrap();
    let postgres = start(dir.path());
    assert!(!postgres.was_adopted());
    postgres.stop().unwrap();

    // The file was torn, and an interrupted initdb lies beside it.
    std::fs::write(&pid_file, "").unwrap();
    let half_made = dir.path().join("postgres.new-0123456789ab");
    std::fs::create_dir_all(half_made.join("data")).unwrap();
    let postgres = start(dir.path());
    assert!(!half_made.exists());
    assert_eq!(ask(&postgres.url(), "SELECT answer FROM kept"), "yes");
}

#[test]
fn a_port_that_was_taken_meanwhile_is_replaced() {
    let dir = data_dir();
    let postgres = start(dir.path());
    postgres.stop().unwrap();
    let recorded: u16 = std::fs::read_to_string(dir.path().join("postgres.port")).unwrap().trim().parse().unwrap();
    let _taken = TcpListener::bind(("127.0.0.1", recorded)).unwrap();
    let postgres = start(dir.path());
    assert!(!postgres.tcp_url().contains(&format!(":{recorded}/")));
    assert_eq!(ask(&postgres.tcp_url(), "SELECT 'here'"), "here");
}

#[test]
fn a_long_or_odd_path_gets_a_short_private_socket_directory() {
    let top = data_dir();
    let dir = top.path().join(format!("with a space/{}", "long".repeat(30)));
    let postgres = start(&dir);
    let socket_dir = postgres.url().split_once("?host=").unwrap().1.to_owned();
    assert!(socket_dir.starts_with("/tmp/tidegate-"), "{socket_dir}");
    assert_eq!(Path::new(&socket_dir).metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(ask(&postgres.url(), "SELECT 'here'"), "here");
    postgres.stop().unwrap();
    assert!(!Path::new(&socket_dir).exists());
}

#[test]
fn a_cluster_of_another_major_version_is_refused_and_not_touched() {
    let dir = data_dir();
    start(dir.path()).stop().unwrap();
    let version = data_of(dir.path()).join("PG_VERSION");
    let before = std::fs::read_to_string(&version).unwrap();
    std::fs::write(&version, "14\n").unwrap();
    let error = LocalPostgres::start(durable(dir.path())).unwrap_err();
    assert!(matches!(error, PostgresError::WrongMajor { wanted: 14, .. }), "{error}");
    std::fs::write(&version, before).unwrap();
    start(dir.path());
}

#[test]
fn a_throw_away_cluster_is_empty_each_time_and_leaves_nothing() {
    let dir = data_dir();
    let wanted = OwnCluster::throw_away(dir.path(), tidegate_testkit::pg_bin());
    let first = LocalPostgres::start(wanted.clone()).unwrap();
    assert_eq!(ask(&first.url(), "SELECT current_setting('fsync')"), "off");
    execute(&first.url(), "CREATE TABLE gone ()");
    let old_pid = first.pid().unwrap();
    first.abandon();
    let second = LocalPostgres::start(wanted).unwrap();
    assert_ne!(second.pid(), Some(old_pid));
    assert_eq!(ask(&second.url(), "SELECT count(*)::text FROM pg_tables WHERE tablename = 'gone'"), "0");
    second.destroy().unwrap();
    assert_eq!(Home::existing(dir.path()).unwrap(), None);
}

/// Only root hands Postgres to another account; for anybody else the home is always in the data directory, which the
/// first test here shows.
#[test]
fn root_in_a_directory_closed_to_others_gets_a_home_elsewhere_and_a_link() {
    if !geteuid().is_root() {
        return;
    }
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), data_dir());
    set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
    let wanted = OwnCluster { fallback_base: elsewhere.path().join("base"), ..durable(dir.path()) };
    let postgres = LocalPostgres::start(wanted.clone()).unwrap();
    assert!(postgres.home().starts_with(elsewhere.path()));
    assert_eq!(dir.path().join("postgres").read_link().unwrap(), postgres.home());
    execute(&postgres.url(), "CREATE TABLE kept AS SELECT 'yes' AS answer");
    postgres.stop().unwrap();
    let postgres = LocalPostgres::start(wanted).unwrap();
    assert_eq!(ask(&postgres.url(), "SELECT answer FROM kept"), "yes");
}
