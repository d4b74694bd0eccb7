//! What a check found.

use serde::Serialize;

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) detail: String,
    /// What to do about it; where there is something to do.
    pub(super) fix: Option<String>,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// Fit.
    Ok,
    /// It works, and may hurt later.
    Warn,
    /// It does not work, or is not safe.
    Fail,
}

impl Verdict {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

impl Finding {
    pub(super) fn ok(check: &'static str, detail: impl ToString) -> Self {
        Self { check, verdict: Verdict::Ok, detail: detail.to_string(), fix: None }
    }

    pub(super) fn warn(check: &'static str, detail: impl ToString, fix: &str) -> Self {
        Self { check, verdict: Verdict::Warn, detail: detail.to_string(), fix: Some(fix.to_owned()) }
    }

    pub(super) fn fail(check: &'static str, detail: impl ToString, fix: &str) -> Self {
        Self { check, verdict: Verdict::Fail, detail: detail.to_string(), fix: Some(fix.to_owned()) }
    }
}
