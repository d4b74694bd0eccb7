//! The load on our own server: submissions over HTTP, each due by the clock, each on a connection that waits for its
//! end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use tidegate_core::Status;
use tidegate_wire::Timestamp;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::outcome::{Outcome, Outcomes, Run};
use super::schedule::{Arrival, MEDIAN_MS};
use super::{DEADLINE, SLOTS};
use crate::bench::http::Connection;
use crate::exit::Failure;

/// Connections, and so the most requests that are open: some times the slots and the queue together. What is due while
/// all are busy is sent late, and its time counts from when it was due.
const CONNECTIONS: usize = 400;
/// The longest that the server is asked to wait for the end of a task: past every deadline.
const PREFER: &str = "Prefer: wait=5";
/// The longest that an answer is waited for: some more.
const ANSWER: Duration = Duration::from_secs(10);
/// The longest that requests which are due may still be sent after the last was due.
const OVERTIME: Duration = Duration::from_secs(10);

/// What of a task is looked at.
#[derive(Debug, Deserialize)]
struct Ended {
    status: Status,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    deadline: Timestamp,
}

#[derive(Debug, Deserialize)]
struct Refused {
    reason: String,
}

/// The load.
pub(super) struct Flood {
    address: SocketAddr,
    arrivals: Arc<[Arrival]>,
    next: Arc<AtomicUsize>,
}

/// The begin of the load on both clocks: arrivals are due by the one, deadlines are told by the other.
#[derive(Debug, Clone, Copy)]
struct Begin {
    instant: Instant,
    epoch: Duration,
}

impl Begin {
    fn now() -> Result<Self, Failure> {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let epoch = epoch.map_err(|error| Failure::other("the clock is before 1970", error))?;
        Ok(Self { instant: Instant::now(), epoch })
    }
}

impl Flood {
    pub(super) fn new(address: SocketAddr, arrivals: &[Arrival]) -> Self {
        Self { address, arrivals: arrivals.into(), next: Arc::default() }
    }

    /// Puts it on, and waits for the last answer.
    pub(super) async fn run(self) -> Result<Outcomes, Failure> {
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS.min(self.arrivals.len()) {
            open.push(connect(self.address).await?);
        }
        let begin = Begin::now()?;
        let mut set = JoinSet::new();
        for connection in open {
            set.spawn(drive(self.address, self.arrivals.clone(), self.next.clone(), connection, begin));
        }
        let mut all = Vec::with_capacity(self.arrivals.len());
        while let Some(ended) = set.join_next().await {
            all.extend(ended.map_err(|error| Failure::other("a connection broke off", error))?);
        }
        Ok(all)
    }
}

async fn connect(address: SocketAddr) -> Result<Connection, Failure> {
    let connection = Connection::open(address).await;
    connection.map_err(|error| Failure::Unreachable(format!("cannot connect to {address}: {error}")))
}

/// One connection's part: arrivals are drawn from one schedule for all, in order.
async fn drive(
    address: SocketAddr,
    arrivals: Arc<[Arrival]>,
    next: Arc<AtomicUsize>,
    mut connection: Connection,
    begin: Begin,
) -> Outcomes {
    let last = arrivals.last().map_or(Duration::ZERO, |arrival| arrival.due);
    let mut outcomes = Vec::new();
    while begin.instant.elapsed() < last + OVERTIME {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(arrival) = arrivals.get(at) else { break };
        sleep_until(begin.instant + arrival.due).await;
        let outcome = send(address, &mut connection, *arrival, begin).await;
        if matches!(outcome, Outcome::Broken(_))
            && let Ok(again) = Connection::open(address).await
        {
            connection = again;
        }
        outcomes.push((at, outcome));
    }
    outcomes
}

async fn send(address: SocketAddr, connection: &mut Connection, arrival: Arrival, begin: Begin) -> Outcome {
    let deadline_ms = (begin.epoch + arrival.due + DEADLINE).as_millis();
    let headers = format!("{PREFER}\r\nX-Deadline-Epoch-Ms: {deadline_ms}\r\n");
    let body = format!("{{\"kind\":\"sleep\",\"payload\":{{\"ms\":{}}}}}", arrival.run_ms);
    let request = Connection::post(address, "/v1/tasks", &headers, &body);
    let answer = match timeout(ANSWER, connection.exchange(&request)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Outcome::Broken(format!("not answered: {}", error.kind())),
        Err(_) => return Outcome::Broken("not answered in time".to_owned()),
    };
    let after = (begin.instant + arrival.due).elapsed();
    match answer.status {
        200 => match serde_json::from_slice::<Ended>(answer.body) {
            Ok(task) => ended(&task, after),
            Err(_) => Outcome::Broken("answers that are no tasks".to_owned()),
        },
        202 => Outcome::Left,
        status => match serde_json::from_slice::<Refused>(answer.body) {
            Ok(refused) => Outcome::Refused { reason: refused.reason, after },
            Err(_) => Outcome::Broken(format!("answers {status} without a reason")),
        },
    }
}

fn ended(task: &Ended, after: Duration) -> Outcome {
    let run = task.started_at.zip(task.finished_at).map(|(started, finished)| Run {
        left_ms: task.deadline.as_ms() - started.as_ms(),
        took_ms: finished.as_ms() - started.as_ms(),
    });
    Outcome::Ended { completed: task.status == Status::Completed, after, run }
}

/// Runs some tasks, as many at once as there are slots, and sees them completed.
pub(super) async fn warm_up(address: SocketAddr, tasks: usize) -> Result<(), Failure> {
    for _ in 0..tasks.div_ceil(SLOTS as usize) {
        let wave = vec![Arrival { due: Duration::ZERO, run_ms: MEDIAN_MS as u32 }; SLOTS as usize];
        let outcomes = Flood::new(address, &wave).run().await?;
        if let Some((_, other)) =
            outcomes.iter().find(|(_, outcome)| !matches!(outcome, Outcome::Ended { completed: true, .. }))
        {
            return Err(Failure::Other(format!("a task did not complete before anything was measured: {other:?}")));
        }
    }
    Ok(())
}

/// Runs one task now; the time to its end, where it completed in time.
pub(super) async fn one(address: SocketAddr, arrival: Arrival) -> Result<Option<Duration>, Failure> {
    let mut connection = connect(address).await?;
    Ok(match send(address, &mut connection, arrival, Begin::now()?).await {
        Outcome::Ended { completed: true, after, .. } if after <= DEADLINE => Some(after),
        _ => None,
    })
}
