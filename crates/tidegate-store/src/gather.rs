//! Gathering: while one batch is committing, what arrives joins the next. No timer: a lone caller waits for nobody,
//! and the batch grows exactly as fast as the load.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::background::panic_message;

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

    /// How soon to flush again although nothing arrives, with an empty batch.
    fn again(&self) -> Option<Duration> {
        None
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
    (sender, run(limits, flush, closed, receiver))
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
    flush: impl Flush<T>,
    closed: CancellationToken,
) -> std::io::Result<mpsc::Sender<T>> {
    let (sender, gathering) = gatherer(limits, flush, closed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(gathering))?;
    Ok(sender)
}

async fn run<T: Weighted>(
    limits: GatherLimits,
    mut flush: impl Flush<T>,
    closed: CancellationToken,
    mut receiver: mpsc::Receiver<T>,
) {
    let mut left_over = None;
    loop {
        let first = match left_over.take() {
            Some(item) => item,
            None => {
                let again = flush.again();
                let pause = again.unwrap_or(Duration::MAX);
                tokio::select! {
                    biased;
                    item = receiver.recv() => match item { Some(item) => item, None => return },
                    () = closed.cancelled(), if again.is_none() => return,
                    () = sleep(pause), if again.is_some() => {
                        flush_unharmed(&mut flush, Vec::new()).await;
                        continue;
                    }
                }
            }
        };
        // Those that are ready to send at this moment get their turn to do so.
        tokio::task::yield_now().await;
        let mut weight = first.weight();
        let mut batch = Vec::with_capacity(limits.items.min(receiver.len() + 1));
        batch.push(first);
        while batch.len() < limits.items {
            let Ok(item) = receiver.try_recv() else { break };
            weight += item.weight();
            if weight > limits.weight {
                left_over = Some(item);
                break;
            }
            batch.push(item);
        }
        flush_unharmed(&mut flush, batch).await;
    }
}

/// A batch that panics must not take the door with it: its callers hear that nobody knows, the next ones are served.
async fn flush_unharmed<T>(flush: &mut impl Flush<T>, batch: Vec<T>) {
    if let Err(panic) = AssertUnwindSafe(flush.flush(batch)).catch_unwind().await {
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

    impl Flush<Asked> for Panics {
        async fn flush(&mut self, batch: Vec<Asked>) {
            for Asked(panics, answer) in batch {
                assert!(!panics, "on purpose");
                let _gone = answer.send(());
            }
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
}
