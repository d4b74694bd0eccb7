//! The way to the database: slow, silent, and back again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt;
use reqwest::StatusCode;
use serde_json::json;
use tidegate_testkit::{Fault, FaultProxy, poll_until, short_or_long};
use tokio::task::JoinSet;

use crate::caller::{Answer, Caller, id_of};
use crate::fleet::{ALIVE, Fleet, LIMIT, execute, number, wait_for_number};
use crate::verdict::assert_sound;

/// The longest that a caller waits to hear that the store is not there.
const NO_STORE: Duration = Duration::from_secs(2);
/// The longest that a process takes to be itself again once its database is.
const HEALING: Duration = Duration::from_secs(30);
/// How much a busy machine may add.
const SLACK: Duration = Duration::from_millis(200);

/// Callers that hang up: how many, at most how many at once, and the longest that one waits first.
const ABORTED: usize = 500;
const AT_ONCE: usize = 50;
const PATIENCE_MS: u64 = 600;
/// How long each piece takes on the way to the slow database, each way.
const SLOW: Duration = Duration::from_millis(40);
/// Submissions that must all succeed afterwards.
const AFTERWARDS: usize = 200;

/// C20: callers that hang up at any moment leave nothing open behind them.
#[tokio::test]
async fn callers_that_hang_up_leave_no_transaction_open() {
    let fleet = Fleet::new().await;
    let (proxy, url) = FaultProxy::for_database(fleet.db.url()).await;
    let server = fleet.serve_on(&url).await;
    proxy.set(Fault::Delay(SLOW));
    let (mut calls, mut left) = (JoinSet::new(), 0);
    for n in 0..ABORTED {
        if calls.len() >= AT_ONCE {
            left += usize::from(calls.join_next().await.unwrap().unwrap());
        }
        let (caller, patience) = (server.caller.clone(), rand::rng().random_range(0..=PATIENCE_MS));
        // Every other one goes on to cancel its task and to wait for its end.
        calls.spawn(async move {
            let call = async {
                let answer = caller.submit(&json!({"kind": "echo", "payload": n})).await.unwrap();
                if n % 2 == 1 && answer.status == StatusCode::ACCEPTED {
                    let id = id_of(&answer.body);
                    caller.cancel(&id).await.unwrap();
                    caller.get(&format!("/v1/tasks/{id}?wait_ms=10000")).await.unwrap();
                }
            };
            tokio::time::timeout(Duration::from_millis(patience), call).await.is_err()
        });
    }
    left += calls.join_all().await.into_iter().filter(|hung_up| *hung_up).count();
    assert!(left > ABORTED / 4, "only {left} callers hung up: the database was not slow enough to show anything");

    proxy.set(Fault::None);
    let mut calls = JoinSet::new();
    for n in 0..AFTERWARDS {
        let caller = server.caller.clone();
        calls.spawn(async move { caller.add(&json!({"kind": "echo", "payload": n})).await });
    }
    let ids = calls.join_all().await;
    let _worker = fleet.worker(50).await;
    wait_for_number(fleet.db.url(), ALIVE, 0).await;
    assert_sound(fleet.db.url(), &ids).await;
}

/// The database's clock.
const NOW_US: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1e6)::bigint";

/// How many reads are sent at once through a pool of eight: if any of its places were lost, some would wait in vain.
const READS: usize = 24;
/// The longest that a read waits for a connection that was alive a moment ago.
const DEAD_SOCKET: Duration = Duration::from_secs(10);

/// Reads at once, and returns how many were answered in full.
async fn read_at_once(caller: &Caller) -> usize {
    let mut reads = JoinSet::new();
    for _ in 0..READS {
        let caller = caller.clone();
        reads.spawn(async move { caller.get("/v1/tasks?limit=1").await.unwrap() });
    }
    let answers = reads.join_all().await;
    for answer in &answers {
        assert!([StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE].contains(&answer.status), "{}", answer.body);
        assert!(answer.took < DEAD_SOCKET, "a read took {:?}", answer.took);
    }
    answers.iter().filter(|answer| answer.status == StatusCode::OK).count()
}

/// C21: sockets that die without a word, again and again, as when a firewall forgets them. Each time all of the pool's
/// places are in use; none of them is lost.
#[tokio::test]
async fn sockets_that_die_silently_take_no_place_in_the_pool_with_them() {
    let fleet = Fleet::new().await;
    let (proxy, url) = FaultProxy::for_database(fleet.db.url()).await;
    let server = fleet.serve_on(&url).await;
    let _worker = fleet.worker_on(&url, 8).await;
    let mut ids = Vec::new();
    for _ in 0..short_or_long(3, 20) {
        assert_eq!(read_at_once(&server.caller).await, READS);
        let stranded = number(fleet.db.url(), NOW_US).await;
        proxy.strand_all();
        read_at_once(&server.caller).await;
        poll_until(HEALING, "a task to be let in", async || {
            let answer = server.caller.submit(&json!({"kind": "echo"})).await.unwrap();
            (answer.status == StatusCode::ACCEPTED).then(|| ids.push(id_of(&answer.body)))
        })
        .await;
        // The database believes in the dead sockets for as long as its machine does: before twenty rounds are over they
        // would be all that it lets in. They go as they would with its keepalives.
        let bury = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
        execute(fleet.db.url(), &format!("{bury} AND backend_start < to_timestamp({stranded} / 1e6)")).await;
    }
    assert_eq!(read_at_once(&server.caller).await, READS);
    wait_for_number(fleet.db.url(), ALIVE, 0).await;
    assert_sound(fleet.db.url(), &ids).await;
}

/// One submission under load: when it was sent, what it was, and what was answered.
#[derive(Debug)]
struct Post {
    sent: Instant,
    workflow: String,
    answer: Answer,
}

/// Callers that submit without a pause until told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    callers: JoinSet<Vec<Post>>,
}

/// How many callers there are, and how long each waits between two submissions.
const CALLERS: usize = 20;
const PAUSE: Duration = Duration::from_millis(100);

impl Load {
    fn start(caller: &Caller) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut callers = JoinSet::new();
        for n in 0..CALLERS {
            let (caller, stop) = (caller.clone(), stop.clone());
            callers.spawn(async move {
                let mut posts = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let workflow = format!("load-{n}-{}", posts.len());
                    let task = json!({"kind": "sleep", "payload": {"ms": 5}, "workflow_id": workflow});
                    let sent = Instant::now();
                    let answer = caller.submit(&task).await.unwrap();
                    posts.push(Post { sent, workflow, answer });
                    tokio::time::sleep(PAUSE).await;
                }
                posts
            });
        }
        Self { stop, callers }
    }

    async fn stop(self) -> Vec<Post> {
        self.stop.store(true, Ordering::Relaxed);
        self.callers.join_all().await.into_iter().flatten().collect()
    }
}

/// C21: the database goes silent under load, without a word to anybody, and comes back.
#[tokio::test]
async fn a_database_that_goes_silent_is_reported_soon_and_healed_from() {
    let silence = Duration::from_secs(short_or_long(6, 20));
    let fleet = Fleet::new().await.with_lease(Duration::from_secs(3));
    let (proxy, url) = FaultProxy::for_database(fleet.db.url()).await;
    let server = fleet.serve_on(&url).await;
    let _worker = fleet.worker_on(&url, 8).await;
    let load = Load::start(&server.caller);
    wait_for_number(fleet.db.url(), "SELECT (count(*) > 100)::int::bigint FROM tidegate.task", 1).await;
    assert_eq!(server.caller.readiness().await, StatusCode::OK);

    proxy.set(Fault::Blackhole);
    let silent = Instant::now();
    poll_until(NO_STORE, "not ready", async || {
        (server.caller.readiness().await == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    poll_until(LIMIT, "the end of the silence", async || (silent.elapsed() >= silence).then_some(())).await;
    proxy.set(Fault::None);
    let healed = Instant::now();
    poll_until(HEALING, "ready again", async || (server.caller.readiness().await == StatusCode::OK).then_some(()))
        .await;
    poll_until(HEALING, "a task to be run again", async || {
        let answer = server.caller.submit(&json!({"kind": "echo"})).await.unwrap();
        if answer.status != StatusCode::ACCEPTED {
            return None;
        }
        let task = server.caller.ended(&id_of(&answer.body), HEALING).await;
        (task["status"] == "COMPLETED").then_some(())
    })
    .await;
    assert!(healed.elapsed() < HEALING, "healed after {:?}", healed.elapsed());
    // Everything that was lost on the way has come back: as many reads at once as there are connections, and more.
    let mut reads = JoinSet::new();
    for _ in 0..CALLERS {
        let caller = server.caller.clone();
        reads.spawn(async move { caller.get("/v1/tasks?limit=1").await.unwrap().status });
    }
    assert!(reads.join_all().await.iter().all(|status| *status == StatusCode::OK));

    let posts = load.stop().await;
    check_answers(&posts, silent..silent + silence);
    wait_for_number(fleet.db.url(), ALIVE, 0).await;
    check_outcomes(&fleet, &posts).await;
    let ids: Vec<String> = accepted(&posts).map(|post| id_of(&post.answer.body)).collect();
    assert_sound(fleet.db.url(), &ids).await;
}

fn accepted(posts: &[Post]) -> impl Iterator<Item = &Post> {
    posts.iter().filter(|post| post.answer.status == StatusCode::ACCEPTED)
}

/// Each was let in, or told soon that the store is not there, or that nobody knows.
fn check_answers(posts: &[Post], silence: std::ops::Range<Instant>) {
    for post in posts {
        let (status, reason) = (post.answer.status, post.answer.reason());
        let told =
            status == StatusCode::SERVICE_UNAVAILABLE && ["store_unavailable", "outcome_unknown"].contains(&reason);
        assert!(status == StatusCode::ACCEPTED || told, "{status} {}", post.answer.body);
    }
    let during: Vec<&Post> = posts.iter().filter(|post| silence.contains(&post.sent)).collect();
    assert!(!during.is_empty() && accepted(posts).count() > 100);
    for reason in ["store_unavailable", "outcome_unknown"] {
        let of_reason = during.iter().filter(|post| post.answer.reason() == reason);
        let slowest = of_reason.clone().max_by_key(|post| post.answer.took);
        let Some(slowest) = slowest else { continue };
        let after = slowest.sent - silence.start;
        let took = slowest.answer.took;
        eprintln!(
            "{} answers {reason}, the slowest after {took:?}, sent {after:?} into the silence",
            of_reason.count()
        );
        assert!(took < NO_STORE + SLACK, "an answer {reason} took {took:?}, sent {after:?} into the silence");
    }
}

/// What was let in is there; what was not is not; what nobody knows is there at most once, under the id that was told.
async fn check_outcomes(fleet: &Fleet, posts: &[Post]) {
    let mut connection = crate::fleet::connect(fleet.db.url()).await;
    let tasks: Vec<(String, String)> =
        sqlx::query_as("SELECT workflow_id, id::text FROM tidegate.task WHERE workflow_id IS NOT NULL")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    let mut by_workflow = std::collections::HashMap::new();
    for (workflow, id) in tasks {
        assert_eq!(by_workflow.insert(workflow.clone(), id), None, "{workflow} is there twice");
    }
    for post in posts {
        let found = by_workflow.get(&post.workflow);
        let told = (!post.answer.body["task_id"].is_null() || !post.answer.body["id"].is_null())
            .then(|| id_of(&post.answer.body));
        match (post.answer.status, post.answer.reason()) {
            (StatusCode::ACCEPTED, _) => assert_eq!(found, told.as_ref()),
            (_, "store_unavailable") => assert_eq!(found, None, "{}", post.answer.body),
            _ => assert!(found.is_none() || found == told.as_ref(), "{found:?} {}", post.answer.body),
        }
    }
}
