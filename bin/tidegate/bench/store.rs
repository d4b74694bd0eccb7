//! `bench store`: admission, claim and settlement through the store, beside plain SQL, in turns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_store::yardstick::{self, PlainQueue};
use tidegate_store::{Session, StoreError};
use tokio::task::JoinSet;

use super::cpu::{Meter, Spent};
use super::ground::{Ground, broken};
use super::load::{Cell, TURN, all, payload_of};
use super::progress::Progress;
use super::report::{Figure, Goal, Section, grouped, median, per_second, ratio};
use crate::cli::StoreBenchArgs;
use crate::exit::Failure;

/// Rows in one raw insert.
const RAW_BATCH: usize = 1_000;
/// Sampled to learn how large our records are.
const SAMPLE: usize = 1_000;
/// Priorities that the tasks are spread over, so that order has to be made.
const PRIORITIES: u32 = 10;
const ADMISSION: Goal = Goal::AtLeast(0.25, Some(0.40));
const CLAIM_AND_SETTLE: Goal = Goal::AtLeast(0.35, Some(0.50));
const BEFORE_A_BACKLOG: Goal = Goal::AtLeast(0.90, None);

/// What one round measured, in tasks or rows a second.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    admission: f64,
    claim_and_settle: f64,
    raw_insert: f64,
    raw_claim: f64,
    raw_take: f64,
}

/// Processor time of Postgres and of us, over all rounds that count.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    admission: Spent,
    claim_and_settle: Spent,
    raw_insert: Spent,
    raw_claim: Spent,
}

/// Measures with tasks spread over so many flows.
pub(super) async fn run(
    ground: &Ground,
    arguments: &StoreBenchArgs,
    flows: u32,
    progress: &Progress,
) -> Result<Section, Failure> {
    ground.clear().await?;
    let mut bench = StoreBench::open(ground, arguments, flows).await?;
    progress.begin(format!("store, {flows} flows: rounds"), u64::from(arguments.rounds) + 1);
    let mut rounds = Vec::new();
    for n in 0..=arguments.rounds {
        let round = bench.round(n % 2 == 0).await?;
        progress.step();
        if n > 0 {
            rounds.push(round);
        } else {
            bench.times = Times::default();
        }
    }
    let mut figures = bench.figures(&rounds);
    if arguments.backlog > 0 {
        figures.extend(bench.before_a_backlog(arguments.backlog as usize, &rounds, progress).await?);
    }
    progress.end();
    let kept = bench.cell.check(bench.ran).await?;
    let notes = vec![
        format!(
            "a record of ours takes {:.0} bytes while it waits, a raw row {:.0}",
            bench.record_bytes, bench.row_bytes
        ),
        kept,
    ];
    let tasks = grouped(i64::from(arguments.tasks));
    let title = format!(
        "store: {flows} flow{}, {tasks} tasks a round, medians of {} rounds, {} submitters, {} session{}",
        if flows == 1 { "" } else { "s" },
        arguments.rounds,
        grouped(i64::from(arguments.submitters)),
        arguments.sessions,
        if arguments.sessions == 1 { "" } else { "s" },
    );
    Ok(Section { title, figures, notes })
}

/// Both sides, set up on one database.
struct StoreBench {
    cell: Arc<Cell>,
    sessions: Vec<Arc<Session>>,
    queue: PlainQueue,
    claimers: Vec<PlainQueue>,
    tasks: usize,
    submitters: usize,
    meter: Meter,
    times: Times,
    record_bytes: f64,
    row_bytes: f64,
    /// Tasks that ran so far.
    ran: usize,
}

impl StoreBench {
    async fn open(ground: &Ground, arguments: &StoreBenchArgs, flows: u32) -> Result<Self, Failure> {
        let url = ground.url();
        let payload = payload_of(arguments.payload_bytes);
        let cell = Arc::new(Cell::open(url, flows, PRIORITIES, payload.clone()).await?);
        let (mut sessions, mut claimers) = (Vec::new(), Vec::new());
        let mut queue = PlainQueue::create(url, &payload).await.map_err(raw_failed)?;
        for _ in 0..arguments.sessions {
            sessions.push(Arc::new(cell.session().await?));
            claimers.push(PlainQueue::connect(url).await.map_err(raw_failed)?);
        }
        let submitters = arguments.submitters as usize;
        cell.fill(SAMPLE, submitters).await?;
        let record_bytes = yardstick::record_bytes(url).await.map_err(raw_failed)?;
        let row_bytes = queue.pad_to(record_bytes).await.map_err(raw_failed)?;
        cell.drain(&sessions, SAMPLE).await?;
        let tasks = arguments.tasks as usize;
        Ok(Self {
            cell,
            sessions,
            queue,
            claimers,
            tasks,
            submitters,
            meter: Meter::of_ourselves(ground.postmaster()),
            times: Times::default(),
            record_bytes,
            row_bytes,
            ran: SAMPLE,
        })
    }

    /// Lets both sides do the same once. Who goes first changes, so that neither always follows the other.
    async fn round(&mut self, raw_first: bool) -> Result<Round, Failure> {
        let mut round = Round::default();
        if raw_first {
            self.raw(&mut round).await?;
            self.ours(&mut round).await?;
        } else {
            self.ours(&mut round).await?;
            self.raw(&mut round).await?;
        }
        Ok(round)
    }

    async fn ours(&mut self, round: &mut Round) -> Result<(), Failure> {
        let tasks = self.tasks as u64;
        let before = self.meter.read();
        round.admission = per_second(self.tasks, self.cell.fill(self.tasks, self.submitters).await?);
        self.times.admission.add(self.meter.since(before), tasks);
        let before = self.meter.read();
        round.claim_and_settle = per_second(self.tasks, self.cell.drain(&self.sessions, self.tasks).await?);
        self.times.claim_and_settle.add(self.meter.since(before), tasks);
        self.ran += self.tasks;
        Ok(())
    }

    async fn raw(&mut self, round: &mut Round) -> Result<(), Failure> {
        let tasks = self.tasks as u64;
        self.queue.vacuum().await.map_err(raw_failed)?;
        let before = self.meter.read();
        round.raw_insert = per_second(self.tasks, raw_fill(&mut self.queue, self.tasks).await.map_err(raw_failed)?);
        self.times.raw_insert.add(self.meter.since(before), tasks);
        self.queue.analyze().await.map_err(raw_failed)?;
        let before = self.meter.read();
        round.raw_claim = per_second(self.tasks, raw_drain(&mut self.claimers, self.tasks, Claim::Durable).await?);
        self.times.raw_claim.add(self.meter.since(before), tasks);
        self.queue.vacuum().await.map_err(raw_failed)?;
        raw_fill(&mut self.queue, self.tasks).await.map_err(raw_failed)?;
        self.queue.analyze().await.map_err(raw_failed)?;
        round.raw_take = per_second(self.tasks, raw_drain(&mut self.claimers, self.tasks, Claim::None).await?);
        Ok(())
    }

    fn figures(&self, rounds: &[Round]) -> Vec<Figure> {
        let middle = |of: fn(&Round) -> f64| median(&rounds.iter().map(of).collect::<Vec<_>>());
        // Each round is its own comparison: what slowed the machine for a while slowed both sides.
        let ratio_of = |ours: fn(&Round) -> f64, raw: fn(&Round) -> f64| {
            median(&rounds.iter().map(|round| ratio(ours(round), raw(round))).collect::<Vec<_>>())
        };
        let admission = Figure::new("admission", middle(|r| r.admission), "tasks/s")
            .beside("raw insert of 1,000", middle(|r| r.raw_insert), ratio_of(|r| r.admission, |r| r.raw_insert))
            .goal(ADMISSION);
        let claim = Figure::new("claim + settle", middle(|r| r.claim_and_settle), "tasks/s")
            .beside(
                "raw claim of 500, delete",
                middle(|r| r.raw_claim),
                ratio_of(|r| r.claim_and_settle, |r| r.raw_claim),
            )
            .goal(CLAIM_AND_SETTLE);
        let take = Figure::new("the same", middle(|r| r.claim_and_settle), "tasks/s").beside(
            "raw, no durable claim",
            middle(|r| r.raw_take),
            ratio_of(|r| r.claim_and_settle, |r| r.raw_take),
        );
        let times = &self.times;
        let spent = [
            times.admission.beside("processor time of admission", "raw insert of 1,000", times.raw_insert),
            times.claim_and_settle.beside(
                "processor time of claim + settle",
                "raw claim of 500, delete",
                times.raw_claim,
            ),
        ];
        [admission, claim, take].into_iter().chain(spent.into_iter().flatten()).collect()
    }

    /// Claims and settles again while many more tasks wait; then runs those too. The rate without them is that of the
    /// rounds before and of as many after, so that a machine that changes its pace does not decide.
    async fn before_a_backlog(
        &mut self,
        backlog: usize,
        before: &[Round],
        progress: &Progress,
    ) -> Result<Vec<Figure>, Failure> {
        let n = before.len();
        progress.begin(format!("store: {} more tasks come to wait", grouped(backlog as i64)), 1);
        let filled = per_second(backlog, self.cell.fill(backlog, self.submitters).await?);
        progress.begin("store: rounds before a backlog", n as u64);
        let mut with = Vec::new();
        for _ in 0..n {
            let mut round = Round::default();
            self.ours(&mut round).await?;
            with.push(round.claim_and_settle);
            progress.step();
        }
        progress.begin("store: the backlog is run", 1);
        let drained = per_second(backlog, self.cell.drain(&self.sessions, backlog).await?);
        self.ran += backlog;
        progress.begin("store: rounds after it", n as u64);
        let mut without: Vec<f64> = before.iter().map(|round| round.claim_and_settle).collect();
        for _ in 0..n {
            let mut round = Round::default();
            self.ours(&mut round).await?;
            without.push(round.claim_and_settle);
            progress.step();
        }
        let (with, without) = (median(&with), median(&without));
        let waiting = grouped(backlog as i64);
        Ok(vec![
            Figure::new(format!("claim + settle, {waiting} waiting"), with, "tasks/s")
                .beside("none waiting", without, ratio(with, without))
                .goal(BEFORE_A_BACKLOG),
            Figure::new("admission of all these", filled, "tasks/s"),
            Figure::new("claim + settle of all these", drained, "tasks/s"),
        ])
    }
}

/// How a raw claim is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// Committed before the work is done, as ours is.
    Durable,
    /// Not at all.
    None,
}

async fn raw_fill(queue: &mut PlainQueue, rows: usize) -> Result<Duration, StoreError> {
    let started = Instant::now();
    let mut left = rows;
    while left > 0 {
        let batch = left.min(RAW_BATCH);
        queue.insert(batch).await?;
        left -= batch;
    }
    Ok(started.elapsed())
}

/// Empties the raw queue by all connections at once, and sees that it held so many rows.
async fn raw_drain(claimers: &mut Vec<PlainQueue>, rows: usize, claim: Claim) -> Result<Duration, Failure> {
    let done = Arc::new(std::sync::Mutex::new((0, Vec::new())));
    let mut set = JoinSet::new();
    let started = Instant::now();
    for mut queue in claimers.drain(..) {
        let done = done.clone();
        set.spawn(async move {
            let count = raw_work(&mut queue, claim).await.map_err(raw_failed)?;
            let mut done = done.lock().map_err(|error| Failure::other("counting rows", error))?;
            done.0 += count;
            done.1.push(queue);
            Ok(())
        });
    }
    all(set).await?;
    let took = started.elapsed();
    let mut done = done.lock().map_err(|error| Failure::other("counting rows", error))?;
    claimers.append(&mut done.1);
    if done.0 == rows { Ok(took) } else { Err(Failure::Other(format!("{} of {rows} raw rows were found", done.0))) }
}

async fn raw_work(queue: &mut PlainQueue, claim: Claim) -> Result<usize, StoreError> {
    let mut count = 0;
    loop {
        let taken = match claim {
            Claim::None => queue.take(TURN).await?,
            Claim::Durable => {
                let jobs = queue.claim(TURN).await?;
                if !jobs.is_empty() {
                    queue.finish(&jobs).await?;
                }
                jobs.len()
            }
        };
        if taken == 0 {
            return Ok(count);
        }
        count += taken;
    }
}

fn raw_failed(error: StoreError) -> Failure {
    broken("the raw side failed", &error)
}
