//! The children of what is cancelled, and theirs, whoever dies in between.

use tidegate_core::submission::{Start, Submission, Timing};
use tidegate_store::{CancelOutcome, Group, GroupCancelled};

use super::*;

/// A submission of a task that a running one starts, with room for many of its own.
fn child_of(cell: &Cell, parent: TaskId) -> Submission {
    Submission { parent_id: Some(parent), ..generous(cell) }
}

fn generous(cell: &Cell) -> Submission {
    Submission { depth: 100, fanout: 2_000, ..cell.submission() }
}

/// A running task.
async fn run(cell: &Cell, session: &Session, submission: Submission) -> Claimed {
    let id = cell.add(submission).await;
    let task = cell.claim(session).await;
    assert_eq!(task.id, id);
    task
}

async fn cancel(cell: &Cell, id: TaskId) -> CancelOutcome {
    cell.canceller.cancel(&tenant(), id, None).await.unwrap()
}

async fn marks(cell: &Cell) -> i64 {
    let sql = "SELECT count(*) FROM tidegate.cancel_parent";
    sqlx::query_scalar(sql).fetch_one(&mut cell.db.connect().await).await.unwrap()
}

/// Does what a keeper does.
async fn keep(cell: &Cell) -> usize {
    let mut reached = 0;
    while let Some(more) = cell.store.cancel_children().await.unwrap() {
        reached += more;
    }
    reached
}

/// Whether a cancel was asked of it for that reason, as its worker will find it.
async fn asked(cell: &Cell, id: TaskId) -> Option<String> {
    let sql = "SELECT reason FROM tidegate.cancel_request WHERE task_id = $1";
    sqlx::query_scalar(sql).bind(id.0).fetch_optional(&mut cell.db.connect().await).await.unwrap()
}

const GONE: (Status, Option<Reason>) = (Status::Cancelled, Some(Reason::ParentCancelled));

#[tokio::test]
async fn a_cancelled_task_takes_all_that_it_started_along() {
    let cell = Cell::new().await;
    let session = cell.session(8).await;
    let parent = run(&cell, &session, generous(&cell)).await;
    let ended = run(&cell, &session, child_of(&cell, parent.id)).await;
    cell.settle(&session, &ended, Ending::Completed).await;
    let running = run(&cell, &session, child_of(&cell, parent.id)).await;
    let waiting = cell.add(child_of(&cell, parent.id)).await;
    let mut later = child_of(&cell, running.id);
    later.timing = Timing { start: Start::After(60_000), ..Timing::default() };
    let grandchild = cell.add(later).await;
    let other = cell.add(cell.submission()).await;

    assert_eq!(cancel(&cell, parent.id).await, CancelOutcome::Requested);
    assert_eq!(cell.status(waiting).await, GONE);
    assert_eq!(cell.status(grandchild).await, GONE);
    assert_eq!(cell.status(ended.id).await, (Status::Completed, None));
    assert!(!cell.status(other).await.0.is_final());
    let told = session.heart().beat(&[(parent.id, parent.fence), (running.id, running.fence)]).await.unwrap();
    assert_eq!(told.cancel.len(), 2);
    cell.settle(&session, &running, Ending::Cancelled).await;
    cell.settle(&session, &parent, Ending::Cancelled).await;
    assert_eq!(cell.status(running.id).await, GONE);
    assert_eq!(cell.status(parent.id).await, (Status::Cancelled, Some(Reason::CancelRequested)));
    let children = cell.store.task(&tenant(), parent.id).await.unwrap().unwrap().children;
    assert_eq!(children, [ended.id, running.id, waiting]);
    assert_eq!((marks(&cell).await, keep(&cell).await), (0, 0));
    cell.assert_sound().await;
}

/// The parent's cancel is committed, and whoever made it dies before it reaches the children.
#[tokio::test]
async fn children_whose_canceller_died_are_cancelled_by_a_keeper() {
    let cell = Cell::new().await;
    let session = cell.session(8).await;
    let parent = run(&cell, &session, generous(&cell)).await;
    let running = run(&cell, &session, child_of(&cell, parent.id)).await;
    let waiting = cell.add(child_of(&cell, parent.id)).await;
    let grandchild = cell.add(child_of(&cell, running.id)).await;
    // A worker that cancels its task by itself, and then is gone.
    assert_eq!(cell.settle(&session, &parent, Ending::Cancelled).await, Settled::Ended(Status::Cancelled));
    assert_eq!(marks(&cell).await, 1);
    assert!(!cell.status(waiting).await.0.is_final());
    assert_eq!(keep(&cell).await, 3);
    assert_eq!(cell.status(waiting).await, GONE);
    assert_eq!(cell.status(grandchild).await, GONE);
    assert_eq!(asked(&cell, running.id).await.as_deref(), Some("parent_cancelled"));
    cell.settle(&session, &running, Ending::HandedBack).await;
    assert_eq!(cell.status(running.id).await, GONE);
    assert_eq!((marks(&cell).await, keep(&cell).await), (0, 0));
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_parent_that_waits_for_its_next_attempt_takes_them_along_too() {
    let cell = Cell::new().await;
    let session = cell.session(8).await;
    for promoted in [false, true] {
        let parent = run(&cell, &session, generous(&cell)).await;
        let child = cell.add(child_of(&cell, parent.id)).await;
        cell.settle(&session, &parent, Ending::HandedBack).await;
        if promoted {
            cell.store.promote_due(Default::default()).await.unwrap();
        }
        let status = if promoted { Status::Queued } else { Status::Deferred };
        assert_eq!(cell.status(parent.id).await.0, status);
        assert_eq!(cancel(&cell, parent.id).await, CancelOutcome::Cancelled);
        assert_eq!(cell.status(child).await, GONE);
    }
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_chain_of_any_depth_is_followed_to_its_end() {
    const DEPTH: usize = 40;
    let cell = Cell::new().await;
    // Some slots are kept for critical work.
    let session = cell.session(2 * DEPTH as u32).await;
    let mut chain = vec![run(&cell, &session, generous(&cell)).await];
    for n in 0..DEPTH {
        let next = run(&cell, &session, child_of(&cell, chain[n].id)).await;
        chain.push(next);
    }
    assert_eq!(cancel(&cell, chain[0].id).await, CancelOutcome::Requested);
    // The caller is not kept waiting for all of it.
    assert_eq!(marks(&cell).await, 1);
    assert!(asked(&cell, chain[1].id).await.is_some() && asked(&cell, chain[DEPTH].id).await.is_none());
    keep(&cell).await;
    for task in &chain[1..] {
        assert_eq!(asked(&cell, task.id).await.as_deref(), Some("parent_cancelled"));
    }
    let reports: Vec<_> = chain.iter().map(|task| report(task, Ending::Cancelled)).collect();
    session.turn(&reports, 0).await.unwrap();
    assert_eq!((marks(&cell).await, keep(&cell).await), (0, 0));
    cell.assert_sound().await;
}

#[tokio::test]
async fn eleven_hundred_children_take_three_pages() {
    let cell = Cell::new().await;
    let session = cell.session(1).await;
    let parent = run(&cell, &session, generous(&cell)).await;
    for _ in 0..11 {
        let adding = (0..100).map(|_| cell.add(child_of(&cell, parent.id)));
        futures_util::future::join_all(adding).await;
    }
    cell.settle(&session, &parent, Ending::Cancelled).await;
    for expected in [Some(500), Some(500), Some(100), None] {
        assert_eq!(cell.store.cancel_children().await.unwrap(), expected);
    }
    cell.assert_sound().await;
}

#[tokio::test]
async fn what_belongs_to_the_group_goes_with_the_group_and_the_rest_with_its_parent() {
    let cell = Cell::new().await;
    let session = cell.session(8).await;
    let member = |submission| Submission { cancellation_token: Some("t".into()), ..submission };
    let parent = run(&cell, &session, member(generous(&cell))).await;
    let inside = run(&cell, &session, member(child_of(&cell, parent.id))).await;
    let within = cell.add(member(child_of(&cell, inside.id))).await;
    let outside = cell.add(child_of(&cell, inside.id)).await;
    let answer = cell.canceller.cancel_group(&tenant(), Group::Token("t".into())).await.unwrap();
    assert_eq!(answer, GroupCancelled { cancelled: 1, requested: 2 });
    assert_eq!(cell.status(within).await, (Status::Cancelled, Some(Reason::TokenCancelled)));
    assert_eq!(cell.status(outside).await, GONE);
    assert_eq!(asked(&cell, inside.id).await.as_deref(), Some("token_cancelled"));
    let reports = [report(&parent, Ending::Cancelled), report(&inside, Ending::Cancelled)];
    session.turn(&reports, 0).await.unwrap();
    assert_eq!(marks(&cell).await, 0);
    cell.assert_sound().await;
}

/// The door lets in no such task; were it there all the same, it does no harm.
#[tokio::test]
async fn neither_a_circle_nor_another_tenants_child_leads_astray() {
    let cell = Cell::new().await;
    let session = cell.session(8).await;
    let parent = run(&cell, &session, generous(&cell)).await;
    let child = run(&cell, &session, child_of(&cell, parent.id)).await;
    let itself = run(&cell, &session, generous(&cell)).await;
    let mut foreign = cell.submission();
    foreign.tenant = TenantId::parse("other").unwrap();
    let foreign = cell.add(foreign).await;
    let mut connection = cell.db.connect().await;
    for (id, parent) in [(parent.id, child.id), (itself.id, itself.id), (foreign, parent.id)] {
        let sql = "UPDATE tidegate.task SET parent_id = $2 WHERE id = $1";
        sqlx::query(sql).bind(id.0).bind(parent.0).execute(&mut connection).await.unwrap();
    }
    assert_eq!(cancel(&cell, parent.id).await, CancelOutcome::Requested);
    assert_eq!(cancel(&cell, itself.id).await, CancelOutcome::Requested);
    assert_eq!(keep(&cell).await, 0);
    assert_eq!(asked(&cell, parent.id).await.as_deref(), Some("cancel_requested"));
    assert_eq!(asked(&cell, itself.id).await.as_deref(), Some("cancel_requested"));
    assert_eq!(asked(&cell, child.id).await.as_deref(), Some("parent_cancelled"));
    let theirs = cell.store.task(&TenantId::parse("other").unwrap(), foreign).await.unwrap().unwrap();
    assert!(!theirs.status.is_final());
    let reports = [&parent, &child, &itself].map(|task| report(task, Ending::Cancelled));
    session.turn(&reports, 0).await.unwrap();
    assert_eq!(keep(&cell).await, 0);
    cell.assert_sound().await;
}

#[tokio::test]
async fn no_child_is_let_in_once_its_parent_was_asked_to_stop() {
    let cell = Cell::new().await;
    let session = cell.session(8).await;
    let parent = run(&cell, &session, generous(&cell)).await;
    cancel(&cell, parent.id).await;
    let Admission::Decided { decision, .. } = cell.admit(child_of(&cell, parent.id)).await else { panic!() };
    assert_eq!((decision.status, decision.reason), (Status::Rejected, Some(Reason::ParentNotRunning)));
}
