//! `tidegate doctor`: is everything fit, and where not, what mends it.

mod database;
mod finding;
mod machine;
mod server;

use chrono::Utc;

use super::client::block_on;
use crate::cli::{DoctorArgs, Global};
use crate::config::{Config, SecretUrl};
use crate::exit::{Exit, Failure};
use crate::terminal::{Output, safe};

use finding::{Finding, Verdict};

/// Checks everything, prints a line for each check, and fails where a check did.
pub(crate) fn run(global: &Global, arguments: &DoctorArgs, output: &mut Output) -> Result<Exit, Failure> {
    let mut findings = Vec::new();
    let config = match Config::load(&global.config, std::env::vars_os()) {
        Ok(config) => {
            findings.push(configuration(&config));
            Some(config)
        }
        Err(error) => {
            findings.push(Finding::fail(
                "configuration",
                error,
                "mend what is named; docs/configuration.md has all keys",
            ));
            None
        }
    };
    let url = database_url(arguments, config.as_ref());
    findings.extend(machine::check(arguments, config.as_ref(), url.is_none()));
    block_on(async {
        if let Some(url) = &url {
            let asked = Utc::now().timestamp_millis();
            let seen = tidegate_store::inspect(url.reveal()).await;
            let connections = config.as_ref().map_or(0, |config| config.store.max_connections);
            findings.extend(database::judge(url, &seen, connections, (asked, Utc::now().timestamp_millis())));
        }
        findings.push(server::check(global).await);
        Ok(())
    })?;
    show(&findings, output)?;
    let failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// The database that the roles would use, if they would use one that is named.
fn database_url(arguments: &DoctorArgs, config: Option<&Config>) -> Option<SecretUrl> {
    let typed = arguments.database.named().cloned();
    typed.or_else(|| config.and_then(|config| config.store.url.clone()))
}

fn configuration(config: &Config) -> Finding {
    let dormant = config.dormant();
    if dormant.is_empty() {
        return Finding::ok("configuration", "whole, and within its ranges");
    }
    let detail = format!("{} are read and kept, but not in effect in this version", dormant.join(", "));
    Finding::warn("configuration", detail, "do not rely on them yet")
}

fn show(findings: &[Finding], output: &mut Output) -> Result<(), Failure> {
    if output.wants_json() {
        let json = serde_json::to_string_pretty(findings)
            .map_err(|error| Failure::other("cannot print what was found", error))?;
        return output.json_line(&json);
    }
    for finding in findings {
        let Finding { check, verdict, detail, fix } = finding;
        let lines: Vec<_> = detail.lines().map(safe).collect();
        output.line(&format!("{:<6}{check:<20}{}", verdict.as_str(), lines.join("\n")))?;
        if let Some(fix) = fix {
            output.line(&format!("{:<26}-> {}", "", safe(fix)))?;
        }
    }
    Ok(())
}
