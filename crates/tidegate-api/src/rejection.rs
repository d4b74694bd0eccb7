//! Refusals: from a reason to an HTTP status, its headers, and a problem.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tidegate_core::admission::{Decision, Quota};
use tidegate_core::{Reason, Status, TaskId};
use tidegate_store::StoreError;
use tidegate_wire::{Fault, PROBLEM_JSON, Problem, header};

use crate::error_pages;

/// A refused request. Boxed: refusals are rare, and results stay small.
#[derive(Debug)]
pub(crate) struct Rejection(Box<Problem<'static>>, Option<Box<Quota>>);

/// The least and most of a `retry_after_ms`: callers who were refused together should not come back together.
const RETRY_AFTER_MS: std::ops::RangeInclusive<u64> = 1_000..=4_000;

/// Most characters of a caller's own words that an answer repeats.
const MAX_SHOWN: usize = 200;
/// Most characters of a detail, whatever went into it.
const MAX_DETAIL: usize = 1_000;

/// As much of what a caller sent as fits a sentence; an ellipsis marks what was cut.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    cut(text, MAX_SHOWN)
}

fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

impl Rejection {
    fn new(reason: &'static str, status: u16, detail: Option<Cow<'static, str>>) -> Self {
        let page = error_pages::page(reason);
        Self(
            Box::new(Problem {
                kind: Cow::Owned(error_pages::path(reason)),
                title: Cow::Borrowed(page.title),
                status,
                detail: detail.unwrap_or(Cow::Borrowed(page.summary)),
                reason: Cow::Borrowed(reason),
                pointer: None,
                header: None,
                parameter: None,
                task_id: None,
                outcome: None,
                retry_after_ms: None,
            }),
            None,
        )
    }

    /// Something is wrong with the request itself.
    pub(crate) fn fault(fault: Fault, detail: impl Into<Cow<'static, str>>) -> Self {
        let detail = match detail.into() {
            Cow::Owned(detail) => Cow::Owned(cut(&detail, MAX_DETAIL).into_owned()),
            borrowed => borrowed,
        };
        let rejection = Self::new(fault.as_str(), fault.status(), Some(detail));
        match fault {
            Fault::IngestFull | Fault::KeyInFlight => rejection.retry_later(),
            _ => rejection,
        }
    }

    /// The door said no: what `status` and `reason` come to on the wire.
    pub(crate) fn door(status: Status, reason: Reason, task_id: TaskId) -> Self {
        let mut rejection = Self::new(reason.as_str(), http_status(status, reason), None);
        rejection.0.task_id = Some(task_id);
        rejection.0.outcome = Some(status);
        match (rejection.0.status, status) {
            (429 | 503, status) if status != Status::Expired => rejection.retry_later(),
            _ => rejection,
        }
    }

    /// The door decided against it: what the decision comes to on the wire.
    pub(crate) fn decided(decision: &Decision, task_id: TaskId) -> Self {
        let reason = decision.reason.unwrap_or(Reason::QueueFull);
        let mut rejection = Self::door(decision.status, reason, task_id);
        rejection.0.retry_after_ms = decision.retry_after_ms.filter(|_| matches!(rejection.0.status, 429 | 503));
        rejection.1 = decision.quota.map(Box::new);
        match (reason, decision.expected_wait_ms, decision.quota) {
            (Reason::DeadlineTooShort, Some(wait_ms), _) if wait_ms > 0 => {
                let left = decision.times.deadline.saturating_sub(decision.decided);
                rejection.saying(format!("it would start in about {wait_ms} ms, and {left} ms are left"))
            }
            (_, _, Some(quota)) => {
                let Quota { name, limit, remaining, .. } = quota;
                let detail = format!("the tenant's limit of {limit} ({name}) leaves {remaining}");
                rejection.saying(detail)
            }
            _ => rejection,
        }
    }

    /// This server, or what it depends on, cannot answer now. Nothing was recorded.
    pub(crate) fn unavailable(reason: Reason) -> Self {
        Self::new(reason.as_str(), 503, None).retry_later()
    }

    /// A value in the body is wrong.
    pub(crate) fn at_pointer(mut self, pointer: String) -> Self {
        self.0.pointer = Some(shown(&pointer).into_owned().into());
        self
    }

    /// A header is wrong.
    pub(crate) fn at_header(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.0.header = Some(name.into());
        self
    }

    /// A parameter of the query or the path is wrong.
    pub(crate) fn at_parameter(mut self, name: String) -> Self {
        self.0.parameter = Some(shown(&name).into_owned().into());
        self
    }

    /// The task that this is about.
    pub(crate) fn about(mut self, task_id: TaskId, outcome: Option<Status>) -> Self {
        self.0.task_id = Some(task_id);
        self.0.outcome = outcome;
        self
    }

    /// What happened this time, in place of the page's summary.
    pub(crate) fn saying(mut self, detail: String) -> Self {
        self.0.detail = detail.into();
        self
    }

    /// The refusal could not be recorded: its id leads nowhere.
    pub(crate) fn about_no_task(mut self) -> Self {
        self.0.task_id = None;
        self
    }

    fn retry_later(mut self) -> Self {
        self.0.retry_after_ms = Some(rand::random_range(RETRY_AFTER_MS));
        self
    }

    /// The problem alone, as an item of a batch.
    pub(crate) fn into_problem(self) -> Box<Problem<'static>> {
        self.0
    }
}

/// The HTTP status of a refusal at the door.
fn http_status(status: Status, reason: Reason) -> u16 {
    use Reason as R;
    match (status, reason) {
        (Status::Rejected, R::TenantQueueLimit | R::TenantRate | R::TenantTokens | R::TenantBytes)
        | (Status::Rejected, R::TenantCost | R::TenantPaused) => 429,
        (Status::Rejected, R::Quarantined | R::DepthExhausted | R::FanoutExhausted | R::ParentNotRunning) => 422,
        (Status::Rejected, R::PayloadTooLarge) => 413,
        (Status::Cancelled, _) => 409,
        _ => 503,
    }
}

impl From<StoreError> for Rejection {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) | StoreError::Busy(_) => Self::unavailable(Reason::StoreUnavailable),
            StoreError::OutcomeUnknown(_) => Self::unavailable(Reason::OutcomeUnknown),
            StoreError::Data(_) | StoreError::Schema(_) | StoreError::SessionLost | StoreError::BadUrl(_) => {
                let cause: &dyn std::error::Error = &error;
                tracing::error!(error = cause, "the store failed");
                Self::fault(Fault::Internal, "something broke inside; the server's log says more")
            }
        }
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let Self(problem, quota) = self;
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(ms) = problem.retry_after_ms {
            headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000).max(1)));
        }
        if matches!(problem.status, 429 | 503) {
            let shed_for = if problem.outcome == Some(Status::Expired) { "deadline" } else { &problem.reason };
            if let Ok(value) = HeaderValue::from_str(shed_for) {
                headers.insert(HeaderName::from_static(header::X_SHED_REASON), value);
            }
        }
        if let Some(quota) = quota.filter(|_| problem.status == 429) {
            rate_limit(headers, &quota);
        }
        if problem.status == 401 {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Tells a tenant's limit in the fields of draft-ietf-httpapi-ratelimit-headers-10.
fn rate_limit(headers: &mut HeaderMap, quota: &Quota) {
    let Quota { name, limit, remaining, window_s, reset_ms } = *quota;
    let window = window_s.map(|seconds| format!(";w={seconds}")).unwrap_or_default();
    let unit = match name {
        "bytes" => ";qu=\"content-bytes\"",
        "queued" | "queued-of-class" => ";qu=\"concurrent-requests\"",
        _ => "",
    };
    let reset = reset_ms.map(|ms| format!(";t={}", ms.div_ceil(1_000))).unwrap_or_default();
    let fields = [
        (header::RATE_LIMIT_POLICY, format!("\"{name}\";q={limit}{window}{unit}")),
        (header::RATE_LIMIT, format!("\"{name}\";r={remaining}{reset}")),
    ];
    for (field, value) in fields {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(field), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TaskId = TaskId(uuid::Uuid::nil());

    #[test]
    fn each_reason_of_the_door_has_the_status_of_the_contract() {
        use Reason as R;
        let busy = [
            R::QueueFull,
            R::ClassQueueLimit,
            R::TokenBudget,
            R::ByteBudget,
            R::CostBudget,
            R::WaitersFull,
            R::DeferredFull,
            R::BulkheadFull,
            R::PeerUnavailable,
            R::Paused,
            R::Draining,
            R::StoreUnavailable,
            R::OutcomeUnknown,
        ];
        let share =
            [R::TenantQueueLimit, R::TenantRate, R::TenantTokens, R::TenantBytes, R::TenantCost, R::TenantPaused];
        let bad = [R::Quarantined, R::DepthExhausted, R::FanoutExhausted, R::ParentNotRunning];
        let cases = busy
            .map(|reason| (Status::Rejected, reason, 503, true, Some(reason.as_str())))
            .into_iter()
            .chain(share.map(|reason| (Status::Rejected, reason, 429, true, Some(reason.as_str()))))
            .chain(bad.map(|reason| (Status::Rejected, reason, 422, false, None)))
            .chain([
                (Status::Shed, R::LowPriority, 503, true, Some("low_priority")),
                (Status::Expired, R::DeadlinePassed, 503, false, Some("deadline")),
                (Status::Expired, R::DeadlineTooShort, 503, false, Some("deadline")),
                (Status::Cancelled, R::TokenCancelled, 409, false, None),
                (Status::Rejected, R::PayloadTooLarge, 413, false, None),
            ]);
        for (status, reason, expected, retry, shed) in cases {
            let response = Rejection::door(status, reason, ID).into_response();
            assert_eq!(response.status().as_u16(), expected, "{reason}");
            assert_eq!(response.headers().contains_key(RETRY_AFTER), retry, "{reason}");
            let named = response.headers().get(header::X_SHED_REASON).map(|value| value.to_str().unwrap());
            assert_eq!(named, shed, "{reason}");
        }
    }

    #[test]
    fn retry_after_is_jittered_whole_seconds() {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let response = Rejection::unavailable(Reason::Draining).into_response();
            let seconds: u64 = response.headers()[RETRY_AFTER].to_str().unwrap().parse().unwrap();
            assert!((1..=4).contains(&seconds));
            seen.insert(seconds);
        }
        assert!(seen.len() > 1);
    }
}
