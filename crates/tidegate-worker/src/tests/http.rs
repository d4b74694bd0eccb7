//! The HTTP tool executor against tools that misbehave, over real sockets and in real time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::Reason;
use tidegate_core::settlement::Ending;
use tidegate_outbound::{Outbound, OutboundOptions};
use tidegate_store::{Claimed, Report};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::{Running, options, start};
use crate::Executor;
use crate::context::Context;
use crate::fake::task;
use crate::handler::RunFuture;
use crate::http_tool::{HttpToolOptions, http_tool};

const REJECTED: Ending =
    Ending::Failed { retryable: false, retry_after_ms: None, reason: Some(Reason::OutputRejected) };
const PERMANENT: Ending = Ending::Failed { retryable: false, retry_after_ms: None, reason: None };
const TRANSIENT: Ending = Ending::Failed { retryable: true, retry_after_ms: None, reason: None };

fn after(ms: u64) -> Ending {
    Ending::Failed { retryable: true, retry_after_ms: Some(ms), reason: None }
}

/// What a tool saw.
#[derive(Debug, PartialEq)]
enum Seen {
    Request(String),
    Closed,
}

/// A tool that answers each request with `answer` and holds the connection until the caller closes it.
async fn tool(answer: impl Into<Vec<u8>>) -> (SocketAddr, mpsc::Receiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, seen) = mpsc::channel(16);
    let answer = answer.into();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, answer.clone(), tell.clone()));
        }
    });
    (address, seen)
}

async fn serve(mut stream: TcpStream, answer: Vec<u8>, tell: mpsc::Sender<Seen>) {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    let head_end = loop {
        if let Some(at) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        let read = stream.read(&mut buffer).await.unwrap();
        request.extend_from_slice(&buffer[..read]);
    };
    let head = String::from_utf8(request[..head_end].to_vec()).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
    let whole = head_end + length.parse::<usize>().unwrap();
    while request.len() < whole {
        let read = stream.read(&mut buffer).await.unwrap();
        request.extend_from_slice(&buffer[..read]);
    }
    tell.send(Seen::Request(String::from_utf8(request).unwrap())).await.unwrap();
    stream.write_all(&answer).await.unwrap();
    while !matches!(stream.read(&mut buffer).await, Ok(0) | Err(_)) {}
    let _ = tell.send(Seen::Closed).await;
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len())
}

fn calling(address: SocketAddr) -> Arc<dyn Executor> {
    let allow_networks = vec!["127.0.0.0/8".parse().unwrap()];
    let outbound = Outbound::new(OutboundOptions { allow_networks, ..OutboundOptions::default() }).unwrap();
    let headers = BTreeMap::from([("Authorization".to_owned(), "Bearer tool-key".to_owned())]);
    http_tool(&HttpToolOptions { url: format!("http://{address}/search?key=secret"), headers }, outbound).unwrap()
}

async fn settled(worker: &Running) -> Report {
    worker.store.until("settled", |state| state.settled.len() == 1).await;
    worker.store.state().settled[0].clone()
}

async fn run(address: SocketAddr, task: Claimed) -> Report {
    let worker = start(options(), calling(address));
    worker.store.submit([task]);
    settled(&worker).await
}

async fn call(answer: impl Into<Vec<u8>>) -> Report {
    let (address, _seen) = tool(answer).await;
    run(address, task(1, "own", "null")).await
}

fn error(report: &Report) -> (Ending, &str, &str) {
    let error = report.error.as_ref().unwrap();
    assert!(!error.message.contains("secret") && !error.message.contains("tool-key"), "{}", error.message);
    (report.ending, &error.kind, &error.message)
}

#[tokio::test]
async fn a_tool_gets_the_payload_byte_for_byte_and_all_that_it_needs_to_know() {
    let (address, mut seen) = tool(answer("200 OK", "", r#"{"b":1.50,"a":"\u0000"}"#)).await;
    let payload = "{\"z\":1.0, \"a\":\"\\u00e9é\"}";
    let traceparent = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned());
    let report = run(address, Claimed { attempt: 2, traceparent, ..task(7, "own", payload) }).await;
    assert_eq!((report.ending, report.result.as_deref()), (Ending::Completed, Some(r#"{"b":1.50,"a":"\ufffd"}"#)));
    let Some(Seen::Request(request)) = seen.recv().await else { panic!("no request") };
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, payload);
    let head = head.to_lowercase();
    assert!(head.starts_with("post /search?key=secret http/1.1"), "{head}");
    for line in [
        "content-type: application/json",
        "authorization: bearer tool-key",
        "idempotency-key: 00000000-0000-0000-0000-000000000007",
        "x-task-id: 00000000-0000-0000-0000-000000000007",
        "x-fence: 1",
        "x-attempt: 2",
        "x-deadline-epoch-ms: 1790000000000",
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ] {
        assert_eq!(head.lines().filter(|found| *found == line).count(), 1, "{line} in {head}");
    }
    let budget = head.lines().find_map(|line| line.strip_prefix("x-budget: ")).unwrap();
    let budget: tidegate_core::budget::Budget = serde_json::from_str(budget).unwrap();
    assert!(budget.remaining_s.is_some_and(|left| (290.0..300.0).contains(&left)), "{budget:?}");
    assert_eq!((budget.depth, budget.fanout), (Some(2), Some(4)));
}

#[tokio::test]
async fn the_status_says_what_should_happen_next() {
    for (status, headers, ending, kind) in [
        ("429 Too Many Requests", "Retry-After: 7\r\n", after(7_000), "overloaded"),
        ("429 Too Many Requests", "", TRANSIENT, "overloaded"),
        ("503 Service Unavailable", "Retry-After: 0\r\n", after(0), "overloaded"),
        ("503 Service Unavailable", "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n", after(0), "overloaded"),
        ("503 Service Unavailable", "Retry-After: soon\r\n", TRANSIENT, "overloaded"),
        ("529 Overloaded", "", TRANSIENT, "overloaded"),
        ("400 Bad Request", "", PERMANENT, "http_status"),
        ("404 Not Found", "Retry-After: 7\r\n", PERMANENT, "http_status"),
        ("408 Request Timeout", "", PERMANENT, "http_status"),
        ("500 Internal Server Error", "", TRANSIENT, "http_status"),
        ("502 Bad Gateway", "", TRANSIENT, "http_status"),
        ("599 Odd", "", TRANSIENT, "http_status"),
    ] {
        let report = call(answer(status, headers, "went \u{1b}[31mwrong")).await;
        let (found, found_kind, message) = error(&report);
        assert_eq!((found, found_kind), (ending, kind), "{status} {headers:?}");
        assert!(message.starts_with(&format!("HTTP {}", &status[..3])), "{message}");
        assert!(message.ends_with("went \u{FFFD}[31mwrong"), "{message}");
    }
}

#[tokio::test]
async fn a_redirect_is_a_failure_and_its_target_sees_nothing() {
    let (target, mut seen) = tool(answer("200 OK", "", "1")).await;
    for status in
        ["301 Moved Permanently", "302 Found", "304 Not Modified", "307 Temporary Redirect", "308 Permanent Redirect"]
    {
        let report = call(answer(status, &format!("Location: http://{target}/\r\n"), "")).await;
        assert_eq!((error(&report).0, error(&report).1), (PERMANENT, "redirect"), "{status}");
    }
    assert!(seen.try_recv().is_err());
}

#[tokio::test]
async fn an_answer_that_is_not_json_is_rejected() {
    let deep = "[".repeat(65) + &"]".repeat(65);
    for body in ["", "<html>busy</html>", "{\"a\":}", "{} {}", "NaN", &deep] {
        let report = call(answer("200 OK", "Content-Type: application/json\r\n", body)).await;
        assert_eq!((error(&report).0, error(&report).1), (REJECTED, "output_rejected"), "{body:?}");
    }
    // Success without a body is success with nothing to say.
    let report = call("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!((report.ending, report.result.as_deref()), (Ending::Completed, Some("null")));
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_not_read_to_its_end() {
    let announced = "HTTP/1.1 200 OK\r\nContent-Length: 262145\r\n\r\n";
    assert_eq!(error(&call(announced).await).0, REJECTED);
    let mut endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..5 {
        endless.extend_from_slice(b"10000\r\n");
        endless.extend(std::iter::repeat_n(b'1', 0x10000));
        endless.extend_from_slice(b"\r\n");
    }
    let report = call(endless).await;
    assert_eq!((error(&report).0, error(&report).1), (REJECTED, "output_rejected"));
}

#[tokio::test]
async fn bytes_that_are_no_utf8_are_repaired_inside_strings() {
    let with = |body: &[u8]| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    };
    for (body, repaired) in [
        (&b"{\"a\":\"\xff\"}"[..], "{\"a\":\"\u{fffd}\"}"),
        // A character that was cut off, half a surrogate pair as UTF-8, and NUL beside them.
        (b"[\"a\xe2\x82\",\"\xed\xa0\x80\",\"\\u0000\"]", "[\"a\u{fffd}\",\"\u{fffd}\u{fffd}\u{fffd}\",\"\\ufffd\"]"),
        // Latin-1.
        (b"\"caf\xe9\"", "\"caf\u{fffd}\""),
        (b"{\"\xc3\":1}", "{\"\u{fffd}\":1}"),
    ] {
        let report = call(with(body)).await;
        assert_eq!((report.ending, report.result.as_deref()), (Ending::Completed, Some(repaired)));
    }
    for body in [&b"\xff"[..], b"{\"a\":\xff}", b"\xff{}"] {
        let report = call(with(body)).await;
        let (ending, kind, message) = error(&report);
        assert_eq!((ending, kind), (REJECTED, "output_rejected"));
        assert!(message.starts_with("HTTP 200 OK: the body is not JSON: "), "{message}");
    }
}

#[tokio::test]
async fn a_tool_that_hangs_ends_with_its_time_and_its_connection_is_closed() {
    let (address, mut seen) = tool("").await;
    let timeout_of = |ms| Claimed { attempt_timeout: Some(Duration::from_millis(ms)), ..task(1, "own", "null") };
    assert_eq!(run(address, timeout_of(150)).await.ending, Ending::AttemptTimedOut);
    assert!(matches!(seen.recv().await, Some(Seen::Request(_))));
    assert_eq!(seen.recv().await, Some(Seen::Closed));

    let late = Claimed { remaining: Duration::from_millis(200), ..task(1, "own", "null") };
    assert_eq!(run(address, late).await.ending, Ending::DeadlineHit);

    // In the middle of an answer as well.
    let (address, _seen) = tool("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"a\"").await;
    assert_eq!(run(address, timeout_of(150)).await.ending, Ending::AttemptTimedOut);
}

#[tokio::test]
async fn an_error_whose_body_hangs_is_still_what_its_status_says() {
    let started = Instant::now();
    let report = call("HTTP/1.1 503 No\r\nRetry-After: 2\r\nContent-Length: 9\r\n\r\nbusy").await;
    assert_eq!(error(&report), (after(2_000), "overloaded", "HTTP 503 Service Unavailable: busy"));
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test]
async fn an_error_is_quoted_at_five_hundred_characters() {
    let report = call(answer("500 Internal Server Error", "", &"é".repeat(40_000))).await;
    assert_eq!(error(&report).2, format!("HTTP 500 Internal Server Error: {}", "é".repeat(500)));
}

#[tokio::test]
async fn a_connection_that_breaks_or_is_refused_is_transient() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    let report = run(nobody, task(1, "own", "null")).await;
    assert_eq!((error(&report).0, error(&report).1), (TRANSIENT, "connection"));

    for cut in ["", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"a\"", "no HTTP at all\r\n\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cutter = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"null") {
                stream.read_buf(&mut request).await.unwrap();
            }
            stream.write_all(cut.as_bytes()).await.unwrap();
        });
        let report = run(address, task(1, "own", "null")).await;
        cutter.await.unwrap();
        assert_eq!((error(&report).0, error(&report).1), (TRANSIENT, "connection"), "{cut:?}");
    }
}

#[tokio::test]
async fn a_cancel_closes_the_connection_at_once() {
    let (address, mut seen) = tool("").await;
    let worker = start(options(), calling(address));
    worker.store.submit([task(1, "own", "null")]);
    assert!(matches!(seen.recv().await, Some(Seen::Request(_))));
    worker.store.ask_to_cancel(1);
    let closed = timeout(Duration::from_secs(2), seen.recv()).await;
    assert_eq!(closed.unwrap(), Some(Seen::Closed));
    assert_eq!(settled(&worker).await.ending, Ending::Cancelled);
}

/// Tells what the tool had seen at the moment when the call was over.
struct Watched {
    call: Arc<dyn Executor>,
    tool: Arc<Mutex<mpsc::Receiver<Seen>>>,
    then: mpsc::Sender<Vec<Seen>>,
}

impl Executor for Watched {
    fn execute(&self, ctx: Context, payload: String) -> RunFuture<'_> {
        Box::pin(async move {
            let ended = self.call.execute(ctx, payload).await;
            let seen = std::iter::from_fn(|| self.tool.lock().unwrap().try_recv().ok()).collect();
            self.then.try_send(seen).unwrap();
            ended
        })
    }
}

/// The slot and the permit of a peer are free when the call is over: the next must not meet this one at the tool.
#[tokio::test]
async fn a_call_that_is_given_up_is_over_only_when_the_tool_knows() {
    for (cancel, ending) in [(true, Ending::Cancelled), (false, Ending::AttemptTimedOut)] {
        let (address, seen) = tool("").await;
        let (seen, (then, mut at_the_end)) = (Arc::new(Mutex::new(seen)), mpsc::channel(1));
        let worker = start(options(), Arc::new(Watched { call: calling(address), tool: seen.clone(), then }));
        let attempt_timeout = (!cancel).then_some(Duration::from_millis(300));
        worker.store.submit([Claimed { attempt_timeout, ..task(1, "own", "null") }]);
        worker.store.until("called", |_| matches!(seen.lock().unwrap().try_recv(), Ok(Seen::Request(_)))).await;
        if cancel {
            worker.store.ask_to_cancel(1);
        }
        assert_eq!(settled(&worker).await.ending, ending);
        assert_eq!(at_the_end.recv().await.unwrap(), [Seen::Closed]);
    }
}

#[tokio::test]
async fn a_name_that_leads_inside_is_refused_for_good() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let outbound = Outbound::new(OutboundOptions::default()).unwrap();
    let options_of = HttpToolOptions { url: format!("http://localhost:{port}/"), headers: BTreeMap::new() };
    let worker = start(options(), http_tool(&options_of, outbound).unwrap());
    worker.store.submit([task(1, "own", "null")]);
    let report = settled(&worker).await;
    assert_eq!((error(&report).0, error(&report).1), (PERMANENT, "url_refused"));
}
