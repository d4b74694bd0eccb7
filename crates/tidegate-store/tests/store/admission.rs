//! The door against the database.

use std::time::Instant;

use tidegate_core::limits::Limits;
use tidegate_core::submission::{Idempotency, Timing};
use tidegate_core::{Reason, Status, TenantId};
use tidegate_store::{Admission, Admitter, AdmitterOptions, Store, StoreOptions};

use crate::{Cell, tenant};

fn keyed(cell: &Cell, key: &str, body: u8) -> tidegate_core::submission::Submission {
    let mut submission = cell.submission();
    submission.idempotency = Some(Idempotency { key: key.into(), body_sha256: [body; 32] });
    submission
}

#[tokio::test]
async fn one_place_and_sixty_four_racing_posts_from_two_replicas_let_in_exactly_one() {
    let cell = Cell::with(Limits { max_queued: 1, ..Limits::default() }).await;
    let other = Store::open(StoreOptions::new(cell.db.url())).unwrap();
    let second = Admitter::start(&other, AdmitterOptions::default()).unwrap();
    let mut posts = tokio::task::JoinSet::new();
    for n in 0..64 {
        let (submission, admitter) =
            (cell.submission(), if n % 2 == 0 { cell.admitter.clone() } else { second.clone() });
        posts.spawn(async move { admitter.admit(submission, Instant::now()).await.unwrap() });
    }
    let answers = posts.join_all().await;
    let statuses = answers.iter().map(|answer| match answer {
        Admission::Decided { decision, .. } => (decision.status, decision.reason),
        other => panic!("{other:?}"),
    });
    assert_eq!(statuses.clone().filter(|status| *status == (Status::Queued, None)).count(), 1);
    assert_eq!(statuses.filter(|status| *status == (Status::Shed, Some(Reason::LowPriority))).count(), 63);
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_refused_id_answers_within_a_second_and_without_its_payload() {
    let cell = Cell::with(Limits { max_queued: 0, ..Limits::default() }).await;
    let Admission::Decided { id, decision } = cell.admit(cell.submission()).await else { panic!() };
    assert_eq!((decision.status, decision.reason), (Status::Shed, Some(Reason::LowPriority)));
    let task = tidegate_testkit::poll_until(std::time::Duration::from_secs(1), "the refusal", async || {
        cell.store.task(&tenant(), id).await.unwrap()
    })
    .await;
    assert_eq!((task.status, task.reason, task.payload), (Status::Shed, Some(Reason::LowPriority), None));
    let other = TenantId::parse("other").unwrap();
    assert_eq!(cell.store.task(&other, id).await.unwrap(), None);
}

#[tokio::test]
async fn a_deadline_that_passed_is_expired_at_the_door() {
    let cell = Cell::new().await;
    let mut submission = cell.submission();
    submission.timing = Timing { deadline: Some(1), ..Timing::default() };
    let Admission::Decided { decision, .. } = cell.admit(submission).await else { panic!() };
    assert_eq!((decision.status, decision.reason), (Status::Expired, Some(Reason::DeadlinePassed)));
}

#[tokio::test]
async fn a_key_makes_one_task_however_many_race() {
    let cell = Cell::new().await;
    let mut posts = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (submission, admitter) = (keyed(&cell, "k", 1), cell.admitter.clone());
        posts.spawn(async move { admitter.admit(submission, Instant::now()).await.unwrap() });
    }
    let answers = posts.join_all().await;
    let made: Vec<_> =
        answers.iter().filter_map(|a| if let Admission::Decided { id, .. } = a { Some(*id) } else { None }).collect();
    assert_eq!(made.len(), 1);
    assert!(
        answers.iter().all(
            |answer| matches!(answer, Admission::Decided { id, .. } | Admission::Replayed { id } if *id == made[0])
        )
    );
    assert_eq!(cell.admit(keyed(&cell, "k", 2)).await, Admission::KeyReused { id: made[0] });
    let mut other = keyed(&cell, "k", 2);
    other.tenant = TenantId::parse("other").unwrap();
    assert!(matches!(cell.admit(other).await, Admission::Decided { .. }));
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_refusal_does_not_burn_its_key() {
    let cell = Cell::with(Limits { max_queued: 1, ..Limits::default() }).await;
    let first = cell.add(cell.submission()).await;
    let refused = |answer| matches!(answer, Admission::Decided { decision, .. } if decision.status == Status::Shed);
    assert!(refused(cell.admit(keyed(&cell, "k", 1)).await));
    cell.canceller.cancel(&tenant(), first, None).await.unwrap();
    assert!(
        matches!(cell.admit(keyed(&cell, "k", 1)).await, Admission::Decided { decision, .. } if decision.status == Status::Queued)
    );
}

#[tokio::test]
async fn a_batch_with_a_poisoned_submission_lets_the_others_in() {
    let cell = Cell::new().await;
    let mut posts = tokio::task::JoinSet::new();
    for n in 0..20 {
        let (mut submission, admitter) = (cell.submission(), cell.admitter.clone());
        if n == 7 {
            // Past every check of the API: the database itself refuses this.
            submission.workflow_id = Some("a\0b".into());
        }
        posts.spawn(async move { admitter.admit(submission, Instant::now()).await });
    }
    let answers = posts.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 19);
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Err(tidegate_store::AdmitError::Invalid))).count(), 1);
    cell.assert_sound().await;
}

#[tokio::test]
async fn what_was_sent_comes_back_byte_for_byte() {
    let cell = Cell::new().await;
    let mut submission = cell.submission();
    submission.payload =
        "{\"z\": 1.50, \"a\" : 1e400,\"z\":\"\\u00e9\u{1F600}\", \"big\":123456789012345678901234567890}".into();
    submission.labels = Some("{\"safety\":\"true\"}".into());
    submission.workflow_id = Some("wf".into());
    submission.cancellation_token = Some("trip".into());
    submission.priority_notes = vec!["one".into(), "two".into()];
    let sent = submission.clone();
    let id = cell.add(submission).await;
    let task = cell.store.task(&tenant(), id).await.unwrap().unwrap();
    assert_eq!(task.payload.as_deref(), Some(sent.payload.as_str()));
    assert_eq!(task.workflow_id, sent.workflow_id);
    assert_eq!(task.cancellation_token, sent.cancellation_token);
    assert_eq!(task.priority_notes, sent.priority_notes);
    assert_eq!(task.labels.as_deref(), Some("{\"safety\": \"true\"}"));
}

#[tokio::test]
async fn an_id_by_a_clock_that_is_far_off_is_made_again() {
    let cell = Cell::new().await;
    let mut submission = cell.submission();
    submission.id = tidegate_core::TaskId::new(1_000_000_000_000, [9; 10], 0);
    let old = submission.id;
    let id = cell.add(submission).await;
    assert_ne!(id, old);
    assert_eq!(cell.status(id).await, (Status::Queued, None));
}

#[tokio::test]
async fn a_door_that_cannot_decide_says_so_within_two_seconds_and_lets_nothing_in() {
    let cell = Cell::new().await;
    let mut holder = cell.db.connect().await;
    sqlx::raw_sql("BEGIN; SELECT 1 FROM tidegate.cell FOR UPDATE").execute(&mut holder).await.unwrap();
    let mut posts = tokio::task::JoinSet::new();
    // Some come while the first batch is stuck: they too are answered in time.
    for n in 0..6 {
        let (submission, admitter) = (cell.submission(), cell.admitter.clone());
        posts.spawn(async move {
            tokio::time::sleep(std::time::Duration::from_millis(n * 300)).await;
            let came = Instant::now();
            (admitter.admit(submission, came).await, came.elapsed())
        });
    }
    for (answer, took) in posts.join_all().await {
        assert!(matches!(answer, Err(tidegate_store::AdmitError::Unavailable)), "{answer:?}");
        assert!(took < std::time::Duration::from_millis(2_500), "{took:?}");
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut holder).await.unwrap();
    tidegate_testkit::poll_until(std::time::Duration::from_secs(10), "the door to open again", async || {
        cell.admitter.admit(cell.submission(), Instant::now()).await.ok()
    })
    .await;
    let there: i64 = sqlx::query_scalar("SELECT count(*) FROM tidegate.task").fetch_one(&mut holder).await.unwrap();
    assert_eq!(there, 1, "what was not accepted is not there");
    cell.assert_sound().await;
}

#[tokio::test]
async fn pressure_follows_the_queue_even_where_nobody_comes_to_the_door() {
    let cell = Cell::with(Limits { max_queued: 2, ..Limits::default() }).await;
    let id = cell.add(cell.submission()).await;
    cell.add(cell.submission()).await;
    tidegate_testkit::poll_until(std::time::Duration::from_secs(5), "full pressure", async || {
        (cell.admitter.pressure() >= 1.0).then_some(())
    })
    .await;
    cell.canceller.cancel(&tenant(), id, None).await.unwrap();
    tidegate_testkit::poll_until(std::time::Duration::from_secs(5), "half pressure", async || {
        (cell.admitter.pressure() <= 0.5).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_body_that_took_long_to_arrive_does_not_use_up_the_patience_of_the_door() {
    let cell = Cell::new().await;
    let Some(long_ago) = Instant::now().checked_sub(std::time::Duration::from_secs(10)) else { return };
    let answer = cell.admitter.admit(cell.submission(), long_ago).await.unwrap();
    assert!(matches!(answer, Admission::Decided { decision, .. } if decision.status == Status::Queued), "{answer:?}");
}
