//! `tidegate bench`: how fast it is on this machine, beside plain SQL on the same Postgres in the same run.
//!
//! Absolute figures depend on the machine and on who else uses it; what counts are the ratios. So both sides of every
//! comparison take turns, and medians are told.

mod child;
mod claim;
mod claimers;
mod counter;
mod cpu;
mod ground;
mod http;
mod load;
mod overload;
mod pickup;
mod progress;
mod report;
mod snapshot;
mod store;

use std::time::Duration;

use crate::cli::{
    BareArgs, BenchArgs, BenchCommand, ClaimBenchArgs, ClaimersBenchArgs, Global, HttpBenchArgs, OverloadBenchArgs,
    PickupBenchArgs, SnapshotBenchArgs, StoreBenchArgs,
};
use crate::config::{Log, LogFormat};
use crate::exit::{Exit, Failure};
use crate::roles::{Shutdown, on_signal};
use crate::terminal::Output;
use ground::Ground;
use progress::Progress;
use report::Report;

/// Only what is wrong is worth a line between figures; not that the pool of the doorbell sees its Postgres go.
const QUIET: &str = "warn,sqlx_core::pool=error";

/// Measures, prints, and takes everything away again.
pub(crate) fn run(global: &Global, arguments: &BenchArgs, output: &mut Output) -> Result<Exit, Failure> {
    let format = global.log_format.unwrap_or(LogFormat::Auto);
    crate::logging::start(&Log { level: QUIET.to_owned(), format })?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::other("cannot start", error))?;
    runtime.block_on(async {
        let shutdown = on_signal().map_err(|error| Failure::other("cannot listen to signals", error))?;
        match &arguments.what {
            Some(BenchCommand::Bare(bare)) => serve_bare(bare, &shutdown).await?,
            Some(BenchCommand::Http(http)) if http.server.is_some() => {
                let measured = shutdown.stop.run_until_cancelled(measure_server(http, output)).await;
                measured.unwrap_or_else(stopped)?;
            }
            _ => {
                let ground = Ground::find(&arguments.ground, &shutdown).await?;
                let measured = shutdown.stop.run_until_cancelled(measure(&ground, arguments, output)).await;
                // Whatever became of the measurement; what went wrong first is told.
                let left = ground.leave(&shutdown).await;
                measured.unwrap_or_else(stopped)?;
                left?;
            }
        }
        Ok(Exit::Done)
    })
}

fn stopped() -> Result<(), Failure> {
    Err(Failure::Other("stopped before everything was measured".to_owned()))
}

async fn serve_bare(arguments: &BareArgs, shutdown: &Shutdown) -> Result<(), Failure> {
    http::serve_bare(arguments, shutdown).await
}

async fn measure_server(arguments: &HttpBenchArgs, output: &mut Output) -> Result<(), Failure> {
    let Some(address) = arguments.server else { return Ok(()) };
    let mut report = Report { machine: Vec::new(), sections: Vec::new() };
    let section = http::run_against(address, arguments, &Progress::new()).await?;
    report.add(section, output)?;
    report.finish(output)
}

async fn measure(ground: &Ground, arguments: &BenchArgs, output: &mut Output) -> Result<(), Failure> {
    let machine = ground.facts(arguments.ground.commit.as_deref()).await?;
    let mut report = Report { machine, sections: Vec::new() };
    report.show_machine(output)?;
    let progress = Progress::new();
    for part in parts(arguments.what.as_ref()) {
        let sections = match &part {
            Part::Store(arguments, flows) => one(store::run(ground, arguments, *flows, &progress).await),
            Part::Claimers(arguments) => one(claimers::run(ground, arguments, &progress).await),
            Part::Http(arguments) => one(http::run(ground, arguments, &progress).await),
            Part::Pickup(arguments) => one(pickup::run(ground, arguments, &progress).await),
            Part::Claim(arguments) => one(claim::run(ground, arguments, &progress).await),
            Part::Snapshot(arguments) => one(snapshot::run(ground, arguments, &progress).await),
            Part::Overload(arguments) => overload::run(ground, arguments, &progress).await,
        };
        progress.end();
        for section in sections? {
            report.add(section, output)?;
        }
    }
    report.finish(output)
}

fn one(section: Result<report::Section, Failure>) -> Result<Vec<report::Section>, Failure> {
    section.map(|section| vec![section])
}

/// One measurement of a run.
enum Part {
    Store(StoreBenchArgs, u32),
    Claimers(ClaimersBenchArgs),
    Http(HttpBenchArgs),
    Pickup(PickupBenchArgs),
    Claim(ClaimBenchArgs),
    Snapshot(SnapshotBenchArgs),
    Overload(OverloadBenchArgs),
}

/// What is measured, in order.
fn parts(what: Option<&BenchCommand>) -> Vec<Part> {
    match what {
        Some(BenchCommand::Store(store)) => each_flow(store).collect(),
        Some(BenchCommand::Claimers(claimers)) => vec![Part::Claimers(claimers.clone())],
        Some(BenchCommand::Http(http)) => vec![Part::Http(http.clone())],
        Some(BenchCommand::Pickup(pickup)) => vec![Part::Pickup(pickup.clone())],
        Some(BenchCommand::Claim(claim)) => vec![Part::Claim(claim.clone())],
        Some(BenchCommand::Snapshot(snapshot)) => vec![Part::Snapshot(snapshot.clone())],
        Some(BenchCommand::Overload(overload)) => vec![Part::Overload(overload.clone())],
        Some(BenchCommand::Full) => suite(Sizes::FULL),
        Some(BenchCommand::Bare(_)) => Vec::new(),
        None => suite(Sizes::SHORT),
    }
}

fn each_flow(arguments: &StoreBenchArgs) -> impl Iterator<Item = Part> {
    arguments.flows.iter().map(|flows| Part::Store(arguments.clone(), *flows))
}

/// How much of everything a whole suite measures.
struct Sizes {
    tasks: u32,
    rounds: u32,
    backlog: u32,
    http_seconds: u32,
    http_rounds: u32,
    samples: u32,
    idle: Duration,
    claims: ClaimBenchArgs,
    snapshot_seconds: u32,
    control: bool,
    claimer_rounds: u32,
    overload_seconds: u32,
    overload_loads: &'static [f64],
    overload_spread: &'static [bool],
}

impl Sizes {
    /// Less than five minutes.
    const SHORT: Self = Self {
        tasks: 10_000,
        rounds: 15,
        backlog: 100_000,
        http_seconds: 2,
        http_rounds: 7,
        samples: 300,
        idle: Duration::from_secs(10),
        claims: ClaimBenchArgs { samples: 300, blocked: 20_000, tenants: 1_000 },
        snapshot_seconds: 30,
        control: false,
        claimer_rounds: 3,
        overload_seconds: 5,
        overload_loads: &[1.0, 5.0],
        overload_spread: &[false],
    };
    /// As the goals are stated.
    const FULL: Self = Self {
        tasks: 20_000,
        rounds: 25,
        backlog: 1_000_000,
        http_seconds: 4,
        http_rounds: 15,
        samples: 1_000,
        idle: Duration::from_secs(20),
        claims: ClaimBenchArgs { samples: 1_000, blocked: 100_000, tenants: 5_000 },
        snapshot_seconds: 60,
        control: true,
        claimer_rounds: 15,
        overload_seconds: 30,
        overload_loads: &[0.5, 1.0, 2.0, 5.0],
        overload_spread: &[false, true],
    };
}

fn suite(sizes: Sizes) -> Vec<Part> {
    let store = StoreBenchArgs {
        tasks: sizes.tasks,
        rounds: sizes.rounds,
        flows: vec![1],
        submitters: 2_000,
        sessions: 1,
        payload_bytes: 100,
        backlog: 0,
    };
    let overload = |spread: &bool| {
        let (loads, spread) = (sizes.overload_loads.to_vec(), *spread);
        Part::Overload(OverloadBenchArgs { seconds: sizes.overload_seconds, loads, spread, plot: None })
    };
    let backlog = StoreBenchArgs { backlog: sizes.backlog, ..store.clone() };
    let mut parts = vec![
        Part::Store(backlog, 8),
        Part::Store(store, 1),
        Part::Claimers(ClaimersBenchArgs { rounds: sizes.claimer_rounds, ..ClaimersBenchArgs::default() }),
        Part::Http(HttpBenchArgs {
            connections: 256,
            seconds: sizes.http_seconds,
            rounds: sizes.http_rounds,
            rate: None,
            server: None,
        }),
        Part::Pickup(PickupBenchArgs { samples: sizes.samples, idle: sizes.idle }),
        Part::Claim(sizes.claims),
        Part::Snapshot(SnapshotBenchArgs {
            seconds: sizes.snapshot_seconds,
            waiting: 5_000,
            priorities: 1,
            control: sizes.control,
        }),
    ];
    parts.extend(sizes.overload_spread.iter().map(overload));
    parts
}
