//! How the program ends.

use std::process::ExitCode;

use crate::config::{ConfigError, OpenToAll};

/// The exit codes; scripts depend on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Done = 0,
    /// The task ended otherwise than completed, or something went wrong.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// Admission said no.
    Refused = 3,
    /// The server or the database could not be reached.
    Unreachable = 4,
    /// The configuration is wrong.
    BadConfig = 64,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server would be open to everybody.
    #[error(transparent)]
    OpenToAll(#[from] OpenToAll),
    /// What was typed cannot be meant.
    #[error("{0}")]
    Usage(String),
    /// The server or the database could not be reached.
    #[error("{0}")]
    Unreachable(String),
    /// A call to the server failed.
    #[error(transparent)]
    Client(#[from] tidegate_client::Error),
    /// There is no Postgres to stand on.
    #[error(transparent)]
    Postgres(#[from] crate::postgres::PostgresError),
    /// Something went wrong.
    #[error("{0}")]
    Other(String),
    /// A failure that was explained further and ends with the same code.
    #[error("{1}")]
    Explained(Exit, String),
}

impl Failure {
    /// Something that went wrong while doing `what`.
    pub(crate) fn other(what: &str, error: impl std::fmt::Display) -> Self {
        Self::Other(format!("{what}: {error}"))
    }

    /// A failure in other words.
    pub(crate) fn with_exit(exit: Exit, text: String) -> Self {
        Self::Explained(exit, text)
    }

    /// The code it ends with.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Config(_) | Self::OpenToAll(_) => Exit::BadConfig,
            Self::Usage(_) => Exit::Usage,
            Self::Unreachable(_) => Exit::Unreachable,
            Self::Client(error) => exit_of_call(error),
            Self::Explained(exit, _) => *exit,
            Self::Postgres(_) | Self::Other(_) => Exit::Failed,
        }
    }
}

/// What a call that failed comes to. A value that the server cannot take was typed here, so it counts as usage.
fn exit_of_call(error: &tidegate_client::Error) -> Exit {
    use tidegate_client::Error;
    match error {
        Error::Refused(_) => Exit::Refused,
        Error::Unreachable { .. } | Error::NoAnswer { .. } => Exit::Unreachable,
        Error::Problem(problem) if matches!(problem.status, 400 | 413 | 415 | 422) => Exit::Usage,
        Error::Invalid(_) => Exit::Usage,
        _ => Exit::Failed,
    }
}
