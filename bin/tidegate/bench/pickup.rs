//! `bench pickup`: how soon an idle worker starts a task that comes in, and what it costs to be idle.

use std::time::Duration;

use serde::Deserialize;
use tidegate_wire::Timestamp;
use tokio::time::{Instant, sleep, timeout};

use super::child::Server;
use super::counter::QueryCounter;
use super::cpu;
use super::ground::Ground;
use super::http::Connection;
use super::progress::Progress;
use super::report::{Figure, Goal, Section, histogram, ratio};
use crate::cli::PickupBenchArgs;
use crate::exit::Failure;

/// The pause between two tasks, drawn anew each time so that no rhythm of ours meets one of the worker's.
const GAP_MS: std::ops::Range<u64> = 20..60;
/// Tasks that go before those that count.
const WARM_UP: u32 = 10;
/// How long a server is left alone before its idleness counts, at most: what it does once at its start is over. Never
/// longer than it is watched.
const SETTLE: Duration = Duration::from_secs(5);
/// The longest that a task is waited for; the server is asked to wait a little less.
const LONGEST: Duration = Duration::from_secs(10);
const PREFER: &str = "Prefer: wait=5\r\n";

const P50_MS: Goal = Goal::AtMost(5.0);
const P99_MS: Goal = Goal::AtMost(20.0);
const QUERIES: Goal = Goal::AtMost(20.0);
const CPU_PERCENT: Goal = Goal::AtMost(2.0);

/// What of a task is looked at.
#[derive(Debug, Deserialize)]
struct Done {
    status: tidegate_core::Status,
    enqueued_at: Timestamp,
    started_at: Option<Timestamp>,
}

/// Measures a whole system in one process.
pub(super) async fn run(ground: &Ground, arguments: &PickupBenchArgs, progress: &Progress) -> Result<Section, Failure> {
    ground.clear().await?;
    let mut figures = pickup(ground, arguments, progress).await?;
    let (idle, notes) = idle(ground, arguments, progress).await?;
    progress.end();
    figures.extend(idle);
    let title = format!(
        "pickup: {} tasks, one at a time, {} to {} ms apart; then {} s of idleness",
        arguments.samples,
        GAP_MS.start,
        GAP_MS.end,
        arguments.idle.as_secs(),
    );
    Ok(Section { title, figures, notes })
}

async fn pickup(ground: &Ground, arguments: &PickupBenchArgs, progress: &Progress) -> Result<Vec<Figure>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::other("a task could not be run", error);
    let server = Server::start(&["up"], ground.url()).await?;
    let body = r#"{"kind": "echo", "payload": {"hello": "world"}}"#;
    let request = Connection::post(server.address(), "/v1/tasks", PREFER, body);
    let mut connection = Connection::open(server.address()).await.map_err(|error| failed(&error))?;
    let (mut starts, mut rounds) = (histogram()?, histogram()?);
    progress.begin("pickup: tasks, one at a time", arguments.samples.into());
    for n in 0..WARM_UP + arguments.samples {
        sleep(Duration::from_millis(rand::random_range(GAP_MS))).await;
        let sent = Instant::now();
        let answer = timeout(LONGEST, connection.exchange(&request)).await.map_err(|error| failed(&error))?;
        let answer = answer.map_err(|error| failed(&error))?;
        let took = sent.elapsed();
        let done: Done = serde_json::from_slice(answer.body).map_err(|error| failed(&error))?;
        let (tidegate_core::Status::Completed, Some(started)) = (done.status, done.started_at) else {
            return Err(failed(&format!("{done:?}")));
        };
        if n >= WARM_UP {
            let start_ms = u64::try_from(started.as_ms() - done.enqueued_at.as_ms()).unwrap_or(0);
            starts.saturating_record(start_ms * 1_000);
            rounds.saturating_record(took.as_micros() as u64);
            progress.step();
        }
    }
    server.stop().await?;
    let ms = |micros: u64| micros as f64 / 1_000.0;
    Ok(vec![
        Figure::new("enqueued to started, p50", ms(starts.value_at_percentile(50.0)), "ms").goal(P50_MS),
        Figure::new("enqueued to started, p99", ms(starts.value_at_percentile(99.0)), "ms").goal(P99_MS),
        Figure::new("POST to its result in hand, p50", ms(rounds.value_at_percentile(50.0)), "ms"),
        Figure::new("POST to its result in hand, p99", ms(rounds.value_at_percentile(99.0)), "ms"),
    ])
}

/// Watches a system that has nothing to do.
async fn idle(
    ground: &Ground,
    arguments: &PickupBenchArgs,
    progress: &Progress,
) -> Result<(Vec<Figure>, Vec<String>), Failure> {
    let counter = QueryCounter::start(&ground.tcp_url()).await?;
    let server = Server::start(&["up"], counter.url()).await?;
    progress.begin("pickup: idleness", 1);
    sleep(SETTLE.min(arguments.idle)).await;
    let look = || {
        let postgres = ground.postmaster().and_then(cpu::of_family);
        (Instant::now(), counter.counted(), cpu::of_process(server.pid()), postgres)
    };
    let before = look();
    sleep(arguments.idle).await;
    let after = look();
    let seconds = (after.0 - before.0).as_secs_f64();
    server.stop().await?;
    let mut figures =
        vec![Figure::new("idle: statements", ratio((after.1 - before.1) as f64, seconds), "a second").goal(QUERIES)];
    let percent = |before: Option<Duration>, after: Option<Duration>| {
        Some(100.0 * ratio(after?.saturating_sub(before?).as_secs_f64(), seconds))
    };
    if let Some(ours) = percent(before.2, after.2) {
        figures.push(Figure::new("idle: processor time of tidegate", ours, "% of a core").goal(CPU_PERCENT));
    }
    if let Some(postgres) = percent(before.3, after.3) {
        figures.push(Figure::new("idle: processor time of Postgres", postgres, "% of a core"));
    }
    let notes = vec!["starts are in whole milliseconds of the database's clock, from arrival at the door".to_owned()];
    Ok((figures, notes))
}
