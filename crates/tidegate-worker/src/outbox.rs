//! The reports that wait for a turn.

use std::collections::VecDeque;

use tidegate_core::settlement::Ending;
use tidegate_core::{Fence, Reason, TaskId};
use tidegate_store::{Report, TaskError};

/// The most bytes of results and errors that one turn carries (a larger single one goes alone). More would hold the
/// cell's lock for too long, and memory twice.
const MAX_TURN_BYTES: usize = 4 * 1_024 * 1_024;

/// What has been reported and not settled. Holds at most one report for each slot, since a slot's next task is claimed
/// by the turn that takes its report or a later one.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: VecDeque<Report>,
    /// So many at the front go one by one: they were in a turn of which a value was refused, nobody knows whose.
    alone: usize,
}

/// What to do about a refused value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Go on: the reports are in the outbox again, in a form that may pass.
    Again,
    /// Nothing of these reports is left that could be refused, and yet it was.
    Hopeless,
}

impl Outbox {
    pub(crate) fn push(&mut self, report: Report) {
        self.waiting.push_back(report);
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the next turn carries one report, of which it is not known whether it can be stored.
    pub(crate) fn is_suspicious(&self) -> bool {
        self.alone > 0
    }

    /// What the next turn carries, oldest first.
    pub(crate) fn take(&mut self) -> Vec<Report> {
        if self.alone > 0 {
            self.alone -= 1;
            return self.waiting.pop_front().into_iter().collect();
        }
        let mut bytes = 0;
        let mut count = 0;
        for report in &self.waiting {
            bytes += size(report);
            if count > 0 && bytes > MAX_TURN_BYTES {
                break;
            }
            count += 1;
        }
        self.waiting.drain(..count).collect()
    }

    /// The turn did not happen, or nobody knows: the same again, later.
    pub(crate) fn put_back(&mut self, reports: Vec<Report>) {
        if self.alone > 0 {
            self.alone += reports.len();
        }
        reports.into_iter().rev().for_each(|report| self.waiting.push_front(report));
    }

    /// A value of these reports was refused. Several are tried one by one; a single one gives up its result.
    pub(crate) fn refused(&mut self, mut reports: Vec<Report>) -> Refusal {
        if let [only] = &mut reports[..] {
            if only.ending == STRIPPED {
                return Refusal::Hopeless;
            }
            tracing::error!(task.id = %only.id, "the store refused what a task returned: it ends FAILED");
            strip(only);
        }
        self.alone += reports.len();
        reports.into_iter().rev().for_each(|report| self.waiting.push_front(report));
        Refusal::Again
    }

    /// The leases of the tasks whose reports wait.
    pub(crate) fn leases(&self) -> impl Iterator<Item = (TaskId, Fence)> {
        self.waiting.iter().map(|report| (report.id, report.fence))
    }
}

/// How a task ends whose report could not be stored.
const STRIPPED: Ending =
    Ending::Failed { retryable: false, retry_after_ms: None, reason: Some(Reason::OutputRejected) };

fn strip(report: &mut Report) {
    report.ending = STRIPPED;
    report.result = None;
    report.usage = None;
    report.error = Some(TaskError {
        kind: "output_rejected".to_owned(),
        message: "the store refused a value of the result".to_owned(),
        retryable: false,
    });
}

fn size(report: &Report) -> usize {
    let error = report.error.as_ref().map_or(0, |error| error.message.len());
    report.result.as_ref().map_or(0, String::len) + error
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::backoff::BackoffPolicy;
    use uuid::Uuid;

    fn report(number: u128, bytes: usize) -> Report {
        Report {
            id: TaskId(Uuid::from_u128(number)),
            fence: Fence(1),
            ending: Ending::Completed,
            result: Some("x".repeat(bytes)),
            error: None,
            usage: None,
            backoff: BackoffPolicy::default(),
        }
    }

    fn numbers(reports: &[Report]) -> Vec<u128> {
        reports.iter().map(|report| report.id.0.as_u128()).collect()
    }

    fn filled(reports: impl IntoIterator<Item = Report>) -> Outbox {
        let mut outbox = Outbox::default();
        reports.into_iter().for_each(|report| outbox.push(report));
        outbox
    }

    #[test]
    fn a_turn_carries_what_waits_up_to_a_size_and_at_least_one() {
        let mut outbox = filled([report(1, 10), report(2, MAX_TURN_BYTES), report(3, 10)]);
        assert_eq!(numbers(&outbox.take()), [1]);
        assert_eq!(numbers(&outbox.take()), [2]);
        assert_eq!(numbers(&outbox.take()), [3]);
        assert!(outbox.take().is_empty());
    }

    #[test]
    fn what_is_put_back_goes_first_in_its_order() {
        let mut outbox = filled([report(1, 1), report(2, 1)]);
        let taken = outbox.take();
        outbox.push(report(3, 1));
        outbox.put_back(taken);
        assert_eq!(numbers(&outbox.take()), [1, 2, 3]);
    }

    #[test]
    fn after_a_refusal_each_goes_alone_and_the_guilty_one_loses_its_result() {
        let mut outbox = filled([report(1, 1), report(2, 1), report(3, 1)]);
        let taken = outbox.take();
        assert_eq!(outbox.refused(taken), Refusal::Again);
        outbox.push(report(4, 1));
        assert_eq!(numbers(&outbox.take()), [1]);
        let guilty = outbox.take();
        assert_eq!(numbers(&guilty), [2]);
        assert_eq!(outbox.refused(guilty), Refusal::Again);
        let stripped = outbox.take();
        assert_eq!((numbers(&stripped), stripped[0].result.as_ref()), (vec![2], None));
        assert_eq!(outbox.refused(stripped), Refusal::Hopeless);
        assert!(outbox.is_suspicious());
        assert_eq!(numbers(&outbox.take()), [3]);
        assert_eq!(numbers(&outbox.take()), [4]);
    }
}
