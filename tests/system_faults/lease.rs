//! Leases: workers that die, freeze or lose their rows, and healthy ones that must not lose any.

use std::time::{Duration, Instant};

use serde_json::json;
use tidegate_testkit::{Proc, poll_until, short_or_long};

use crate::caller::{Caller, sleep};
use crate::fleet::{ALIVE, Fleet, LIMIT, RUNNING, execute, number, wait_for_number};
use crate::verdict::assert_sound;

/// How often the keeper looks for lost leases.
const REAP: Duration = Duration::from_secs(1);
/// How much a busy machine may add.
const SLACK: Duration = Duration::from_secs(2);
/// The lease that is assumed of a session whose row is gone: nothing is reaped for so long after Postgres started.
const UNKNOWN_LEASE_S: u64 = 15;

/// The id of a worker's session, from its log.
async fn session_of(worker: &mut Proc) -> String {
    let line = worker.wait_for_line("\"serving\"", LIMIT).await;
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    line["session.id"].as_str().unwrap_or_else(|| panic!("{line}")).to_owned()
}

/// Waits until a task runs under this fence.
async fn running_under(caller: &Caller, id: &str, fence: u64) {
    poll_until(LIMIT, &format!("task {id} under fence {fence}"), async || {
        let task = caller.task(id).await;
        (task["status"] == "RUNNING" && task["fence"] == fence).then_some(())
    })
    .await;
}

/// C01: a worker that died is found by the lease of its task alone, whatever happened to its rows.
#[tokio::test]
async fn the_task_of_a_dead_worker_starts_again_within_lease_and_sweep() {
    let lease = Duration::from_secs(short_or_long(2, 5));
    let fleet = Fleet::new().await.with_lease(lease);
    let server = fleet.serve().await;
    let old_enough = format!(
        "SELECT (clock_timestamp() > pg_postmaster_start_time() + interval '{UNKNOWN_LEASE_S} s')::int::bigint"
    );
    wait_for_number(fleet.db.url(), &old_enough, 1).await;
    let mut dead = Vec::new();
    for what_else in [
        "",
        "DELETE FROM tidegate.heartbeat WHERE session_id = '{old}'",
        "DELETE FROM tidegate.session WHERE id = '{old}'",
        "DELETE FROM tidegate.session WHERE id = '{old}'; DELETE FROM tidegate.heartbeat WHERE session_id = '{old}'",
    ] {
        let mut worker = fleet.worker(1).await;
        let session = session_of(&mut worker).await;
        let id = server.caller.add(&sleep(60_000)).await;
        running_under(&server.caller, &id, 1).await;
        dead.push((id, worker, session, what_else));
    }
    let killed = Instant::now();
    for (_, worker, session, what_else) in &mut dead {
        worker.kill9();
        execute(fleet.db.url(), &what_else.replace("{old}", session)).await;
    }
    // Its successor has the name of the first that died.
    let mut successor = fleet.worker(dead.len() as u32).await;
    let (old, new) = (&dead[0].2, session_of(&mut successor).await);
    let rename = "UPDATE tidegate.session SET worker = (SELECT worker FROM tidegate.session WHERE id = '{old}') WHERE id = '{new}'";
    execute(fleet.db.url(), &rename.replace("{old}", old).replace("{new}", &new)).await;
    for (id, ..) in &dead {
        running_under(&server.caller, id, 2).await;
    }
    assert!(killed.elapsed() < lease + REAP + SLACK, "they started again after {:?}", killed.elapsed());

    for (id, ..) in &dead {
        server.caller.cancel(id).await.unwrap();
        assert_eq!(server.caller.ended(id, LIMIT).await["status"], "CANCELLED");
        assert_eq!(server.caller.runs(id).await[0], (1, 1, "lost".to_owned()), "a loss uses up no attempt");
    }
    let ids: Vec<String> = dead.iter().map(|(id, ..)| id.clone()).collect();
    assert_sound(fleet.db.url(), &ids).await;
}

/// C01: rows of a live worker that somebody deletes. It is told, stops, and serves again as a new session.
#[tokio::test]
async fn a_live_worker_whose_row_is_gone_stops_and_begins_anew() {
    let fleet = Fleet::new().await.with_lease(Duration::from_secs(2));
    let server = fleet.serve().await;
    let mut worker = fleet.worker(1).await;
    let id = server.caller.add(&sleep(3_000)).await;
    running_under(&server.caller, &id, 1).await;
    let session = session_of(&mut worker).await;
    execute(fleet.db.url(), &format!("DELETE FROM tidegate.heartbeat WHERE session_id = '{session}'")).await;
    worker.wait_for_line("the session was lost", LIMIT).await;
    let task = server.caller.ended(&id, LIMIT).await;
    assert_eq!((&task["status"], &task["fence"]), (&"COMPLETED".into(), &2.into()), "{task}");
    assert_sound(fleet.db.url(), &[id]).await;
}

/// C02: tasks of many leases under a healthy worker are started once.
#[tokio::test]
async fn a_healthy_task_of_any_length_is_started_once() {
    let (lease_ms, tasks, task_ms) = short_or_long((1_000, 10, 7_000), (5_000, 20, 60_000));
    let fleet = Fleet::new().await.with_lease(Duration::from_millis(lease_ms));
    let server = fleet.serve().await;
    // A tenth of the slots is kept for critical work.
    let worker = fleet.worker(tasks + tasks / 8).await;
    let ids = server.caller.add_all((0..tasks).map(|_| sleep(task_ms))).await;
    wait_for_number(fleet.db.url(), RUNNING, i64::from(tasks)).await;
    for id in &ids {
        let task = server.caller.ended(id, Duration::from_millis(task_ms) + LIMIT).await;
        assert_eq!((&task["status"], &task["fence"]), (&"COMPLETED".into(), &1.into()), "{task}");
    }
    assert_eq!(number(fleet.db.url(), "SELECT sum(deliveries) FROM tidegate.task").await, i64::from(tasks));
    assert!(!worker.output().contains("lost"), "{}", worker.output());
    assert_sound(fleet.db.url(), &ids).await;
}

/// C10: a worker that froze for three leases is told that it lost, and what it reports late changes nothing.
#[tokio::test]
async fn a_worker_that_wakes_after_its_lease_changes_nothing() {
    let lease = Duration::from_secs(short_or_long(1, 5));
    let fleet = Fleet::new().await.with_lease(lease);
    let server = fleet.serve().await;
    let mut frozen = fleet.worker(1).await;
    // Its handler is over when it wakes, so that it has a result to report.
    let id = server.caller.add(&sleep(2 * lease.as_millis() as u64)).await;
    running_under(&server.caller, &id, 1).await;
    frozen.freeze();
    let since = Instant::now();
    let other = fleet.worker(1).await;
    running_under(&server.caller, &id, 2).await;
    poll_until(LIMIT, "three leases", async || (since.elapsed() > lease * 3).then_some(())).await;
    frozen.thaw();
    let awake = Instant::now();
    frozen.wait_for_line("lost", LIMIT).await;
    assert!(awake.elapsed() < lease / 3 + SLACK, "it was told after {:?}", awake.elapsed());

    let task = server.caller.ended(&id, LIMIT).await;
    assert_eq!((&task["status"], &task["fence"]), (&"COMPLETED".into(), &2.into()), "{task}");
    let winner = task["worker"].as_str().unwrap();
    assert!(winner.ends_with(&format!("-{}", other.pid())), "{winner} ran it, not {}", other.pid());
    let runs = server.caller.runs(&id).await;
    assert_eq!(runs, [(1, 1, "lost".to_owned()), (1, 2, "completed".to_owned())]);
    // The one that was frozen goes on as a new session.
    drop(other);
    let next = server.caller.add(&json!({"kind": "echo"})).await;
    assert_eq!(server.caller.ended(&next, LIMIT).await["status"], "COMPLETED");
    wait_for_number(fleet.db.url(), ALIVE, 0).await;
    assert_sound(fleet.db.url(), &[id, next]).await;
}
