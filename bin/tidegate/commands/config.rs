//! `tidegate config`.

use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::terminal::{Output, safe};

/// Prints the configuration that is in effect. Secrets replace themselves.
pub(crate) fn run(config: &Config, output: &mut Output) -> Result<Exit, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::other("cannot print the configuration", error);
    if output.wants_json() {
        let json = serde_json::to_string_pretty(config).map_err(|error| failed(&error))?;
        output.json_line(&json)?;
    } else {
        let text = toml::to_string_pretty(config).map_err(|error| failed(&error))?;
        for line in text.lines() {
            output.line(&safe(line))?;
        }
    }
    Ok(Exit::Done)
}
