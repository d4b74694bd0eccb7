//! Reading bodies within limits: of one body, of all bodies together, and of time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tidegate_wire::Fault;
use tokio::time::{Instant, timeout_at};

use crate::rejection::Rejection;
use crate::settings::Shared;

/// The bytes of bodies that this process holds, and how many it may.
#[derive(Debug)]
pub(crate) struct IngestBudget {
    used: Arc<AtomicUsize>,
    most: usize,
}

impl IngestBudget {
    pub(crate) fn new(most: usize) -> Self {
        Self { used: Arc::default(), most }
    }

    /// Bytes held now.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes room for more bytes, if there is.
    fn take(&self, held: &mut Held, more: usize) -> Result<(), Rejection> {
        let take = |used: usize| used.checked_add(more).filter(|used| *used <= self.most);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => {
                held.bytes += more;
                Ok(())
            }
            Err(_) => Err(Rejection::fault(Fault::IngestFull, "this server holds as many bytes of requests as it may")),
        }
    }

    fn hold(&self) -> Held {
        Held { bytes: 0, used: Arc::clone(&self.used) }
    }
}

/// Room that was taken, given back on drop.
#[derive(Debug)]
struct Held {
    bytes: usize,
    used: Arc<AtomicUsize>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A whole body. Its room in the budget is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Received {
    bytes: Bytes,
    _held: Held,
}

impl Received {
    /// The body as text.
    pub(crate) fn text(&self) -> Result<&str, Rejection> {
        std::str::from_utf8(&self.bytes).map_err(|error| {
            let detail = format!("the body is not UTF-8 (at byte {})", error.valid_up_to());
            Rejection::fault(Fault::InvalidJson, detail)
        })
    }
}

/// Reads a body of at most `most` bytes. What is known to be too large, or finds no room, is refused unread.
pub(crate) async fn read(
    app: &Shared,
    headers: &HeaderMap,
    mut body: Body,
    most: usize,
) -> Result<Received, Rejection> {
    match read_within(app, headers, &mut body, most).await {
        Ok(received) => Ok(received),
        Err(rejection) => {
            discard(headers, body);
            Err(rejection)
        }
    }
}

/// The same of a body that may be missing: JSON, or nothing.
pub(crate) async fn read_any(
    app: &Shared,
    headers: &HeaderMap,
    body: Body,
    most: usize,
) -> Result<Option<Received>, Rejection> {
    let received = read(app, headers, body, most).await?;
    if received.text()?.trim_ascii().is_empty() {
        return Ok(None);
    }
    check_json(headers)?;
    Ok(Some(received))
}

async fn read_within(app: &Shared, headers: &HeaderMap, body: &mut Body, most: usize) -> Result<Received, Rejection> {
    if !body.is_end_stream() {
        check_plain(headers)?;
    }
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let known = declared.unwrap_or(0).max(body.size_hint().lower());
    let expected = usize::try_from(known).ok().filter(|known| *known <= most).ok_or_else(|| too_large(most))?;
    let mut held = app.ingest.hold();
    app.ingest.take(&mut held, expected)?;

    let deadline = Instant::now() + app.settings.body_timeout;
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    loop {
        let Some(frame) = next_frame(body, deadline, app.settings.body_idle_timeout).await? else { break };
        let Ok(data) = frame.into_data() else { continue };
        let length = first.len() + rest.len() + data.len();
        if length > most {
            return Err(too_large(most));
        }
        let more = length.saturating_sub(held.bytes);
        if more > 0 {
            app.ingest.take(&mut held, more)?;
        }
        // Most bodies come in one piece, which need not be copied.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.reserve(expected.max(length));
                rest.extend_from_slice(&first);
                first = Bytes::new();
            }
            rest.extend_from_slice(&data);
        }
    }
    let bytes = if rest.is_empty() { first } else { rest.freeze() };
    Ok(Received { bytes, _held: held })
}

async fn next_frame(
    body: &mut Body,
    deadline: Instant,
    idle: Duration,
) -> Result<Option<hyper::body::Frame<Bytes>>, Rejection> {
    // What has arrived already needs no timer.
    let frame = match body.frame().now_or_never() {
        Some(frame) => frame,
        None => timeout_at(deadline.min(Instant::now() + idle), body.frame())
            .await
            .map_err(|_| Rejection::fault(Fault::BodyTimeout, "the body did not arrive in time"))?,
    };
    frame.transpose().map_err(|_| Rejection::fault(Fault::BodyIncomplete, "the body ended early or could not be read"))
}

fn too_large(most: usize) -> Rejection {
    Rejection::fault(Fault::BodyTooLarge, format!("the body is larger than {most} bytes"))
}

/// Reads on, for a while, what a refused caller still sends: a connection that is closed over unread bytes is reset,
/// and the caller might never see why it was refused.
pub(crate) fn discard(headers: &HeaderMap, mut body: Body) {
    const MOST_BYTES: usize = 64 << 20;
    const MOST_TIME: Duration = Duration::from_secs(5);
    // A caller that asks first has sent nothing, and is told by the answer not to.
    if body.is_end_stream() || headers.contains_key(EXPECT) {
        return;
    }
    tokio::spawn(tokio::time::timeout(MOST_TIME, async move {
        let mut seen = 0;
        while let Some(Ok(frame)) = body.frame().await {
            seen += frame.data_ref().map_or(0, Bytes::len);
            if seen > MOST_BYTES {
                break;
            }
        }
    }));
}

/// A body has to be sent as it is: what was compressed would have to be unpacked before anything of it is known.
fn check_plain(headers: &HeaderMap) -> Result<(), Rejection> {
    let plain = |value: &http::HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    if headers.get_all(CONTENT_ENCODING).iter().all(plain) {
        return Ok(());
    }
    let detail = "send the body as it is: Content-Encoding must be absent or identity";
    Err(Rejection::fault(Fault::UnsupportedMediaType, detail).at_header("Content-Encoding"))
}

/// Without a key a body has to be of type `application/json`, which no form of a foreign page can send unasked.
pub(crate) fn check_json(headers: &HeaderMap) -> Result<(), Rejection> {
    check_type(headers, &["application/json"])
}

/// The same where a body may be of several types, none of which such a form can send.
pub(crate) fn check_type(headers: &HeaderMap, types: &[&'static str]) -> Result<(), Rejection> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let essence = |value: &http::HeaderValue| {
        value.to_str().is_ok_and(|text| {
            let essence = text.split(';').next().unwrap_or_default().trim();
            types.iter().any(|known| essence.eq_ignore_ascii_case(known))
        })
    };
    match (values.next(), values.next()) {
        (Some(value), None) if essence(value) => Ok(()),
        _ => {
            let detail = format!("send the body with Content-Type: {}", types.join(" or "));
            Err(Rejection::fault(Fault::UnsupportedMediaType, detail).at_header("Content-Type"))
        }
    }
}
