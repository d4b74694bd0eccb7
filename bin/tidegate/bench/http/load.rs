//! Load on a server: many connections, each with one request at a time, and how long each answer took.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::Connection;
use crate::bench::report::{histogram, per_second};
use crate::exit::Failure;

/// The longest that an answer is waited for.
const ANSWER: Duration = Duration::from_secs(10);
/// The longest that requests which are due may still be sent after the time is over.
const OVERTIME: Duration = Duration::from_secs(10);
/// Failures in a row after which a connection gives up: the server is gone.
const MAX_BROKEN: u32 = 5;

/// What load to put on.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) address: SocketAddr,
    pub(super) connections: u32,
    pub(super) time: Duration,
    /// Requests a second, due at even intervals; as fast as answers come where there is none.
    pub(super) rate: Option<u32>,
    pub(super) request: Arc<[u8]>,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Measured {
    /// From when a request was due (sent, where no rate was asked for) to its whole answer, in microseconds; accepted
    /// requests alone.
    pub(super) latency: Histogram<u64>,
    /// From the first request to the last answer.
    pub(super) took: Duration,
    /// Answers by status code.
    pub(super) answers: BTreeMap<u16, u64>,
    /// Requests that were not answered.
    pub(super) broken: u64,
    /// Requests that were due and never sent.
    pub(super) unsent: u64,
}

impl Measured {
    fn new() -> Result<Self, Failure> {
        Ok(Self { latency: histogram()?, took: Duration::ZERO, answers: BTreeMap::new(), broken: 0, unsent: 0 })
    }

    fn add(&mut self, other: &Self) -> Result<(), Failure> {
        self.latency.add(&other.latency).map_err(|error| Failure::other("adding latencies", error))?;
        self.broken += other.broken;
        for (status, count) in &other.answers {
            *self.answers.entry(*status).or_default() += count;
        }
        Ok(())
    }

    /// Accepted requests a second.
    pub(super) fn rate(&self) -> f64 {
        per_second(self.latency.len() as usize, self.took)
    }

    /// A percentile of the latency in milliseconds.
    pub(super) fn percentile_ms(&self, percentile: f64) -> f64 {
        self.latency.value_at_percentile(percentile) as f64 / 1_000.0
    }

    /// What was not accepted, in words.
    pub(super) fn troubles(&self) -> Option<String> {
        let refused = self.answers.iter().filter(|(status, _)| !is_accepted(**status));
        let mut troubles: Vec<String> = refused.map(|(status, count)| format!("{count} answers {status}")).collect();
        for (count, what) in [(self.broken, "requests without an answer"), (self.unsent, "requests never sent")] {
            if count > 0 {
                troubles.push(format!("{count} {what}"));
            }
        }
        (!troubles.is_empty()).then(|| troubles.join(", "))
    }
}

fn is_accepted(status: u16) -> bool {
    (200..300).contains(&status)
}

impl Load {
    /// Puts it on.
    pub(super) async fn run(&self) -> Result<Measured, Failure> {
        let mut open = Vec::new();
        for _ in 0..self.connections {
            open.push(Connection::open(self.address).await.map_err(|error| self.unreachable(&error))?);
        }
        let tickets = Arc::new(AtomicU64::new(0));
        let started = Instant::now();
        let mut set = JoinSet::new();
        for connection in open {
            set.spawn(drive(self.clone(), connection, started, tickets.clone()));
        }
        let mut whole = Measured::new()?;
        while let Some(ended) = set.join_next().await {
            whole.add(&ended.map_err(|error| Failure::other("a connection broke off", error))??)?;
        }
        whole.took = started.elapsed();
        if let Some(rate) = self.rate {
            let due = (self.time.as_secs_f64() * f64::from(rate)) as u64;
            // Each connection draws one ticket more when it sees that the time is over.
            whole.unsent = due.saturating_sub(tickets.load(Ordering::Relaxed).min(due));
        }
        if whole.latency.is_empty() {
            let troubles = whole.troubles().unwrap_or_default();
            return Err(Failure::Other(format!("{} accepted nothing: {troubles}", self.address)));
        }
        Ok(whole)
    }

    fn unreachable(&self, error: &std::io::Error) -> Failure {
        Failure::Unreachable(format!("cannot connect to {}: {error}", self.address))
    }
}

/// One connection's part. With a rate, requests are drawn from one schedule for all, and one that is sent late because
/// no connection was free counts from when it was due: a server that stalls is not spared the requests it held up.
async fn drive(
    load: Load,
    mut connection: Connection,
    started: Instant,
    tickets: Arc<AtomicU64>,
) -> Result<Measured, Failure> {
    let mut measured = Measured::new()?;
    let mut broken_in_a_row = 0;
    while started.elapsed() < load.time + OVERTIME && broken_in_a_row < MAX_BROKEN {
        let due = match load.rate {
            None => Instant::now(),
            Some(rate) => {
                let ticket = tickets.fetch_add(1, Ordering::Relaxed);
                started + Duration::from_secs_f64(ticket as f64 / f64::from(rate))
            }
        };
        if due >= started + load.time {
            break;
        }
        sleep_until(due).await;
        match timeout(ANSWER, connection.exchange(&load.request)).await {
            Ok(Ok(answer)) => {
                broken_in_a_row = 0;
                *measured.answers.entry(answer.status).or_default() += 1;
                if is_accepted(answer.status) {
                    measured.latency.saturating_record(due.elapsed().as_micros() as u64);
                }
            }
            Ok(Err(_)) | Err(_) => {
                broken_in_a_row += 1;
                measured.broken += 1;
                if let Ok(again) = Connection::open(load.address).await {
                    connection = again;
                }
            }
        }
    }
    Ok(measured)
}
