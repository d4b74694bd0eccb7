//! Typed handlers, the built-ins, errors, panics and what a context knows.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::settlement::Ending;
use tidegate_core::submission::Cost;
use tidegate_store::{Claimed, Report};

use super::{executor, nothing, options, start};
use crate::fake::{Plan, task};
use crate::{Context, Handler, HandlerError, ProgressError, typed};

const TRANSIENT: Ending = Ending::Failed { retryable: true, retry_after_ms: None, reason: None };
const PERMANENT: Ending = Ending::Failed { retryable: false, retry_after_ms: None, reason: None };

async fn run(own: std::sync::Arc<dyn crate::Executor>, task: Claimed) -> Report {
    let worker = start(options(), own);
    worker.store.submit([task]);
    worker.store.until("settled", |state| state.settled.len() == 1).await;
    worker.store.state().settled[0].clone()
}

struct Adder;

#[derive(Deserialize)]
struct Terms {
    a: i64,
    b: i64,
}

#[derive(Serialize)]
struct Sum {
    sum: i64,
}

impl Handler for Adder {
    type Input = Terms;
    type Output = Sum;

    async fn run(&self, _: Context, terms: Terms) -> Result<Sum, HandlerError> {
        Ok(Sum { sum: terms.a + terms.b })
    }
}

#[tokio::test(start_paused = true)]
async fn a_typed_handler_gets_and_returns_types_and_bad_input_fails_for_good() {
    let report = run(typed(Adder), task(1, "own", r#"{"a":1,"b":2}"#)).await;
    assert_eq!((report.ending, report.result.as_deref()), (Ending::Completed, Some(r#"{"sum":3}"#)));
    let report = run(typed(Adder), task(1, "own", r#"{"a":1}"#)).await;
    let error = report.error.unwrap();
    assert_eq!((report.ending, error.kind.as_str(), error.retryable), (PERMANENT, "bad_input", false));
    assert!(error.message.contains("missing field `b`"), "{}", error.message);
}

#[tokio::test(start_paused = true)]
async fn the_built_ins_do_what_they_say() {
    let again = |attempt| Claimed { attempt, ..task(1, "fail", r#"{"times":2}"#) };
    for (task, ending, result) in [
        (
            task(1, "echo", "[1.0, 1e400,\"\\ud83d\\ude00\" ]"),
            Ending::Completed,
            Some("[1.0, 1e400,\"\\ud83d\\ude00\" ]"),
        ),
        (task(1, "sleep", r#"{"ms":25}"#), Ending::Completed, Some(r#"{"slept_ms":25}"#)),
        (task(1, "sleep", "null"), PERMANENT, None),
        (task(1, "fail", "null"), TRANSIENT, None),
        (task(1, "fail", "{}"), TRANSIENT, None),
        (task(1, "fail", r#"{"permanent":true}"#), PERMANENT, None),
        (task(1, "fail", "7"), PERMANENT, None),
        (again(1), TRANSIENT, None),
        (again(2), TRANSIENT, None),
        (again(3), Ending::Completed, Some(r#"{"attempt":3}"#)),
    ] {
        let what = format!("{} {} at {}", task.kind, task.payload, task.attempt);
        let report = run(nothing(), task).await;
        assert_eq!((report.ending, report.result.as_deref()), (ending, result), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn errors_say_what_should_happen_next() {
    let after = Duration::from_millis(1_500);
    for (error, ending) in [
        (HandlerError::permanent("x", "y"), PERMANENT),
        (HandlerError::transient("x", "y"), TRANSIENT),
        (
            HandlerError::transient_after("x", "y", after),
            Ending::Failed { retryable: true, retry_after_ms: Some(1_500), reason: None },
        ),
        (HandlerError::snooze(after), Ending::Snoozed { after_ms: 1_500 }),
    ] {
        let own = executor(move |_| std::future::ready(Err(error.clone())));
        assert_eq!(run(own, task(1, "own", "null")).await.ending, ending);
    }
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_that_may_be_tried_again_wherever_it_happens() {
    let at_once = executor(|_| -> std::future::Ready<Result<String, HandlerError>> { panic!("boom {}", 1) });
    let report = run(at_once, task(1, "own", "null")).await;
    let error = report.error.unwrap();
    assert_eq!((report.ending, error.kind.as_str(), error.message.as_str()), (TRANSIENT, "panic", "boom 1"));

    let in_drop = executor(|_| {
        let bomb = Bomb;
        async move {
            let _bomb = bomb;
            std::future::pending::<Result<String, HandlerError>>().await
        }
    });
    let late = Claimed { remaining: Duration::from_millis(500), ..task(1, "own", "null") };
    let worker = start(crate::WorkerOptions { slots: 1, ..options() }, in_drop);
    worker.store.submit([late]);
    worker.store.until("settled", |state| state.settled.len() == 1).await;
    assert_eq!(worker.store.endings(1), [TRANSIENT]);
    worker.store.submit([task(2, "echo", "1")]);
    worker.store.until("the slot is free again", |state| state.settled.len() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_context_knows_its_run() {
    let own = executor(|ctx: Context| async move {
        let budget = serde_json::to_string(&ctx.budget()).unwrap();
        ctx.record_usage(Cost { tokens: 7, usd_micros: 9 });
        Ok(format!(
            r#"["{}","{}",{},{},{},{},{budget}]"#,
            ctx.task_id(),
            ctx.tenant(),
            ctx.fence().0,
            ctx.attempt(),
            ctx.deadline_epoch_ms(),
            ctx.remaining().as_millis(),
        ))
    });
    let report = run(own, Claimed { attempt: 2, ..task(1, "own", "null") }).await;
    let expected = concat!(
        r#"["00000000-0000-0000-0000-000000000001","default",1,2,1790000000000,299950,"#,
        r#"{"remaining_s":299.95,"depth":2,"fanout":4}]"#
    );
    assert_eq!(report.result.as_deref(), Some(expected));
    assert_eq!(report.usage, Some(Cost { tokens: 7, usd_micros: 9 }));
}

#[tokio::test(start_paused = true)]
async fn progress_travels_after_a_heartbeat_until_it_has_arrived_and_no_lease_hangs_on_it() {
    let own = executor(|ctx: Context| async move {
        assert!(matches!(ctx.progress(&"x".repeat(5_000)), Err(ProgressError::TooLarge)));
        ctx.progress(&[1, 2]).unwrap();
        std::future::pending().await
    });
    let worker = start(options(), own);
    worker.store.submit([task(1, "own", "null")]);
    worker.store.state().progress_plan = Some(Plan::Hang);
    worker.store.until("four heartbeats", |state| state.beats.len() >= 4).await;
    let state = worker.store.state();
    let said: Vec<_> = state.progress.iter().map(|progress| progress.text.as_ref()).collect();
    assert_eq!((said, state.sessions.len()), (vec!["[1,2]"], 1));
    assert!(state.beats.windows(2).all(|pair| pair[1] - pair[0] <= Duration::from_millis(5_010)), "a late heartbeat");
}
