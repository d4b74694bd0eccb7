//! What happens around every handler: who is asking, a name for the request, the headers of every answer, panics.
//! One function instead of a stack of layers, because each layer costs on the hot path.

use std::panic::AssertUnwindSafe;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::header::{CACHE_CONTROL, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_wire::{Fault, header};

use crate::settings::App;
use crate::{access, body, metric, rejection::Rejection, routes};

/// The longest name of a request that is taken over from the caller.
const MAX_REQUEST_ID: usize = 128;

/// Lets a request in or refuses it, and stamps the answer.
pub(crate) async fn gate(State(app): State<App>, request: Request, next: Next) -> Response {
    let route = route(&request);
    around(&app, route, request, |request| next.run(request)).await
}

/// The same around the handler of a known route.
pub(crate) async fn around<F>(
    app: &App,
    route: &'static str,
    request: Request,
    handler: impl FnOnce(Request) -> F,
) -> Response
where
    F: Future<Output = Response>,
{
    let started = Instant::now();
    let request_id = request_id(request.headers());
    let method = request.method().clone();
    let mut response = match enter(app, request) {
        Ok(request) => match AssertUnwindSafe(handler(request)).catch_unwind().await {
            Ok(response) => response,
            Err(_) => panicked(&request_id).into_response(),
        },
        Err(rejection) => rejection.into_response(),
    };
    stamp(response.headers_mut(), app.backend.pressure(), request_id);
    let status = response.status();
    let seconds = started.elapsed().as_secs_f64();
    let id = || response.headers().get(header::X_REQUEST_ID).and_then(|id| id.to_str().ok());
    tracing::debug!(request.id = id(), %method, route, status = status.as_u16(), seconds, "answered");
    metric::answered(app, route, &method, status, seconds);
    response
}

fn enter(app: &App, request: Request) -> Result<Request, Rejection> {
    let (mut parts, body) = request.into_parts();
    let admitted = bounded(app, &parts).and_then(|()| access::admit(app, &parts));
    match admitted {
        Ok(caller) => {
            parts.extensions.insert(caller);
            Ok(Request::from_parts(parts, body))
        }
        Err(rejection) => {
            body::discard(&parts.headers, body);
            Err(rejection)
        }
    }
}

/// Refuses a head that is too large. The server's own bound is one of its buffer, which is larger on a connection that has
/// carried a request before.
fn bounded(app: &App, parts: &Parts) -> Result<(), Rejection> {
    let length = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    let most = app.settings.max_header_bytes as usize;
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    if target + parts.headers.iter().map(length).sum::<usize>() <= most {
        return Ok(());
    }
    let detail = format!("the request's line and headers have more than {most} bytes together");
    let rejection = Rejection::fault(Fault::HeadersTooLarge, detail);
    let largest = parts.headers.iter().max_by_key(|header| length(*header));
    Err(match largest {
        Some((name, _)) => rejection.at_header(name.as_str().to_owned()),
        None => rejection,
    })
}

/// The pattern of the route, so that logs and metrics do not grow with the paths that callers invent.
fn route(request: &Request) -> &'static str {
    request.extensions().get::<MatchedPath>().map_or("none", |path| routes::pattern(path.as_str()))
}

fn panicked(request_id: &HeaderValue) -> Rejection {
    let id = request_id.to_str().unwrap_or_default();
    tracing::error!(request.id = id, "a handler panicked");
    Rejection::fault(Fault::Internal, format!("something broke inside; the server's log has more under request {id}"))
}

/// The headers of every answer.
pub(crate) fn stamp(headers: &mut HeaderMap, pressure: f64, request_id: HeaderValue) {
    headers.insert(HeaderName::from_static(header::X_REQUEST_ID), request_id);
    headers.insert(HeaderName::from_static(header::X_PRESSURE), pressure_value(pressure));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// A pressure with two digits: one of 101 values, written once.
fn pressure_value(pressure: f64) -> HeaderValue {
    static VALUES: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| {
        let text = |percent| format!("{}.{:02}", percent / 100, percent % 100);
        (0..=100).filter_map(|percent| HeaderValue::from_str(&text(percent)).ok()).collect()
    });
    // NaN becomes 0; what is out of range becomes the nearest end.
    let percent = (pressure.clamp(0.0, 1.0) * 100.0).round() as usize;
    VALUES.get(percent).cloned().unwrap_or(HeaderValue::from_static("1.00"))
}

/// The caller's name for the request, where it is sane, or one of ours.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let sane = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        (1..=MAX_REQUEST_ID).contains(&bytes.len())
            && bytes
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-' | b'/' | b'+' | b'='))
    };
    headers.get(header::X_REQUEST_ID).filter(sane).cloned().unwrap_or_else(new_request_id)
}

/// Unique within the fleet: 64 random bits for the process, and a count.
pub(crate) fn new_request_id() -> HeaderValue {
    static PROCESS: LazyLock<u64> = LazyLock::new(rand::random);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let id = format!("{:016x}-{:x}", *PROCESS, COUNT.fetch_add(1, Ordering::Relaxed));
    HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_has_two_digits_whatever_it_is() {
        for (pressure, text) in [
            (0.0, "0.00"),
            (0.004, "0.00"),
            (0.066, "0.07"),
            (0.5, "0.50"),
            (1.0, "1.00"),
            (7.0, "1.00"),
            (-1.0, "0.00"),
            (f64::NAN, "0.00"),
        ] {
            assert_eq!(pressure_value(pressure), text);
        }
    }

    #[test]
    fn a_sane_name_is_kept_and_an_odd_one_replaced() {
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::X_REQUEST_ID, HeaderValue::from_str(value).unwrap());
            request_id(&headers)
        };
        assert_eq!(with("req-1.a:b_c"), "req-1.a:b_c");
        for odd in ["", "a b", "<script>", "a,b", &"x".repeat(129)] {
            assert_ne!(with(odd), odd);
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
