//! Gathering: while one batch is committing, what arrives joins the next. No timer: a lone caller waits for nobody,
//! and the batch grows exactly as fast as the load.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::background::panic_message;

/// Into how many parts what is under way is divided, where batches are gathered ahead: one is being written while another
/// is answered and its callers come back, and the third is being gathered. A batch that takes all who wait leaves nobody
/// for the next one: then who answers and who writes wait for each other in turns.
const PARTS: usize = 3;
/// Up to so many are taken in any case: fewer cost nearly as much to write.
const SMALL: usize = 64;
/// The longest that the answers of a batch wait for the decision of the next.
const LET_NEXT_DECIDE: Duration = Duration::from_millis(1);

/// How large a batch may grow, and how much may wait for the next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GatherLimits {
    /// Most items in a batch.
    pub(crate) items: usize,
    /// Most weight in a batch; an item that is heavier goes alone.
    pub(crate) weight: usize,
    /// Most items that wait.
    pub(crate) waiting: usize,
}

/// Something that can be gathered.
pub(crate) trait Weighted: Send + 'static {
    /// Its weight, such as its size in bytes.
    fn weight(&self) -> usize;
}

/// What happens to a batch.
pub(crate) trait Flush<T>: Send + 'static {
    /// Handles the batch and answers each of its items.
    fn flush(&mut self, batch: Vec<T>) -> impl Future<Output = ()> + Send;
}

/// What happens to batches of which the next is made ready while the one before is being written: at most two at a time.
pub(crate) trait FlushAhead<T>: Send + 'static {
    /// Handles the batch and answers each of its items.
    fn flush(&mut self, batch: Vec<T>, progress: Progress) -> impl Future<Output = ()> + Send + 'static;

    /// How soon to flush again although nothing arrives, with an empty batch.
    fn again(&self) -> Option<Duration>;
}

/// How far the handling of a batch is, told to whoever gathers the next one. Dropped, it is over.
pub(crate) struct Progress {
    /// Batches are counted from 1.
    batch: u64,
    standing: watch::Sender<Standing>,
}

/// The last batch that began, that was decided, that is over.
#[derive(Debug, Default, Clone, Copy)]
struct Standing {
    begun: u64,
    decided: u64,
    over: u64,
}

impl Progress {
    /// What is left is to be written: a next batch may be gathered if it is full. One that is not still grows.
    pub(crate) fn decided(&self) {
        self.standing.send_modify(|standing| standing.decided = standing.decided.max(self.batch));
    }

    /// Lets a next batch that was gathered come to its decision: then the database has something to do while this one is
    /// answered. Not for long, since somebody else may be in its way.
    pub(crate) async fn let_next_decide(&self) {
        let mut standing = self.standing.subscribe();
        if standing.borrow().begun > self.batch {
            let decided = standing.wait_for(|standing| standing.decided > self.batch);
            drop(timeout(LET_NEXT_DECIDE, decided).await);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.standing.send_modify(|standing| {
            standing.decided = standing.decided.max(self.batch);
            standing.over = standing.over.max(self.batch);
        });
    }
}

/// Who gathers, and how to send to it. It ends when every sender is gone, or when `closed` is cancelled and nothing waits
/// any more.
pub(crate) fn gatherer<T: Weighted>(
    limits: GatherLimits,
    flush: impl Flush<T>,
    closed: CancellationToken,
) -> (mpsc::Sender<T>, impl Future<Output = ()> + Send) {
    let (sender, receiver) = mpsc::channel::<T>(limits.waiting);
    (sender, run(flush, Batches::of(limits, receiver, closed)))
}

/// Starts gathering, as a task.
pub(crate) fn gather<T: Weighted>(
    limits: GatherLimits,
    flush: impl Flush<T>,
    closed: CancellationToken,
) -> mpsc::Sender<T> {
    let (sender, gathering) = gatherer(limits, flush, closed);
    tokio::spawn(gathering);
    sender
}

/// The same on a thread of its own. Whoever answers hundreds of callers at once and shares their runtime comes to its
/// next batch only after all of them have had their turn; the database waits meanwhile.
pub(crate) fn gather_on_thread<T: Weighted>(
    name: &str,
    limits: GatherLimits,
    flush: impl FlushAhead<T>,
    closed: CancellationToken,
) -> std::io::Result<mpsc::Sender<T>> {
    let (sender, receiver) = mpsc::channel::<T>(limits.waiting);
    let gathering = run_ahead(flush, Batches::of(limits, receiver, closed));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(gathering))?;
    Ok(sender)
}

async fn run<T: Weighted>(mut flush: impl Flush<T>, mut batches: Batches<T>) {
    while let Some(batch) = batches.next(None).await {
        unharmed(flush.flush(batch)).await;
    }
}

async fn run_ahead<T: Weighted>(mut flush: impl FlushAhead<T>, mut batches: Batches<T>) {
    batches.under_way = Some(UnderWay::default());
    let (standing, mut seen) = watch::channel(Standing::default());
    let mut before: Option<JoinHandle<()>> = None;
    while let Some(items) = batches.next(flush.again()).await {
        let batch = standing.borrow().begun + 1;
        standing.send_modify(|standing| standing.begun = batch);
        let progress = Progress { batch, standing: standing.clone() };
        let flushing = tokio::spawn(unharmed(flush.flush(items, progress)));
        if let Some(before) = before.replace(flushing) {
            over(before).await;
        }
        let full = || batches.receiver.len() >= batches.limits.items;
        let goes_on = |standing: &Standing| standing.over >= batch || (standing.decided >= batch && full());
        // The sender is at hand, so there is no error.
        drop(seen.wait_for(goes_on).await);
    }
    if let Some(before) = before {
        over(before).await;
    }
}

/// Waits for a batch, which cannot fail: whatever breaks off in it is caught there.
async fn over(flushing: JoinHandle<()>) {
    drop(flushing.await);
}

/// What arrives, in batches.
struct Batches<T> {
    limits: GatherLimits,
    receiver: mpsc::Receiver<T>,
    /// What was too heavy for the batch before.
    left_over: Option<T>,
    closed: CancellationToken,
    /// Where a batch takes a part of those that wait.
    under_way: Option<UnderWay>,
}

impl<T: Weighted> Batches<T> {
    fn of(limits: GatherLimits, receiver: mpsc::Receiver<T>, closed: CancellationToken) -> Self {
        Self { limits, receiver, left_over: None, closed, under_way: None }
    }

    /// The next batch, an empty one after `again`; nothing where all is over.
    async fn next(&mut self, again: Option<Duration>) -> Option<Vec<T>> {
        let first = match self.left_over.take() {
            Some(item) => item,
            None => {
                let pause = again.unwrap_or(Duration::MAX);
                tokio::select! {
                    biased;
                    item = self.receiver.recv() => item?,
                    () = self.closed.cancelled(), if again.is_none() => return None,
                    () = sleep(pause), if again.is_some() => return Some(Vec::new()),
                }
            }
        };
        // Those that are ready to send at this moment get their turn to do so.
        tokio::task::yield_now().await;
        let mut weight = first.weight();
        let mut batch = Vec::with_capacity(self.limits.items.min(self.receiver.len() + 1));
        batch.push(first);
        let waiting = self.receiver.len() + 1;
        let share = self.under_way.as_mut().map_or(usize::MAX, |under_way| under_way.share(waiting));
        while batch.len() < self.limits.items.min(share) {
            let Ok(item) = self.receiver.try_recv() else { break };
            weight += item.weight();
            if weight > self.limits.weight {
                self.left_over = Some(item);
                break;
            }
            batch.push(item);
        }
        if let Some(under_way) = &mut self.under_way {
            under_way.last = batch.len();
        }
        Some(batch)
    }
}

/// How many callers there are, as far as it shows: those of the last batch, who come back once they are answered, and
/// those that wait.
#[derive(Debug, Default)]
struct UnderWay {
    last: usize,
    /// The most that there were lately.
    most: usize,
}

impl UnderWay {
    /// The most that a batch takes, where so many wait.
    fn share(&mut self, waiting: usize) -> usize {
        self.most = (self.last + waiting).max(self.most - self.most / 32);
        SMALL.max(self.most.div_ceil(PARTS))
    }
}

/// A batch that panics must not take the door with it: its callers hear that nobody knows, the next ones are served.
async fn unharmed(flushing: impl Future<Output = ()>) {
    if let Err(panic) = AssertUnwindSafe(flushing).catch_unwind().await {
        tracing::error!(why = panic_message(&*panic), "a batch broke off");
        metrics::counter!("tidegate_background_restarts_total", "work" => "batch").increment(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::oneshot;

    struct Asked(bool, oneshot::Sender<()>);

    impl Weighted for Asked {
        fn weight(&self) -> usize {
            1
        }
    }

    struct Panics;

    impl FlushAhead<Asked> for Panics {
        fn flush(&mut self, batch: Vec<Asked>, _progress: Progress) -> impl Future<Output = ()> + Send + 'static {
            let answer_all = |batch: Vec<Asked>| {
                for Asked(panics, answer) in batch {
                    assert!(!panics, "on purpose");
                    let _gone = answer.send(());
                }
            };
            futures_util::future::lazy(move |_| answer_all(batch))
        }

        fn again(&self) -> Option<Duration> {
            None
        }
    }

    #[tokio::test]
    async fn a_batch_that_panics_harms_no_later_one() {
        let limits = GatherLimits { items: 1, weight: 1, waiting: 8 };
        let sender = gather_on_thread("test", limits, Panics, CancellationToken::new()).unwrap();
        for panics in [true, false, true, false] {
            let (answer, heard) = oneshot::channel();
            sender.try_send(Asked(panics, answer)).unwrap_or_else(|_| panic!("nobody gathers any more"));
            let heard = tokio::time::timeout(Duration::from_secs(20), heard).await.unwrap();
            assert_eq!(heard.is_err(), panics);
        }
    }

    /// How many are in a batch, and what is needed to go on with it.
    type Batch = (usize, Progress, oneshot::Sender<()>);

    /// Hands each batch over to the test.
    struct Handed(mpsc::UnboundedSender<Batch>);

    impl FlushAhead<Asked> for Handed {
        fn flush(&mut self, batch: Vec<Asked>, progress: Progress) -> impl Future<Output = ()> + Send + 'static {
            let (done, end) = oneshot::channel();
            let _gone = self.0.send((batch.len(), progress, done));
            async move { drop(end.await) }
        }

        fn again(&self) -> Option<Duration> {
            None
        }
    }

    fn two_at_a_time() -> (mpsc::Sender<Asked>, mpsc::UnboundedReceiver<Batch>) {
        let limits = GatherLimits { items: 2, weight: 9, waiting: 16 };
        let (sender, receiver) = mpsc::channel(limits.waiting);
        let (handed, batches) = mpsc::unbounded_channel();
        let closed = CancellationToken::new();
        tokio::spawn(run_ahead(Handed(handed), Batches::of(limits, receiver, closed)));
        (sender, batches)
    }

    async fn send(sender: &mpsc::Sender<Asked>, items: usize) {
        for _ in 0..items {
            sender.send(Asked(false, oneshot::channel().0)).await.unwrap_or_else(|_| panic!("nobody gathers any more"));
        }
    }

    /// With its clock paused the runtime waits only once nothing else is left to do.
    async fn everybody_rests() {
        sleep(Duration::from_secs(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_batch_is_gathered_once_the_one_before_is_decided_and_no_third() {
        let (sender, mut batches) = two_at_a_time();
        send(&sender, 6).await;
        let (_, first, first_ends) = batches.recv().await.unwrap();
        everybody_rests().await;
        assert!(batches.try_recv().is_err(), "gathered before the first was decided");
        first.decided();
        let (items, second, second_ends) = batches.recv().await.unwrap();
        assert_eq!(items, 2);
        second.decided();
        everybody_rests().await;
        assert!(batches.try_recv().is_err(), "a third at once");
        drop((first, first_ends));
        let (_, third, third_ends) = batches.recv().await.unwrap();
        drop((second, second_ends, third, third_ends));
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_is_not_full_grows_until_the_one_before_is_over() {
        let (sender, mut batches) = two_at_a_time();
        send(&sender, 3).await;
        let (_, first, first_ends) = batches.recv().await.unwrap();
        first.decided();
        everybody_rests().await;
        assert!(batches.try_recv().is_err(), "gathered with one item");
        send(&sender, 1).await;
        drop((first, first_ends));
        assert_eq!(batches.recv().await.unwrap().0, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_wait_for_the_next_decision_and_not_for_long() {
        let (sender, mut batches) = two_at_a_time();
        send(&sender, 4).await;
        let (_, first, _first_ends) = batches.recv().await.unwrap();
        let began = tokio::time::Instant::now();
        first.let_next_decide().await;
        assert_eq!(began.elapsed(), Duration::ZERO, "there is no next one");
        first.decided();
        let (_, second, _second_ends) = batches.recv().await.unwrap();
        first.let_next_decide().await;
        assert!(began.elapsed() >= LET_NEXT_DECIDE && began.elapsed() < 3 * LET_NEXT_DECIDE);
        second.decided();
        let began = tokio::time::Instant::now();
        first.let_next_decide().await;
        assert_eq!(began.elapsed(), Duration::ZERO, "the next one is decided");
    }

    #[test]
    fn a_batch_takes_a_third_of_what_is_under_way_and_all_of_little() {
        let mut under_way = UnderWay::default();
        assert_eq!(under_way.share(SMALL / 2), SMALL);
        assert_eq!(under_way.share(300), 100);
        // Those that were written come back: a lull between is none.
        for (last, waiting) in [(100, 200), (100, 20), (100, 190)] {
            under_way.last = last;
            let share = under_way.share(waiting);
            assert!((95..=100).contains(&share), "{share} of {last} and {waiting}");
        }
        // The load has gone.
        under_way.last = 1;
        let shares: Vec<usize> = (0..200).map(|_| under_way.share(1)).collect();
        assert!(shares.is_sorted_by(|before, after| before >= after));
        assert_eq!(shares.last(), Some(&SMALL));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_that_arrives_at_once_is_written_in_parts() {
        let limits = GatherLimits { items: 500, weight: 500, waiting: 500 };
        let (sender, receiver) = mpsc::channel(limits.waiting);
        let (handed, mut batches) = mpsc::unbounded_channel();
        send(&sender, 300).await;
        tokio::spawn(run_ahead(Handed(handed), Batches::of(limits, receiver, CancellationToken::new())));
        let mut sizes = Vec::new();
        while sizes.iter().sum::<usize>() < 300 {
            let (items, progress, _end) = batches.recv().await.unwrap();
            sizes.push(items);
            drop(progress);
        }
        assert_eq!(sizes, [100, 100, 97, 3]);
    }
}
