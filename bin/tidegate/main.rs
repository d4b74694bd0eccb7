//! Tidegate: a durable priority task queue and worker system.

mod bench;
mod cli;
mod commands;
mod config;
mod exit;
mod logging;
mod postgres;
mod roles;
mod terminal;

use std::process::ExitCode;

use cli::{Cli, Command, Global};
use config::Config;
use exit::Failure;
use terminal::{Output, safe};
use tidegate_client::Named;

/// A task at the door is a few dozen small allocations, made on one thread and often freed on another: the system's
/// allocator spends a seventh of the server's time on them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // One TLS provider for everything in the process; an error means that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = Cli::read(cli::join_wait(std::env::args_os()));
    match run(cli) {
        Ok(code) => code,
        Err(failure) => {
            let text = failure.to_string();
            let lines: Vec<_> = text.lines().map(safe).collect();
            eprintln!("tidegate: {}", lines.join("\n"));
            failure.exit().into()
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let Cli { global, command } = cli;
    let mut output = Output::stdout(global.json);
    let exit = match command {
        Command::Config(arguments) => commands::config::run(&load(&global)?, &arguments, &mut output),
        Command::Completions { shell } => commands::completions::run(shell, &mut output),
        Command::Openapi => commands::openapi::run(&mut output),
        Command::Doctor(arguments) => commands::doctor::run(&global, &arguments, &mut output),
        Command::Submit(arguments) => commands::submit::run(&global, arguments, &mut output),
        Command::Get(arguments) => commands::get::run(&global, &arguments, &mut output),
        Command::Explain(arguments) => commands::explain::run(&global, &arguments, &mut output),
        Command::List(arguments) => commands::list::run(&global, &arguments, &mut output),
        Command::Cancel(arguments) => commands::cancel::run(&global, &arguments, &mut output),
        Command::Limits(arguments) => commands::policy::limits(&global, &arguments, &mut output),
        Command::Tenant(arguments) => commands::policy::named(&global, Named::Tenant, &arguments, &mut output),
        Command::Peer(arguments) => commands::policy::named(&global, Named::Peer, &arguments, &mut output),
        Command::Pause(arguments) => commands::pause::pause(&global, &arguments, &mut output),
        Command::Resume(arguments) => commands::pause::resume(&global, &arguments, &mut output),
        Command::Pauses => commands::pause::list(&global, &mut output),
        Command::Workers(arguments) => commands::workers::run(&global, &arguments, &mut output),
        Command::Audit(arguments) => commands::audit::run(&global, &arguments, &mut output),
        Command::Size(arguments) => commands::size::run(&arguments, &mut output),
        Command::Bench(arguments) => bench::run(&global, &arguments, &mut output),
        Command::Up(arguments) => roles::up(load(&global)?, &arguments, &mut output),
        Command::Serve(arguments) => roles::serve(load(&global)?, &arguments),
        Command::Worker(arguments) => roles::worker(load(&global)?, &arguments),
        Command::Keeper(arguments) => roles::keeper(&load(&global)?, &arguments),
        Command::Migrate(arguments) => roles::migrate(&load(&global)?, &arguments, &mut output),
        Command::DevPostgres(arguments) => return roles::dev_postgres(&arguments),
    }?;
    Ok(exit.into())
}

/// The configuration of a command that runs something.
fn load(global: &Global) -> Result<Config, Failure> {
    let mut config = Config::load(&global.config, std::env::vars_os())?;
    if let Some(format) = global.log_format {
        config.log.format = format;
    }
    Ok(config)
}
