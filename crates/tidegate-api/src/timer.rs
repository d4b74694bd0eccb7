//! One timer of the runtime for all the heads of a connection.
//!
//! The HTTP/1 library makes a timer for each head that it waits for, and drops it when the head is there. To set and to
//! clear one of the runtime's timers takes the lock of its wheel, twice for each request, for times that almost never
//! run out. Here the runtime's timer is set once and left as it is while heads come and go: when it fires too early for
//! the head that is being waited for, it is set again.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

/// The runtime's timer of one connection, once there is one.
type Armed = Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>;

/// The timer of one connection. It waits for one thing at a time: of several waits only the last that was asked is sure
/// to be woken.
#[derive(Debug, Default)]
pub(crate) struct ConnectionTimer(Armed);

/// A wait until a time.
struct Wait {
    until: tokio::time::Instant,
    armed: Armed,
}

impl Timer for ConnectionTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Wait { until: deadline.into(), armed: Arc::clone(&self.0) })
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: Instant) {
        *sleep = self.sleep_until(new_deadline);
    }
}

impl Sleep for Wait {}

impl Future for Wait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let timer = armed.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(self.until)));
        if timer.deadline() > self.until {
            timer.as_mut().reset(self.until);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= self.until {
                return Poll::Ready(());
            }
            timer.as_mut().reset(self.until);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn each_wait_lasts_its_own_time_whatever_was_waited_for_before() {
        let timer = ConnectionTimer::default();
        let began = timer.now();
        // Waits that are given up, early and late ones.
        for seconds in [10, 3, 20] {
            let mut given_up = timer.sleep(seconds * SECOND);
            assert!(futures_util::poll!(&mut given_up).is_pending());
        }
        timer.sleep(5 * SECOND).await;
        assert_eq!((timer.now() - began).as_secs(), 5);
        timer.sleep(7 * SECOND).await;
        assert_eq!((timer.now() - began).as_secs(), 12);
        timer.sleep(Duration::ZERO).await;
        assert_eq!((timer.now() - began).as_secs(), 12);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_can_be_set_anew() {
        let timer = ConnectionTimer::default();
        let began = timer.now();
        let mut wait = timer.sleep(10 * SECOND);
        assert!(futures_util::poll!(&mut wait).is_pending());
        timer.reset(&mut wait, began + 30 * SECOND);
        wait.await;
        assert_eq!((timer.now() - began).as_secs(), 30);
    }
}
