//! Processes that are killed: what they had taken on is not lost, and is not done twice without need.

use nix::sys::signal::Signal;
use reqwest::StatusCode;
use serde_json::json;
use tidegate_testkit::{Behaviour, DataDir, FakeTool, Proc, Seen, pg_bin};

use crate::caller::Caller;
use crate::fleet::{ALIVE, LIMIT, kind_with_tool, number, tidegate, wait_for_number};
use crate::verdict::assert_sound;

/// Tasks that run, and tasks that wait, when everything is killed.
const RUN: usize = 50;
const WAIT: usize = 1_000;

fn up(data_dir: &DataDir, tool: &FakeTool) -> Proc {
    let mut builder = tidegate().args(["up", "--listen", "127.0.0.1:0", "--data-dir"]).args([data_dir.path()]);
    if let Some(pg_bin) = pg_bin() {
        builder = builder.args(["--pg-bin".as_ref(), pg_bin.as_os_str()]);
    }
    for (key, value) in kind_with_tool("tool", &tool.url("/")) {
        builder = builder.env(&key, value);
    }
    // A tenth of the slots is kept for critical work.
    let slots = (RUN + RUN / 10).to_string();
    builder.env("TIDEGATE__WORKER__SLOTS", slots).env("TIDEGATE__WORKER__LEASE_MS", "2000").spawn()
}

/// Brings everything up with 50 tasks running and 1,000 waiting, kills it by `crash`, and starts it again at once: all
/// 1,050 end, once each, and only those that ran are run again.
async fn everything_is_killed_and_started_again(crash: impl FnOnce(&mut Proc, &DataDir)) {
    let (data_dir, tool) = (DataDir::new(), FakeTool::start().await);
    // In their first life the tasks that run do not end; in the second they do.
    tool.on("/", std::iter::repeat_n(Behaviour::Hang, RUN).chain([Behaviour::Echo]));
    let mut first = up(&data_dir, &tool);
    let caller = Caller::new(first.wait_for_url(LIMIT).await);
    let ran = caller.add_all((0..RUN).map(|n| json!({"kind": "tool", "payload": n}))).await;
    tool.wait_for_requests(RUN, LIMIT).await;
    let waited = caller.add_all((0..WAIT).map(|n| json!({"kind": "echo", "payload": n}))).await;
    crash(&mut first, &data_dir);

    let mut second = up(&data_dir, &tool);
    let caller = Caller::new(second.wait_for_url(LIMIT).await);
    let database = data_dir.database_url();
    wait_for_number(&database, ALIVE, 0).await;
    for id in ran.iter().chain(&waited) {
        assert_eq!(caller.task(id).await["status"], "COMPLETED", "{id}");
    }
    for (ids, starts) in [(&ran, 2), (&waited, 1)] {
        let others = format!("deliveries <> {starts} AND id IN ('{}')", ids.join("','"));
        let others = number(&database, &format!("SELECT count(*) FROM tidegate.task WHERE {others}")).await;
        assert_eq!(others, 0, "those that ran start twice, the others once");
    }
    let fence = |seen: &Seen| seen.header("x-fence").unwrap().to_owned();
    let fences: Vec<String> = tool.seen().iter().map(fence).collect();
    assert_eq!(fences, [vec!["1"; RUN], vec!["2"; RUN]].concat());
    assert_sound(&database, &[ran, waited].concat()).await;
    second.terminate();
    assert_eq!(second.wait(LIMIT).await.code(), Some(0), "{}", second.output());
}

#[tokio::test]
async fn all_of_up_is_killed_under_1050_tasks_and_none_is_lost() {
    everything_is_killed_and_started_again(|up, _| {
        up.kill9();
    })
    .await;
}

#[tokio::test]
async fn the_machine_crashes_under_1050_tasks_and_none_is_lost() {
    everything_is_killed_and_started_again(|up, data_dir| {
        data_dir.signal_postgres(Signal::SIGKILL);
        up.kill9();
    })
    .await;
}

#[tokio::test]
async fn a_second_up_beside_a_running_one_is_a_clear_error() {
    let (data_dir, tool) = (DataDir::new(), FakeTool::start().await);
    let mut first = up(&data_dir, &tool);
    let caller = Caller::new(first.wait_for_url(LIMIT).await);
    let mut second = up(&data_dir, &tool);
    assert_ne!(second.wait(LIMIT).await.code(), Some(0));
    let said = second.output();
    assert!(said.contains(&format!("in use by process {}", first.pid())), "{said}");
    assert_eq!(caller.readiness().await, StatusCode::OK, "the first one does not mind");
    let id = caller.add(&json!({"kind": "echo"})).await;
    assert_eq!(caller.ended(&id, LIMIT).await["status"], "COMPLETED");
}
