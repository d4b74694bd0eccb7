//! Where log lines go and how they look: standard error, since standard output belongs to answers.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use crate::config::{ConfigError, Log, LogFormat, Problem};

/// Starts logging. `RUST_LOG` goes before the configured level.
pub(crate) fn start(log: &Log) -> Result<(), ConfigError> {
    let bad = |key: &str, origin: Option<String>, error: &dyn std::fmt::Display| {
        ConfigError::from(Problem::new(key, origin, &error.to_string()))
    };
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => {
            let origin = Some("environment, RUST_LOG".to_owned());
            EnvFilter::try_new(text).map_err(|error| bad("", origin, &error))?
        }
        _ => EnvFilter::try_new(&log.level).map_err(|error| bad("log.level", None, &error))?,
    };
    let terminal = io::stderr().is_terminal();
    let json = match log.format {
        LogFormat::Json => true,
        LogFormat::Human => false,
        LogFormat::Auto => !terminal,
    };
    let builder = fmt().with_env_filter(filter).with_writer(io::stderr);
    let started = if json {
        builder.json().flatten_event(true).with_current_span(false).try_init()
    } else {
        builder.with_ansi(terminal).with_target(false).try_init()
    };
    started.map_err(|error| bad("log", None, &error))
}
