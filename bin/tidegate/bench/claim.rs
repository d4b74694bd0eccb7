//! `bench claim`: how long a claim takes while very much waits that may not run, beside a queue without it, in turns.

use std::sync::Arc;
use std::time::Instant;

use tidegate_core::peer::PeerLimits;
use tidegate_core::submission::Submission;
use tidegate_core::tenant::TenantLimits;
use tidegate_core::{PeerName, TenantId};
use tidegate_store::Session;

use super::ground::Ground;
use super::load::{Cell, Named, TURN, completed, payload_of, turn};
use super::progress::Progress;
use super::report::{Figure, Goal, Section, grouped, histogram, ratio};
use crate::cli::ClaimBenchArgs;
use crate::exit::Failure;

/// Claims that go before those that count.
const WARM_UP: usize = 20;
/// Callers that submit at once.
const SUBMITTERS: usize = 2_000;
const PAYLOAD_BYTES: u32 = 100;
const CLAIM: Goal = Goal::AtMost(1.5);

/// What waits and may not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blocked {
    Nothing,
    /// For a peer that is full, of one tenant.
    OneFlow,
    /// For a peer that is full, of many tenants.
    Tenants,
    /// Of tenants that run as much as they may.
    Capped,
}

/// A median and a 99th percentile, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Took {
    p50: f64,
    p99: f64,
}

/// Measures each, between two measurements of a queue without it.
pub(super) async fn run(ground: &Ground, arguments: &ClaimBenchArgs, progress: &Progress) -> Result<Section, Failure> {
    let kinds = [Blocked::OneFlow, Blocked::Tenants, Blocked::Capped];
    progress.begin("claim: past what may not run", 2 * kinds.len() as u64 + 1);
    let mut before = measure(ground, arguments, Blocked::Nothing).await?;
    progress.step();
    let mut figures = Vec::new();
    for blocked in kinds {
        let with = measure(ground, arguments, blocked).await?;
        progress.step();
        let after = measure(ground, arguments, Blocked::Nothing).await?;
        progress.step();
        let what = blocked.told(arguments);
        for (part, goal, of) in
            [("p50", None, (|took| took.p50) as fn(Took) -> f64), ("p99", Some(CLAIM), |took| took.p99)]
        {
            let without = f64::midpoint(of(before), of(after));
            let figure = Figure::new(format!("claim {part}, {what}"), of(with), "ms").beside(
                "nothing else waits",
                without,
                ratio(of(with), without),
            );
            figures.push(if let Some(goal) = goal { figure.goal(goal) } else { figure });
        }
        before = after;
    }
    progress.end();
    let title = format!("claim: {} claims of one task for another peer", grouped(arguments.samples.into()));
    Ok(Section { title, figures, notes: Vec::new() })
}

impl Blocked {
    fn told(self, arguments: &ClaimBenchArgs) -> String {
        let (tasks, tenants) = (grouped(arguments.blocked.into()), grouped(arguments.tenants.into()));
        match self {
            Self::Nothing => "nothing else".to_owned(),
            Self::OneFlow => format!("{tasks} in one flow for a full peer"),
            Self::Tenants => format!("{tasks} of {tenants} tenants for a full peer"),
            Self::Capped => format!("{tasks} of {tenants} capped tenants"),
        }
    }
}

/// Names that tasks are given.
struct Names {
    full: PeerName,
    free: PeerName,
    other: TenantId,
    capped: Vec<TenantId>,
    usual: Vec<TenantId>,
}

impl Names {
    fn of(tenants: usize) -> Result<Self, Failure> {
        let bad = |error| Failure::other("a name", error);
        let tenant = |name: String| TenantId::parse(&name).map_err(bad);
        Ok(Self {
            full: PeerName::parse("full").map_err(bad)?,
            free: PeerName::parse("free").map_err(bad)?,
            other: tenant("other".to_owned())?,
            capped: (0..tenants).map(|n| tenant(format!("capped{n}"))).collect::<Result<_, _>>()?,
            usual: (0..tenants).map(|n| tenant(format!("usual{n}"))).collect::<Result<_, _>>()?,
        })
    }

    /// A peer that takes one at a time, and tenants that run one at a time; the same whatever waits.
    fn limits(&self) -> Named {
        let one = TenantLimits { max_running: Some(1), ..TenantLimits::default() };
        let full = PeerLimits { max_in_flight: Some(1), ..PeerLimits::default() };
        Named {
            tenants: self.capped.iter().map(|tenant| (tenant.clone(), one.clone())).collect(),
            peers: [(self.full.clone(), full)].into(),
        }
    }
}

/// Claims tasks of a peer with room, one at a time, while others wait.
async fn measure(ground: &Ground, arguments: &ClaimBenchArgs, blocked: Blocked) -> Result<Took, Failure> {
    ground.clear().await?;
    let (tasks, tenants) = (arguments.blocked as usize, arguments.tenants as usize);
    let names = Arc::new(Names::of(tenants)?);
    let cell = Cell::open_with(ground.url(), 1, 1, payload_of(PAYLOAD_BYTES), &names.limits()).await?;
    let cell = Arc::new(cell);
    // Those that run all the time, so that the others may not; they hold their leases to the end.
    let _holder = match blocked {
        Blocked::Nothing => None,
        Blocked::OneFlow | Blocked::Tenants => Some(hold(&cell, &names, 1, for_full_peer).await?),
        Blocked::Capped => Some(hold(&cell, &names, tenants, of_capped_tenant).await?),
    };
    let (made, spread): (Made, usize) = match blocked {
        Blocked::Nothing => (for_full_peer, 0),
        Blocked::OneFlow => (for_full_peer, 1),
        Blocked::Tenants => (for_full_peer, tenants),
        Blocked::Capped => (of_capped_tenant, tenants),
    };
    if spread > 0 {
        let names = names.clone();
        cell.fill_with(tasks, SUBMITTERS, move |n, task| made(&names, n % spread, task)).await?;
    }
    let claims = WARM_UP + arguments.samples as usize;
    cell.fill_with(claims, SUBMITTERS, move |_, task| Submission {
        tenant: names.other.clone(),
        peer: Some(names.free.clone()),
        ..task
    })
    .await?;
    let session = cell.session_of(1).await?;
    let mut times = histogram()?;
    for n in 0..claims {
        let started = Instant::now();
        let claimed = turn(&session, &[], 1).await?;
        let took = started.elapsed();
        if claimed.len() != 1 {
            return Err(Failure::Other(format!("claim {n} got nothing, {blocked:?} being in the way")));
        }
        if n >= WARM_UP {
            times.saturating_record(took.as_micros() as u64);
        }
        let reports: Vec<_> = claimed.into_iter().map(completed).collect();
        turn(&session, &reports, 0).await?;
    }
    let ms = |percentile| times.value_at_percentile(percentile) as f64 / 1_000.0;
    Ok(Took { p50: ms(50.0), p99: ms(99.0) })
}

/// Makes a task one of those that may not run, of the `n`th tenant.
type Made = fn(&Names, usize, Submission) -> Submission;

fn for_full_peer(names: &Names, n: usize, task: Submission) -> Submission {
    Submission { tenant: names.usual[n].clone(), peer: Some(names.full.clone()), ..task }
}

fn of_capped_tenant(names: &Names, n: usize, task: Submission) -> Submission {
    Submission { tenant: names.capped[n].clone(), ..task }
}

/// Starts so many, which run until everything is over.
async fn hold(cell: &Arc<Cell>, names: &Arc<Names>, count: usize, made: Made) -> Result<Session, Failure> {
    let session = cell.session_of(count as u32).await?;
    let names = names.clone();
    cell.fill_with(count, SUBMITTERS, move |n, task| made(&names, n, task)).await?;
    let mut running = 0;
    while running < count {
        let claimed = turn(&session, &[], TURN.min(count - running)).await?.len();
        if claimed == 0 {
            return Err(Failure::Other(format!("only {running} of {count} could be started")));
        }
        running += claimed;
    }
    Ok(session)
}
