//! `bench overload`: what a worker still does in time when more is asked of it than it can do, behind our door and
//! behind a plain queue that takes everything.
//!
//! Arrivals are open-loop: drawn before anything is sent, due by the clock whatever became of those before, and
//! measured from when they were due. A system that stalls is not spared what came meanwhile.

mod flood;
mod outcome;
mod plain;
mod plot;
mod schedule;

use std::time::Duration;

use tidegate_core::size::{Load, Size, size};

use super::child::Server;
use super::cpu::resident_bytes;
use super::ground::Ground;
use super::progress::Progress;
use super::report::{Figure, Goal, Section, grouped, ratio};
use crate::cli::OverloadBenchArgs;
use crate::exit::Failure;
use flood::Flood;
use outcome::Tally;
use plot::Point;
use schedule::{Arrival, Runs};

/// Slots of the one worker.
const SLOTS: u32 = 20;
/// From when a task is due to when its result is of use no more.
const DEADLINE: Duration = Duration::from_secs(2);
/// The wait that is accepted, from which the queue is sized.
const WAIT_MS: f64 = 250.0;
/// Tasks that are run before anything is measured: enough for the worker to know what a run takes.
const WARM_UP: usize = 100;
/// The load, in shares of capacity, from which on the goodput must hold.
const FLOOD: f64 = 5.0;

const GOODPUT: Goal = Goal::AtLeast(0.95, None);
const GOODPUT_SPREAD: Goal = Goal::AtLeast(0.90, None);
const P50_MS: Goal = Goal::AtMost(500.0);
const IN_TIME_PERCENT: Goal = Goal::AtLeast(99.0, None);
const DOOMED_PERCENT: Goal = Goal::AtMost(0.5);
/// A task after the flood finds an idle worker: its own run, and as much again for everything else.
const AFTER_MS: Goal = Goal::AtMost(200.0);

/// What is the same at every load.
struct Setting {
    runs: Runs,
    sized: Size,
    seconds: u32,
}

/// Measures each load, ours and the plain queue in turns.
pub(super) async fn run(
    ground: &Ground,
    arguments: &OverloadBenchArgs,
    progress: &Progress,
) -> Result<Vec<Section>, Failure> {
    ground.clear().await?;
    let runs = if arguments.spread { Runs::SPREAD } else { Runs::ALIKE };
    let capacity = f64::from(SLOTS) * 1_000.0 / runs.mean_ms();
    let load = Load { rate: capacity, run_ms: runs.mean_ms(), slots: Some(SLOTS), wait_ms: WAIT_MS };
    let sized = size(&load).map_err(|bad| Failure::Other(bad.to_string()))?;
    let setting = Setting { runs, sized, seconds: arguments.seconds };
    progress.begin("overload: a server starts", 1);
    let server = Server::start_with(&["up"], ground.url(), &settings(&setting)).await?;
    flood::warm_up(server.address(), WARM_UP).await?;
    let (mut sections, mut points) = (Vec::new(), Vec::new());
    for times in &arguments.loads {
        let (section, point) = measure(ground, &setting, &server, *times, progress).await?;
        sections.push(section);
        points.push(point);
    }
    server.stop().await?;
    if let Some(first) = sections.first_mut() {
        first.notes.insert(0, setting.describe());
    }
    if let Some(path) = &arguments.plot {
        let drawn = plot::svg(&points, &setting.runs);
        std::fs::write(path, drawn).map_err(|error| Failure::other("the plot cannot be written", error))?;
    }
    Ok(sections)
}

/// The configuration of the server: slots that no class keeps from another, and a queue of the size asked for.
fn settings(setting: &Setting) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("TIDEGATE__WORKER__SLOTS", SLOTS.to_string()),
        ("TIDEGATE__LIMITS__MAX_QUEUED", setting.sized.max_queued.to_string()),
    ];
    settings.extend(
        [
            ("TIDEGATE__LIMITS__CLASSES__CRITICAL__RESERVE", "0.0"),
            ("TIDEGATE__LIMITS__CLASSES__CRITICAL__MAX_SHARE", "1.0"),
            ("TIDEGATE__LIMITS__CLASSES__STANDARD__RESERVE", "0.0"),
            ("TIDEGATE__LIMITS__CLASSES__STANDARD__MAX_SHARE", "1.0"),
            ("TIDEGATE__LIMITS__CLASSES__BACKGROUND__RESERVE", "0.0"),
            ("TIDEGATE__LIMITS__CLASSES__BACKGROUND__MAX_SHARE", "1.0"),
        ]
        .map(|(name, value)| (name, value.to_owned())),
    );
    settings
}

impl Setting {
    fn capacity(&self) -> f64 {
        self.sized.capacity
    }

    /// When what ends counts: as long as the load lasts, from one mean run after its begin, since nothing ends before.
    fn window(&self) -> (Duration, Duration) {
        let begin = Duration::from_secs_f64(self.runs.mean_ms() / 1_000.0);
        (begin, begin + Duration::from_secs(self.seconds.into()))
    }

    fn describe(&self) -> String {
        format!(
            "one worker of {SLOTS} slots, {}, deadline {} s after a task was due: capacity {:.1} tasks/s; \
             `tidegate size --rate {:.1} --run-ms {:.1} --slots {SLOTS} --wait-ms {WAIT_MS:.0}` says max_queued {}",
            self.runs.describe(),
            DEADLINE.as_secs(),
            self.capacity(),
            self.capacity(),
            self.runs.mean_ms(),
            self.sized.max_queued,
        )
    }
}

async fn measure(
    ground: &Ground,
    setting: &Setting,
    server: &Server,
    times: f64,
    progress: &Progress,
) -> Result<(Section, Point), Failure> {
    let time = Duration::from_secs(setting.seconds.into());
    let arrivals = schedule::poisson(times * setting.capacity(), time, setting.runs);
    let memory_before = resident_bytes(server.pid());
    progress.begin(format!("overload: {times} × capacity, tidegate"), u64::from(setting.seconds));
    let ours = watched(Flood::new(server.address(), &arrivals).run(), time, progress).await?;
    let memory_after = resident_bytes(server.pid());
    let after =
        flood::one(server.address(), Arrival { due: Duration::ZERO, run_ms: schedule::MEDIAN_MS as u32 }).await?;
    progress.begin(format!("overload: {times} × capacity, plain queue"), u64::from(setting.seconds));
    let plain = watched(plain::run(ground, &arrivals, time), time, progress).await?;
    progress.end();
    let tallies = [&ours, &plain].map(|outcomes| Tally::of(outcomes, &arrivals, setting.window()));
    let [ours, plain] = &tallies;
    let ours_after = Figure::new("a task sent after it: to its end", ours_ms(after), "ms").goal(AFTER_MS);
    let mut figures = figures(setting, times, ours, plain)?;
    figures.push(ours_after);
    if let Some((before, after)) = memory_before.zip(memory_after) {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let share = ratio(after as f64, before as f64);
        figures.push(Figure::new("resident memory after it", mib(after), "MiB").beside("before", mib(before), share));
    }
    let title = format!(
        "overload: {times} × capacity, {} tasks offered in {} s",
        grouped(arrivals.len() as i64),
        setting.seconds
    );
    let notes = notes(ours, plain);
    let share = |tally: &Tally| ratio(tally.goodput(), setting.capacity());
    let point = Point { offered: times, ours: share(ours), plain: share(plain) };
    Ok((Section { title, figures, notes }, point))
}

fn ours_ms(took: Option<Duration>) -> f64 {
    // One that was refused or ended otherwise did not end in time at all.
    took.map_or(DEADLINE.as_secs_f64() * 1_000.0, |took| took.as_secs_f64() * 1_000.0)
}

/// Shows the seconds of a load while it lasts.
async fn watched<T>(load: impl Future<Output = T>, time: Duration, progress: &Progress) -> T {
    let seconds = async {
        for _ in 0..time.as_secs() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            progress.step();
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        done = load => done,
        () = seconds => unreachable!("it never ends"),
    }
}

fn figures(setting: &Setting, times: f64, ours: &Tally, plain: &Tally) -> Result<Vec<Figure>, Failure> {
    let capacity = setting.capacity();
    let a_second = |count: u64| count as f64 / f64::from(setting.seconds);
    let share = |tally: &Tally| ratio(tally.goodput(), capacity);
    let goodput = Figure::new("done in time", ours.goodput(), "tasks/s").beside("capacity", capacity, share(ours));
    let floor = if setting.runs.are_alike() { GOODPUT } else { GOODPUT_SPREAD };
    let latency = ours.latency()?;
    let plain_latency = plain.latency()?;
    let ms = |micros: u64| micros as f64 / 1_000.0;
    let percentile = |name: &str, percentile: f64| {
        let (ours, plain) = (latency.value_at_percentile(percentile), plain_latency.value_at_percentile(percentile));
        Figure::new(format!("accepted: due to ended, {name}"), ms(ours), "ms").beside("plain queue", ms(plain), 0.0)
    };
    let without_ratio = |figure: Figure| Figure { ratio: None, ..figure };
    Ok(vec![
        Figure::new("offered", a_second(ours.offered), "tasks/s"),
        Figure::new("accepted", a_second(ours.accepted), "tasks/s"),
        if times >= FLOOD { goodput.goal(floor) } else { goodput },
        Figure::new("plain queue: done in time", plain.goodput(), "tasks/s").beside("capacity", capacity, share(plain)),
        Figure::new("plain queue: done at all", plain.done_a_second(), "tasks/s"),
        without_ratio(percentile("p50", 50.0)).goal(P50_MS),
        without_ratio(percentile("p99", 99.0)),
        Figure::new("accepted that ended in time", ours.in_time_percent(), "%").goal(IN_TIME_PERCENT),
        Figure::new("plain queue: accepted that ended in time", plain.in_time_percent(), "%"),
        Figure::new("worker time on tasks doomed when they started", ours.doomed_percent(), "%").goal(DOOMED_PERCENT),
        Figure::new("plain queue: worker time on such", plain.doomed_percent(), "%"),
        Figure::new("refused: due to answered, p99", ms(ours.refusals()?.value_at_percentile(99.0)), "ms"),
    ])
}

fn notes(ours: &Tally, plain: &Tally) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(refused) = ours.refused_in_words() {
        notes.push(format!("refused: {refused}"));
    }
    notes.extend(ours.troubles());
    if plain.left > 0 {
        notes.push(format!("left waiting in the plain queue: {} tasks", grouped(plain.left as i64)));
    }
    notes
}
