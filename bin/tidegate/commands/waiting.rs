//! Waiting for a task to end, by long-polls.

use std::time::{Duration, Instant};

use tidegate_client::{Answer, Client, Error, Task, TaskId};

use crate::cli::Wait;
use crate::exit::Exit;

/// The longest that the server holds one long-poll.
const LONGEST_POLL: Duration = Duration::from_secs(60);
/// The least time between two polls, so that a server which does not hold them is not flooded.
const LEAST_POLL: Duration = Duration::from_millis(500);
/// Polls that may fail in a row: a server that restarts is back by then.
const MAX_BROKEN_POLLS: u32 = 10;

/// Waits until the task ends or the time is up, and gives the task as it then stands. Reading changes nothing, so a
/// poll that broke is made again.
pub(super) async fn until_it_ends(client: &Client, id: TaskId, wait: Wait) -> Result<Answer<Task>, Error> {
    let started = Instant::now();
    let mut broken = 0;
    loop {
        let left = match wait {
            Wait::UntilItEnds => LONGEST_POLL,
            Wait::AtMost(most) => most.saturating_sub(started.elapsed()),
        };
        let polled = Instant::now();
        match client.get_wait(id, left.min(LONGEST_POLL)).await {
            Ok(task) if task.status.is_final() || left.is_zero() => return Ok(task),
            Ok(_) => broken = 0,
            Err(error) if !may_pass(&error) || broken == MAX_BROKEN_POLLS || left.is_zero() => return Err(error),
            Err(_) => broken += 1,
        }
        tokio::time::sleep(LEAST_POLL.saturating_sub(polled.elapsed()).min(left)).await;
    }
}

/// Whether another try may find the server in a better state.
fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Unreachable { .. } | Error::NoAnswer { .. } | Error::Refused(_))
}

/// What a task's status comes to. A task that has not ended is done as far as submitting or reading it goes, but not
/// where its end was waited for.
pub(super) fn exit_of(task: &Task, waited: bool) -> Exit {
    match task.status {
        tidegate_client::Status::Completed => Exit::Done,
        status if status.is_final() || waited => Exit::Failed,
        _ => Exit::Done,
    }
}
