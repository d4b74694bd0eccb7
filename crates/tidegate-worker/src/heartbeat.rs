//! The heartbeat of a session, on a thread and a runtime of its own, so that no handler can starve it.
//!
//! It is also the watchdog. An answered heartbeat proves that the leases live from when it was *sent*; once the lease
//! time less a margin has passed since then, the leases may be over, whatever the reason, and everything stops. The
//! margin is the time that handlers have to stop in.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use crate::measure;
use crate::port::{HeartPort, PortError};
use crate::shift::Shift;

/// The least time between two heartbeats, however often the bell is rung for cancels: one brings back all of them.
const MIN_GAP: Duration = Duration::from_millis(20);

/// When heartbeats are sent and when they are given up, from the lease time.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// From one heartbeat to the next: one may be lost.
    every: Duration,
    /// The longest that one is waited for.
    limit: Duration,
    /// At most this after one that failed; and the longest that progress is waited for.
    retry: Duration,
    /// How long after the last proof the leases are taken to live.
    trust: Duration,
}

impl Pace {
    fn of(lease: Duration) -> Self {
        Self { every: lease / 3, limit: lease / 3, retry: lease / 12, trust: lease - lease / 6 }
    }
}

/// Where the heartbeat lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// On a thread and a runtime of its own.
    Thread,
    /// On the runtime of the caller, whose clock a test may have paused.
    #[cfg(test)]
    Here,
}

/// Beats until the shift is over. The lease began at `opened`, before the session was asked for.
pub(crate) fn start<H: HeartPort>(
    home: Home,
    heart: H,
    shift: Arc<Shift>,
    lease: Duration,
    opened: Instant,
) -> std::io::Result<()> {
    match home {
        Home::Thread => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            std::thread::Builder::new()
                .name("tidegate-heart".to_owned())
                .spawn(move || runtime.block_on(beat(heart, &shift, Pace::of(lease), opened)))?;
        }
        #[cfg(test)]
        Home::Here => {
            tokio::spawn(async move { beat(heart, &shift, Pace::of(lease), opened).await });
        }
    }
    Ok(())
}

/// Gives the session up at once where its heartbeat breaks off: nothing else would notice before the lease is over.
struct LoseOnPanic<'a>(&'a Shift);

impl Drop for LoseOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lose("its heartbeat broke off");
        }
    }
}

async fn beat<H: HeartPort>(mut heart: H, shift: &Shift, pace: Pace, opened: Instant) {
    let _watched = LoseOnPanic(shift);
    let mut proven = opened;
    let mut next = opened + pace.every;
    let mut earliest = opened;
    loop {
        let doubt = proven + pace.trust;
        tokio::select! {
            biased;
            () = shift.over() => return,
            () = sleep_until(doubt) => return shift.lose("no heartbeat was answered in time"),
            () = sleep_until(next) => {}
            () = async { shift.beat_now.notified().await; sleep_until(earliest).await } => {}
        }
        let sent = Instant::now();
        let held = shift.leases();
        let answer = tokio::select! {
            biased;
            () = shift.over() => return,
            () = sleep_until(doubt) => return shift.lose("no heartbeat was answered in time"),
            answer = timeout(pace.limit, heart.beat(&held)) => answer,
        };
        match answer {
            Ok(Ok(beat)) => {
                measure::heartbeat("ok");
                proven = sent;
                next = sent + pace.every;
                shift.obey(&held, &beat);
                tell_progress(&mut heart, shift, pace).await;
            }
            Ok(Err(PortError::SessionLost)) => {
                measure::heartbeat("lost");
                return shift.lose("its row is gone or has expired");
            }
            Ok(Err(error)) => {
                measure::heartbeat("failed");
                tracing::warn!(%error, "a heartbeat failed");
                next = retry_at(pace);
            }
            Err(_) => {
                measure::heartbeat("failed");
                tracing::warn!(limit = ?pace.limit, "a heartbeat was not answered in time");
                next = retry_at(pace);
            }
        }
        earliest = Instant::now() + MIN_GAP;
    }
}

/// Passes on what handlers said of their progress. What does not get through goes with the next heartbeat.
async fn tell_progress<H: HeartPort>(heart: &mut H, shift: &Shift, pace: Pace) {
    let said = shift.fresh_progress();
    if said.is_empty() {
        return;
    }
    tokio::select! {
        biased;
        () = shift.over() => {}
        told = timeout(pace.retry, heart.report_progress(&said)) => match told {
            Ok(Ok(())) => shift.progress_arrived(&said),
            Ok(Err(error)) => tracing::debug!(error = &error as &dyn std::error::Error, "progress could not be kept"),
            Err(_) => tracing::debug!("progress could not be kept in time"),
        },
    }
}

fn retry_at(pace: Pace) -> Instant {
    Instant::now() + pace.retry.mul_f64(rand::random_range(0.5..1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Progress;
    use tidegate_core::{Fence, TaskId};
    use tidegate_store::Beat;

    struct Breaks;

    impl HeartPort for Breaks {
        async fn beat(&mut self, _: &[(TaskId, Fence)]) -> Result<Beat, PortError> {
            panic!("on purpose")
        }

        async fn report_progress(&mut self, _: &[Progress]) -> Result<(), PortError> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_heartbeat_that_breaks_off_loses_its_session_at_once() {
        let (shift, lease) = (Arc::new(Shift::default()), Duration::from_secs(600));
        start(Home::Thread, Breaks, shift.clone(), lease, Instant::now()).unwrap();
        shift.beat_now.notify_one();
        timeout(Duration::from_secs(20), shift.over()).await.unwrap();
    }

    #[test]
    fn one_heartbeat_may_be_lost_and_a_margin_is_left_for_handlers_to_stop() {
        let lease = Duration::from_secs(15);
        let pace = Pace::of(lease);
        assert!(pace.every + pace.limit < pace.trust, "a second one still fits");
        assert!(pace.every + pace.limit + pace.retry <= pace.trust);
        assert!(pace.trust < lease);
    }
}
