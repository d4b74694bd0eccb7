//! `tidegate submit`.

use std::io::Read;

use tidegate_client::NewTask;
use tidegate_core::json;

use super::client::{block_on, check_labels, connect, show_problem, task_id};
use super::task_view::show;
use super::waiting::{exit_of, tell_if_it_goes_on, until_it_ends};
use crate::cli::{AskedPriority, Global, SubmitArgs};
use crate::exit::{Exit, Failure};
use crate::terminal::Output;

/// The largest payload that is read from standard input; the server's own limit is far below.
const MAX_STDIN_BYTES: u64 = 64 << 20;

/// Submits a task, waits for its end where that was asked for, and prints it.
pub(crate) fn run(global: &Global, arguments: SubmitArgs, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global, &arguments.connection)?;
    let wait = arguments.wait;
    let task = new_task(arguments, &mut std::io::stdin())?;
    block_on(async {
        let mut task = client.submit(&task).await.map_err(|error| show_problem(error, output))?;
        if let Some(wait) = wait.filter(|_| !task.status.is_final()) {
            let id = task.id;
            task = until_it_ends(&client, id, wait).await.map_err(|error| {
                let failure = show_problem(error, output);
                Failure::with_exit(failure.exit(), format!("task {id} was accepted, then: {failure}"))
            })?;
        }
        show(&task, output)?;
        if wait.is_some() {
            tell_if_it_goes_on(&task);
        }
        Ok(exit_of(&task))
    })
}

/// The task that the command line describes.
fn new_task(arguments: SubmitArgs, stdin: &mut dyn Read) -> Result<NewTask, Failure> {
    check_labels(&arguments.label)?;
    let mut task = NewTask::new(arguments.kind);
    if let Some(payload) = payload(arguments.payload, stdin)? {
        task = task.payload_json(payload)?;
    }
    task = match arguments.priority {
        Some(AskedPriority::Number(priority)) => task.priority(priority.get()),
        Some(AskedPriority::Class(class)) => task.class(class),
        None => task,
    };
    if arguments.cost_tokens.is_some() || arguments.cost_usd_micros.is_some() {
        task = task.cost(arguments.cost_tokens.unwrap_or(0), arguments.cost_usd_micros.unwrap_or(0));
    }
    if let Some(parent) = arguments.parent {
        task = task.parent(task_id(&parent)?);
    }
    task = given(task, arguments.timeout, NewTask::timeout);
    task = given(task, arguments.deadline, NewTask::deadline);
    task = given(task, arguments.delay, NewTask::delay);
    task = given(task, arguments.not_before, NewTask::not_before);
    task = given(task, arguments.min_useful, NewTask::min_useful);
    task = given(task, arguments.attempt_timeout, NewTask::attempt_timeout);
    task = given(task, arguments.max_attempts, NewTask::max_attempts);
    task = given(task, arguments.idempotency_key, NewTask::idempotency_key);
    task = given(task, arguments.token, NewTask::cancellation_token);
    task = given(task, arguments.workflow, NewTask::workflow);
    task = given(task, arguments.peer, NewTask::peer);
    Ok(arguments.label.into_iter().fold(task, |task, (name, value)| task.label(name, value)))
}

fn given<T>(task: NewTask, value: Option<T>, set: impl FnOnce(NewTask, T) -> NewTask) -> NewTask {
    match value {
        Some(value) => set(task, value),
        None => task,
    }
}

/// The payload, checked here already: a slip of quoting should say so before anything is sent.
fn payload(typed: Option<String>, stdin: &mut dyn Read) -> Result<Option<String>, Failure> {
    let Some(typed) = typed else { return Ok(None) };
    let from_stdin = typed == "-";
    let payload = if from_stdin { read(stdin)? } else { typed };
    match json::check(&payload, json::MAX_DEPTH) {
        Ok(()) => Ok(Some(payload)),
        Err(error) if from_stdin => Err(Failure::Usage(format!("standard input is no payload: {error}"))),
        Err(error) => Err(Failure::Usage(format!(
            "{payload:?} is no payload: {error}. Quote it for the shell, as in '{{\"key\": \"value\"}}'"
        ))),
    }
}

fn read(stdin: &mut dyn Read) -> Result<String, Failure> {
    let mut payload = String::new();
    let read = stdin
        .take(MAX_STDIN_BYTES + 1)
        .read_to_string(&mut payload)
        .map_err(|error| Failure::Usage(format!("standard input cannot be read: {error}")))?;
    if read as u64 > MAX_STDIN_BYTES {
        return Err(Failure::Usage(format!("standard input holds more than {MAX_STDIN_BYTES} bytes")));
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_comes_from_the_line_or_from_standard_input_as_it_is() {
        let typed = |text: &str| payload(Some(text.to_owned()), &mut "{\"a\": 1.50}\n".as_bytes());
        assert_eq!(typed("[1]").unwrap().as_deref(), Some("[1]"));
        assert_eq!(typed("-").unwrap().as_deref(), Some("{\"a\": 1.50}\n"));
        assert_eq!(payload(None, &mut std::io::empty()).unwrap(), None);
        for bad in ["{a: 1}", "", "{\"a\": \"\\u0000\"}"] {
            assert!(matches!(typed(bad), Err(Failure::Usage(_))), "{bad}");
        }
        assert!(matches!(payload(Some("-".to_owned()), &mut [0xFF_u8].as_slice()), Err(Failure::Usage(_))));
    }
}
