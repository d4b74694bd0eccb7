//! The `Prefer` header (RFC 7240): of the preferences we follow only `wait`.

use std::time::Duration;

use http::HeaderMap;
use tidegate_wire::{MAX_WAIT_MS, header};

/// How long the caller prefers to wait for the task's end: whole seconds, at most a minute. Preferences that are not
/// understood are ignored, as the RFC has it; of several the first counts.
pub(crate) fn wait(headers: &HeaderMap) -> Option<Duration> {
    headers
        .get_all(header::PREFER)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(split_outside_quotes)
        .find_map(preferred_wait)
        .map(|seconds| Duration::from_secs(seconds.min(MAX_WAIT_MS / 1_000)))
}

/// The seconds of one preference such as `wait=10` or `Wait = "10"; foo`.
fn preferred_wait(preference: &str) -> Option<u64> {
    let (name, value) = preference.split(';').next()?.split_once('=')?;
    if !name.trim().eq_ignore_ascii_case("wait") {
        return None;
    }
    let value = value.trim();
    let digits = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // A number beyond u64 is merely a long wait.
    Some(digits.parse().unwrap_or(u64::MAX))
}

/// The preferences of one header line: commas within quotes are part of a value.
fn split_outside_quotes(line: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let mut escaped = false;
    line.split(move |c| {
        let was_escaped = escaped;
        escaped = quoted && c == '\\' && !was_escaped;
        if c == '"' && !was_escaped {
            quoted = !quoted;
        }
        c == ',' && !quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn seconds(lines: &[&'static str]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header::PREFER, HeaderValue::from_static(line));
        }
        wait(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn a_wait_is_found_among_other_preferences() {
        for (lines, expected) in [
            (&["wait=10"][..], Some(10)),
            (&["wait=0"], Some(0)),
            (&["respond-async, wait=5"], Some(5)),
            (&["Wait = \"7\" ; strict=\"a,b\""], Some(7)),
            (&["return=minimal", "handling=lenient; a=b, wait=3"], Some(3)),
            (&["foo=\"a, wait=1\", wait=2"], Some(2)),
            (&["foo=\"a\\\", wait=1\", wait=2"], Some(2)),
            (&["wait=3, wait=9"], Some(3)),
            (&["wait=61"], Some(60)),
            (&["wait=99999999999999999999999"], Some(60)),
        ] {
            assert_eq!(seconds(lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn what_is_no_wait_is_ignored() {
        for line in
            ["", "respond-async", "wait", "wait=", "wait=x", "wait=-1", "wait=1.5", "waits=3", ",,;=", "\"wait=1"]
        {
            assert_eq!(seconds(&[line]), None, "{line}");
        }
        assert_eq!(seconds(&[]), None);
    }
}
