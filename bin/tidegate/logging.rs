//! Where log lines go and how they look: standard error, since standard output belongs to answers.

use std::io::{self, IsTerminal, Write};

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
    let builder = fmt().with_env_filter(filter).log_internal_errors(false).with_writer(|| Forgiving(io::stderr()));
    let started = if json {
        builder.json().flatten_event(true).with_current_span(false).try_init()
    } else {
        builder.with_ansi(terminal).with_target(false).try_init()
    };
    started.map_err(|error| bad("log", None, &error))
}

/// Standard error whose reader may have gone, or whose disk may be full. A log line that cannot be written is dropped: it
/// must never end the task that wrote it.
struct Forgiving(io::Stderr);

impl Write for Forgiving {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _lost = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _lost = self.0.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_cannot_be_written_is_dropped_without_an_error() {
        let mut log = Forgiving(io::stderr());
        assert_eq!(log.write(b"").ok(), Some(0));
        assert!(log.flush().is_ok());
    }
}
