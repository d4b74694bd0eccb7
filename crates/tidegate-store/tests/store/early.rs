//! Records that are written before their batch has its turn at the cell's row.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tidegate_core::limits::Limits;
use tidegate_core::settlement::Ending;
use tidegate_core::submission::Submission;
use tidegate_core::{Status, TaskId};
use tidegate_store::{Admission, Admitter, AdmitterOptions, Settled};
use tokio::task::JoinSet;

use crate::{Cell, priority, report, tenant};

/// As few as pay, so that a slow machine is not too slow.
const BATCH: usize = 200;
/// One that meets an empty door, and two batches.
const POSTS: usize = 1 + 2 * BATCH;
/// How often posts are piled up until a batch was early: on a slow machine the row may be waited for too long.
const MAX_ROUNDS: usize = 20;

/// Piles up posts at a new door while somebody keeps the cell's row, and returns the answers.
async fn pile_up(cell: &Cell, post: impl Fn(usize) -> Submission) -> Vec<Admission> {
    let door = Admitter::start(&cell.store, AdmitterOptions { batch_tasks: BATCH, ..AdmitterOptions::default() });
    let door = door.unwrap();
    let mut holder = cell.db.connect().await;
    let mut held = holder.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM tidegate.cell FOR UPDATE").execute(&mut *held).await.unwrap();
    let mut posts = JoinSet::new();
    for n in 0..POSTS {
        let (door, submission) = (door.clone(), post(n));
        posts.spawn(async move { door.admit(submission, Instant::now()).await.unwrap() });
    }
    // All have come to the door when this task has its turn again: none of them waits for anything else.
    tokio::time::timeout(Duration::from_millis(200), posts.join_next()).await.unwrap_err();
    held.rollback().await.unwrap();
    posts.join_all().await
}

/// Tasks whose record and place were not written by one statement.
async fn early(conn: &mut PgConnection) -> i64 {
    let sql = "SELECT count(*) FROM tidegate.task t JOIN tidegate.ready r ON r.task_id = t.id \
        WHERE t.xmin = r.xmin AND NOT t.cmin = r.cmin";
    sqlx::query_scalar(sql).fetch_one(conn).await.unwrap()
}

/// Records that do not say what their places do.
async fn apart(conn: &mut PgConnection) -> i64 {
    let sql = "SELECT count(*) FROM tidegate.task t FULL JOIN tidegate.ready r ON r.task_id = t.id \
        WHERE (t.flow_id, t.rank, t.deadline_ms, t.enqueued_ms, t.tokens, octet_length(t.payload)) IS DISTINCT FROM \
            (r.flow_id, r.rank, r.deadline_ms, r.enqueued_ms, r.tokens, r.bytes)";
    sqlx::query_scalar(sql).fetch_one(conn).await.unwrap()
}

#[tokio::test]
async fn records_that_are_written_early_say_what_is_decided() {
    let cell = Cell::with(Limits { max_queued: 1_000_000, ..Limits::default() }).await;
    let mut conn = cell.db.connect().await;
    let mut let_in = HashSet::new();
    for round in 0.. {
        assert!(round < MAX_ROUNDS, "no batch was early");
        let post = |n: usize| Submission { priority: priority(45 + (n % 10) as i64), ..cell.submission() };
        for answer in pile_up(&cell, post).await {
            let Admission::Decided { id, decision } = answer else { panic!("{answer:?}") };
            assert_eq!(decision.status, Status::Queued);
            assert!(let_in.insert(id));
        }
        if early(&mut conn).await >= BATCH as i64 {
            break;
        }
    }
    assert_eq!(apart(&mut conn).await, 0);
    cell.assert_sound().await;
    // They run, and end, as any other.
    let session = cell.session(2 * let_in.len() as u32).await;
    let mut done = HashSet::new();
    while done.len() < let_in.len() {
        let claimed = session.turn(&[], 500).await.unwrap().claimed;
        assert!(!claimed.is_empty() && claimed.iter().all(|task| task.payload == "{\"n\":1}"));
        let reports: Vec<_> = claimed.iter().map(|task| report(task, Ending::Completed)).collect();
        let turn = session.turn(&reports, 0).await.unwrap();
        assert!(turn.settled.iter().all(|settled| *settled == Settled::Ended(Status::Completed)));
        done.extend(claimed.iter().map(|task| task.id));
    }
    assert_eq!(done, let_in);
    cell.assert_sound().await;
}

#[tokio::test]
async fn of_what_is_refused_no_early_record_is_left() {
    // Room for all but a few of the second batch.
    const ROOM: usize = POSTS - 7;
    let mut limits = Limits { max_queued: ROOM as u32, ..Limits::default() };
    limits.classes.standard.shed_at = None;
    limits.max_expected_wait_ms = u32::MAX;
    let cell = Cell::with(limits).await;
    let answers = pile_up(&cell, |_| cell.submission()).await;
    let decided = answers.iter().map(|answer| match answer {
        Admission::Decided { id, decision } => (*id, decision.status),
        other => panic!("{other:?}"),
    });
    let (refused, let_in): (Vec<(TaskId, Status)>, Vec<_>) = decided.partition(|(_, status)| status.is_final());
    assert_eq!((let_in.len(), refused.len()), (ROOM, 7));
    let mut conn = cell.db.connect().await;
    let records: i64 = sqlx::query_scalar("SELECT count(*) FROM tidegate.task").fetch_one(&mut conn).await.unwrap();
    assert_eq!((records, apart(&mut conn).await), (ROOM as i64, 0));
    for (id, status) in refused {
        let task = cell.store.task(&tenant(), id).await.unwrap().expect("a refusal is remembered");
        assert_eq!(task.status, status);
    }
    cell.assert_sound().await;
}
