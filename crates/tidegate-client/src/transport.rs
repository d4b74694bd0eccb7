//! One request, one answer: bounded in time and size, never followed elsewhere, never repeated.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use reqwest::{Method, RequestBuilder, Response};
use serde::de::DeserializeOwned;
use tidegate_core::Status;
use tidegate_wire::header;

use crate::{Answer, Client, Error, Problem, Refusal};

/// The most of a foreign answer that an error shows.
const EXCERPT_CHARS: usize = 200;

impl Client {
    /// A request to a path below the server's URL. Each segment is one step of the path, whatever it holds.
    pub(crate) fn request(&self, method: Method, segments: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        self.http.request(method, url)
    }

    /// Sends a request that asks the server to wait for `wait` before it answers.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        wait: Duration,
    ) -> Result<Answer<T>, Error> {
        let (status, answer) = self.exchange(request, wait).await?;
        let value = serde_json::from_str(&answer.json)
            .map_err(|error| Error::Unexpected { status, excerpt: format!("{error}: {}", excerpt(&answer.json)) })?;
        Ok(answer.map(|()| value))
    }

    /// Sends a request whose answer says no more than that it was done.
    pub(crate) async fn send_for_nothing(&self, request: RequestBuilder) -> Result<Answer<()>, Error> {
        Ok(self.exchange(request, Duration::ZERO).await?.1)
    }

    /// The status of an answer that is no refusal, and the answer, not yet parsed.
    async fn exchange(&self, request: RequestBuilder, wait: Duration) -> Result<(u16, Answer<()>), Error> {
        let request = request.timeout(self.timeout.saturating_add(wait));
        let response = request.send().await.map_err(|error| self.broken(error))?;
        let status = response.status();
        let headers = response.headers().clone();
        let body = self.read(response).await?;
        if !status.is_success() {
            return Err(refused(status.as_u16(), &headers, &body));
        }
        let answer = Answer {
            value: (),
            json: body,
            pressure: text(&headers, header::X_PRESSURE).and_then(|text| text.parse().ok()),
            replayed: text(&headers, header::IDEMPOTENT_REPLAYED) == Some("true"),
            request_id: text(&headers, header::X_REQUEST_ID).map(str::to_owned),
            date: text(&headers, DATE.as_str()).and_then(parse_date),
        };
        Ok((status.as_u16(), answer))
    }

    async fn read(&self, mut response: Response) -> Result<String, Error> {
        let limit = self.max_answer_bytes;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.broken(error))? {
            if body.len() + chunk.len() > limit {
                return Err(Error::TooLarge { limit });
            }
            body.extend_from_slice(&chunk);
        }
        let status = response.status().as_u16();
        String::from_utf8(body).map_err(|_| Error::Unexpected { status, excerpt: "it is not UTF-8".to_owned() })
    }

    fn broken(&self, error: reqwest::Error) -> Error {
        if error.is_builder() {
            return Error::Invalid(cause(error));
        }
        let host = self.host();
        if error.is_connect() {
            Error::Unreachable { host, cause: cause(error) }
        } else {
            Error::NoAnswer { host, cause: cause(error) }
        }
    }
}

/// The innermost cause of an error, which says what happened; those around it say only that it did. Never its URL: that
/// may hold what a log should not.
fn cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut innermost: &dyn std::error::Error = &error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}

fn refused(status: u16, headers: &HeaderMap, body: &str) -> Error {
    let Ok(problem) = serde_json::from_str::<Problem>(body) else {
        return Error::Unexpected { status, excerpt: excerpt(body) };
    };
    if problem.reason == "outcome_unknown" {
        return Error::OutcomeUnknown { task_id: problem.task_id, detail: problem.detail.into_owned() };
    }
    let said_no = |outcome| matches!(outcome, Status::Shed | Status::Rejected | Status::Expired | Status::Cancelled);
    if matches!(status, 429 | 503) || problem.outcome.is_some_and(said_no) {
        let retry_after = problem.retry_after_ms.map(Duration::from_millis).or_else(|| retry_after(headers));
        return Error::Refused(Box::new(Refusal { problem, retry_after }));
    }
    Error::Problem(Box::new(problem))
}

/// `Retry-After` in seconds; a date is not something that the server writes.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    text(headers, RETRY_AFTER.as_str())?.parse().ok().map(Duration::from_secs)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn parse_date(text: &str) -> Option<DateTime<Utc>> {
    DateTime::parse_from_rfc2822(text).ok().map(|date| date.to_utc())
}

fn excerpt(body: &str) -> String {
    let mut excerpt: String = body.chars().take(EXCERPT_CHARS).collect();
    if excerpt.len() < body.len() {
        excerpt.push('…');
    }
    if excerpt.is_empty() { "it is empty".to_owned() } else { excerpt }
}
