//! What must be true of every overload.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;
use sqlx::Connection;
use tidegate_testkit::{Behaviour, FakeTool, Proc, poll_until};
use tokio::task::JoinHandle;

use super::load::{Over, Shape};
use super::{AT_ONCE, MAX_QUEUED, SLOTS};
use crate::called::{nothing_in_use, with_peer};
use crate::caller::{Answer, id_of};
use crate::fleet::{ALIVE, Fleet, LIMIT, Server, connect, number};
use crate::verdict::assert_sound;

/// The most that the server may grow by: answers that are open, statements that are remembered. The load is many times
/// that.
const GROWTH: u64 = 96 << 20;
/// The longest that a critical submission may take at the door, on a machine that does much else; and the aim that is
/// stated, for the record.
const SOON: Duration = Duration::from_millis(1_500);
/// How much later than its deadline a task may be seen to end, in milliseconds: a sweep, on such a machine.
const SWEEP_MS: i64 = 1_500;
/// The longest from a cancel to the end of what it was asked of, in milliseconds.
const OBEYED_MS: i64 = 2_000;
/// How often the watch looks.
const LOOK: Duration = Duration::from_millis(50);
/// The longest until all is done afterwards.
const DRAINED: Duration = Duration::from_secs(20);

const QUEUED: &str = "SELECT queued FROM tidegate.usage WHERE scope = 0 ORDER BY generation DESC LIMIT 1";
const BEGAN_LAST: &str = "SELECT task_id::text FROM tidegate.lease ORDER BY started_ms DESC LIMIT 3";
const ENDED_LATE: &str = "SELECT coalesce(max(finished_ms - deadline_ms), 0)::bigint FROM tidegate.task";
const STARTED_LATE: &str = "SELECT count(*) FROM tidegate.task WHERE started_ms >= deadline_ms";
const TRIED_TOO_OFTEN: &str = "SELECT count(*) FROM tidegate.task WHERE failures > max_attempts";

/// A cell that is watched while it has too much.
pub(super) struct Watched {
    fleet: Fleet,
    pub(super) server: Server,
    pub(super) tool: FakeTool,
    _worker: Proc,
    stop: Arc<AtomicBool>,
    watch: JoinHandle<Most>,
}

/// The most that was ever seen.
#[derive(Debug, Default)]
struct Most {
    looks: u64,
    queued: i64,
    resident: u64,
    resident_before: u64,
}

/// The resident memory of a process, in bytes.
fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1_024
}

async fn watch(url: String, pid: i32, stop: Arc<AtomicBool>) -> Most {
    let mut connection = connect(&url).await;
    let mut most = Most { resident_before: resident(pid), ..Most::default() };
    while !stop.load(Ordering::Relaxed) {
        let queued: i64 = sqlx::query_scalar(QUEUED).fetch_one(&mut connection).await.unwrap();
        most.looks += 1;
        most.queued = most.queued.max(queued);
        most.resident = most.resident.max(resident(pid));
        tokio::time::sleep(LOOK).await;
    }
    most
}

/// The milliseconds between two instants of a task.
fn between(task: &Value, from: &Value, to: &Value) -> i64 {
    let parse = |at: &Value| {
        let at = at.as_str().unwrap_or_else(|| panic!("an instant is missing: {task}"));
        chrono::DateTime::parse_from_rfc3339(at).unwrap().timestamp_millis()
    };
    parse(to) - parse(from)
}

impl Watched {
    pub(super) async fn start(shape: &Shape) -> Self {
        let tool = FakeTool::start().await;
        tool.on("/", [shape.call.clone()]);
        let fleet = with_peer(Fleet::new().await, &tool.url("/"), AT_ONCE).with("LIMITS__MAX_QUEUED", MAX_QUEUED);
        let fleet = fleet.with("KINDS__TOOL__BACKOFF", "{ base_ms = 200, max_ms = 1000 }");
        let server = fleet.serve().await;
        let worker = fleet.worker(SLOTS).await;
        // The first task of all is not a part of it: what is made on demand is made.
        let first = server.caller.add(&serde_json::json!({"kind": "echo"})).await;
        server.caller.ended(&first, LIMIT).await;
        let stop = Arc::new(AtomicBool::new(false));
        let watch = tokio::spawn(watch(fleet.db.url().to_owned(), server.process.pid(), stop.clone()));
        Self { fleet, server, tool, _worker: worker, stop, watch }
    }

    /// Tasks that have not ended.
    pub(super) async fn alive(&self) -> i64 {
        number(self.fleet.db.url(), ALIVE).await
    }

    /// Some of the tasks that run, those that began last.
    pub(super) async fn began_last(&self) -> Vec<String> {
        let mut connection = connect(self.fleet.db.url()).await;
        let began = sqlx::query_scalar(BEGAN_LAST).fetch_all(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        began
    }

    /// Holds everything against what must be true.
    pub(super) async fn check(mut self, shape: &Shape, over: Over) {
        let name = shape.name;
        let url = self.fleet.db.url();
        poll_until(DRAINED, "the end of every task", async || (self.alive().await == 0).then_some(())).await;
        let drained = over.well.elapsed();
        self.stop.store(true, Ordering::Relaxed);
        let most = (&mut self.watch).await.unwrap();
        let calls = self.tool.seen().len();
        let admitted = over.answers.iter().filter(|answer| answer.status == StatusCode::ACCEPTED).count();
        let slowest = over.critical.iter().map(|answer| answer.took).max().unwrap_or_default();
        eprintln!(
            "{name}: {} offered, {admitted} let in, {} cancelled, {calls} calls; {} queued at most; memory {} -> {} MiB; \
            critical at the door {slowest:?} at most; drained {drained:?} after",
            over.answers.len(),
            over.cancelled.len(),
            most.queued,
            most.resident_before >> 20,
            most.resident >> 20,
        );
        assert!(most.looks > 10 && most.queued <= MAX_QUEUED, "{name}: {} were queued", most.queued);
        assert!(most.resident < most.resident_before + GROWTH, "{name}: {most:?}");
        refused_in_words(name, &over.answers);
        for answer in &over.critical {
            assert_eq!(answer.status, StatusCode::ACCEPTED, "{name}, critical: {}", answer.body);
            let task = self.server.caller.task(&id_of(&answer.body)).await;
            assert_eq!(task["status"], "COMPLETED", "{name}, critical: {task}");
        }
        assert!(!over.critical.is_empty() && slowest < SOON, "{name}: a critical one waited {slowest:?} at the door");
        let (late, started_late) = (number(url, ENDED_LATE).await, number(url, STARTED_LATE).await);
        assert!(late < SWEEP_MS, "{name}: something ended {late} ms after its deadline");
        assert_eq!((started_late, number(url, TRIED_TOO_OFTEN).await), (0, 0), "{name}");
        assert_eq!(self.tool.max_in_flight(), AT_ONCE as usize, "{name}");

        // Afterwards each task needs one call more at most, and soon whoever comes is let in and served.
        let more = calls - over.calls_then;
        let most_more = over.alive_then as usize + over.after.len();
        assert!(more <= most_more, "{name}: {more} calls after the peer was well, for {most_more} tasks");
        let mut ids = Vec::new();
        refused_in_words(name, &over.after);
        for (n, answer) in over.after.iter().enumerate() {
            if answer.status != StatusCode::ACCEPTED {
                assert!(n < over.after.len() / 2, "{name}: the {n}th afterwards was refused: {}", answer.body);
                continue;
            }
            let task = self.server.caller.task(&id_of(&answer.body)).await;
            assert_eq!(task["status"], "COMPLETED", "{name}, afterwards: {task}");
            ids.push(id_of(&answer.body));
        }
        self.cancels_reached_handlers(shape, &over).await;
        nothing_in_use(&self.server.caller, DRAINED).await;
        assert_sound(url, &ids).await;
    }

    /// What ran when it was cancelled was stopped soon, and its handler said so.
    async fn cancels_reached_handlers(&self, shape: &Shape, over: &Over) {
        let mut stopped = 0;
        for told in over.cancelled.iter().filter(|told| !told["cancel"]["requested_at"].is_null()) {
            let task = self.server.caller.task(&id_of(told)).await;
            if told["status"] != "RUNNING" || task["status"] != "CANCELLED" {
                continue;
            }
            let took = between(&task, &task["cancel"]["requested_at"], &task["finished_at"]);
            assert!(took < OBEYED_MS, "{}: it was stopped {took} ms after it was cancelled: {task}", shape.name);
            let heard = ["delivered_at", "acknowledged_at"].map(|when| !task["cancel"][when].is_null());
            stopped += usize::from(heard == [true, true]);
        }
        // Where calls are long, those that had just begun were in the midst of one.
        let long = matches!(shape.call, Behaviour::Slow(call) if call > Duration::from_secs(1));
        eprintln!("{}: {stopped} handlers were stopped by a cancel", shape.name);
        assert!(stopped > 0 || !long || over.cancelled.is_empty(), "{}: no cancel reached a handler", shape.name);
    }
}

/// Whoever is not let in is told why, and when to come again.
fn refused_in_words(name: &str, answers: &[Answer]) {
    for answer in answers.iter().filter(|answer| answer.status != StatusCode::ACCEPTED) {
        let expected = ["queue_full", "low_priority", "deadline_too_short"];
        let told = answer.status == StatusCode::SERVICE_UNAVAILABLE && expected.contains(&answer.reason());
        assert!(told, "{name}: {} {}", answer.status, answer.body);
    }
}
