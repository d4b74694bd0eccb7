//! Turns that sessions make together where many wait for the cell's lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor};
use tidegate_core::settlement::Ending;
use tidegate_core::submission::{Cost, Submission};
use tidegate_core::{Reason, Status, TaskId};
use tidegate_store::{Claimed, Report, Session, SessionSpec, Settled, StoreError, Turn};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::{Cell, FAILED, kind, priority, report};

/// What is left to claim for sessions that claim and settle until nothing is.
#[derive(Default)]
struct Work {
    left: AtomicUsize,
    ended: AtomicUsize,
    /// Reports that came too late, for turns whose end was not seen.
    lost: AtomicUsize,
}

impl Work {
    fn take(&self, most: usize) -> usize {
        let take = |left: usize| Some(left - left.min(most));
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap().min(most)
    }

    async fn drain(self: Arc<Self>, session: Arc<Session>, most: usize) {
        let (mut reports, mut wanted): (Vec<Report>, usize) = (Vec::new(), 0);
        loop {
            let want = wanted + self.take(most - wanted);
            if want == 0 && reports.is_empty() {
                return;
            }
            let turn = match session.turn(&reports, want).await {
                Ok(turn) => turn,
                Err(StoreError::SessionLost) => panic!("nobody ended the session"),
                Err(_) => {
                    wanted = want;
                    continue;
                }
            };
            assert!(turn.claimed.len() <= want, "no more than was wanted");
            for settled in &turn.settled {
                match settled {
                    Settled::Ended(Status::Completed) => self.ended.fetch_add(1, Ordering::Relaxed),
                    Settled::LeaseLost => self.lost.fetch_add(1, Ordering::Relaxed),
                    other => panic!("{other:?}"),
                };
            }
            self.left.fetch_add(want - turn.claimed.len(), Ordering::Relaxed);
            (reports, wanted) = (turn.claimed.iter().map(|task| report(task, Ending::Completed)).collect(), 0);
        }
    }
}

async fn fill(cell: &Cell, tasks: usize) {
    for _ in 0..tasks / 100 {
        futures_util::future::join_all((0..100).map(|_| cell.add(cell.submission()))).await;
    }
}

/// Lets so many sessions run so many tasks.
async fn run(cell: &Cell, tasks: usize, sessions: usize, slots: u32) -> Arc<Work> {
    fill(cell, tasks).await;
    let work = Arc::new(Work { left: AtomicUsize::new(tasks), ..Work::default() });
    let mut draining = Vec::new();
    for _ in 0..sessions {
        let session = Arc::new(cell.session(slots).await);
        draining.push(tokio::spawn(work.clone().drain(session, slots as usize)));
    }
    for draining in draining {
        draining.await.unwrap();
    }
    work
}

async fn count(conn: &mut PgConnection, what: &str) -> i64 {
    let sql = format!("SELECT {what}");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await.unwrap()
}

const COMPLETED: &str =
    "count(*) FROM tidegate.task WHERE status = 'COMPLETED' AND result IS NOT NULL AND worker = 'w1'";
const LEFT: &str = "(SELECT count(*) FROM tidegate.turn_request) + (SELECT count(*) FROM tidegate.turn_answer)";
const LED: &str = "last_value FROM tidegate.turn_gate";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_sessions_end_every_task_once_whoever_makes_their_turns() {
    let cell = Cell::new().await;
    let work = run(&cell, 6_000, 50, 16).await;
    assert_eq!((work.ended.load(Ordering::Relaxed), work.lost.load(Ordering::Relaxed)), (6_000, 0));
    let mut conn = cell.db.connect().await;
    assert_eq!(count(&mut conn, COMPLETED).await, 6_000);
    assert_eq!(count(&mut conn, LEFT).await, 0);
    // A turn of one session settles 16 at most.
    let led = count(&mut conn, LED).await;
    assert!((2..300).contains(&led), "{led} sessions led");
    cell.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_makes_turns_may_die_and_nothing_is_lost_or_done_twice() {
    let cell = Cell::new().await;
    let over = Arc::new(AtomicBool::new(false));
    let mut killer = cell.db.connect().await;
    let killing = tokio::spawn({
        let over = over.clone();
        async move {
            // Whoever has the part, or waits for it: all of them, as when a database is restarted.
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT DISTINCT pid FROM pg_locks \
                WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) l";
            let mut killed = 0;
            while !over.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(40)).await;
                killed += sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut killer).await.unwrap();
            }
            killed
        }
    });
    let work = run(&cell, 6_000, 50, 16).await;
    over.store(true, Ordering::Relaxed);
    let killed = killing.await.unwrap();
    assert!(killed > 20, "{killed} connections ended");
    let ended = work.ended.load(Ordering::Relaxed) + work.lost.load(Ordering::Relaxed);
    assert!(ended >= 6_000, "{ended} reports were answered");
    let mut conn = cell.db.connect().await;
    assert_eq!(count(&mut conn, COMPLETED).await, 6_000);
    assert_eq!(count(&mut conn, "count(*) FROM tidegate.lease").await, 0);
    cell.assert_sound().await;
}

/// Somebody who holds the cell's lock.
async fn hold(cell: &Cell) -> PgConnection {
    let mut holder = cell.db.connect().await;
    holder.execute("BEGIN; SELECT 1 FROM tidegate.cell WHERE id = 1 FOR UPDATE").await.unwrap();
    holder
}

async fn let_go(mut holder: PgConnection) {
    holder.execute("COMMIT").await.unwrap();
}

fn spec(worker: &str, kinds: &[&str]) -> SessionSpec {
    SessionSpec {
        worker: worker.into(),
        kinds: kinds.iter().map(|name| (kind(name), Default::default())).collect(),
        at_once: Default::default(),
        slots: 8,
        lease: Duration::from_secs(15),
        settle_reserve: Duration::from_millis(50),
    }
}

/// What must come through a request as it is, whatever a statement thinks of its characters.
const RESULT: &str = r#"{"a":"it''s \\ \" {\"x\",NULL} $1 \u001f \n é𝄞","b":[]}"#;

/// What a handler that completed hands in.
fn completed(task: &Claimed, ending: Ending) -> Report {
    let report = report(task, ending);
    let usage = Some(Cost { tokens: 7, usd_micros: 11 });
    Report { result: report.result.is_some().then(|| RESULT.to_owned()), usage, ..report }
}

/// Sessions that hold so many tasks each, and have waited for the lock so long that they make turns together from now on.
async fn contended(cell: &Cell, sessions: usize, tasks: usize) -> Vec<(Arc<Session>, Vec<Claimed>)> {
    // Nobody is there yet for whom a slot could be reserved.
    fill(cell, 100).await;
    let mut all = Vec::new();
    for n in 0..sessions {
        all.push(Arc::new(cell.store.open_session(spec(&format!("worker {n}"), &["echo"])).await.unwrap()));
    }
    busy(cell, all, tasks).await
}

/// The same for sessions that are there.
async fn busy(cell: &Cell, sessions: Vec<Arc<Session>>, tasks: usize) -> Vec<(Arc<Session>, Vec<Claimed>)> {
    let holder = hold(cell).await;
    let turns: Vec<JoinHandle<_>> = sessions
        .iter()
        .map(|session| {
            let session = session.clone();
            tokio::spawn(async move { session.turn(&[], tasks).await.unwrap() })
        })
        .collect();
    sleep(Duration::from_millis(600)).await;
    let_go(holder).await;
    let mut all = Vec::new();
    for (session, turn) in sessions.into_iter().zip(turns) {
        let claimed = turn.await.unwrap().claimed;
        assert_eq!(claimed.len(), tasks);
        all.push((session, claimed));
    }
    all
}

/// Has a session hand in all that it holds, and waits until it is seen to wait for its turn.
async fn hand_in(
    cell: &Cell,
    (session, claimed): &(Arc<Session>, Vec<Claimed>),
    ending: Ending,
    want: usize,
) -> JoinHandle<Result<Turn, StoreError>> {
    let mut conn = cell.db.connect().await;
    let waiting = "count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let before = count(&mut conn, waiting).await;
    let (session, reports) = (session.clone(), claimed.iter().map(|task| completed(task, ending)).collect::<Vec<_>>());
    let turn = tokio::spawn(async move { session.turn(&reports, want).await });
    let waits = async {
        while count(&mut conn, waiting).await <= before {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(Duration::from_secs(5), waits).await.expect("it waits");
    turn
}

async fn requests(cell: &Cell) -> i64 {
    count(&mut cell.db.connect().await, "count(*) FROM tidegate.turn_request").await
}

#[tokio::test]
async fn a_turn_that_another_made_brings_what_its_own_would_have_brought() {
    let cell = Cell::new().await;
    let sessions = contended(&cell, 2, 3).await;
    let holder = hold(&cell).await;
    let first = hand_in(&cell, &sessions[0], Ending::Completed, 2).await;
    let second = hand_in(&cell, &sessions[1], Ending::Completed, 5).await;
    assert_eq!(requests(&cell).await, 2);
    let_go(holder).await;
    let (first, second) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
    for (turn, want) in [(&first, 2), (&second, 5)] {
        assert_eq!(turn.settled, vec![Settled::Ended(Status::Completed); 3]);
        assert_eq!(turn.claimed.len(), want);
        assert!(turn.claimed.iter().all(|task| task.payload == "{\"n\":1}" && task.remaining > Duration::from_secs(1)));
    }
    let mut ids: Vec<TaskId> = first.claimed.iter().chain(&second.claimed).map(|task| task.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 7, "each task went to one of them");
    let mut conn = cell.db.connect().await;
    for n in 0..2 {
        let kept = format!(
            "count(*) FROM tidegate.task WHERE worker = 'worker {n}' AND result = $result${RESULT}$result$ \
            AND actual_tokens = 7 AND actual_usd_micros = 11 AND status = 'COMPLETED'"
        );
        assert_eq!(count(&mut conn, &kept).await, 3, "what worker {n} handed in");
    }
    // Whoever was served can settle what it got by itself.
    assert_eq!(count(&mut conn, LED).await, 1);
    assert_eq!(count(&mut conn, LEFT).await, 0);
    for ((session, _), turn) in sessions.iter().zip([first, second]) {
        let leases = format!("count(*) FROM tidegate.lease WHERE session_id = '{}'", session.id().0);
        assert_eq!(count(&mut conn, &leases).await, turn.claimed.len() as i64);
        let reports: Vec<Report> = turn.claimed.iter().map(|task| report(task, Ending::Completed)).collect();
        let settled = session.turn(&reports, 0).await.unwrap().settled;
        assert_eq!(settled, vec![Settled::Ended(Status::Completed); reports.len()]);
    }
    cell.assert_sound().await;
}

#[tokio::test]
async fn what_cannot_be_said_in_a_request_is_settled_by_its_own_session() {
    let cell = Cell::new().await;
    let sessions = contended(&cell, 2, 2).await;
    let holder = hold(&cell).await;
    let first = hand_in(&cell, &sessions[0], FAILED, 0).await;
    let second = hand_in(&cell, &sessions[1], Ending::Completed, 0).await;
    assert_eq!(requests(&cell).await, 1);
    let_go(holder).await;
    let settled = first.await.unwrap().unwrap().settled;
    assert_eq!(settled, vec![Settled::Returned(Reason::RetryBackoff); 2]);
    assert_eq!(second.await.unwrap().unwrap().settled, vec![Settled::Ended(Status::Completed); 2]);
    cell.assert_sound().await;
}

/// Two sessions hand in what they hold, the first leads, and one of them was told to leave meanwhile.
async fn one_leaves(cell: &Cell, leaves: usize) -> (Vec<(Arc<Session>, Vec<Claimed>)>, [Turn; 2]) {
    let sessions = contended(cell, 2, 3).await;
    let holder = hold(cell).await;
    let first = hand_in(cell, &sessions[0], Ending::Completed, 3).await;
    let second = hand_in(cell, &sessions[1], Ending::Completed, 3).await;
    let leaving = format!("UPDATE tidegate.session SET draining = true WHERE id = '{}'", sessions[leaves].0.id().0);
    cell.db.connect().await.execute(AssertSqlSafe(leaving)).await.unwrap();
    let_go(holder).await;
    let turns = [first.await.unwrap().unwrap(), second.await.unwrap().unwrap()];
    for turn in &turns {
        assert_eq!(turn.settled, vec![Settled::Ended(Status::Completed); 3]);
    }
    (sessions, turns)
}

#[tokio::test]
async fn a_session_that_is_to_leave_is_settled_for_and_given_nothing() {
    let cell = Cell::new().await;
    let (_, [first, second]) = one_leaves(&cell, 1).await;
    assert_eq!((first.claimed.len(), second.claimed.len()), (3, 0));
    cell.assert_sound().await;
}

#[tokio::test]
async fn whom_one_that_is_to_leave_settles_for_asks_again() {
    let cell = Cell::new().await;
    let (sessions, [first, second]) = one_leaves(&cell, 0).await;
    assert_eq!((first.claimed.len(), second.claimed.len()), (0, 0));
    assert!(second.more);
    assert_eq!(sessions[1].0.turn(&[], 3).await.unwrap().claimed.len(), 3);
    let last = sessions[0].0.turn(&[], 3).await.unwrap();
    assert_eq!((last.claimed.len(), last.more), (0, false));
    cell.assert_sound().await;
}

#[tokio::test]
async fn nothing_is_claimed_for_the_dead_or_for_those_who_gave_up() {
    let cell = Cell::new().await;
    let sessions = contended(&cell, 3, 3).await;
    let holder = hold(&cell).await;
    let first = hand_in(&cell, &sessions[0], Ending::Completed, 3).await;
    // One whose heartbeat is over, and one whose request is as old as those of processes that were stopped.
    let second = hand_in(&cell, &sessions[1], Ending::Completed, 3).await;
    let third = hand_in(&cell, &sessions[2], Ending::Completed, 3).await;
    let mut conn = cell.db.connect().await;
    let over = format!("UPDATE tidegate.heartbeat SET expires_ms = 1 WHERE session_id = '{}'", sessions[1].0.id().0);
    conn.execute(AssertSqlSafe(over)).await.unwrap();
    let old = format!(
        "UPDATE tidegate.turn_request SET posted_ms = posted_ms - 5000 WHERE session_id = '{}'",
        sessions[2].0.id().0
    );
    conn.execute(AssertSqlSafe(old)).await.unwrap();
    let_go(holder).await;
    assert_eq!(first.await.unwrap().unwrap().claimed.len(), 3);
    assert!(matches!(second.await.unwrap(), Err(StoreError::SessionLost)));
    // It goes by itself in the end.
    let third = third.await.unwrap().unwrap();
    assert_eq!((third.settled, third.claimed.len()), (vec![Settled::Ended(Status::Completed); 3], 3));
    assert_eq!(count(&mut conn, LED).await, 3, "neither was served by the first");
    assert_eq!(count(&mut conn, LEFT).await, 0);
    cell.store.reap_lost(true).await.unwrap();
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_turn_that_was_given_up_while_another_made_it_is_found_again() {
    let cell = Cell::new().await;
    let sessions = contended(&cell, 2, 3).await;
    let holder = hold(&cell).await;
    let first = hand_in(&cell, &sessions[0], Ending::Completed, 3).await;
    let second = hand_in(&cell, &sessions[1], Ending::Completed, 3).await;
    // Whoever asked is gone, its session is not.
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    let_go(holder).await;
    assert_eq!(first.await.unwrap().unwrap().claimed.len(), 3);
    let (session, claimed) = &sessions[1];
    let reports: Vec<Report> = claimed.iter().map(|task| report(task, Ending::Completed)).collect();
    let again = session.turn(&reports, 3).await.unwrap();
    assert_eq!(again.settled, vec![Settled::LeaseLost; 3], "they were settled before");
    assert_eq!(again.claimed.len(), 3);
    let mut conn = cell.db.connect().await;
    let leases = format!("count(*) FROM tidegate.lease WHERE session_id = '{}'", session.id().0);
    assert_eq!(count(&mut conn, &leases).await, 3, "those that it knows of, and no others");
    assert_eq!(count(&mut conn, LEFT).await, 0);
    assert_eq!(count(&mut conn, "count(*) FROM tidegate.task WHERE status = 'COMPLETED'").await, 6);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_suspect_goes_to_nobody_who_wants_nothing_for_itself() {
    let cell = Cell::new().await;
    let sessions = contended(&cell, 2, 3).await;
    let suspect = cell.add(Submission { priority: priority(60), ..cell.submission() }).await;
    for _ in 0..2 {
        let session = cell.session(1).await;
        assert_eq!(cell.claim(&session).await.id, suspect);
        cell.crash(session, 1).await;
    }
    let holder = hold(&cell).await;
    let first = hand_in(&cell, &sessions[0], Ending::Completed, 0).await;
    let second = hand_in(&cell, &sessions[1], Ending::Completed, 3).await;
    let_go(holder).await;
    let (first, second) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
    assert_eq!((first.claimed.len(), second.claimed.len()), (0, 3));
    assert!(second.claimed.iter().all(|task| task.id != suspect));
    assert_eq!(count(&mut cell.db.connect().await, LED).await, 1);
    let alone = sessions[0].0.turn(&[], 1).await.unwrap().claimed;
    assert_eq!(alone.iter().map(|task| (task.id, task.suspect)).collect::<Vec<_>>(), [(suspect, true)]);
    cell.assert_sound().await;
}

#[tokio::test]
async fn what_slots_are_reserved_for_is_left_to_whose_they_are() {
    let cell = Cell::new().await;
    let sessions = [Arc::new(cell.session(8).await), Arc::new(cell.session(8).await)];
    // As many are ADMITTED as there are slots for their class, and no other starts while those are kept.
    fill(&cell, 100).await;
    let sessions = busy(&cell, sessions.to_vec(), 3).await;
    let mut conn = cell.db.connect().await;
    let mut reserved = async |session: usize| {
        let of = format!("count(*) FROM tidegate.ready WHERE session_id = '{}'", sessions[session].0.id().0);
        count(&mut conn, &of).await as usize
    };
    let before = [reserved(0).await, reserved(1).await];
    assert!(before[0] >= 4 && before[1] >= 4, "{before:?}");
    let holder = hold(&cell).await;
    let first = hand_in(&cell, &sessions[0], Ending::Completed, before[0] - 1).await;
    let second = hand_in(&cell, &sessions[1], Ending::Completed, 8).await;
    let_go(holder).await;
    let first = first.await.unwrap().unwrap().claimed;
    assert_eq!((first.len(), reserved(0).await), (before[0] - 1, 1), "it takes its own, and no more than it wants");
    let second = second.await.unwrap().unwrap();
    let unreserved = 8 - before[1];
    assert_eq!((second.claimed.len(), reserved(1).await), (unreserved, before[1]), "the slots that were not reserved");
    assert!(second.more, "its own turn brings the others");
    let rest = sessions[1].0.turn(&[], before[1]).await.unwrap().claimed;
    assert_eq!((rest.len(), reserved(1).await), (before[1], 0));
    cell.assert_sound().await;
}

#[tokio::test]
async fn sessions_that_run_other_kinds_make_their_own_turns() {
    let cell = Cell::new().await;
    fill(&cell, 100).await;
    let mut sessions = Vec::new();
    for name in ["one", "other"] {
        sessions.push(Arc::new(cell.store.open_session(spec(name, &["echo", name])).await.unwrap()));
    }
    let held = busy(&cell, sessions, 2).await;
    let holder = hold(&cell).await;
    let first = hand_in(&cell, &held[0], Ending::Completed, 2).await;
    let second = hand_in(&cell, &held[1], Ending::Completed, 2).await;
    let_go(holder).await;
    for turn in [first, second] {
        let turn = turn.await.unwrap().unwrap();
        assert_eq!((turn.settled, turn.claimed.len()), (vec![Settled::Ended(Status::Completed); 2], 2));
    }
    assert_eq!(count(&mut cell.db.connect().await, LED).await, 2);
    cell.assert_sound().await;
}

#[tokio::test]
async fn requests_and_answers_that_nobody_comes_for_are_swept() {
    let cell = Cell::new().await;
    let mut conn = cell.db.connect().await;
    let sql = "INSERT INTO tidegate.turn_request SELECT gen_random_uuid(), gen_random_uuid(), 1, tidegate.now_ms() - age, 1, 0, '{}', '{}', '{}', '{}', '{}' \
            FROM unnest(ARRAY[1000, 70000]) a(age); \
        INSERT INTO tidegate.turn_answer SELECT gen_random_uuid(), tidegate.now_ms() - age, '{}', '{}', false, false, NULL FROM unnest(ARRAY[1000, 70000]) a(age)";
    sqlx::raw_sql(sql).execute(&mut conn).await.unwrap();
    assert_eq!(cell.store.forget_turns().await.unwrap(), 2);
    assert_eq!(cell.store.forget_turns().await.unwrap(), 0);
    assert_eq!(count(&mut conn, LEFT).await, 2);
}
