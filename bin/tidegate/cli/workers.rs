//! The options of `workers`.

use clap::{Args, Subcommand};

/// `workers`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct WorkersArgs {
    #[command(subcommand)]
    pub(crate) command: Option<WorkersCommand>,
    #[command(flatten)]
    pub(crate) page: WorkersPage,
}

/// Which of the workers to list.
#[derive(Debug, Clone, Args)]
pub(crate) struct WorkersPage {
    /// So many at most.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub(crate) limit: u16,
    /// Go on where the list before ended.
    #[arg(long)]
    pub(crate) cursor: Option<String>,
}

/// What to do with workers.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkersCommand {
    /// List those that live, oldest first.
    List(WorkersPage),
    /// Have one take nothing more, finish what it runs and leave.
    Drain {
        /// Its id, as the list shows it.
        id: String,
    },
}
