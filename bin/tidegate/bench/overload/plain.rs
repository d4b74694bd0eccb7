//! The same load on a plain queue: everything is taken in, first come first served, and a worker with as many slots
//! runs what it claims. It wastes nothing: rows are gathered into inserts, slots claimed for together, and a bell in
//! the process itself tells that there is work.

use std::sync::Arc;
use std::time::Duration;

use tidegate_store::StoreError;
use tidegate_store::yardstick::{Job, PlainQueue};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::outcome::{Outcome, Outcomes, Run};
use super::schedule::Arrival;
use super::{DEADLINE, SLOTS};
use crate::bench::ground::{Ground, broken};
use crate::exit::Failure;

/// How long the worker goes on after the load: so that what is still in time there is seen. A plain queue that has
/// collapsed would take minutes to run dry, all of it late.
const AFTER: Duration = Duration::from_secs(1);
/// The longest that the worker sits without a look.
const LOOK: Duration = Duration::from_millis(100);

/// Runs the load. What was not done a moment after it is left.
pub(super) async fn run(ground: &Ground, arrivals: &[Arrival], time: Duration) -> Result<Outcomes, Failure> {
    let failed = |error: StoreError| broken("the plain queue failed", &error);
    let queue = PlainQueue::create(ground.url(), "").await.map_err(failed)?;
    let claimer = PlainQueue::connect(ground.url()).await.map_err(failed)?;
    let arrivals: Arc<[Arrival]> = arrivals.into();
    let (bell, stop, begin) = (Arc::new(Notify::new()), CancellationToken::new(), Instant::now());
    // Whatever becomes of the rest, the worker ends with it.
    let _stop = stop.clone().drop_guard();
    let worker = Worker { queue: claimer, arrivals: arrivals.clone(), bell: bell.clone(), begin };
    let working = tokio::spawn(worker.work(stop.clone()));
    insert(queue, &arrivals, &bell, begin).await.map_err(failed)?;
    sleep_until(begin + time + AFTER).await;
    stop.cancel();
    let mut outcomes =
        working.await.map_err(|error| Failure::other("the plain worker broke off", error))?.map_err(failed)?;
    let mut done = vec![false; arrivals.len()];
    outcomes.iter().for_each(|(at, _)| done[*at] = true);
    outcomes.extend((0..arrivals.len()).filter(|at| !done[*at]).map(|at| (at, Outcome::Left)));
    Ok(outcomes)
}

/// Inserts each row when it is due, and with it what came due while the insert before was committing.
async fn insert(mut queue: PlainQueue, arrivals: &[Arrival], bell: &Notify, begin: Instant) -> Result<(), StoreError> {
    let mut next = 0;
    while let Some(arrival) = arrivals.get(next) {
        sleep_until(begin + arrival.due).await;
        let now = begin.elapsed();
        let more = arrivals[next..].iter().take_while(|arrival| arrival.due <= now).count().max(1);
        queue.insert_each((next..next + more).map(|at| at.to_string()).collect()).await?;
        bell.notify_one();
        next += more;
    }
    Ok(())
}

struct Worker {
    queue: PlainQueue,
    arrivals: Arc<[Arrival]>,
    bell: Arc<Notify>,
    begin: Instant,
}

impl Worker {
    async fn work(mut self, stop: CancellationToken) -> Result<Outcomes, StoreError> {
        let (ended, mut endings) = mpsc::channel::<(Job, Instant)>(SLOTS as usize);
        let (mut busy, mut outcomes) = (0, Vec::new());
        let mut finished = Vec::new();
        while !stop.is_cancelled() {
            if !finished.is_empty() {
                let jobs: Vec<Job> = finished.iter().map(|(job, _): &(Job, Instant)| job.clone()).collect();
                self.queue.finish(&jobs).await?;
                busy -= finished.len();
                outcomes.extend(finished.drain(..).filter_map(|(job, started)| self.outcome(&job, started)));
            }
            let free = SLOTS as usize - busy;
            let claimed = if free > 0 { self.queue.claim(free).await? } else { Vec::new() };
            busy += claimed.len();
            for job in claimed {
                let (ended, run_ms) = (ended.clone(), self.arrival(&job).map_or(0, |(_, arrival)| arrival.run_ms));
                tokio::spawn(async move {
                    let started = Instant::now();
                    sleep(Duration::from_millis(run_ms.into())).await;
                    // Nobody listens any more once the load is over.
                    let _ = ended.send((job, started)).await;
                });
            }
            tokio::select! {
                Some(first) = endings.recv() => finished.push(first),
                () = self.bell.notified(), if busy < SLOTS as usize => {}
                () = sleep(LOOK) => {}
            }
            while let Ok(more) = endings.try_recv() {
                finished.push(more);
            }
        }
        Ok(outcomes)
    }

    fn arrival(&self, job: &Job) -> Option<(usize, Arrival)> {
        let at = job.payload.parse().ok()?;
        Some((at, *self.arrivals.get(at)?))
    }

    fn outcome(&self, job: &Job, started: Instant) -> Option<(usize, Outcome)> {
        let (at, arrival) = self.arrival(job)?;
        let due = self.begin + arrival.due;
        let left_ms = (due + DEADLINE).saturating_duration_since(started).as_millis() as i64;
        let run = Some(Run { left_ms, took_ms: started.elapsed().as_millis() as i64 });
        Some((at, Outcome::Ended { completed: true, after: due.elapsed(), run }))
    }
}
