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

/// What a task's status comes to: one that ended otherwise than completed has failed, one that has not ended has not.
pub(super) fn exit_of(task: &Task) -> Exit {
    match task.status {
        tidegate_client::Status::Completed => Exit::Done,
        status if status.is_final() => Exit::Failed,
        _ => Exit::Done,
    }
}

/// Tells who waited in vain that it is not over: the exit code says only that nothing failed.
pub(super) fn tell_if_it_goes_on(task: &Task) {
    if !task.status.is_final() {
        let (id, status) = (task.id, task.status);
        eprintln!("tidegate: task {id} has not ended yet ({status}); wait for it with: tidegate get {id} --wait");
    }
}
