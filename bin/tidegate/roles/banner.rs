//! What `up` tells whoever started it.

use std::net::SocketAddr;

use crate::exit::Failure;
use crate::terminal::Output;

/// What there is to tell.
pub(super) struct Banner<'a> {
    pub(super) address: SocketAddr,
    /// Where the data is: a directory, or a database without its password.
    pub(super) data: String,
    /// The version and the log of our own Postgres.
    pub(super) postgres: Option<(&'a str, &'a str)>,
}

impl Banner<'_> {
    /// Tells it.
    pub(super) fn show(&self, output: &mut Output) -> Result<(), Failure> {
        if output.wants_json() {
            return output.json_line(&self.json());
        }
        for line in self.lines() {
            output.line(&line)?;
        }
        Ok(())
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn json(&self) -> String {
        let postgres = self.postgres.map(|(version, log)| serde_json::json!({"version": version, "log": log}));
        serde_json::json!({"url": self.url(), "data": self.data, "postgres": postgres}).to_string()
    }

    fn lines(&self) -> Vec<String> {
        let url = self.url();
        let server =
            if self.address == SocketAddr::from(([127, 0, 0, 1], 8080)) { "" } else { &*format!(" --url {url}") };
        let mut lines = vec![
            format!("tidegate {} is up at {url}", env!("CARGO_PKG_VERSION")),
            String::new(),
            format!("  try    curl -sS {url}/v1/tasks -H 'Content-Type: application/json' -H 'Prefer: wait=10' \\"),
            "           -d '{\"kind\": \"echo\", \"payload\": {\"hello\": \"world\"}}'".to_owned(),
            format!("  or     tidegate{server} submit echo '{{\"hello\": \"world\"}}' --wait"),
            format!("  see    {url}/ (state), {url}/docs (API), {url}/metrics"),
            format!("  data   {}", self.data),
        ];
        if let Some((version, log)) = self.postgres {
            lines.push(format!("  log    {log} (PostgreSQL {version}); ours is on standard error"));
        }
        lines.push("  stop   Ctrl-C lets running tasks finish, twice leaves at once".to_owned());
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_for_the_address_that_is_served() {
        let banner =
            |address: &str| Banner { address: address.parse().unwrap(), data: "/data".to_owned(), postgres: None };
        let text = banner("127.0.0.1:8080").lines().join("\n");
        assert!(text.contains("curl -sS http://127.0.0.1:8080/v1/tasks") && text.contains("tidegate submit"));
        let text = banner("[::1]:9").lines().join("\n");
        assert!(
            text.contains("curl -sS http://[::1]:9/v1/tasks") && text.contains("tidegate --url http://[::1]:9 submit")
        );
    }
}
