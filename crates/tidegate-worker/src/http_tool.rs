//! Calls a tool over HTTP: the payload as a POST body, the JSON that comes back as the result.
//!
//! The tool is told what it needs to be safe under repetition and to stop in time: the same `Idempotency-Key` on each
//! attempt, the fence by which it can refuse a run that lost its lease, and how much time is left. What comes back is
//! data from a stranger: it is capped before it is looked at, and no redirect is followed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, StatusCode};
use serde::Deserialize;
use tidegate_core::{Reason, json};
use tidegate_outbound::{Answer, Outbound, Refused, Request, SendError};
use tokio::time::Instant;
use url::Url;

use crate::context::Context;
use crate::handler::{Executor, HandlerError, RunFuture};

/// How much of an error's body goes into the message, in characters: enough for what most servers say.
const EXCERPT_CHARS: usize = 500;
/// As much of a body as those characters can take, in bytes.
const EXCERPT_BYTES: usize = EXCERPT_CHARS * 4;
/// How long an error's body is waited for. The status has said the essential already.
const EXCERPT_TIME: Duration = Duration::from_secs(1);
/// The longest `Retry-After` that is believed. No task lives longer.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// "Site is overloaded": not registered, but used by providers of models.
const OVERLOADED: u16 = 529;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TASK_ID: HeaderName = HeaderName::from_static("x-task-id");
const FENCE: HeaderName = HeaderName::from_static("x-fence");
const ATTEMPT: HeaderName = HeaderName::from_static("x-attempt");
const DEADLINE: HeaderName = HeaderName::from_static("x-deadline-epoch-ms");
const BUDGET: HeaderName = HeaderName::from_static("x-budget");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Headers that configuration may not set: ours, and those that belong to the connection. `Accept-Encoding` is among
/// them because bodies are not decompressed.
const FORBIDDEN_HEADERS: [&str; 19] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "idempotency-key",
    "x-attempt",
    "x-budget",
    "x-deadline-epoch-ms",
    "x-fence",
    "x-task-id",
];

/// Which tool to call.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpToolOptions {
    /// Where it is.
    pub url: String,
    /// Headers to send with each call.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

/// Options that make no sense.
#[derive(Debug, thiserror::Error)]
pub enum BadHttpTool {
    /// The URL is not one that may be called.
    #[error("the URL {0}")]
    Url(Refused),
    /// Not the name of a header.
    #[error("{0:?} is not the name of a header")]
    HeaderName(String),
    /// A header that is not configuration's to set.
    #[error("the header {0} cannot be set")]
    ForbiddenHeader(String),
    /// Not a value that a header can have.
    #[error("the value of the header {0} holds characters that a header cannot carry")]
    HeaderValue(String),
}

/// The executor that calls a tool.
pub fn http_tool(options: &HttpToolOptions, outbound: Outbound) -> Result<Arc<dyn Executor>, BadHttpTool> {
    let url = outbound.check(&options.url).map_err(BadHttpTool::Url)?;
    let mut headers = HeaderMap::new();
    for (name, value) in &options.headers {
        let parsed = HeaderName::try_from(name.as_str()).map_err(|_| BadHttpTool::HeaderName(name.clone()))?;
        if FORBIDDEN_HEADERS.contains(&parsed.as_str()) || parsed == TRACEPARENT {
            return Err(BadHttpTool::ForbiddenHeader(name.clone()));
        }
        let mut value = HeaderValue::try_from(value.as_str()).map_err(|_| BadHttpTool::HeaderValue(name.clone()))?;
        value.set_sensitive(true);
        headers.append(parsed, value);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(Arc::new(HttpTool { url, headers, outbound }))
}

struct HttpTool {
    url: Url,
    headers: HeaderMap,
    outbound: Outbound,
}

impl Executor for HttpTool {
    fn execute(&self, ctx: Context, payload: String) -> RunFuture<'_> {
        Box::pin(async move {
            ctx.checkpoint()?;
            let request = Request {
                method: Method::POST,
                url: self.url.clone(),
                headers: self.headers(&ctx),
                body: Bytes::from(payload),
                deadline: ctx.deadline(),
            };
            tokio::select! {
                biased;
                // Dropping the exchange closes the connection: the tool can tell that nobody waits any more.
                () = ctx.cancelled() => {
                    ctx.checkpoint()?;
                    Err(HandlerError::transient("stopped", "told to stop"))
                }
                ended = self.exchange(&ctx, request) => ended,
            }
        })
    }
}

impl HttpTool {
    fn headers(&self, ctx: &Context) -> HeaderMap {
        let mut headers = self.headers.clone();
        let mut insert = |name, text: String| {
            // All of these are plain characters; a trace context that is not is left out.
            if let Ok(value) = HeaderValue::try_from(text) {
                headers.insert(name, value);
            }
        };
        let id = ctx.task_id().to_string();
        insert(IDEMPOTENCY_KEY, id.clone());
        insert(TASK_ID, id);
        insert(FENCE, ctx.fence().0.to_string());
        insert(ATTEMPT, ctx.attempt().to_string());
        insert(DEADLINE, ctx.deadline_epoch_ms().to_string());
        if let Ok(budget) = serde_json::to_string(&ctx.budget()) {
            insert(BUDGET, budget);
        }
        if let Some(traceparent) = ctx.traceparent() {
            insert(TRACEPARENT, traceparent.to_owned());
        }
        headers
    }

    async fn exchange(&self, ctx: &Context, request: Request) -> Result<String, HandlerError> {
        let answer = match self.outbound.send(request).await {
            Ok(answer) => answer,
            Err(error) => return Err(broken(ctx, error)),
        };
        let status = answer.status();
        if !status.is_success() {
            return Err(refused(answer).await);
        }
        if matches!(status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT) {
            return Ok("null".to_owned());
        }
        let rejected = |why: &str| {
            HandlerError::permanent("output_rejected", format!("{}: {why}", named(status)))
                .because(Reason::OutputRejected)
        };
        let body = match answer.read(ctx.max_result_bytes()).await {
            Ok(body) => body,
            Err(error @ SendError::TooLarge { .. }) => return Err(rejected(&error.to_string())),
            Err(error) => return Err(broken(ctx, error)),
        };
        let excerpt = || rejected(&format!("the body is not JSON: {}", excerpt(&body)));
        // What is no UTF-8 becomes U+FFFD. That is repaired inside strings, and no JSON anywhere else.
        match json::repair(&String::from_utf8_lossy(&body)) {
            Ok(result) => Ok(result),
            Err(error) if error.fault == json::Fault::Syntax => Err(excerpt()),
            Err(error) => Err(rejected(&error.to_string())),
        }
    }
}

/// No answer, or not the whole of it.
fn broken(ctx: &Context, error: SendError) -> HandlerError {
    match error {
        SendError::Refused(_) => HandlerError::permanent("url_refused", error.to_string()),
        // The deadline of the call is that of the run, which knows whose time-out it was.
        SendError::TimedOut => match ctx.checkpoint() {
            Err(stop) => stop.into(),
            Ok(()) => HandlerError::transient("timeout", error.to_string()),
        },
        SendError::NotConnected(_) | SendError::Broken(_) | SendError::TooLarge { .. } => {
            HandlerError::transient("connection", error.to_string())
        }
    }
}

/// An answer that is not a success.
async fn refused(answer: Answer) -> HandlerError {
    let status = answer.status();
    let retry_after = answer.headers().get(RETRY_AFTER).and_then(|value| retry_after(value, SystemTime::now().into()));
    let body = answer.read_excerpt(EXCERPT_BYTES, Instant::now() + EXCERPT_TIME).await;
    let message = format!("{}: {}", named(status), excerpt(&body));
    let transient = |kind| match retry_after {
        Some(after) => HandlerError::transient_after(kind, message.clone(), after),
        None => HandlerError::transient(kind, message.clone()),
    };
    match status.as_u16() {
        429 | 503 | OVERLOADED => transient("overloaded"),
        300..=399 => HandlerError::permanent("redirect", message),
        400..=499 => HandlerError::permanent("http_status", message),
        _ => transient("http_status"),
    }
}

/// A status as people know it.
fn named(status: StatusCode) -> String {
    let reason = status.canonical_reason().unwrap_or(if status.as_u16() == OVERLOADED { "Overloaded" } else { "" });
    format!("HTTP {} {reason}", status.as_u16()).trim_end().to_owned()
}

/// The beginning of a body as text that can be kept and shown.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(EXCERPT_BYTES)]);
    let cut: String = text.chars().take(EXCERPT_CHARS).collect();
    json::repair_text(&cut, EXCERPT_BYTES)
}

/// `Retry-After` as seconds or as a date (RFC 9110, section 10.2.3). A date that has passed is no delay.
fn retry_after(value: &HeaderValue, now: DateTime<Utc>) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    let delay = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = DateTime::parse_from_rfc2822(text).ok()?;
            at.signed_duration_since(now).to_std().unwrap_or(Duration::ZERO)
        }
    };
    Some(delay.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_outbound::OutboundOptions;

    fn outbound() -> Outbound {
        Outbound::new(OutboundOptions::default()).unwrap()
    }

    fn with_header(name: &str, value: &str) -> Result<Arc<dyn Executor>, BadHttpTool> {
        let headers = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        http_tool(&HttpToolOptions { url: "https://tools.example/search".to_owned(), headers }, outbound())
    }

    #[test]
    fn configuration_sets_neither_our_headers_nor_the_connections() {
        assert!(with_header("Authorization", "Bearer x").is_ok());
        for name in FORBIDDEN_HEADERS.into_iter().chain(["Host", "X-Fence", "Traceparent", "CONTENT-TYPE"]) {
            assert!(matches!(with_header(name, "x"), Err(BadHttpTool::ForbiddenHeader(_))), "{name}");
        }
        assert!(matches!(with_header("a b", "x"), Err(BadHttpTool::HeaderName(_))));
        assert!(matches!(with_header("a", "x\r\ny: z"), Err(BadHttpTool::HeaderValue(_))));
        let inside = HttpToolOptions { url: "http://169.254.169.254/".to_owned(), headers: BTreeMap::new() };
        assert!(matches!(http_tool(&inside, outbound()), Err(BadHttpTool::Url(Refused::Address))));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = "1994-11-06T08:49:00Z".parse().unwrap();
        let parsed = |text: &str| retry_after(&HeaderValue::from_str(text).unwrap(), now);
        assert_eq!(parsed("120"), Some(Duration::from_secs(120)));
        assert_eq!(parsed(" 0 "), Some(Duration::ZERO));
        assert_eq!(parsed("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(37)));
        assert_eq!(parsed("Sun, 06 Nov 1994 08:48:37 GMT"), Some(Duration::ZERO));
        assert_eq!(parsed("18446744073709551615"), Some(MAX_RETRY_AFTER));
        for nonsense in ["", "soon", "-1", "1.5", "99999999999999999999"] {
            assert_eq!(parsed(nonsense), None, "{nonsense:?}");
        }
    }
}
