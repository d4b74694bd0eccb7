//! Work in the background that has to go on: it is watched, and begun again where it breaks off.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tidegate_core::backoff::{BackoffPolicy, delay_ms};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// The pauses before work that broke off is begun again.
const RESTART: BackoffPolicy = BackoffPolicy { base_ms: 100, max_ms: 10_000 };
/// Work that went on for so long counts as sound again.
const STEADY: Duration = Duration::from_secs(60);

/// Does work that never ends by itself until `closed`. Where it ends all the same, or panics, that is logged and counted,
/// and the work is begun again after a pause that grows from a tenth of a second to ten.
pub async fn supervise<F: Future<Output = ()>>(
    name: &'static str,
    closed: CancellationToken,
    mut begin: impl FnMut() -> F,
) {
    let mut breaks = 0;
    loop {
        let began = Instant::now();
        // Begun inside of the future, so that a panic before its first await is caught as well.
        let work = AssertUnwindSafe(async { begin().await }).catch_unwind();
        let Some(ended) = closed.run_until_cancelled(work).await else { return };
        if closed.is_cancelled() {
            return;
        }
        let why = ended.map_or_else(|panic| panic_message(&*panic), |()| "it ended".to_owned());
        tracing::error!(work = name, why, "work in the background broke off and is begun again");
        metrics::counter!("tidegate_background_restarts_total", "work" => name).increment(1);
        breaks = if began.elapsed() > STEADY { 1 } else { breaks + 1 };
        let pause = delay_ms(RESTART, breaks, None, rand::random_range(0.5..1.0));
        closed.run_until_cancelled(sleep(Duration::from_millis(pause))).await;
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without words").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::Notify;

    #[tokio::test]
    async fn work_that_panics_or_ends_is_begun_again_until_it_is_closed() {
        let (begun, third, closed) = (AtomicU32::new(0), Arc::new(Notify::new()), CancellationToken::new());
        let supervised = supervise("test", closed.clone(), || async {
            match begun.fetch_add(1, Ordering::Relaxed) {
                0 => panic!("on purpose"),
                1 => {}
                _ => {
                    third.notify_one();
                    std::future::pending().await
                }
            }
        });
        let patience = Duration::from_secs(20);
        let close = async {
            tokio::time::timeout(patience, third.notified()).await.unwrap();
            closed.cancel();
        };
        tokio::time::timeout(patience, async { tokio::join!(supervised, close) }).await.unwrap();
        assert_eq!(begun.load(Ordering::Relaxed), 3);
    }
}
