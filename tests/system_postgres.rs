//! The program's own Postgres, with the program as a real process: killed, started again, told to stop.

#![allow(clippy::unwrap_used)] // All of this file is a test, its helpers too.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use tidegate_testkit::{DataDir, Proc, pg_bin, poll_until};

/// More than any single step here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn dev_postgres(data_dir: &DataDir, script: &str) -> Proc {
    let mut builder = Proc::builder(env!("CARGO_BIN_EXE_tidegate")).args(["dev-postgres", "--data-dir"]);
    builder = builder.args([data_dir.path()]);
    if let Some(pg_bin) = pg_bin() {
        builder = builder.args(["--pg-bin".as_ref(), pg_bin.as_os_str()]);
    }
    builder.args(["--", "sh", "-c", script]).spawn()
}

async fn wait_until_gone(data_dir: &DataDir) {
    poll_until(LIMIT, "the end of Postgres", async || data_dir.postgres_pid().is_none().then_some(())).await;
}

#[tokio::test]
async fn the_command_gets_a_database_and_its_exit_code_comes_back() {
    let data_dir = DataDir::new();
    let mut proc = dev_postgres(&data_dir, "echo url $DATABASE_URL; exit 7");
    let line = proc.wait_for_line("url", LIMIT).await;
    assert!(line.starts_with("url postgres://tidegate:") && line.ends_with("/tidegate"), "{line}");
    assert_eq!(proc.wait(LIMIT).await.code(), Some(7));
    assert_eq!(data_dir.postgres_pid(), None);
}

#[tokio::test]
async fn after_a_kill_the_next_run_ends_what_was_left_and_starts_empty() {
    let data_dir = DataDir::new();
    let mut first = dev_postgres(&data_dir, "echo ready; exec sleep 600");
    first.wait_for_line("ready", LIMIT).await;
    let left = data_dir.postgres_pid().unwrap();
    first.kill9();
    assert_eq!(data_dir.postgres_pid(), Some(left), "the server outlives its process");

    let mut second = dev_postgres(&data_dir, "echo ready; exec sleep 600");
    second.wait_for_line("ready", LIMIT).await;
    assert_ne!(data_dir.postgres_pid(), Some(left));

    let mut refused = dev_postgres(&data_dir, "echo never");
    assert_ne!(refused.wait(LIMIT).await.code(), Some(0));
    let said = refused.output();
    assert!(said.contains(&format!("in use by process {}", second.pid())), "{said}");

    second.terminate();
    assert_eq!(second.wait(LIMIT).await.code(), Some(128 + Signal::SIGTERM as i32));
    wait_until_gone(&data_dir).await;
}

#[tokio::test]
async fn an_interrupt_reaches_the_command_first_and_the_database_last() {
    let data_dir = DataDir::new();
    let script = "trap 'echo interrupted; exit 0' INT; echo ready; while :; do sleep 0.01; done";
    let mut proc = dev_postgres(&data_dir, script);
    proc.wait_for_line("ready", LIMIT).await;
    proc.signal(Signal::SIGINT);
    proc.wait_for_line("interrupted", LIMIT).await;
    assert_eq!(proc.wait(LIMIT).await.code(), Some(128 + Signal::SIGINT as i32));
    assert_eq!(data_dir.postgres_pid(), None);
}

#[tokio::test]
async fn what_the_command_left_running_is_ended_with_it() {
    let data_dir = DataDir::new();
    let script = "setsid sleep 600 & echo left $! >&2; touch $TMPDIR/x; echo tmp $TMPDIR; exit 0";
    let mut proc = dev_postgres(&data_dir, script);
    let left: i32 = after_word(&proc.wait_for_line("left", LIMIT).await).parse().unwrap();
    let tmp = PathBuf::from(after_word(&proc.wait_for_line("tmp", LIMIT).await));
    assert_eq!(proc.wait(LIMIT).await.code(), Some(0));
    assert!(!Path::new(&format!("/proc/{left}")).exists());
    assert!(!tmp.exists());
}

#[tokio::test]
async fn the_temporary_directory_of_a_killed_run_is_removed_by_the_next() {
    let data_dir = DataDir::new();
    let mut killed = dev_postgres(&data_dir, "touch $TMPDIR/x; echo tmp $TMPDIR; exec sleep 600");
    let tmp = PathBuf::from(after_word(&killed.wait_for_line("tmp", LIMIT).await));
    killed.kill9();
    assert!(tmp.join("x").exists());
    let mut next = dev_postgres(&data_dir, "true");
    assert_eq!(next.wait(LIMIT).await.code(), Some(0));
    assert!(!tmp.exists());
}

fn after_word(line: &str) -> &str {
    line.split_once(' ').unwrap().1
}
