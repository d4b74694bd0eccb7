//! Answers to what is no request: a malformed or too large head.
//!
//! The HTTP/1 library answers these itself, before any handler is asked, with a bare status and no way to say more. So
//! the connection's stream looks at what is written: such a bare answer is replaced by the same status with a problem,
//! a request id and the headers that every answer has. Any other write costs a look at its first ten bytes. (HTTP/2
//! refuses such heads inside of its frames, where the status alone is all there is.)

use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, StatusCode};
use tidegate_wire::{Fault, PROBLEM_JSON, header};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::rejection::Rejection;
use crate::settings::App;
use crate::{gate, metric};

/// How an answer of the sort begins that may have to be replaced.
const REFUSED: &[u8] = b"HTTP/1.1 4";

/// A stream on which bare refusals are written as problems.
pub(crate) struct Explained<S> {
    stream: S,
    app: App,
    /// What is written in place of a bare answer: Boxed, since few connections ever see it.
    instead: Option<Box<Instead>>,
}

struct Instead {
    /// The whole answer, and how much of it is written.
    answer: Vec<u8>,
    written: usize,
    /// How many bytes of the writer's it stands for.
    bare: usize,
}

impl<S> Explained<S> {
    pub(crate) fn new(stream: S, app: App) -> Self {
        Self { stream, app, instead: None }
    }
}

impl<S: AsyncWrite + Unpin> Explained<S> {
    /// Sees to a bare answer at the front of what is to be written; `None` where there is none.
    fn poll_instead(&mut self, cx: &mut Context<'_>, front: &[u8]) -> Option<Poll<io::Result<usize>>> {
        if self.instead.is_none() {
            if !front.starts_with(REFUSED) {
                return None;
            }
            let answer = explain(&self.app, front)?;
            self.instead = Some(Box::new(Instead { answer, written: 0, bare: front.len() }));
        }
        let instead = self.instead.as_mut()?;
        Some(instead.poll_write(&mut self.stream, cx).map_ok(|bare| {
            self.instead = None;
            bare
        }))
    }
}

impl Instead {
    fn poll_write<S: AsyncWrite + Unpin>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        while self.written < self.answer.len() {
            match ready!(Pin::new(&mut *stream).poll_write(cx, &self.answer[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        Poll::Ready(Ok(self.bare))
    }
}

/// The answer in place of a bare one: its status, and its headers except those about its emptiness. `None` where it is
/// not bare: an answer of a handler, which has a request id and a body.
fn explain(app: &App, bare: &[u8]) -> Option<Vec<u8>> {
    let head = std::str::from_utf8(bare).ok()?.strip_suffix("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let status_line = lines.next()?;
    let headers: Vec<(&str, &str)> = lines.map(|line| line.split_once(':')).collect::<Option<_>>()?;
    let value = |name: &str| headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim());
    if value(header::X_REQUEST_ID).is_some() || value("content-length").is_some_and(|length| length != "0") {
        return None;
    }
    let status: StatusCode = status_line.split(' ').nth(1)?.parse().ok()?;
    let problem = refusal(app, status)?.into_problem();
    let body = serde_json::to_vec(&problem).ok()?;
    let mut stamped = HeaderMap::new();
    gate::stamp(&mut stamped, app.backend.pressure(), gate::new_request_id());
    let mut answer = Vec::with_capacity(1_024);
    write!(answer, "{status_line}\r\ncontent-type: {PROBLEM_JSON}\r\ncontent-length: {}\r\n", body.len()).ok()?;
    write!(answer, "connection: close\r\n").ok()?;
    if let Some(date) = value("date") {
        write!(answer, "date: {date}\r\n").ok()?;
    }
    for (name, value) in &stamped {
        write!(answer, "{name}: {}\r\n", value.to_str().ok()?).ok()?;
    }
    answer.extend_from_slice(b"\r\n");
    answer.extend_from_slice(&body);
    metric::unreadable(status);
    Some(answer)
}

fn refusal(app: &App, status: StatusCode) -> Option<Rejection> {
    Some(match status {
        StatusCode::BAD_REQUEST => Rejection::fault(
            Fault::MalformedRequest,
            "what was sent is not the head of an HTTP request: its request line or a header is malformed",
        ),
        StatusCode::URI_TOO_LONG => Rejection::fault(Fault::UriTooLong, "the request's target is too long"),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            let most = app.settings.max_header_bytes;
            let detail = format!("the request's line and headers are too many, or more than {most} bytes together");
            Rejection::fault(Fault::HeadersTooLarge, detail)
        }
        _ => return None,
    })
}

impl<S: AsyncRead + Unpin> AsyncRead for Explained<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Explained<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.poll_instead(cx, buf) {
            Some(written) => written,
            None => Pin::new(&mut self.stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A bare answer is written alone: it ends its connection, and what came before is flushed before it is read.
        let front = bufs.first().map_or(&[][..], |front| &front[..]);
        match self.poll_instead(cx, front) {
            Some(written) => written,
            None => Pin::new(&mut self.stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
