//! `bench http`: submissions over HTTP, beside a bare handler that keeps one narrow row, both as processes of their own
//! on the same Postgres, in turns.

mod bare;
mod connection;
mod load;

use std::sync::Arc;
use std::time::Duration;

use super::child::Server;
use super::cpu::{Meter, Spent};
use super::ground::Ground;
use super::load::payload_of;
use super::progress::Progress;
use super::report::{Figure, Goal, Section, grouped, median, ratio};
use crate::cli::HttpBenchArgs;
use crate::exit::Failure;
use load::{Load, Measured};

pub(super) use bare::serve as serve_bare;
pub(super) use connection::Connection;

/// How long each side is loaded once before it is measured.
const WARM_UP: Duration = Duration::from_secs(1);
/// Bytes in the payload of a task.
const PAYLOAD_BYTES: u32 = 100;
const THROUGHPUT: Goal = Goal::AtLeast(0.60, None);

/// Measures a server of ours beside the bare handler.
pub(super) async fn run(ground: &Ground, arguments: &HttpBenchArgs, progress: &Progress) -> Result<Section, Failure> {
    ground.clear().await?;
    progress.begin("http: servers start", 1);
    let server = Server::start(&["serve"], ground.url()).await?;
    let bare = Server::start(&["bench", "bare"], ground.url()).await?;
    let mut ours = Side::new(ground, arguments, &server);
    let mut raw = Side::new(ground, arguments, &bare);
    for side in [&ours, &raw] {
        Load { time: WARM_UP, ..side.load.clone() }.run().await?;
    }
    progress.begin("http: rounds", u64::from(arguments.rounds));
    let mut rounds = Vec::new();
    for n in 0..arguments.rounds {
        // Who goes first changes, so that neither always follows the other.
        let round = if n % 2 == 0 {
            let raw = raw.run().await?;
            (ours.run().await?, raw)
        } else {
            let ours = ours.run().await?;
            (ours, raw.run().await?)
        };
        rounds.push(round);
        progress.step();
    }
    progress.end();
    server.stop().await?;
    bare.stop().await?;
    let mut section = section(arguments, &rounds);
    section.figures.extend(ours.spent.beside("processor time, server and Postgres", "bare handler", raw.spent));
    Ok(section)
}

/// One of the two, and what its server and Postgres have spent on it.
struct Side {
    load: Load,
    meter: Meter,
    spent: Spent,
}

impl Side {
    fn new(ground: &Ground, arguments: &HttpBenchArgs, server: &Server) -> Self {
        let meter = Meter::new(ground.postmaster(), server.pid());
        Self { load: load_on(arguments, server.address()), meter, spent: Spent::default() }
    }

    async fn run(&mut self) -> Result<Measured, Failure> {
        let before = self.meter.read();
        let measured = self.load.run().await?;
        self.spent.add(self.meter.since(before), measured.latency.len());
        Ok(measured)
    }
}

/// Loads a server that runs already.
pub(super) async fn run_against(
    address: std::net::SocketAddr,
    arguments: &HttpBenchArgs,
    progress: &Progress,
) -> Result<Section, Failure> {
    let load = load_on(arguments, address);
    progress.begin("http: rounds", u64::from(arguments.rounds));
    let mut figures = Vec::new();
    let mut notes = Vec::new();
    for n in 1..=arguments.rounds {
        let measured = load.run().await?;
        figures.push(Figure::new(format!("round {n}: accepted"), measured.rate(), "requests/s"));
        figures
            .extend(PERCENTILES.map(|(name, percentile)| Figure::new(name, measured.percentile_ms(percentile), "ms")));
        notes.extend(measured.troubles());
        progress.step();
    }
    progress.end();
    Ok(Section { title: format!("http: {address}, {}", manner(arguments)), figures, notes })
}

const PERCENTILES: [(&str, f64); 3] = [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)];

fn load_on(arguments: &HttpBenchArgs, address: std::net::SocketAddr) -> Load {
    let body = format!("{{\"kind\":\"echo\",\"payload\":{}}}", payload_of(PAYLOAD_BYTES));
    Load {
        address,
        connections: arguments.connections,
        time: Duration::from_secs(arguments.seconds.into()),
        rate: arguments.rate,
        request: Arc::from(Connection::post(address, "/v1/tasks", "", &body)),
    }
}

fn section(arguments: &HttpBenchArgs, rounds: &[(Measured, Measured)]) -> Section {
    let both = |of: &dyn Fn(&Measured) -> f64| {
        let ours: Vec<f64> = rounds.iter().map(|(ours, _)| of(ours)).collect();
        let raw: Vec<f64> = rounds.iter().map(|(_, raw)| of(raw)).collect();
        let ratios: Vec<f64> = ours.iter().zip(&raw).map(|(ours, raw)| ratio(*ours, *raw)).collect();
        (median(&ours), median(&raw), median(&ratios))
    };
    let (ours, raw, share) = both(&Measured::rate);
    let accepted = Figure::new("POST /v1/tasks", ours, "requests/s").beside("bare handler", raw, share);
    // At a given rate both do the same; then only the latency tells.
    let mut figures = vec![if arguments.rate.is_none() { accepted.goal(THROUGHPUT) } else { accepted }];
    for (name, percentile) in PERCENTILES {
        let (ours, raw, share) = both(&|measured| measured.percentile_ms(percentile));
        figures.push(Figure::new(name, ours, "ms").beside("bare handler", raw, share));
    }
    let mut notes = Vec::new();
    for (name, troubles) in [
        ("tidegate", rounds.iter().find_map(|(ours, _)| ours.troubles())),
        ("bare handler", rounds.iter().find_map(|(_, raw)| raw.troubles())),
    ] {
        notes.extend(troubles.map(|troubles| format!("{name}: {troubles}")));
    }
    Section { title: format!("http: {}", manner(arguments)), figures, notes }
}

fn manner(arguments: &HttpBenchArgs) -> String {
    let rate = match arguments.rate {
        Some(rate) => format!("{} requests a second due", grouped(i64::from(rate))),
        None => "as fast as answers come".to_owned(),
    };
    let (connections, rounds, seconds) = (arguments.connections, arguments.rounds, arguments.seconds);
    format!("{connections} connections, {rate}, medians of {rounds} rounds of {seconds} s")
}
