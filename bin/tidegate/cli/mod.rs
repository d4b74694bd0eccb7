//! The command line: what can be typed.

mod audit;
mod bench;
mod client;
mod duration;
mod operator;
mod role;
mod wait;
mod workers;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{LogFormat, Secret};

pub(crate) use audit::AuditArgs;
pub(crate) use bench::{
    BareArgs, BenchArgs, BenchCommand, ClaimBenchArgs, ClaimersBenchArgs, GroundArgs, HttpBenchArgs, OverloadBenchArgs,
    PickupBenchArgs, SnapshotBenchArgs, StoreBenchArgs,
};
pub(crate) use client::{AskedPriority, CancelArgs, Connection, ExplainArgs, GetArgs, ListArgs, SubmitArgs};
pub(crate) use operator::{
    ConfigArgs, LimitsArgs, LimitsCommand, NamedArgs, NamedCommand, PauseArgs, ResumeArgs, Setting, SizeArgs, patch_of,
};
pub(crate) use role::{Database, DevPostgresArgs, DoctorArgs, KeeperArgs, MigrateArgs, ServeArgs, UpArgs, WorkerArgs};
pub(crate) use wait::{Wait, join_wait};
pub(crate) use workers::{WorkersArgs, WorkersCommand, WorkersPage};

/// Where a server is looked for.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// The exit codes, as the help shows them.
const EXIT_CODES: &str = "\
Exit codes:
  0   done; with --wait also where the task has not ended when the time is up
  1   the task ended otherwise, or something went wrong
  2   the command line is wrong
  3   refused by admission
  4   not reachable (the server, or the database)
  64  the configuration is wrong";

/// A durable priority task queue and worker system on Postgres.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, about, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// What was typed, and what the environment says beside it. Ends the process where that makes no sense.
    pub(crate) fn read(line: impl IntoIterator<Item = OsString>) -> Self {
        let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
        let mut command = without(Self::command(), &is_empty);
        let matches = command.try_get_matches_from_mut(line).unwrap_or_else(|error| error.exit());
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
    }
}

/// The same command without the environment variables that are empty: they count as not set.
fn without(command: clap::Command, is_empty: &dyn Fn(&OsStr) -> bool) -> clap::Command {
    let command = command.mut_args(|argument| match argument.get_env().is_some_and(is_empty) {
        true => argument.env(Resettable::Reset),
        false => argument,
    });
    command.mut_subcommands(|command| without(command, is_empty))
}

/// What every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// A configuration file; may be given several times, later ones win.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Vec<PathBuf>,
    /// Print the server's JSON instead of text for people.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The server that client commands talk to.
    #[arg(long, global = true, value_name = "URL", env = "TIDEGATE_URL", default_value = DEFAULT_URL)]
    pub(crate) url: String,
    /// The API key that client commands use.
    #[arg(long, global = true, value_name = "KEY", env = "TIDEGATE_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<Secret>,
    /// How log lines look: auto, human or json; overrides [log] format.
    #[arg(long, global = true, value_name = "FORMAT", hide_possible_values = true)]
    pub(crate) log_format: Option<LogFormat>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run everything in one process, on a Postgres of its own unless one is named.
    Up(UpArgs),
    /// Run the API (and the keeper).
    Serve(ServeArgs),
    /// Run tasks.
    Worker(WorkerArgs),
    /// Run the upkeep: expire, reap, promote, prune.
    Keeper(KeeperArgs),
    /// Bring the database's schema up to date.
    Migrate(MigrateArgs),
    /// Submit a task.
    Submit(SubmitArgs),
    /// Show a task.
    Get(GetArgs),
    /// Tell why a task stands where it stands: what it waits for.
    Explain(ExplainArgs),
    /// List tasks, newest first.
    List(ListArgs),
    /// Cancel a task, or all tasks of a token or workflow.
    Cancel(CancelArgs),
    /// Show or change the limits of the cell.
    Limits(LimitsArgs),
    /// Show or change what tenants may hold.
    Tenant(NamedArgs),
    /// Show or change the limits of downstream dependencies.
    Peer(NamedArgs),
    /// Let nothing of a kind, class, tenant or peer start for a while.
    Pause(PauseArgs),
    /// End a pause.
    Resume(ResumeArgs),
    /// List the pauses that are in effect.
    Pauses,
    /// List the workers that live, or have one finish and leave.
    Workers(WorkersArgs),
    /// List what operators changed, newest first.
    Audit(AuditArgs),
    /// Work out the slots and the queue that a load needs.
    Size(SizeArgs),
    /// Measure how fast it is on this machine, beside plain SQL.
    Bench(BenchArgs),
    /// Print the configuration, without its secrets, and what of it the database has otherwise.
    Config(ConfigArgs),
    /// Check that this machine, the database and the server are fit.
    Doctor(DoctorArgs),
    /// Print the completions of a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the OpenAPI document of the API.
    Openapi,
    /// Run a command beside a throw-away Postgres whose URL is in DATABASE_URL.
    #[command(hide = true)]
    DevPostgres(DevPostgresArgs),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_variable_that_is_empty_is_not_looked_at() {
        fn looked_at(command: &clap::Command) -> Vec<String> {
            let own = command.get_arguments().filter_map(|argument| argument.get_env());
            let own = own.map(|name| name.to_string_lossy().into_owned());
            own.chain(command.get_subcommands().flat_map(looked_at)).collect()
        }
        let all = looked_at(&without(Cli::command(), &|_| false));
        for name in ["TIDEGATE_URL", "TIDEGATE_API_KEY", "DATABASE_URL"] {
            assert!(all.iter().any(|known| known == name), "{name}");
            let left = looked_at(&without(Cli::command(), &|empty| empty == name));
            let rest: Vec<_> = all.iter().filter(|known| *known != name).cloned().collect();
            assert_eq!(left, rest);
        }
        let none = without(Cli::command(), &|_| true).get_matches_from(["tidegate", "limits"]);
        assert_eq!(Cli::from_arg_matches(&none).unwrap().global.url, DEFAULT_URL);
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_has_a_help_text() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
        }
    }

    #[test]
    fn options_may_stand_before_or_after_the_command() {
        for line in [["tidegate", "--json", "config"], ["tidegate", "config", "--json"]] {
            assert!(Cli::try_parse_from(line).unwrap().global.json);
        }
    }
}
