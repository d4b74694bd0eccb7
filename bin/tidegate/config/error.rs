//! What is wrong with a configuration, named so that it can be found and mended.

use std::fmt;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    key: String,
    origin: Option<String>,
    what: String,
}

/// A configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigError {
    problems: Vec<Problem>,
}

impl Problem {
    /// A problem at a dotted key (empty: none in particular), and where its value came from.
    pub(crate) fn new(key: &str, origin: Option<String>, what: &str) -> Self {
        Self { key: key.to_owned(), origin, what: what.to_owned() }
    }
}

impl ConfigError {
    /// All that is wrong at once, or `Ok` where nothing is.
    pub(crate) fn unless_empty(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self { problems }) }
    }
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.key.as_str(), &self.origin) {
            ("", None) => write!(f, "{}", self.what),
            ("", Some(origin)) => write!(f, "{origin}: {}", self.what),
            (key, None) => write!(f, "{key}: {}", self.what),
            (key, Some(origin)) => write!(f, "{key} ({origin}): {}", self.what),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration cannot be used")?;
        for problem in &self.problems {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
