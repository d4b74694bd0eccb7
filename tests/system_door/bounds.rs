//! No bound is ever exceeded: two replicas under three times what they can do, one of them killed again and again, and
//! an auditor that looks at one snapshot after another.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tidegate_store::{Store, StoreOptions};
use tidegate_testkit::{poll_until, short_or_long};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::caller::Caller;
use crate::fleet::{ALIVE, Fleet, LIMIT, connect, execute, number};

/// Slots, and how long a task takes on average: forty a second.
const SLOTS: u32 = 4;
const RUN_MS: std::ops::Range<u64> = 50..150;
/// Callers, and what each waits between two submissions: three times as many arrive, waits at the door included.
const CALLERS: usize = 24;
const PAUSE: Duration = Duration::from_millis(100);
/// A refusal is written down within a second: one that is younger when its replica is killed may be lost with it.
const WRITTEN: Duration = Duration::from_secs(2);
/// What the counters of every level say, in the newest snapshot.
const COUNTERS: &str = "SELECT scope, key, queued, running, tokens, bytes FROM tidegate.usage WHERE scope < 5";

/// Most that is queued, running, of tokens and of bytes; -1 is no bound.
type Bounds = [i64; 4];

/// The bounds as an operator tells them.
fn told() -> [(&'static str, Value); 5] {
    let limits = json!({
        "max_queued": 16, "max_running": SLOTS, "max_in_flight": 19, "max_deferred": 20, "max_tokens": 3_000, "max_bytes": 4_000,
        "classes": {"critical": {"max_running": 3, "max_queued": 12}, "standard": {"max_tokens": 1_500, "shed_at": null},
            "background": {"max_queued": 6, "max_share": 0.5, "max_bytes": 600, "shed_at": 0.9}},
    });
    [
        ("limits", limits),
        (
            "tenants/a",
            json!({"max_queued": 15, "max_running": 2, "classes": {"standard": {"max_queued": 8, "max_running": 1}}}),
        ),
        ("tenants/b", json!({"max_tokens": 900, "rate_per_minute": 1_200, "burst": 20})),
        ("tenants/c", json!({"max_bytes": 800, "tokens_per_minute": 60_000})),
        ("peers/hotels", json!({"max_in_flight": 1, "max_waiting": 6})),
    ]
}

/// The same by scope and key.
fn bounds() -> BTreeMap<(i16, &'static str), Bounds> {
    BTreeMap::from([
        ((0, ""), [16, 4, 3_000, 4_000]),
        ((1, "critical"), [12, 3, -1, -1]),
        ((1, "standard"), [-1, -1, 1_500, -1]),
        ((1, "background"), [6, 2, -1, 600]),
        ((2, "a"), [15, 2, -1, -1]),
        ((2, "b"), [-1, -1, 900, -1]),
        ((2, "c"), [-1, -1, -1, 800]),
        ((3, "hotels"), [6, 1, -1, -1]),
        ((4, "standard:a"), [8, 1, -1, -1]),
    ])
}

/// An answer that named a task.
struct Known {
    id: String,
    tenant: &'static str,
    accepted: bool,
    incarnation: u64,
    at: Instant,
}

fn random_task() -> Value {
    let mut rng = rand::rng();
    let priority = [95, 60, 45, 20, 5][rng.random_range(0..5)];
    let on_full = ["reject", "reject", "wait", "defer"][rng.random_range(0..4)];
    let mut task = json!({
        "kind": "sleep", "payload": {"ms": rng.random_range(RUN_MS), "fill": "x".repeat(rng.random_range(0..150))},
        "priority": priority, "on_full": on_full, "max_wait_ms": 200, "timeout_ms": rng.random_range(2_000..20_000),
        "cost": {"tokens": rng.random_range(0..180), "usd_micros": 5},
    });
    if rng.random_range(0..4) == 0 {
        task["peer"] = json!("hotels");
    }
    if rng.random_range(0..10) == 0 {
        task["delay_ms"] = json!(rng.random_range(100..1_000));
    }
    task
}

/// Submits until the time is over; some that were let in are cancelled again.
async fn submit_all(n: usize, mut server: watch::Receiver<(u64, Caller)>, until: Instant) -> Vec<Known> {
    let mut known = Vec::new();
    let tenant = ["a", "b", "c"][n % 3];
    while Instant::now() < until {
        let (incarnation, caller) = server.borrow_and_update().clone();
        let headers = [("x-tenant", tenant)];
        if let Ok(answer) = caller.send_with(Method::POST, "/v1/tasks", &headers, &random_task()).await {
            let id = answer.body["id"].as_str().or(answer.body["task_id"].as_str()).map(str::to_owned);
            let expected = [StatusCode::ACCEPTED, StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS];
            assert!(expected.contains(&answer.status), "{} {}", answer.status, answer.body);
            let accepted = answer.status == StatusCode::ACCEPTED;
            if let Some(id) = id.filter(|_| answer.reason() != "outcome_unknown") {
                if accepted && rand::random_range(0..5) == 0 {
                    let path = format!("/v1/tasks/{id}/cancel");
                    // Whether it arrives does not matter: whatever becomes of it must be sound.
                    let _ = caller.send_with(Method::POST, &path, &headers, &json!({})).await;
                }
                known.push(Known { id, tenant, accepted, incarnation, at: Instant::now() });
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    known
}

/// Looks at one snapshot after another until told to stop, and returns how many there were, and what was exceeded.
async fn audit(url: String, stop: Arc<AtomicBool>) -> (u64, Vec<String>) {
    let bounds = bounds();
    let (mut connection, mut looks, mut exceeded) = (connect(&url).await, 0, Vec::new());
    let mut most: HashMap<(i16, String), Bounds> = HashMap::new();
    loop {
        let is_last = stop.load(Ordering::Relaxed);
        let rows: Vec<(i16, String, i64, i64, i64, i64)> =
            sqlx::query_as(COUNTERS).fetch_all(&mut connection).await.unwrap();
        looks += 1;
        for (scope, key, queued, running, tokens, bytes) in rows {
            let held = [queued, running, tokens, bytes];
            let seen = most.entry((scope, key.clone())).or_default();
            for n in 0..4 {
                seen[n] = seen[n].max(held[n]);
                let bound = bounds.get(&(scope, key.as_str())).map_or(-1, |bounds| bounds[n]);
                if held[n] < 0 || (bound >= 0 && held[n] > bound) {
                    exceeded.push(format!(
                        "scope {scope} {key:?}: {held:?}, at most {:?}",
                        bounds.get(&(scope, key.as_str()))
                    ));
                }
            }
        }
        if is_last {
            break;
        }
    }
    for (level, bounds) in bounds {
        let seen = most.get(&(level.0, level.1.to_owned())).copied().unwrap_or_default();
        eprintln!("{level:?}: at most {seen:?} of {bounds:?}");
    }
    (looks, exceeded)
}

async fn count_all(store: Store, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut drifts = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        drifts.extend(store.audit().await.unwrap().iter().map(|drift| format!("{drift:?}")));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    drifts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_bound_is_exceeded_under_three_times_the_capacity_with_cancels_and_a_replica_that_is_killed() {
    let lasts = Duration::from_secs(short_or_long(12, 60));
    let fleet = Fleet::new().await;
    let url = fleet.db.url();
    let (stays, mut dies) = (fleet.serve().await, fleet.serve().await);
    for (path, change) in told() {
        let answer = stays.caller.send_with(Method::PATCH, &format!("/v1/admin/{path}"), &[], &change).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
    }
    let _workers = [fleet.worker(3).await, fleet.worker(3).await];
    let stop = Arc::new(AtomicBool::new(false));
    let auditor = tokio::spawn(audit(url.to_owned(), stop.clone()));
    let store = Store::open(StoreOptions::new(url)).unwrap();
    let counter = tokio::spawn(count_all(store.clone(), stop.clone()));
    let (_keep, first) = watch::channel((0, stays.caller.clone()));
    let (tell, second) = watch::channel((1, dies.caller.clone()));
    let until = Instant::now() + lasts;
    let mut callers = JoinSet::new();
    for n in 0..CALLERS {
        let server = if n < CALLERS / 2 { first.clone() } else { second.clone() };
        callers.spawn(submit_all(n, server, until));
    }
    let mut killed: HashMap<u64, Instant> = HashMap::new();
    while Instant::now() + WRITTEN < until {
        tokio::time::sleep(Duration::from_millis(rand::random_range(1_500..3_000))).await;
        let incarnation = tell.borrow().0;
        dies.process.kill9();
        killed.insert(incarnation, Instant::now());
        dies = fleet.serve().await;
        tell.send_replace((incarnation + 1, dies.caller.clone()));
    }
    let known: Vec<Known> = callers.join_all().await.into_iter().flatten().collect();
    let accepted = known.iter().filter(|known| known.accepted).count();
    poll_until(LIMIT, "the end of every task", async || (number(url, ALIVE).await == 0).then_some(())).await;
    stop.store(true, Ordering::Relaxed);
    let (looks, exceeded) = auditor.await.unwrap();
    eprintln!("{looks} looks at {} submissions, {accepted} let in, {} kills", known.len(), killed.len());
    assert_eq!(exceeded, Vec::<String>::new());
    assert_eq!(counter.await.unwrap(), Vec::<String>::new());
    assert_eq!((store.audit().await.unwrap(), store.audit_records().await.unwrap()), (vec![], vec![]));
    assert!(accepted > 0 && accepted < known.len(), "some are let in, and some are refused");
    assert!(!killed.is_empty() && looks > 10);
    every_id_answers(&dies.caller, &known, &killed).await;
}

/// Every id that was ever answered can be read, and what was let in has ended.
async fn every_id_answers(caller: &Caller, known: &[Known], killed: &HashMap<u64, Instant>) {
    let mut lost = Vec::new();
    for some in known.chunks(16) {
        let read = futures_util::future::join_all(some.iter().map(|known| fault_of(caller, known, killed))).await;
        lost.extend(read.into_iter().flatten());
    }
    assert_eq!(lost, Vec::<String>::new());
}

/// What is wrong with one of them.
async fn fault_of(caller: &Caller, known: &Known, killed: &HashMap<u64, Instant>) -> Option<String> {
    let Known { id, tenant, accepted, incarnation, at } = known;
    let path = format!("/v1/tasks/{id}");
    let may_be_lost = !accepted && killed.get(incarnation).is_some_and(|then| *then < *at + WRITTEN);
    let until = Instant::now() + WRITTEN;
    loop {
        let answer = caller.send_with(Method::GET, &path, &[("x-tenant", tenant)], &Value::Null).await.unwrap();
        if (answer.status == StatusCode::OK && !answer.body["finished_at"].is_null()) || may_be_lost {
            return None;
        }
        if Instant::now() > until {
            return Some(format!("{id} of {tenant}, accepted {accepted}: {}", answer.body));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The twin: what is exceeded, or negative, for as long as one snapshot is noticed.
#[tokio::test]
async fn a_bound_that_is_exceeded_is_noticed() {
    let fleet = Fleet::new().await;
    let look = async || audit(fleet.db.url().to_owned(), Arc::new(AtomicBool::new(true))).await;
    assert_eq!(look().await, (1, vec![]));
    execute(fleet.db.url(), "UPDATE tidegate.usage SET queued = 17 WHERE scope = 0").await;
    assert_eq!(look().await.1.len(), 1);
    execute(fleet.db.url(), "UPDATE tidegate.usage SET queued = 0, tokens = -1 WHERE scope = 0").await;
    assert_eq!(look().await.1.len(), 1);
}
