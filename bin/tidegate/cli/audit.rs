//! The options of `audit`.

use clap::Args;

/// `audit`.
#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// So many at most.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub(crate) limit: u16,
    /// Go on where the list before ended.
    #[arg(long)]
    pub(crate) cursor: Option<String>,
}
