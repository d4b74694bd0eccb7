//! Waiting for what happens elsewhere.

use std::time::{Duration, Instant};

/// How often a condition is looked at again. Small against any deadline, large against what looking costs.
pub const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Looks until `look` gives a value.
///
/// # Panics
/// When the limit has passed, with `what` in the message. The condition is looked at once more after the limit, so that
/// a machine that stood still fails nothing.
pub async fn poll_until<T>(limit: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        let is_last = started.elapsed() >= limit;
        if let Some(value) = look().await {
            return value;
        }
        assert!(!is_last, "waited {limit:?} for {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_value_is_returned_as_soon_as_it_is_there() {
        let mut looks = 0;
        let seen = poll_until(Duration::from_secs(10), "the third look", async || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(seen.await, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "for what never comes")]
    async fn what_never_comes_is_named() {
        poll_until(Duration::from_millis(20), "what never comes", async || None::<()>).await;
    }
}
