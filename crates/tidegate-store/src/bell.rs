//! The doorbell: who waits hears at once that something may be there, and looks.
//!
//! A ring carries nothing and correctness never depends on it: everyone who waits also looks by the clock. Inside a
//! process a ring is a counter that is watched; to other processes it is a NOTIFY, sent on a connection of its own,
//! outside every transaction that writes, at most once in [`RING_EVERY`] for each bell, and only where someone waits.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use sqlx::AssertSqlSafe;
use sqlx::PgPool;
use sqlx::postgres::{PgConnection, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, Executor};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::background::supervise;
use crate::connection::connect_options;
use crate::error::StoreError;

/// The least time between two NOTIFYs of one bell: at most 100 a second.
const RING_EVERY: Duration = Duration::from_millis(10);
/// The first and the longest pause before a lost connection is made again.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The longest a NOTIFY may take before its connection is given up.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// What a bell is rung for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    /// A task came to wait.
    Work,
    /// A task ended.
    Ended,
    /// A cancel was asked of a running task.
    Cancel,
    /// A task came back to wait: heard inside the process only.
    Returned,
    /// A peer may have room for a call that waits: heard inside the process only.
    Permit,
}

impl Topic {
    /// The bells that are heard in other processes.
    const OUTSIDE: [Self; 3] = [Self::Work, Self::Ended, Self::Cancel];

    fn channel(self) -> &'static str {
        match self {
            Self::Work => "tidegate_work",
            Self::Ended => "tidegate_ended",
            Self::Cancel => "tidegate_cancel",
            Self::Returned => "tidegate_returned",
            Self::Permit => "tidegate_permit",
        }
    }
}

/// The bells of one process.
pub(crate) struct Bells {
    rung: [watch::Sender<u64>; 5],
    outside: [Arc<Notify>; 5],
}

impl Bells {
    /// Hangs the bells and starts listening for those of other processes, until `closed`.
    pub(crate) fn hang(
        direct_url: &str,
        closed: &CancellationToken,
        tasks: &TaskTracker,
    ) -> Result<Arc<Self>, StoreError> {
        let options = connect_options(direct_url)?;
        let bells =
            Arc::new(Self { rung: std::array::from_fn(|_| watch::Sender::new(0)), outside: Default::default() });
        tasks.spawn({
            let (bells, options, closed) = (bells.clone(), options.clone(), closed.clone());
            async move {
                let pool = Mutex::new(None);
                supervise("doorbell listener", closed, || listen(&bells, options.clone(), &pool)).await;
                let pool: Option<PgPool> = pool.into_inner().unwrap_or_else(PoisonError::into_inner);
                if let Some(pool) = pool {
                    // A connection that went back to an open pool would be tried once more, with nobody there to answer.
                    pool.close().await;
                }
            }
        });
        for topic in Topic::OUTSIDE {
            let asked = bells.outside[topic as usize].clone();
            let (options, closed) = (options.clone(), closed.clone());
            tasks.spawn(async move {
                supervise("doorbell", closed, || ring_outside(topic, &asked, options.clone())).await;
            });
        }
        Ok(bells)
    }

    /// Rings for those who wait in this process and, if `others`, in other processes.
    pub(crate) fn ring(&self, topic: Topic, others: bool) {
        self.rung[topic as usize].send_modify(|count| *count += 1);
        if others {
            self.outside[topic as usize].notify_one();
        }
    }

    /// Hears every ring from now on.
    pub(crate) fn hear(&self, topic: Topic) -> watch::Receiver<u64> {
        self.rung[topic as usize].subscribe()
    }
}

/// Sends what was asked for, at once and then no oftener than [`RING_EVERY`]; what is asked meanwhile is one ring.
async fn ring_outside(topic: Topic, asked: &Notify, options: sqlx::postgres::PgConnectOptions) {
    let mut connection: Option<PgConnection> = None;
    loop {
        asked.notified().await;
        let next = Instant::now() + RING_EVERY;
        let sent = timeout(NOTIFY_TIMEOUT, async {
            let mut conn = match connection.take() {
                Some(conn) => conn,
                None => options.connect().await?,
            };
            let notify = format!("NOTIFY {}", topic.channel());
            conn.execute(sqlx::raw_sql(AssertSqlSafe(notify))).await?;
            Ok::<_, sqlx::Error>(conn)
        });
        match sent.await {
            Ok(Ok(conn)) => connection = Some(conn),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a doorbell could not be rung: those who wait will look by the clock")
            }
            Err(_) => tracing::debug!("a doorbell took too long: those who wait will look by the clock"),
        }
        sleep_until(next).await;
    }
}

/// Passes on the rings of other processes. After any loss of the connection everyone is rung once, since rings may
/// have been missed.
async fn listen(bells: &Bells, options: sqlx::postgres::PgConnectOptions, kept: &Mutex<Option<PgPool>>) {
    let mut pause = RECONNECT.0;
    loop {
        let heard = async {
            let pool = PgPoolOptions::new()
                .max_connections(1)
                .max_lifetime(None)
                .idle_timeout(None)
                .connect_with(options.clone())
                .await?;
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(pool.clone());
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.listen_all(Topic::OUTSIDE.map(Topic::channel)).await?;
            Topic::OUTSIDE.into_iter().for_each(|topic| bells.ring(topic, false));
            while let Some(ring) = listener.try_recv().await? {
                pass_on(bells, ring.channel());
                // What has piled up is one look.
                while let Some(Ok(Some(more))) = listener.try_recv().now_or_never() {
                    pass_on(bells, more.channel());
                }
            }
            Ok::<_, sqlx::Error>(())
        };
        let started = Instant::now();
        if let Err(error) = heard.await {
            tracing::debug!(%error, "not listening for doorbells");
        }
        pause = if started.elapsed() > RECONNECT.1 { RECONNECT.0 } else { (pause * 2).min(RECONNECT.1) };
        sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
    }
}

fn pass_on(bells: &Bells, channel: &str) {
    if let Some(topic) = Topic::OUTSIDE.into_iter().find(|topic| topic.channel() == channel) {
        bells.ring(topic, false);
    }
}
