//! What keeps running: the parts of the program, each as a process of its own or all in one.

mod shutdown;

use crate::cli::{DevPostgresArgs, KeeperArgs, MigrateArgs, ServeArgs, UpArgs, WorkerArgs};
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::terminal::Output;

fn unassembled() -> Result<Exit, Failure> {
    Err(Failure::Other("waits for the API, the store and the worker".to_owned()))
}

/// Everything in one process.
pub(crate) fn up(_: &Config, _: &UpArgs, _: &mut Output) -> Result<Exit, Failure> {
    unassembled()
}

/// The API.
pub(crate) fn serve(_: &Config, _: &ServeArgs) -> Result<Exit, Failure> {
    unassembled()
}

/// The worker.
pub(crate) fn worker(_: &Config, _: &WorkerArgs) -> Result<Exit, Failure> {
    unassembled()
}

/// The keeper.
pub(crate) fn keeper(_: &Config, _: &KeeperArgs) -> Result<Exit, Failure> {
    unassembled()
}

/// The schema.
pub(crate) fn migrate(_: &Config, _: &MigrateArgs) -> Result<Exit, Failure> {
    unassembled()
}

/// A command beside a throw-away Postgres. Ends with the command's own exit code.
pub(crate) fn dev_postgres(arguments: &DevPostgresArgs) -> Result<std::process::ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::other("cannot start", error))?;
    let run = crate::postgres::dev::run(arguments.data_dir.clone(), arguments.pg_bin.clone(), &arguments.command);
    let code = runtime.block_on(run).map_err(|error| Failure::Other(error.to_string()))?;
    Ok(u8::try_from(code).map_or(std::process::ExitCode::FAILURE, std::process::ExitCode::from))
}
