//! `bench snapshot`: a steady stream of tasks through the store while somebody holds an old snapshot, so that no dead
//! row can be cleaned up; and the same through a plain queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_keeper::KeeperOptions;
use tidegate_store::StoreError;
use tidegate_store::yardstick::{HeldSnapshot, PlainQueue, record_bytes};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::cpu::{Meter, Spent};
use super::ground::{Ground, broken};
use super::load::{Cell, TURN, all, completed, payload_of, turn};
use super::progress::Progress;
use super::report::{Figure, Goal, Section, grouped, per_second, ratio};
use crate::cli::SnapshotBenchArgs;
use crate::exit::Failure;

/// How long the stream runs before it is measured, at most: counters have their generations, autovacuum has seen the
/// tables. Never more than a third of the whole.
const WARM_UP: Duration = Duration::from_secs(5);
/// The first and the last seconds that are compared, at most; never more than a third of the whole.
const WINDOW: Duration = Duration::from_secs(10);
/// Kinds that the tasks are spread over.
const KINDS: u32 = 8;
/// Callers that submit at once.
const SUBMITTERS: usize = 1_000;
/// Bytes in the payload of a task.
const PAYLOAD_BYTES: u32 = 100;
/// The pause of a claimer that found nothing.
const NOTHING_FOUND: Duration = Duration::from_millis(1);
/// The longest that the rest of a stream may take to run dry.
const RUN_DRY: Duration = Duration::from_secs(60);
/// How much of its first rate must be left at the end.
const HOLDS: Goal = Goal::AtLeast(0.85, None);

/// Measures ours and a plain queue, one after the other.
pub(super) async fn run(
    ground: &Ground,
    arguments: &SnapshotBenchArgs,
    progress: &Progress,
) -> Result<Section, Failure> {
    let (mut figures, mut notes) = (Vec::new(), Vec::new());
    let mut ends = Vec::new();
    let held: &[bool] = if arguments.control { &[true, false] } else { &[true] };
    for hold in held {
        let with = if *hold { "a snapshot held" } else { "none held" };
        ground.clear().await?;
        progress.begin(format!("snapshot: the store, {with}"), u64::from(arguments.seconds));
        let (ours, bytes, kept) = ours(ground, arguments, *hold, progress).await?;
        ground.clear().await?;
        progress.begin(format!("snapshot: a plain queue, {with}"), u64::from(arguments.seconds));
        let plain = plain(ground, arguments, *hold, bytes, progress).await?;
        progress.end();
        for (name, pace) in [("tidegate", ours), ("plain queue", plain)] {
            let figure = Figure::new(format!("{name}, {with}: last"), pace.last, "tasks/s");
            let figure = figure.beside("first", pace.first, ratio(pace.last, pace.first));
            figures.push(if *hold && name == "tidegate" { figure.goal(HOLDS) } else { figure });
            let what = format!("{name}, {with}: processor time, last");
            figures.extend(pace.last_time.beside(&what, "first", pace.first_time));
        }
        ends.push((ours, plain));
        notes.push(kept);
    }
    if let Some((ours, plain)) = ends.first() {
        let figure = Figure::new("tidegate at the end", ours.last, "tasks/s");
        figures.push(figure.beside("plain queue at the end", plain.last, ratio(ours.last, plain.last)));
    }
    let title = format!(
        "snapshot: held for {} s, first and last {} s, {} tasks of {} priorit{} in the stream",
        arguments.seconds,
        window(arguments).as_secs(),
        grouped(i64::from(arguments.waiting)),
        arguments.priorities,
        if arguments.priorities == 1 { "y" } else { "ies" },
    );
    Ok(Section { title, figures, notes })
}

/// Tasks a second at the begin and at the end, and the processor time of Postgres and of us for each.
#[derive(Debug, Clone, Copy)]
struct Pace {
    first: f64,
    last: f64,
    first_time: Spent,
    last_time: Spent,
}

/// The stream at one moment.
#[derive(Debug, Clone, Copy)]
struct Reading {
    done: usize,
    time: Option<Duration>,
}

impl Pace {
    /// From readings at the begin and the end of the first and of the last window.
    fn of(readings: &[Reading], window: Duration) -> Option<Self> {
        let [a, b, c, d] = readings else { return None };
        let spent = |from: &Reading, to: &Reading| {
            let mut spent = Spent::default();
            let time = to.time.zip(from.time).map(|(to, from)| to.saturating_sub(from));
            spent.add(time, (to.done - from.done) as u64);
            spent
        };
        Some(Self {
            first: per_second(b.done - a.done, window),
            last: per_second(d.done - c.done, window),
            first_time: spent(a, b),
            last_time: spent(c, d),
        })
    }
}

/// A stream in which a new task comes for each that is done, so that as many wait at the end as at the begin.
struct Stream {
    tasks: usize,
    room: Semaphore,
    done: AtomicUsize,
    stop: CancellationToken,
}

impl Stream {
    fn new(tasks: u32) -> Arc<Self> {
        let tasks = tasks as usize;
        Arc::new(Self { tasks, room: Semaphore::new(tasks), done: AtomicUsize::new(0), stop: CancellationToken::new() })
    }

    /// Takes room for at least one task and most so many; none once the stream ends.
    async fn take_room(&self, most: usize) -> usize {
        match self.stop.run_until_cancelled(self.room.acquire()).await {
            Some(Ok(permit)) => permit.forget(),
            _ => return 0,
        }
        let more = self.room.available_permits().min(most - 1);
        match self.room.try_acquire_many(more as u32) {
            Ok(permits) => {
                permits.forget();
                1 + more
            }
            Err(_) => 1,
        }
    }

    /// Tasks are done.
    fn give_back(&self, tasks: usize) {
        self.done.fetch_add(tasks, Ordering::Relaxed);
        self.room.add_permits(tasks);
    }

    /// Whether it was told to stop and all that was in it is done.
    fn is_dry(&self) -> bool {
        self.stop.is_cancelled() && self.room.available_permits() == self.tasks
    }

    /// Watches the stream for its time, and ends it. Ends early if a part of it does.
    async fn watch(
        &self,
        arguments: &SnapshotBenchArgs,
        meter: &Meter,
        progress: &Progress,
        mut parts: JoinSet<Result<(), Failure>>,
    ) -> Result<Pace, Failure> {
        let (seconds, window) = (Duration::from_secs(arguments.seconds.into()), window(arguments));
        let started = Instant::now();
        let read = || Reading { done: self.done.load(Ordering::Relaxed), time: meter.read() };
        let watched = async {
            let mut readings = vec![read()];
            for second in 1..=arguments.seconds {
                sleep_until(started + Duration::from_secs(second.into())).await;
                progress.step();
                let at = Duration::from_secs(second.into());
                if at == window || at + window == seconds || at == seconds {
                    readings.push(read());
                }
            }
            readings
        };
        let readings = tokio::select! {
            readings = watched => readings,
            ended = parts.join_next() => {
                ended.transpose().map_err(|error| Failure::other("the stream broke off", error))?.transpose()?;
                return Err(Failure::Other("the stream ended before its time".to_owned()));
            }
        };
        self.stop.cancel();
        timeout(RUN_DRY, all(parts)).await.map_err(|_| {
            Failure::Other(format!("not all that was in the stream was done {} s later", RUN_DRY.as_secs()))
        })??;
        Pace::of(&readings, window)
            .ok_or_else(|| Failure::Other("the windows of the measurement were missed".to_owned()))
    }
}

fn window(arguments: &SnapshotBenchArgs) -> Duration {
    WINDOW.min(third(arguments))
}

fn third(arguments: &SnapshotBenchArgs) -> Duration {
    Duration::from_secs(u64::from(arguments.seconds) / 3)
}

async fn hold(ground: &Ground, hold: bool) -> Result<Option<HeldSnapshot>, Failure> {
    if !hold {
        return Ok(None);
    }
    let taken = HeldSnapshot::take(ground.url()).await;
    taken.map(Some).map_err(|error| broken("no snapshot can be taken", &error))
}

async fn release(snapshot: Option<HeldSnapshot>) -> Result<(), Failure> {
    match snapshot {
        None => Ok(()),
        Some(snapshot) => snapshot.release().await.map_err(|error| broken("the snapshot was not held", &error)),
    }
}

async fn ours(
    ground: &Ground,
    arguments: &SnapshotBenchArgs,
    held: bool,
    progress: &Progress,
) -> Result<(Pace, f64, String), Failure> {
    let cell = Arc::new(Cell::open(ground.url(), KINDS, arguments.priorities, payload_of(PAYLOAD_BYTES)).await?);
    let stream = Stream::new(arguments.waiting);
    // Whatever becomes of the rest, the upkeep ends with it.
    let _stop = stream.stop.clone().drop_guard();
    // The upkeep is a part of the system: its looks must not walk the dead either.
    let upkeep = tokio::spawn(tidegate_keeper::keep(cell.store.clone(), KeeperOptions::default(), stream.stop.clone()));
    let mut parts = JoinSet::new();
    for n in 0..SUBMITTERS {
        let (cell, stream) = (cell.clone(), stream.clone());
        parts.spawn(async move {
            while stream.take_room(1).await > 0 {
                cell.admit(n).await?;
            }
            Ok(())
        });
    }
    let session = cell.session().await?;
    parts.spawn({
        let stream = stream.clone();
        async move {
            let mut reports = Vec::new();
            loop {
                let claimed = turn(&session, &reports, TURN).await?;
                stream.give_back(reports.len());
                if claimed.is_empty() && reports.is_empty() {
                    if stream.is_dry() {
                        return Ok(());
                    }
                    sleep(NOTHING_FOUND).await;
                }
                reports = claimed.into_iter().map(completed).collect();
            }
        }
    });
    sleep(WARM_UP.min(third(arguments))).await;
    let bytes = record_bytes(ground.url()).await.map_err(|error| broken("a record cannot be measured", &error))?;
    let snapshot = hold(ground, held).await?;
    let pace = stream.watch(arguments, &Meter::of_ourselves(ground.postmaster()), progress, parts).await?;
    release(snapshot).await?;
    upkeep.await.map_err(|error| Failure::other("the upkeep broke off", error))?;
    let kept = cell.check(stream.done.load(Ordering::Relaxed)).await?;
    Ok((pace, bytes, kept))
}

async fn plain(
    ground: &Ground,
    arguments: &SnapshotBenchArgs,
    held: bool,
    row_bytes: f64,
    progress: &Progress,
) -> Result<Pace, Failure> {
    let failed = |error: StoreError| broken("the plain queue failed", &error);
    let stream = Stream::new(arguments.waiting);
    let mut queue = PlainQueue::create(ground.url(), &payload_of(PAYLOAD_BYTES)).await.map_err(failed)?;
    queue.pad_to(row_bytes).await.map_err(failed)?;
    let mut claimer = PlainQueue::connect(ground.url()).await.map_err(failed)?;
    let mut parts = JoinSet::new();
    parts.spawn({
        let stream = stream.clone();
        async move {
            loop {
                match stream.take_room(TURN).await {
                    0 => return Ok(()),
                    rows => queue.insert(rows).await.map_err(failed)?,
                }
            }
        }
    });
    parts.spawn({
        let stream = stream.clone();
        async move {
            loop {
                let jobs = claimer.claim(TURN).await.map_err(failed)?;
                if !jobs.is_empty() {
                    claimer.finish(&jobs).await.map_err(failed)?;
                    stream.give_back(jobs.len());
                } else if stream.is_dry() {
                    return Ok(());
                } else {
                    sleep(NOTHING_FOUND).await;
                }
            }
        }
    });
    sleep(WARM_UP.min(third(arguments))).await;
    let snapshot = hold(ground, held).await?;
    let pace = stream.watch(arguments, &Meter::of_ourselves(ground.postmaster()), progress, parts).await?;
    release(snapshot).await?;
    Ok(pace)
}
