//! What can go wrong with the store, one variant for each thing the caller does differently.

use tidegate_core::TaskId;
use tidegate_core::merge_patch::BadValue;

/// An operation on the store that failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database could not be reached, or did not answer in time. Nothing was changed.
    #[error("the database cannot be reached")]
    Unavailable(#[source] Option<sqlx::Error>),
    /// The connection broke during COMMIT: nobody knows whether the change was made.
    #[error("the connection broke while committing")]
    OutcomeUnknown(#[source] Option<sqlx::Error>),
    /// Another transaction was in the way: the whole transaction can be tried again.
    #[error("another transaction was in the way")]
    Busy(#[source] sqlx::Error),
    /// The database refused a value.
    #[error("the database refused a value")]
    Data(#[source] sqlx::Error),
    /// The session's row is gone or expired: its leases are not its own any more.
    #[error("the worker's session was lost")]
    SessionLost,
    /// The tables are not those that this program knows.
    #[error("the database's tables are not those that this version needs: {0}")]
    Schema(String),
    /// The connection URL makes no sense.
    #[error("not a usable database URL")]
    BadUrl(#[source] sqlx::Error),
}

/// A submission that got no answer from the door.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// The database could not be reached. Nothing was accepted.
    #[error("the database cannot be reached: nothing was accepted")]
    Unavailable,
    /// The connection broke while committing: the task may or may not be there.
    #[error("the connection broke while committing: read task {0} to find out")]
    OutcomeUnknown(TaskId),
    /// More submissions are waiting for their decision than this process holds, or than the database decides in time.
    #[error("too many submissions are waiting for their decision")]
    Overloaded,
    /// A submission with the same key is still being decided.
    #[error("a submission with the same key is still being decided")]
    KeyInFlight,
    /// This process is shutting down.
    #[error("this server is shutting down")]
    Draining,
    /// The database refused a value of this submission.
    #[error("the database refused a value")]
    Invalid,
}

/// A change of the policy that was not made.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// It cannot be meant: nothing was changed.
    #[error(transparent)]
    Bad(#[from] BadValue),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let code = match &error {
            sqlx::Error::Database(database) => database.code().map(|code| code.into_owned()),
            sqlx::Error::Configuration(_) => return Self::BadUrl(error),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
                return Self::Schema(error.to_string());
            }
            _ => return Self::Unavailable(Some(error)),
        };
        match code.as_deref() {
            Some("40001" | "40P01" | "55P03" | "57014") => Self::Busy(error),
            Some("42P01" | "42703" | "3F000" | "42883" | "0A000") => Self::Schema(error.to_string()),
            Some(code) if code.starts_with("22") || code.starts_with("23") || code == "54000" || code == "TG001" => {
                Self::Data(error)
            }
            _ => Self::Unavailable(Some(error)),
        }
    }
}

impl StoreError {
    /// Whether trying the whole operation again may help at once.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Busy(_) | Self::OutcomeUnknown(_))
    }
}
