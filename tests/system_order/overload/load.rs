//! What is offered, and what became of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::{Value, json};
use tidegate_testkit::Behaviour;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::check::Watched;
use super::{STANDARD, TIMEOUT_MS, WELL};
use crate::caller::{Answer, Caller, id_of};

/// Requests of one stream that are open at once: a machine that cannot send as many sends fewer.
const OPEN: usize = 100;
/// Critical submissions a second, all the time; and of the traffic that goes on afterwards.
const CRITICAL: f64 = 4.0;
const GOING_ON: f64 = 20.0;
/// The longest after which a caller changes its mind.
const MIND_MS: u64 = 500;

/// One way to have too much.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// Submissions at the very begin.
    pub(super) at_once: usize,
    /// Submissions a second.
    pub(super) a_second: f64,
    /// What the peer does meanwhile. Afterwards it is well.
    pub(super) call: Behaviour,
    /// Priorities, one after the other.
    pub(super) priorities: &'static [u8],
    /// From arrival to end.
    pub(super) timeout_ms: u64,
    /// The longest that one call may take.
    pub(super) attempt_ms: u64,
    /// What is run, where it is not a call of the peer.
    pub(super) instead: Option<&'static str>,
}

impl Shape {
    /// Nothing to do, and all is well.
    pub(super) const WELL: Self = Self {
        name: "",
        at_once: 0,
        a_second: 0.0,
        call: Behaviour::Slow(WELL),
        priorities: STANDARD,
        timeout_ms: TIMEOUT_MS,
        attempt_ms: 60_000,
        instead: None,
    };

    fn task(&self, n: usize) -> Value {
        let priority = self.priorities[n % self.priorities.len()];
        let (timeout_ms, attempt_ms) = (self.timeout_ms, self.attempt_ms);
        let kind = self.instead.unwrap_or("tool");
        json!({"kind": kind, "payload": n, "priority": priority, "timeout_ms": timeout_ms, "attempt_timeout_ms": attempt_ms})
    }
}

/// How long it is too much, and how long traffic goes on afterwards.
#[derive(Debug, Clone, Copy)]
pub(super) struct Course {
    pub(super) lasts: Duration,
    pub(super) goes_on: Duration,
}

/// What was seen from outside.
#[derive(Debug)]
pub(super) struct Over {
    /// Answers to the load itself.
    pub(super) answers: Vec<Answer>,
    /// Answers to critical submissions meanwhile.
    pub(super) critical: Vec<Answer>,
    /// Answers to those that came when the peer was well again.
    pub(super) after: Vec<Answer>,
    /// Tasks that were cancelled, as they were told to be then.
    pub(super) cancelled: Vec<Value>,
    /// Calls, and tasks that had not ended, when the peer was well again.
    pub(super) calls_then: usize,
    pub(super) alive_then: i64,
    /// When that was.
    pub(super) well: Instant,
}

/// Submits one task. Where so told, changes its mind about what was let in, and returns what that brought.
async fn submit(caller: Caller, task: Value, cancel: bool) -> (Answer, Option<Value>) {
    let answer = caller.submit(&task).await.unwrap();
    if !cancel || answer.status != StatusCode::ACCEPTED {
        return (answer, None);
    }
    tokio::time::sleep(Duration::from_millis(rand::random_range(0..MIND_MS))).await;
    let told = caller.cancel(&id_of(&answer.body)).await.unwrap();
    (answer, (told.status == StatusCode::OK).then_some(told.body))
}

/// Submits so many at once, and then so many a second, however long answers take.
async fn stream(
    caller: Caller,
    shape: Shape,
    lasts: Duration,
    cancel_one_in: Option<usize>,
) -> Vec<(Answer, Option<Value>)> {
    let open = Arc::new(Semaphore::new(OPEN));
    let until = Instant::now() + lasts;
    let (mut posts, mut n) = (JoinSet::new(), 0);
    let post = async |posts: &mut JoinSet<_>, n: usize| {
        let permit = open.clone().acquire_owned().await.unwrap();
        let (caller, task) = (caller.clone(), shape.task(n));
        let cancel = cancel_one_in.is_some_and(|one_in| n.is_multiple_of(one_in));
        posts.spawn(async move {
            let _permit = permit;
            submit(caller, task, cancel).await
        });
    };
    while n < shape.at_once {
        post(&mut posts, n).await;
        n += 1;
    }
    if shape.a_second > 0.0 {
        let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / shape.a_second));
        while Instant::now() < until {
            ticks.tick().await;
            post(&mut posts, n).await;
            n += 1;
        }
    }
    posts.join_all().await
}

/// Half-way, somebody cancels tasks that began to run last. Returns those that were asked to stop.
async fn cancel_some_that_run(watched: &Watched, lasts: Duration) -> Vec<Value> {
    tokio::time::sleep(lasts / 2).await;
    let mut told = Vec::new();
    for id in watched.began_last().await {
        let answer = watched.server.caller.cancel(&id).await.unwrap();
        told.extend((answer.status == StatusCode::OK).then_some(answer.body));
    }
    told
}

fn answers(posts: Vec<(Answer, Option<Value>)>) -> Vec<Answer> {
    posts.into_iter().map(|(answer, _)| answer).collect()
}

/// Offers the load with critical work beside it, heals the peer, and lets light traffic go on.
pub(super) async fn offer(watched: &Watched, shape: &Shape, course: &Course, cancels: Option<usize>) -> Over {
    let caller = &watched.server.caller;
    // It asks nothing of the peer, so that nothing but the load is in its way.
    let critical = Shape { a_second: CRITICAL, priorities: &[95], instead: Some("echo"), ..Shape::WELL };
    let stop_some = async {
        match cancels {
            Some(_) => cancel_some_that_run(watched, course.lasts).await,
            None => Vec::new(),
        }
    };
    let (posts, critical, mut cancelled) = tokio::join!(
        stream(caller.clone(), shape.clone(), course.lasts, cancels),
        stream(caller.clone(), critical, course.lasts, None),
        stop_some,
    );
    watched.tool.on("/", [Shape::WELL.call]);
    let well = Instant::now();
    let (calls_then, alive_then) = (watched.tool.seen().len(), watched.alive().await);
    let light = Shape { a_second: GOING_ON, timeout_ms: 60_000, ..Shape::WELL };
    let after = stream(caller.clone(), light, course.goes_on, None).await;
    let mut all = Vec::with_capacity(posts.len());
    for (answer, told) in posts {
        all.push(answer);
        cancelled.extend(told);
    }
    Over { answers: all, critical: answers(critical), after: answers(after), cancelled, calls_then, alive_then, well }
}
