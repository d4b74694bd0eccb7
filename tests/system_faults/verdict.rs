//! What must be true when everything is over, and that its violation is noticed.

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tidegate_store::{Store, StoreOptions};
use tidegate_testkit::poll_until;
use uuid::Uuid;

use crate::fleet::connect;

/// How long a server may take to notice that the process behind a connection is gone.
const CLOSING: Duration = Duration::from_secs(10);
/// Whatever is open for so long in a cell without work was left open.
const OPEN_FOR_GOOD: Duration = Duration::from_secs(1);

/// What is left of work, where nothing must be.
const LEFT: &str = "SELECT place, n FROM ( \
        SELECT 'ready' AS place, count(*) AS n FROM tidegate.ready UNION ALL SELECT 'deferred', count(*) FROM tidegate.deferred \
        UNION ALL SELECT 'lease', count(*) FROM tidegate.lease UNION ALL SELECT 'cancel_request', count(*) FROM tidegate.cancel_request \
        UNION ALL SELECT 'cancel_parent', count(*) FROM tidegate.cancel_parent UNION ALL SELECT 'cancel_group', count(*) FROM tidegate.cancel_group \
        UNION ALL SELECT 'usage', coalesce(sum(queued + running + deferred + bytes + tokens + usd_micros), 0)::bigint FROM tidegate.usage \
    ) places WHERE n <> 0";

/// Each task with how it ended, what the outbox told of that, and how many of its starts are accounted for.
const HISTORIES: &str = "WITH told AS ( \
        SELECT u.id, array_agg(e.status ORDER BY e.seq) AS endings FROM tidegate.event e, unnest(e.task_ids) AS u(id) \
        WHERE e.status IN ('COMPLETED', 'FAILED', 'TIMED_OUT', 'CANCELLED', 'EXPIRED', 'SHED', 'REJECTED') GROUP BY u.id \
    ), runs AS ( \
        SELECT a.task_id, count(*) AS n, max(a.fence) AS fence FROM tidegate.attempt a GROUP BY a.task_id \
    ) SELECT t.id, t.status, coalesce(told.endings, '{}') AS endings, t.deliveries, coalesce(runs.n, 0) AS runs, \
    coalesce(runs.fence, 0) AS last_fence FROM tidegate.task t LEFT JOIN told ON told.id = t.id LEFT JOIN runs ON runs.task_id = t.id";

const OPEN: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'";

/// One task's history: what it is now, and what was recorded on the way.
#[derive(Debug, sqlx::FromRow)]
struct History {
    id: Uuid,
    status: Option<String>,
    /// The outcomes that were told, in order.
    endings: Vec<String>,
    deliveries: i32,
    /// Runs that are recorded apart from the task.
    runs: i64,
    last_fence: i32,
}

impl History {
    /// What is wrong with it.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        match &self.status {
            None => faults.push(format!("task {} has not ended", self.id)),
            Some(status) if self.endings != [status.clone()] => {
                faults.push(format!("task {} is {status}, but it was told: {:?}", self.id, self.endings));
            }
            Some(_) => {}
        }
        // Each start but the last ended in a run of its own; the last may have ended the task instead.
        let (starts, runs) = (i64::from(self.deliveries), self.runs);
        if self.last_fence > self.deliveries || !(runs == starts || runs + 1 == starts) {
            faults.push(format!("task {} was started {starts} times, but {runs} runs are recorded", self.id));
        }
        faults
    }
}

/// Everything that is wrong with a cell in which all work should be over. `ids` are tasks that it must know.
pub(crate) async fn faults(url: &str, ids: &[String]) -> Vec<String> {
    let store = Store::open(StoreOptions::new(url)).unwrap();
    let drifts = store.audit_records().await.unwrap();
    let mut faults: Vec<String> = drifts.iter().map(|drift| format!("{drift:?}")).collect();
    let mut connection = connect(url).await;
    let left: Vec<(String, i64)> = sqlx::query_as(LEFT).fetch_all(&mut connection).await.unwrap();
    faults.extend(left.iter().map(|(place, n)| format!("{n} left in {place}")));
    let histories: Vec<History> = sqlx::query_as(HISTORIES).fetch_all(&mut connection).await.unwrap();
    faults.extend(histories.iter().flat_map(History::faults));
    let known: std::collections::HashSet<String> = histories.iter().map(|history| history.id.to_string()).collect();
    faults.extend(ids.iter().filter(|id| !known.contains(*id)).map(|id| format!("task {id} is not known")));
    if stays_open(&mut connection).await {
        faults.push("a transaction is open".to_owned());
    }
    connection.close().await.unwrap();
    faults
}

async fn open_transactions(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar(OPEN).fetch_one(connection).await.unwrap()
}

/// Whether a transaction is open however often one looks: the upkeep of a cell that lives begins one now and then.
async fn stays_open(connection: &mut PgConnection) -> bool {
    let until = Instant::now() + OPEN_FOR_GOOD;
    while open_transactions(connection).await > 0 {
        if Instant::now() >= until {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

/// Waits until no transaction is open, which takes a moment where a process was killed inside one.
pub(crate) async fn wait_for_no_open_transaction(url: &str) {
    let mut connection = connect(url).await;
    poll_until(CLOSING, "the end of every transaction", async || {
        (open_transactions(&mut connection).await == 0).then_some(())
    })
    .await;
    connection.close().await.unwrap();
}

/// Checks a cell in which all work is over: every task has ended and was told once, every start is accounted for, nothing
/// runs, waits or is open, and every counter says what the rows say.
pub(crate) async fn assert_sound(url: &str, ids: &[String]) {
    wait_for_no_open_transaction(url).await;
    let faults = faults(url, ids).await;
    assert!(faults.is_empty(), "{} faults, such as:\n{}", faults.len(), faults[..faults.len().min(20)].join("\n"));
}
