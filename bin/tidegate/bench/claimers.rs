//! `bench claimers`: claim and settlement by ever more sessions with few slots each, all on one Postgres, in turns.

use std::sync::Arc;

use tidegate_store::yardstick;

use super::ground::{Ground, broken};
use super::load::{Cell, payload_of};
use super::progress::Progress;
use super::report::{Figure, Goal, Section, grouped, median, per_second, ratio};
use crate::cli::ClaimersBenchArgs;
use crate::exit::Failure;

/// Kinds that the tasks are spread over, each a flow.
const KINDS: u32 = 8;
/// Callers that submit at once.
const SUBMITTERS: usize = 1_000;
/// Bytes in the payload of a task.
const PAYLOAD_BYTES: u32 = 100;
/// How much of the best rate must be left with the most claimers.
const HOLDS: Goal = Goal::AtLeast(0.8, None);

/// Measures each number of sessions in turns. A turn that fails for any reason ends the measurement: the store tries again
/// where another transaction was in the way, so nothing of that may come out.
pub(super) async fn run(
    ground: &Ground,
    arguments: &ClaimersBenchArgs,
    progress: &Progress,
) -> Result<Section, Failure> {
    ground.clear().await?;
    let mut bench = Claimers::open(ground, arguments).await?;
    let deadlocks = deadlocks(ground).await?;
    progress.begin("claimers: rounds", u64::from(arguments.rounds) + 1);
    let mut rounds = Vec::new();
    for n in 0..=arguments.rounds {
        let round = bench.round(n % 2 == 0).await?;
        progress.step();
        if n > 0 {
            rounds.push(round);
        }
    }
    progress.end();
    let kept = bench.cell.check(bench.ran).await?;
    let deadlocks = deadlocks_since(ground, deadlocks).await?;
    let title = format!(
        "claimers: claim + settle by sessions of {} slots, {} tasks a turn, medians of {} rounds",
        arguments.slots,
        grouped(i64::from(arguments.tasks)),
        arguments.rounds,
    );
    Ok(Section { title, figures: figures(&arguments.sessions, &rounds), notes: vec![deadlocks, kept] })
}

async fn deadlocks(ground: &Ground) -> Result<i64, Failure> {
    yardstick::deadlocks(ground.url()).await.map_err(|error| broken("deadlocks cannot be counted", &error))
}

/// Tells that the database has ended no deadlock since then.
async fn deadlocks_since(ground: &Ground, before: i64) -> Result<String, Failure> {
    match deadlocks(ground).await? - before {
        0 => Ok("no turn failed, and the database ended no deadlock".to_owned()),
        some => Err(Failure::Other(format!("the database ended {some} deadlocks"))),
    }
}

/// Turns of each session before those that are measured.
const WARM_TURNS: usize = 4;

/// The cell, and what is measured of it.
struct Claimers {
    cell: Arc<Cell>,
    counts: Vec<u32>,
    slots: u32,
    tasks: usize,
    /// Tasks that ran so far.
    ran: usize,
}

impl Claimers {
    async fn open(ground: &Ground, arguments: &ClaimersBenchArgs) -> Result<Self, Failure> {
        let cell = Arc::new(Cell::open(ground.url(), KINDS, 1, payload_of(PAYLOAD_BYTES)).await?);
        let (counts, slots, tasks) = (arguments.sessions.clone(), arguments.slots, arguments.tasks as usize);
        Ok(Self { cell, counts, slots, tasks, ran: 0 })
    }

    /// Lets each number of sessions claim and settle as many tasks. The order changes, so that none always follows the same.
    async fn round(&mut self, backwards: bool) -> Result<Vec<f64>, Failure> {
        let mut rates = vec![0.0; self.counts.len()];
        let mut order: Vec<usize> = (0..self.counts.len()).collect();
        if backwards {
            order.reverse();
        }
        for at in order {
            // Nobody is there yet for whom a slot could be reserved: who claims them is to be measured.
            let warm = (self.counts[at] * self.slots) as usize * WARM_TURNS;
            self.cell.fill(self.tasks + warm, SUBMITTERS).await?;
            let mut sessions = Vec::new();
            for _ in 0..self.counts[at] {
                sessions.push(Arc::new(self.cell.session_of(self.slots).await?));
            }
            // The first turns of a connection plan its statements.
            self.cell.drain_by(&sessions, warm, self.slots as usize).await?;
            let took = self.cell.drain_by(&sessions, self.tasks, self.slots as usize).await?;
            rates[at] = per_second(self.tasks, took);
            self.ran += self.tasks + warm;
            for session in sessions {
                session.close().await.map_err(|error| broken("a session cannot be closed", &error))?;
            }
        }
        Ok(rates)
    }
}

/// The rate of each number of sessions, and that of the most beside the best of a round.
fn figures(counts: &[u32], rounds: &[Vec<f64>]) -> Vec<Figure> {
    let of = |at: usize| median(&rounds.iter().map(|round| round[at]).collect::<Vec<_>>());
    let name = |count: u32| format!("{count} session{}", if count == 1 { "" } else { "s" });
    let mut figures: Vec<Figure> =
        counts.iter().enumerate().map(|(at, count)| Figure::new(name(*count), of(at), "tasks/s")).collect();
    let Some((most, count)) = counts.iter().enumerate().max_by_key(|(_, count)| **count) else { return figures };
    // Each round is its own comparison: what slowed the machine for a while slowed all of it.
    let best = |round: &Vec<f64>| round.iter().copied().fold(0.0, f64::max);
    let bests = median(&rounds.iter().map(best).collect::<Vec<_>>());
    let held = median(&rounds.iter().map(|round| ratio(round[most], best(round))).collect::<Vec<_>>());
    figures.push(Figure::new(name(*count), of(most), "tasks/s").beside("the best of a round", bests, held).goal(HOLDS));
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_sessions_are_held_against_the_best_of_each_round() {
        let rounds = [vec![100.0, 200.0, 150.0], vec![50.0, 40.0, 45.0], vec![10.0, 20.0, 10.0]];
        let figures = figures(&[1, 2, 50], &rounds);
        assert_eq!(figures.iter().map(|figure| figure.value).collect::<Vec<_>>(), [50.0, 40.0, 45.0, 45.0]);
        assert_eq!(
            (figures[3].what.as_str(), figures[3].ratio, figures[3].met),
            ("50 sessions", Some(0.75), Some(false))
        );
        assert_eq!(figures[0].what, "1 session");
    }
}
