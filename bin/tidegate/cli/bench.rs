//! The options of `bench`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::duration;
use crate::config::SecretUrl;

/// `bench`.
#[derive(Debug, Args)]
#[command(after_help = "Without a command: all of them in short forms, in less than five minutes.\n\
    Build with optimisation first, as bin/bench does. Compare what was measured in one run on one machine.")]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) ground: GroundArgs,
    #[command(subcommand)]
    pub(crate) what: Option<BenchCommand>,
}

/// The Postgres that is measured on.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The Postgres that is measured on")]
pub(crate) struct GroundArgs {
    /// An empty database to measure on, and to empty again; without it a new cluster with the settings of `up`, which
    /// is removed at the end.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) database_url: Option<SecretUrl>,
    /// Where that cluster is kept meanwhile: on the kind of disk that you mean to use.
    #[arg(long, global = true, value_name = "DIR", default_value = "./.tidegate-bench")]
    pub(crate) data_dir: PathBuf,
    /// Where the programs of Postgres (initdb, postgres) are.
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) pg_bin: Option<PathBuf>,
    /// The commit that is measured, for the record.
    #[arg(long, global = true, value_name = "COMMIT", env = "TIDEGATE_BENCH_COMMIT", hide = true)]
    pub(crate) commit: Option<String>,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Admission, claim and settlement through the store, beside plain SQL.
    Store(StoreBenchArgs),
    /// Claim and settlement by ever more sessions with few slots each.
    Claimers(ClaimersBenchArgs),
    /// The same under steady load while somebody holds an old snapshot, beside a plain queue.
    Snapshot(SnapshotBenchArgs),
    /// Submissions over HTTP, beside a bare handler that keeps one narrow row.
    Http(HttpBenchArgs),
    /// How soon an idle worker starts a task, and what idleness costs.
    Pickup(PickupBenchArgs),
    /// What a claim costs while very much waits that may not run: for a full peer, and of capped tenants.
    Claim(ClaimBenchArgs),
    /// More load than there is capacity: what is still done in time, beside a plain queue.
    Overload(OverloadBenchArgs),
    /// All of them in full size: about half an hour.
    Full,
    /// The bare handler that `http` is measured beside.
    #[command(hide = true)]
    Bare(BareArgs),
}

/// `bench store`.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreBenchArgs {
    /// Tasks in one round.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    pub(crate) tasks: u32,
    /// Rounds; each side has its turn in each, and medians are told. One more goes before them to warm up. Many short
    /// rounds tell more than few long ones: what else the machine does then falls on both sides alike.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Kinds that the tasks are spread over, each a flow; several numbers are measured one after the other.
    #[arg(long, value_name = "N,…", default_value = "8,1", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) flows: Vec<u32>,
    /// Callers that submit at once.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) submitters: u32,
    /// Worker sessions that claim and settle at once; the plain queue gets as many connections.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) sessions: u32,
    /// Bytes in the payload of a task.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(20..=65_536))]
    pub(crate) payload_bytes: u32,
    /// Also measure claim and settlement before so many other waiting tasks.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=5_000_000))]
    pub(crate) backlog: u32,
}

/// `bench claimers`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClaimersBenchArgs {
    /// Tasks that each number of sessions claims and settles in one round.
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    pub(crate) tasks: u32,
    /// Rounds; each number of sessions has its turn in each, and medians are told. One more goes before them to warm up.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Numbers of worker sessions. Each session has a connection of its own.
    #[arg(long, value_name = "N,…", default_value = "1,2,5,10,20,50", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) sessions: Vec<u32>,
    /// Slots of each session: the most that it claims and settles in one turn.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) slots: u32,
}

impl Default for ClaimersBenchArgs {
    fn default() -> Self {
        Self { tasks: 5_000, rounds: 7, sessions: vec![1, 2, 5, 10, 20, 50], slots: 16 }
    }
}

/// `bench snapshot`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SnapshotBenchArgs {
    /// How long the snapshot is held.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(6..=3_600))]
    pub(crate) seconds: u32,
    /// Tasks that wait or run at any time.
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    pub(crate) waiting: u32,
    /// Priorities that the tasks are spread over, all of one class.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=45))]
    pub(crate) priorities: u32,
    /// Also measure both without the snapshot.
    #[arg(long)]
    pub(crate) control: bool,
}

/// `bench http`.
#[derive(Debug, Clone, Args)]
pub(crate) struct HttpBenchArgs {
    /// Connections, each with one request at a time.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) connections: u32,
    /// How long each side is loaded in one round.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(crate) seconds: u32,
    /// Rounds; medians are told.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Requests a second, sent when they are due whatever became of those before. Latency then counts from when a
    /// request was due. Without it each connection sends as soon as it has its answer.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: Option<u32>,
    /// Load this running server instead of one of our own, and no baseline.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) server: Option<SocketAddr>,
}

/// `bench pickup`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PickupBenchArgs {
    /// Tasks, one at a time.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    pub(crate) samples: u32,
    /// How long the idle system is watched.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration::parse)]
    pub(crate) idle: Duration,
}

/// `bench claim`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClaimBenchArgs {
    /// Claims that are measured each time, of one task each.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    pub(crate) samples: u32,
    /// Tasks that wait and may not run.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(10..=5_000_000))]
    pub(crate) blocked: u32,
    /// Tenants that they are spread over.
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tenants: u32,
}

/// `bench overload`.
#[derive(Debug, Clone, Args)]
pub(crate) struct OverloadBenchArgs {
    /// How long each load lasts.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(2..=600))]
    pub(crate) seconds: u32,
    /// What is offered, in shares of capacity, one after the other.
    #[arg(long, value_name = "X,…", default_value = "0.5,1,2,5", value_delimiter = ',', value_parser = times_capacity)]
    pub(crate) loads: Vec<f64>,
    /// Runs of very different length (log-normal, median 100 ms, 99th percentile 600 ms) instead of 100 ms each.
    #[arg(long)]
    pub(crate) spread: bool,
    /// Also draw what is done in time over what is offered, as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// A load that one machine can offer.
fn times_capacity(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(times) if (0.1..=20.0).contains(&times) => Ok(times),
        _ => Err("must be a number from 0.1 to 20".to_owned()),
    }
}

/// `bench bare`.
#[derive(Debug, Clone, Args)]
pub(crate) struct BareArgs {
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: SocketAddr,
    /// Where the rows are kept: DATABASE_URL, so that its password is not in the list of processes.
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    pub(crate) rows_in: SecretUrl,
}
