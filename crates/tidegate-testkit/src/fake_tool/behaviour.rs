//! What a fake tool can do.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http::{HeaderName, HeaderValue, StatusCode, header};

use super::InFlight;

/// How much of a long body is sent at a time.
const PIECE_BYTES: usize = 16 * 1024;

/// How many bytes an answer that is cut promises, and how many of them come.
const PROMISED_BYTES: usize = 1_000;
const CUT_AFTER: &str = "{\"half\": \"of an";

/// What happens to one request.
#[derive(Debug, Clone, PartialEq)]
pub enum Behaviour {
    /// 200 with the request's own body.
    Echo,
    /// 200 with this JSON.
    Json(serde_json::Value),
    /// This status with these headers and a small JSON body.
    Status(u16, Vec<(&'static str, String)>),
    /// No answer at all, until the caller gives up.
    Hang,
    /// An echo after this long.
    Slow(Duration),
    /// Another behaviour after this long.
    After(Duration, Box<Behaviour>),
    /// 200 with a JSON string of this many bytes in all.
    Oversize(usize),
    /// 302 to this place.
    Redirect(String),
    /// 200, the beginning of a body, and then the connection breaks.
    CutMidBody,
    /// 200 and a JSON string that comes one byte at a time: so many of them, so far apart.
    Drip(usize, Duration),
    /// 200 with `application/json` and a body that is none.
    BadJson,
}

impl Behaviour {
    /// A status without further headers.
    pub fn status(code: u16) -> Self {
        Behaviour::Status(code, Vec::new())
    }

    /// A refusal (429, 503, 529) that says when to come back.
    pub fn retry_after(code: u16, seconds: u64) -> Self {
        Behaviour::Status(code, vec![("retry-after", seconds.to_string())])
    }

    pub(super) async fn perform(self, request: Bytes, in_flight: InFlight) -> Response {
        match self {
            Behaviour::Echo => json(StatusCode::OK, Body::from(request)),
            Behaviour::Json(value) => json(StatusCode::OK, Body::from(value.to_string())),
            Behaviour::Status(code, headers) => with_status(code, headers),
            Behaviour::Hang => {
                // Dropped with the connection, and the count with it.
                std::future::pending::<()>().await;
                drop(in_flight);
                plain(StatusCode::OK)
            }
            Behaviour::Slow(delay) => {
                tokio::time::sleep(delay).await;
                drop(in_flight);
                json(StatusCode::OK, Body::from(request))
            }
            Behaviour::After(delay, then) => {
                tokio::time::sleep(delay).await;
                Box::pin(then.perform(request, in_flight)).await
            }
            Behaviour::Oversize(bytes) => json(StatusCode::OK, long_string(bytes, in_flight)),
            Behaviour::Redirect(to) => with_status(StatusCode::FOUND.as_u16(), vec![("location", to)]),
            Behaviour::CutMidBody => cut(in_flight),
            Behaviour::Drip(count, gap) => json(StatusCode::OK, drip(count, gap, in_flight)),
            Behaviour::BadJson => json(StatusCode::OK, Body::from("{\"open\": [1, 2")),
        }
    }
}

/// An empty answer.
pub(super) fn plain(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

fn json(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn with_status(code: u16, headers: Vec<(&'static str, String)>) -> Response {
    let status = StatusCode::from_u16(code).unwrap_or_else(|_| panic!("{code} is not a status"));
    let mut response = json(status, Body::from(format!("{{\"status\":{code}}}")));
    for (name, text) in headers {
        let value = HeaderValue::from_str(&text).unwrap_or_else(|_| panic!("{text:?} is not a header's value"));
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
    response
}

/// A JSON string of `bytes` bytes with its quotes, made as it is sent. Its length is not announced: a reader that trusts
/// `Content-Length` alone must fail.
fn long_string(bytes: usize, in_flight: InFlight) -> Body {
    let quote = || stream::iter([Bytes::from_static(b"\"")]);
    let inner = bytes.saturating_sub(2);
    let pieces = (0..inner.div_ceil(PIECE_BYTES)).map(move |piece| {
        let length = PIECE_BYTES.min(inner - piece * PIECE_BYTES);
        Bytes::from(vec![b'x'; length])
    });
    let all = quote().chain(stream::iter(pieces)).chain(quote());
    Body::from_stream(all.map(move |piece| {
        let _ = &in_flight;
        Ok::<_, Error>(piece)
    }))
}

fn drip(count: usize, gap: Duration, in_flight: InFlight) -> Body {
    Body::from_stream(stream::unfold((0, in_flight), move |(sent, in_flight)| async move {
        if sent == count {
            return None;
        }
        tokio::time::sleep(gap).await;
        let byte: &'static [u8] = if sent == 0 || sent + 1 == count { b"\"" } else { b"x" };
        Some((Ok::<_, Error>(Bytes::from_static(byte)), (sent + 1, in_flight)))
    }))
}

fn cut(in_flight: InFlight) -> Response {
    let beginning = stream::iter([Ok(Bytes::from_static(CUT_AFTER.as_bytes()))]);
    let break_off = stream::once(async {
        // The server sends what it has when the body pauses; without that the caller would see nothing of the answer.
        tokio::task::yield_now().await;
        Err(Error::from(ErrorKind::ConnectionAborted))
    });
    let body = Body::from_stream(beginning.chain(break_off).map(move |piece| {
        let _ = &in_flight;
        piece
    }));
    let mut response = json(StatusCode::OK, body);
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(PROMISED_BYTES));
    response
}
