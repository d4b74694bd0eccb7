//! C05 with real processes: everything that can be killed is killed, at random moments, under load.

use std::time::{Duration, Instant};

use rand::RngExt;
use reqwest::StatusCode;
use serde_json::json;
use tidegate_testkit::{FaultProxy, Proc, short_or_long};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::caller::{Caller, id_of};
use crate::fleet::{ALIVE, Fleet, LIMIT, Server, number, wait_for_number};
use crate::verdict::assert_sound;

/// Callers, each of which submits one task after another.
const CALLERS: usize = 10;
/// The pause of a caller that was refused, or whose server is gone.
const AGAIN: Duration = Duration::from_millis(50);
/// The pause after a task that was let in: there must not be so many that looking at each takes longer than the storm.
const PAUSE: Duration = Duration::from_millis(20);
/// Between two blows, in milliseconds.
const BLOWS_MS: std::ops::Range<u64> = 200..800;
/// Ends every connection of others to the database.
const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";

/// What a caller knows of one task: its key, and its id once it was let in.
type Known = (String, String);

/// Submits until the time is over, each task until it is let in; every third is cancelled.
async fn submit_all(n: usize, mut server: watch::Receiver<Caller>, until: Instant) -> Vec<Known> {
    let mut known = Vec::new();
    while Instant::now() < until {
        let key = format!("storm-{n}-{}", known.len());
        let ms = rand::rng().random_range(0..100);
        let task = json!({"kind": "sleep", "payload": {"ms": ms}, "workflow_id": key, "timeout_ms": 600_000});
        let id = loop {
            let caller = server.borrow_and_update().clone();
            match caller.submit_with_key(&task, &key).await {
                Ok(answer) if [StatusCode::ACCEPTED, StatusCode::OK].contains(&answer.status) => {
                    break id_of(&answer.body);
                }
                Ok(answer) => assert!(
                    [StatusCode::SERVICE_UNAVAILABLE, StatusCode::CONFLICT].contains(&answer.status),
                    "{} {}",
                    answer.status,
                    answer.body
                ),
                Err(_) => {}
            }
            tokio::time::sleep(AGAIN).await;
        };
        if known.len() % 3 == 0 {
            // Whether it arrives does not matter: whatever becomes of it must be sound.
            let caller = server.borrow().clone();
            let _ = caller.cancel(&id).await;
        }
        known.push((key, id));
        tokio::time::sleep(PAUSE).await;
    }
    known
}

/// What can be hit.
struct Targets<'a> {
    fleet: &'a Fleet,
    proxy: &'a FaultProxy,
    url: &'a str,
    server: Server,
    workers: Vec<Proc>,
    tell: watch::Sender<Caller>,
}

impl Targets<'_> {
    async fn blow(&mut self) {
        match rand::rng().random_range(0..4) {
            0 => {
                self.server.process.kill9();
                self.server = self.fleet.serve_on(self.url).await;
                self.tell.send_replace(self.server.caller.clone());
            }
            1 => {
                self.workers.remove(0).kill9();
                self.workers.push(self.fleet.worker_on(self.url, 8).await);
            }
            2 => drop(number(self.fleet.db.url(), TERMINATE).await),
            _ => self.proxy.cut_all(),
        }
    }
}

#[tokio::test]
async fn whatever_is_killed_and_cut_at_random_nothing_is_lost_or_done_twice() {
    let lasts = Duration::from_secs(short_or_long(8, 60));
    let fleet = Fleet::new().await.with_lease(Duration::from_millis(1_000));
    let (proxy, url) = FaultProxy::for_database(fleet.db.url()).await;
    let server = fleet.serve_on(&url).await;
    let workers = vec![fleet.worker_on(&url, 8).await, fleet.worker_on(&url, 8).await];
    let (tell, told) = watch::channel(server.caller.clone());
    let until = Instant::now() + lasts;
    let mut callers = JoinSet::new();
    for n in 0..CALLERS {
        callers.spawn(submit_all(n, told.clone(), until));
    }
    let mut targets = Targets { fleet: &fleet, proxy: &proxy, url: &url, server, workers, tell };
    let mut blows = 0;
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(rand::rng().random_range(BLOWS_MS))).await;
        targets.blow().await;
        blows += 1;
    }
    let known: Vec<Known> = callers.join_all().await.into_iter().flatten().collect();
    eprintln!("{blows} blows under {} tasks", known.len());
    assert!(known.len() > CALLERS, "hardly a task was let in");
    // The workers that are left do the rest.
    tidegate_testkit::poll_until(LIMIT, "the end of every task", async || {
        (number(fleet.db.url(), ALIVE).await == 0).then_some(())
    })
    .await;
    let ids: Vec<String> = known.iter().map(|(_, id)| id.clone()).collect();
    for (key, id) in &known {
        let task = targets.server.caller.task(id).await;
        assert_eq!(task["workflow_id"], key.as_str());
        let (status, losses_end) = (&task["status"], task["reason"] == "quarantined");
        assert!(*status == "COMPLETED" || *status == "CANCELLED" || losses_end, "{task}");
    }
    wait_for_number(fleet.db.url(), "SELECT count(DISTINCT workflow_id) - count(*) FROM tidegate.task", 0).await;
    assert_sound(fleet.db.url(), &ids).await;
}
