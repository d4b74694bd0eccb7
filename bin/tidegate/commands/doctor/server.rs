//! Whether a server answers.

use chrono::Utc;
use tidegate_client::Error;

use super::finding::Finding;
use crate::cli::{Connection, Global};
use crate::commands::client::connect;

/// A difference of clocks that hurts: deadlines that callers compute are by their own. The server tells its time in
/// whole seconds.
const MAX_SKEW_MS: i64 = 3_000;

/// Asks the server how it is.
pub(super) async fn check(global: &Global) -> Finding {
    let client = match connect(global, &Connection { tenant: None }) {
        Ok(client) => client,
        Err(failure) => return Finding::fail("server", failure, "correct --url, --api-key or their variables"),
    };
    match client.pressure().await {
        Ok(answer) => {
            let skew = answer.date.map_or(0, |date| date.timestamp_millis() - Utc::now().timestamp_millis());
            if skew.abs() > MAX_SKEW_MS {
                let detail = format!("{} answers; its clock differs by {} s", global.url, skew.abs() / 1_000);
                return Finding::warn("server", detail, "keep both machines on NTP");
            }
            Finding::ok("server", format!("{} answers; pressure {:.2}", global.url, answer.value.pressure))
        }
        Err(Error::Unreachable { host, .. }) => {
            let fix = "start one with tidegate up, or name another with --url; no fault if none should run";
            Finding::warn("server", format!("none at {host}"), fix)
        }
        Err(error) => Finding::fail("server", error, "see its log"),
    }
}
