//! A flood of large bodies leaves memory flat.

use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::json;
use tidegate_testkit::short_or_long;
use tokio::task::JoinSet;

use crate::caller::Caller;
use crate::fleet::{Fleet, LIMIT};

const MIB: u64 = 1 << 20;
/// Bytes of bodies that the replica takes in at once.
const INGEST: u64 = 32 * MIB;
/// What a body may be copied into while it is read and looked at, and what allocators keep.
const SLACK: u64 = 2 * INGEST + 64 * MIB;

/// The resident memory of a process, in bytes.
pub(crate) fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1_024
}

/// A submission that is too large, and a batch that is not but for which there is no room.
fn bodies() -> [(&'static str, String); 2] {
    let single = format!("{{\"kind\":\"echo\",\"payload\":\"{}\"}}", "x".repeat(8 * MIB as usize - 1_000));
    let one = format!("{{\"kind\":\"echo\",\"payload\":\"{}\"}}", "x".repeat(250_000));
    let batch = format!("{{\"tasks\":[{}]}}", vec![one; 33].join(","));
    [("/v1/tasks", single), ("/v1/tasks/batch", batch)]
}

/// Sends one body after another, and returns how many were looked at, and how many were refused before they were read.
async fn flood(base: String, path: &'static str, body: bytes::Bytes, until: Instant) -> [u64; 2] {
    let http = reqwest::Client::builder().no_proxy().timeout(LIMIT).build().unwrap();
    let mut answers = [0, 0];
    while Instant::now() < until {
        let request = http.post(format!("{base}{path}")).header("content-type", "application/json").body(body.clone());
        // One that is refused before it was sent whole may see a broken connection instead of the answer.
        let Ok(answer) = request.send().await else {
            answers[1] += 1;
            continue;
        };
        match answer.status() {
            StatusCode::SERVICE_UNAVAILABLE => answers[1] += 1,
            StatusCode::OK | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => answers[0] += 1,
            status => panic!("{status}"),
        }
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_bodies_of_8_mib_leaves_memory_flat() {
    let fleet = Fleet::new().await.with("SERVER__MAX_INGEST_BYTES", INGEST).with("LIMITS__MAX_BYTES", MIB);
    let mut process = fleet.start_on(fleet.db.url(), &["serve", "--listen", "127.0.0.1:0"]);
    let base = process.wait_for_url(LIMIT).await;
    let caller = Caller::new(base.clone());
    caller.add(&json!({"kind": "echo"})).await;
    let before = resident(process.pid());
    let until = Instant::now() + Duration::from_secs(short_or_long(6, 60));
    let mut callers = JoinSet::new();
    for (path, body) in bodies() {
        let body = bytes::Bytes::from(body);
        for _ in 0..8 {
            callers.spawn(flood(base.trim_end_matches('/').to_owned(), path, body.clone(), until));
        }
    }
    let mut most = before;
    while Instant::now() < until {
        most = most.max(resident(process.pid()));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let answers = callers.join_all().await.into_iter().fold([0, 0], |sum, own| [sum[0] + own[0], sum[1] + own[1]]);
    eprintln!(
        "looked at {}, no room for {}; memory {} -> {} MiB at most",
        answers[0],
        answers[1],
        before / MIB,
        most / MIB
    );
    assert!(answers[0] > 0 && answers[1] > 0, "there was no flood: {answers:?}");
    assert!(most - before <= INGEST + SLACK, "{before} -> {most}");
    tidegate_testkit::poll_until(LIMIT, "the door to be free", async || {
        let answer = caller.submit(&json!({"kind": "echo", "priority": 95})).await.ok()?;
        (answer.status == StatusCode::ACCEPTED || answer.reason() == "byte_budget").then_some(())
    })
    .await;
}
