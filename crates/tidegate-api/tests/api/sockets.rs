//! On real sockets: slow, silent and greedy connections, two protocols, and the end of the server.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_api::{Settings, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::harness::Api;

/// Longer than anything here should take.
const PATIENCE: Duration = Duration::from_secs(10);

struct Server {
    api: Api,
    address: SocketAddr,
    shutdown: CancellationToken,
    running: JoinHandle<std::io::Result<()>>,
}

impl Server {
    async fn start(change: impl FnOnce(&mut Settings)) -> Self {
        let api = Api::with(change);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(serve(listener, api.state.clone(), shutdown.clone()));
        Self { api, address, shutdown, running }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes and reads until the server closes.
    async fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        read_to_end(&mut stream).await
    }

    /// A good request on a connection of its own.
    async fn get(&self, path: &str) -> String {
        self.exchange(format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.address).as_bytes())
            .await
    }

    async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.running).await.unwrap().unwrap().unwrap();
    }
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset after the answer ends it as well as a close does.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the connection was not cut");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn post(length: usize, more: &str) -> String {
    format!(
        "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{more}\r\n"
    )
}

/// Submissions do not go through the router on a connection: what comes of them must not differ.
#[tokio::test]
async fn a_submission_is_answered_as_it_would_be_by_the_router() {
    // Both stores are fakes that count alike, so the answers are the same to the last byte.
    let change = |settings: &mut Settings| settings.max_payload_bytes = 100;
    let (server, twin) = (Server::start(change).await, Api::with(change));
    let large = format!("{{\"kind\":\"echo\",\"payload\":\"{}\"}}", "x".repeat(200));
    let key = ("idempotency-key", "a");
    for (path, body, (name, value)) in [
        ("/v1/tasks", "{\"kind\":\"echo\",\"payload\":{\"a\":1}}", ("x-request-id", "r")),
        ("/v1/tasks", "{\"kind\":\"echo\"}", key),
        ("/v1/tasks", "{\"kind\":\"other\"}", key),
        ("/v1/tasks", "{\"kind\":\"echo\"}", ("authorization", "Bearer x")),
        ("/v1/tasks", "{\"kind\":\"echo\"}", ("origin", "http://example.com")),
        ("/v1/tasks", "{\"kind\":\"echo\"}", ("prefer", "wait=0")),
        ("/v1/tasks", "{\"kind\":1}", ("x-tenant", "a")),
        ("/v1/tasks", "{", ("x-tenant", "a")),
        ("/v1/tasks", &large, ("x-tenant", "a")),
        ("/v1/tasks?x=1", "{\"kind\":\"echo\"}", ("x-tenant", "a")),
        ("/v1/tasks/", "{\"kind\":\"echo\"}", ("x-tenant", "a")),
    ] {
        let head = post(body.len(), &format!("connection: close\r\n{name}: {value}\r\n"));
        let connected = server.exchange((head.replace("/v1/tasks", path) + body).as_bytes()).await;
        let routed = twin.ask("POST", path).header(name, value).json(body.to_owned()).send().await;
        let (head, text) = connected.split_once("\r\n\r\n").unwrap();
        let mut lines = head.split("\r\n");
        assert_eq!(lines.next().unwrap().split(' ').nth(1), Some(routed.status.as_str()), "{path} {body}: {connected}");
        let names = |name: &&str| !["connection", "date", "content-length"].contains(name);
        let told: BTreeSet<_> = lines.filter_map(|line| Some(line.split_once(':')?.0)).filter(names).collect();
        assert_eq!(told, routed.headers.keys().map(|name| name.as_str()).filter(names).collect(), "{path} {body}");
        assert_eq!(text, routed.text, "{path} {body}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_task_is_submitted_over_http_1() {
    let server = Server::start(|_| {}).await;
    let body = "{\"kind\":\"echo\"}";
    let answer = server.exchange((post(body.len(), "connection: close\r\n") + body).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    assert!(answer.contains("x-pressure: ") && answer.contains("location: /v1/tasks/"));
    // Before HTTP/1.1 a request could have no Host.
    assert!(server.exchange(b"GET /livez HTTP/1.0\r\n\r\n").await.contains(" 403 "));
    server.stop().await;
}

#[tokio::test]
async fn http_2_is_spoken_and_its_authority_is_checked() {
    let server = Server::start(|_| {}).await;
    let io = TokioIo::new(server.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake::<_, _, Body>(TokioExecutor::new(), io).await.unwrap();
    let driver = tokio::spawn(connection);
    for (authority, status) in [("localhost:8080", 202), ("evil.example", 403), ("127.0.0.1", 202)] {
        let request = Request::post(format!("http://{authority}/v1/tasks"))
            .header("content-type", "application/json")
            .body(Body::from("{\"kind\":\"echo\"}"))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), status, "{authority}");
        response.into_body().collect().await.unwrap();
    }
    drop(sender);
    server.stop().await;
    driver.await.unwrap().unwrap();
}

#[tokio::test]
async fn connections_that_bring_no_request_are_cut_and_harm_nobody() {
    let server = Server::start(|settings| {
        settings.first_request_timeout = Duration::from_millis(300);
        settings.header_timeout = Duration::from_millis(300);
    })
    .await;
    let started = Instant::now();
    let mut slow = Vec::new();
    for first in
        ["", "P", "PRI * HTTP/2.0\r\n\r\nSM", "GET / HTTP/1.1\r\nhost: loc", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        for _ in 0..10 {
            let mut stream = server.connect().await;
            stream.write_all(first.as_bytes()).await.unwrap();
            slow.push(stream);
        }
    }
    // A trickle of headers buys no time.
    let mut trickle = server.connect().await;
    let trickled = async {
        while trickle.write_all(b"G").await.is_ok() && started.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        started.elapsed()
    };
    let good = async {
        for _ in 0..10 {
            assert!(server.get("/livez").await.starts_with("HTTP/1.1 200 "));
        }
    };
    let cut = async {
        for stream in &mut slow {
            read_to_end(stream).await;
        }
        started.elapsed()
    };
    let (trickled, (), cut) = tokio::join!(trickled, good, cut);
    assert!(cut < Duration::from_secs(3) && trickled < Duration::from_secs(3), "{cut:?} {trickled:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_connection_that_stays_silent_after_a_request_is_cut_too() {
    let server = Server::start(|settings| settings.header_timeout = Duration::from_millis(200)).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert!(read_to_end(&mut stream).await.starts_with("HTTP/1.1 200 "));
    server.stop().await;
}

#[tokio::test]
async fn when_all_places_are_taken_the_silent_make_way() {
    let server = Server::start(|settings| settings.max_connections = 4).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(server.connect().await);
        assert!(server.get("/livez").await.starts_with("HTTP/1.1 200 "));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_408() {
    let server = Server::start(|settings| settings.body_idle_timeout = Duration::from_millis(200)).await;
    let answer = server.exchange((post(100, "connection: close\r\n") + "{\"kind\"").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("body_timeout"), "{answer}");
    server.stop().await;
    let server = Server::start(|settings| settings.body_timeout = Duration::from_millis(300)).await;
    let mut stream = server.connect().await;
    stream.write_all(post(1_000, "connection: close\r\n").as_bytes()).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let trickle = async {
        while write.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let mut answer = [0; 12];
    tokio::select! {
        () = trickle => panic!("the body was read to its end"),
        read = tokio::time::timeout(PATIENCE, read.read_exact(&mut answer)) => { read.unwrap().unwrap(); }
    }
    assert_eq!(&answer, b"HTTP/1.1 408");
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_ends_early_makes_no_task() {
    let server = Server::start(|_| {}).await;
    let mut stream = server.connect().await;
    stream.write_all((post(100, "") + "{\"kind\":\"echo\"}").as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    read_to_end(&mut stream).await;
    assert!(server.api.fake.submissions().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn a_caller_that_sends_too_much_still_hears_why() {
    let server = Server::start(|settings| settings.max_body_bytes = 100_000).await;
    for body in [200_000, 9_000_000] {
        let mut stream = server.connect().await;
        stream.write_all(post(body, "connection: close\r\n").as_bytes()).await.unwrap();
        // As simple clients do: everything is written before anything is read.
        stream.write_all(&vec![b' '; body]).await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("body_too_large"), "{answer}");
    }
    // In chunks, without a length.
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut stream = server.connect().await;
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", 50_000, " ".repeat(50_000));
    for _ in 0..4 {
        stream.write_all(chunk.as_bytes()).await.unwrap();
    }
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    // One that asks first is not told to go on.
    let answer = server.exchange(post(200_000, "expect: 100-continue\r\nconnection: close\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn headers_have_a_limit() {
    let server = Server::start(|_| {}).await;
    let head = |size: usize| {
        format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-big: {}\r\n\r\n", "x".repeat(size))
    };
    assert!(server.exchange(head(8_000).as_bytes()).await.starts_with("HTTP/1.1 200 "));
    let answer = server.exchange(head(200_000).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    server.stop().await;
}

/// A connection that has carried a request before reads more at a time.
#[tokio::test]
async fn headers_are_bounded_on_a_connection_that_is_kept_too() {
    let server = Server::start(|_| {}).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    let big = "x".repeat(140_000);
    let request = format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx-big: {big}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(answer.contains("HTTP/1.1 431 "), "{answer}");
    let problem = answer.rsplit("\r\n\r\n").next().unwrap();
    let problem: serde_json::Value = serde_json::from_str(problem).unwrap();
    assert_eq!((&problem["reason"], &problem["header"]), (&"headers_too_large".into(), &"x-big".into()));
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_request_is_told_so_in_a_problem() {
    let server = Server::start(|_| {}).await;
    let long = "x".repeat(70_000);
    let many: String = (0..200).map(|n| format!("x-{n}: y\r\n")).collect();
    for (sent, status, reason) in [
        ("nonsense\r\n\r\n".to_owned(), 400, "malformed_request"),
        ("GET / HTTP/1.1\r\nhost : localhost\r\n\r\n".to_owned(), 400, "malformed_request"),
        ("GET /\u{1} HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), 400, "malformed_request"),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), 400, "malformed_request"),
        ("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_owned(), 400, "malformed_request"),
        ("POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n".to_owned(), 400, "malformed_request"),
        (format!("GET /{long} HTTP/1.1\r\nhost: localhost\r\n\r\n"), 414, "uri_too_long"),
        (format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {long}{long}{long}{long}\r\n\r\n"), 431, "headers_too_large"),
        (format!("GET / HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"), 431, "headers_too_large"),
    ] {
        let shown: String = sent.chars().take(60).collect();
        // After a good request on the same connection as well as on a new one.
        for before in ["", "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"] {
            let answer = server.exchange((before.to_owned() + &sent).as_bytes()).await;
            let start = answer.find(&format!("HTTP/1.1 {status} ")).unwrap_or_else(|| panic!("{shown}: {answer}"));
            let (head, body) = answer[start..].split_once("\r\n\r\n").unwrap();
            let has = |line: &str| head.split("\r\n").any(|header| header.starts_with(line));
            assert!(has("content-type: application/problem+json") && has("connection: close"), "{shown}: {head}");
            assert!(has("x-request-id: ") && has("x-pressure: ") && has("date: "), "{shown}: {head}");
            assert!(has(&format!("content-length: {}", body.len())), "{shown}: {head}");
            let problem: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!((&problem["status"], &problem["reason"]), (&status.into(), &reason.into()), "{shown}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_caller_that_leaves_while_waiting_leaves_nothing_behind() {
    let server = Server::start(|_| {}).await;
    let body = "{\"kind\":\"echo\"}";
    let mut stream = server.connect().await;
    stream.write_all((post(body.len(), "prefer: wait=60\r\n") + body).as_bytes()).await.unwrap();
    let mut waiting = server.api.fake.waiting.subscribe();
    tokio::time::timeout(PATIENCE, waiting.wait_for(|count| *count == 1)).await.unwrap().unwrap();
    drop(stream);
    tokio::time::timeout(PATIENCE, waiting.wait_for(|count| *count == 0)).await.unwrap().unwrap();
    assert_eq!(server.api.fake.submissions().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn the_server_ends_gracefully_but_in_time() {
    let server = Server::start(|settings| settings.drain_timeout = Duration::from_millis(500)).await;
    let body = "{\"kind\":\"echo\"}";
    let mut waits = server.connect().await;
    waits.write_all((post(body.len(), "prefer: wait=60\r\n") + body).as_bytes()).await.unwrap();
    let mut stuck = server.connect().await;
    stuck.write_all(post(100, "").as_bytes()).await.unwrap();
    let mut idle = server.connect().await;
    let mut waiting = server.api.fake.waiting.subscribe();
    tokio::time::timeout(PATIENCE, waiting.wait_for(|count| *count == 1)).await.unwrap().unwrap();

    let started = Instant::now();
    let address = server.address;
    server.stop().await;
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    // Who waited got the task as it is; who was stuck or idle was cut.
    assert!(read_to_end(&mut waits).await.starts_with("HTTP/1.1 202 "));
    assert!(!read_to_end(&mut stuck).await.contains(" 202 "));
    assert_eq!(read_to_end(&mut idle).await, "");
    assert!(TcpStream::connect(address).await.is_err());
}
