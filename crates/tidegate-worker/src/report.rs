//! How a run ended, as the store hears it.

use std::time::Duration;

use tidegate_core::backoff::BackoffPolicy;
use tidegate_core::settlement::Ending;
use tidegate_core::{Reason, json};
use tidegate_store::{Claimed, Report, TaskError};

use crate::context::Run;
use crate::handler::{HandlerError, Next};
use crate::registry::KindOptions;
use crate::stop::Cause;

/// The longest error message that is kept, in bytes: enough for a stack of causes, too little for a body.
const MAX_MESSAGE_BYTES: usize = 4_096;
/// The longest error type that is kept, in bytes.
const MAX_ERROR_KIND_BYTES: usize = 128;

/// What came of a run: none if the lease was lost, of which nothing is said.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) ending: Ending,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<TaskError>,
}

/// What a handler did before it stopped.
pub(crate) enum Ended {
    /// It returned.
    Returned(Result<String, HandlerError>),
    /// It panicked.
    Panicked(String),
    /// It was dropped: it did not stop within its grace.
    Dropped,
}

/// What a run comes to, by what its handler did and why it was told to stop.
pub(crate) fn outcome(ended: Ended, cause: Option<Cause>, max_result_bytes: usize) -> Option<Outcome> {
    match (ended, cause) {
        (_, Some(Cause::Lost)) => None,
        // It finished before it obeyed. Whether that was in time is for the store to say.
        (Ended::Returned(Ok(result)), _) => Some(completed(&result, max_result_bytes)),
        (_, Some(cause)) => Some(stopped(cause)),
        (Ended::Returned(Err(error)), None) => Some(failed(error)),
        (Ended::Panicked(message), None) => Some(failed(HandlerError::transient("panic", message))),
        // Nobody told it to stop, yet it was dropped: the runtime is being torn down.
        (Ended::Dropped, None) => Some(stopped(Cause::ShuttingDown)),
    }
}

fn completed(result: &str, max_result_bytes: usize) -> Outcome {
    let rejected =
        |why: String| failed(HandlerError::permanent("output_rejected", why).because(Reason::OutputRejected));
    // Size comes before anything else looks at it.
    if result.len() > max_result_bytes {
        return rejected(format!("the result is larger than {max_result_bytes} bytes"));
    }
    match json::repair(result) {
        Ok(result) => Outcome { ending: Ending::Completed, result: Some(result), error: None },
        Err(error) => rejected(format!("the result cannot be kept: {error}")),
    }
}

pub(crate) fn failed(error: HandlerError) -> Outcome {
    let (ending, retryable) = match error.next {
        Next::Snooze { after } => {
            return Outcome { ending: Ending::Snoozed { after_ms: millis(after) }, result: None, error: None };
        }
        Next::End => (Ending::Failed { retryable: false, retry_after_ms: None, reason: error.reason }, false),
        Next::Retry { after } => {
            let retry_after_ms = after.map(millis);
            (Ending::Failed { retryable: true, retry_after_ms, reason: error.reason }, true)
        }
    };
    Outcome { ending, result: None, error: Some(task_error(&error.kind, &error.message, retryable)) }
}

/// What a run comes to that stopped because it was told to.
pub(crate) fn stopped(cause: Cause) -> Outcome {
    let (ending, error) = match cause {
        Cause::Cancelled => (Ending::Cancelled, None),
        Cause::ShuttingDown | Cause::Lost => (Ending::HandedBack, None),
        Cause::Deadline => (Ending::DeadlineHit, Some(task_error("deadline", "stopped at the task's deadline", false))),
        Cause::AttemptTimeout => {
            (Ending::AttemptTimedOut, Some(task_error("attempt_timeout", "stopped at the attempt's time-out", true)))
        }
    };
    Outcome { ending, result: None, error }
}

fn task_error(kind: &str, message: &str, retryable: bool) -> TaskError {
    TaskError {
        kind: json::repair_text(kind, MAX_ERROR_KIND_BYTES),
        message: json::repair_text(message, MAX_MESSAGE_BYTES),
        retryable,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The report for a task that was claimed though nothing here runs its kind.
pub(crate) fn unasked(claimed: &Claimed) -> Report {
    Report {
        id: claimed.id,
        fence: claimed.fence,
        ending: Ending::HandedBack,
        result: None,
        error: None,
        usage: None,
        backoff: BackoffPolicy::default(),
    }
}

impl Outcome {
    /// The name in metrics.
    pub(crate) fn name(&self) -> &'static str {
        match self.ending {
            Ending::Completed => "completed",
            Ending::Failed { .. } => "failed",
            Ending::AttemptTimedOut | Ending::DeadlineHit => "timed_out",
            Ending::Cancelled => "cancelled",
            Ending::Snoozed { .. } => "snoozed",
            Ending::HandedBack => "handed_back",
            Ending::Lost => "lost",
        }
    }

    /// The report of this outcome.
    pub(crate) fn report(self, run: &Run, options: KindOptions) -> Report {
        Report {
            id: run.claimed.id,
            fence: run.claimed.fence,
            ending: self.ending,
            result: self.result,
            error: self.error,
            usage: run.slot.usage(),
            backoff: options.backoff,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ended: Ended, cause: Option<Cause>) -> Option<Ending> {
        outcome(ended, cause, 16).map(|outcome| outcome.ending)
    }

    fn returned(text: &str) -> Ended {
        Ended::Returned(Ok(text.to_owned()))
    }

    const REJECTED: Ending =
        Ending::Failed { retryable: false, retry_after_ms: None, reason: Some(Reason::OutputRejected) };

    #[test]
    fn what_a_handler_did_and_why_it_was_stopped_make_the_ending() {
        let error = || Ended::Returned(Err(HandlerError::permanent("x", "y")));
        let permanent = Ending::Failed { retryable: false, retry_after_ms: None, reason: None };
        let panic = Ending::Failed { retryable: true, retry_after_ms: None, reason: None };
        for (ended, cause, expected) in [
            (returned("1"), None, Some(Ending::Completed)),
            (returned("1"), Some(Cause::Cancelled), Some(Ending::Completed)),
            (returned("1"), Some(Cause::Deadline), Some(Ending::Completed)),
            (returned("1"), Some(Cause::Lost), None),
            (error(), None, Some(permanent)),
            (error(), Some(Cause::Cancelled), Some(Ending::Cancelled)),
            (error(), Some(Cause::Deadline), Some(Ending::DeadlineHit)),
            (error(), Some(Cause::AttemptTimeout), Some(Ending::AttemptTimedOut)),
            (error(), Some(Cause::ShuttingDown), Some(Ending::HandedBack)),
            (error(), Some(Cause::Lost), None),
            (Ended::Panicked("oh".into()), None, Some(panic)),
            (Ended::Panicked("oh".into()), Some(Cause::Cancelled), Some(Ending::Cancelled)),
            (Ended::Dropped, Some(Cause::Cancelled), Some(Ending::Cancelled)),
            (Ended::Dropped, Some(Cause::ShuttingDown), Some(Ending::HandedBack)),
            (Ended::Dropped, Some(Cause::Lost), None),
        ] {
            assert_eq!(of(ended, cause), expected);
        }
    }

    #[test]
    fn a_result_is_capped_and_then_repaired_or_rejected() {
        assert_eq!(of(returned(&format!("\"{}\"", "x".repeat(14))), None), Some(Ending::Completed));
        assert_eq!(of(returned(&format!("\"{}\"", "x".repeat(15))), None), Some(REJECTED));
        assert_eq!(of(returned("not JSON"), None), Some(REJECTED));
        let repaired = outcome(returned(r#""a\u0000b""#), None, 16).and_then(|outcome| outcome.result);
        assert_eq!(repaired.as_deref(), Some(r#""a\ufffdb""#));
        let deep = outcome(returned(&"[".repeat(10_000)), None, 20_000).map(|outcome| outcome.ending);
        assert_eq!(deep, Some(REJECTED));
        // The same that a payload may have, and one level more.
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(outcome(returned(&nested(64)), None, 200).unwrap().ending, Ending::Completed);
        let deep = outcome(returned(&nested(65)), None, 200).unwrap();
        let said = deep.error.unwrap().message;
        assert!(
            said.starts_with("the result cannot be kept: ") && said.ends_with("is nested deeper than 64 levels"),
            "{said}"
        );
    }

    #[test]
    fn error_texts_are_cut_and_cleaned() {
        let outcome =
            failed(HandlerError::transient_after("k".repeat(500), "\0é".repeat(4_000), Duration::from_secs(2)));
        let error = outcome.error.unwrap();
        assert_eq!((error.kind.len(), error.retryable), (128, true));
        assert!(error.message.starts_with("\u{FFFD}é") && error.message.chars().count() < 3_000);
        let expected = Ending::Failed { retryable: true, retry_after_ms: Some(2_000), reason: None };
        assert_eq!(outcome.ending, expected);
        let snoozed = failed(HandlerError::snooze(Duration::from_millis(70)));
        assert_eq!((snoozed.ending, snoozed.error), (Ending::Snoozed { after_ms: 70 }, None));
    }
}
