//! What all commands that talk to a server have in common.

use std::future::Future;

use tidegate_client::{Client, Error, TaskId};

use crate::cli::{Connection, Global};
use crate::exit::Failure;
use crate::terminal::Output;

/// The client that the command line asks for.
pub(crate) fn connect(global: &Global, connection: &Connection) -> Result<Client, Failure> {
    let mut builder = Client::builder(&global.url);
    // A variable that is set to nothing is no key.
    if let Some(key) = global.api_key.as_ref().filter(|key| !key.reveal().is_empty()) {
        builder = builder.key(key.reveal());
    }
    if let Some(tenant) = &connection.tenant {
        builder = builder.tenant(tenant);
    }
    Ok(builder.build()?)
}

/// The client of a command that acts on the whole cell: for no tenant.
pub(crate) fn connect_as_operator(global: &Global) -> Result<Client, Failure> {
    connect(global, &Connection { tenant: None })
}

/// Runs a command's calls to their end.
pub(crate) fn block_on<T>(calls: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::other("cannot start", error))?;
    runtime.block_on(calls)
}

/// A task's id as it was typed.
pub(crate) fn task_id(text: &str) -> Result<TaskId, Failure> {
    text.parse().map_err(|_| Failure::Usage(format!("{text:?} is not the id of a task")))
}

/// Refuses a label that was given twice: which of the two is meant nobody can know.
pub(crate) fn check_labels(labels: &[(String, String)]) -> Result<(), Failure> {
    for (at, (name, _)) in labels.iter().enumerate() {
        if labels[..at].iter().any(|(before, _)| before == name) {
            return Err(Failure::Usage(format!("the label {name:?} is given twice; give each once")));
        }
    }
    Ok(())
}

/// With `--json`, what the server said against it is an answer too.
pub(crate) fn show_problem(error: Error, output: &mut Output) -> Failure {
    let problem = match &error {
        Error::Refused(refusal) => Some(refusal.problem()),
        Error::Problem(problem) => Some(&**problem),
        _ => None,
    };
    if let Some(problem) = problem.filter(|_| output.wants_json()) {
        let shown = serde_json::to_string(problem)
            .map_err(|error| Failure::other("cannot print the problem", error))
            .and_then(|json| output.json_line(&json));
        if let Err(failure) = shown {
            return failure;
        }
    }
    error.into()
}
