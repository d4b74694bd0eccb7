//! The exchange with a server that misbehaves, over real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up should stop")]

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use tidegate_outbound::{Outbound, OutboundOptions, Request, SendError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// A server that reads one request on each connection, writes `answer`, and then waits for the other side to close.
/// It sends what it read, and then, once the connection is closed, nothing more.
async fn server(answer: impl Into<Vec<u8>>) -> (SocketAddr, tokio::sync::mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, read) = tokio::sync::mpsc::channel(16);
    let answer = answer.into();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (seen, answer) = (seen.clone(), answer.clone());
            tokio::spawn(async move {
                let request = read_request(&mut stream).await;
                let _ = seen.send(request).await;
                let _ = stream.write_all(&answer).await;
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest).await;
            });
        }
    });
    (address, read)
}

async fn read_request(stream: &mut TcpStream) -> Vec<u8> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let read = stream.read(&mut buffer).await.unwrap();
        request.extend_from_slice(&buffer[..read]);
        if read == 0 || request.windows(4).any(|window| window == b"\r\n\r\n") {
            return request;
        }
    }
}

fn open() -> Outbound {
    let allow_networks = vec!["127.0.0.0/8".parse().unwrap()];
    Outbound::new(OutboundOptions { allow_networks, ..OutboundOptions::default() }).unwrap()
}

fn request(outbound: &Outbound, address: SocketAddr, time: Duration) -> Request {
    Request {
        method: Method::GET,
        url: outbound.check(&format!("http://{address}/path?key=secret")).unwrap(),
        headers: HeaderMap::new(),
        body: Bytes::new(),
        deadline: Instant::now() + time,
    }
}

async fn get(answer: impl Into<Vec<u8>>, limit: usize) -> Result<(StatusCode, Bytes), SendError> {
    let (address, _read) = server(answer).await;
    let outbound = open();
    let answer = outbound.send(request(&outbound, address, Duration::from_secs(5))).await?;
    let status = answer.status();
    Ok((status, answer.read(limit).await?))
}

#[tokio::test]
async fn an_answer_within_the_cap_is_read_whole() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
    assert_eq!(get(answer, 4).await.unwrap(), (StatusCode::OK, Bytes::from_static(b"body")));
}

#[tokio::test]
async fn a_larger_one_is_not_whether_it_says_so_or_not() {
    let announced = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    assert!(matches!(get(announced, 4).await, Err(SendError::TooLarge { limit: 4 })));
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n";
    assert!(matches!(get(chunked, 4).await, Err(SendError::TooLarge { limit: 4 })));
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_its_target_sees_nothing() {
    let (target, mut seen) = server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let answer = format!("HTTP/1.1 302 Found\r\nLocation: http://{target}/\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(get(answer, 4).await.unwrap().0, StatusCode::FOUND);
    assert!(seen.try_recv().is_err());
}

#[tokio::test]
async fn a_compressed_body_is_not_inflated_and_not_asked_for() {
    let (address, mut seen) =
        server("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x0b").await;
    let outbound = open();
    let answer = outbound.send(request(&outbound, address, Duration::from_secs(5))).await.unwrap();
    assert_eq!(answer.read(16).await.unwrap(), Bytes::from_static(b"\x1f\x0b"));
    let sent = String::from_utf8(seen.recv().await.unwrap()).unwrap().to_lowercase();
    assert!(!sent.contains("accept-encoding"), "{sent}");
}

#[tokio::test]
async fn silence_ends_at_the_deadline_before_and_within_the_body() {
    let (address, _seen) = server("").await;
    let outbound = open();
    let error = outbound.send(request(&outbound, address, Duration::from_millis(50))).await.unwrap_err();
    assert!(matches!(error, SendError::TimedOut));

    let (address, _seen) = server("HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\nabc").await;
    let answer = outbound.send(request(&outbound, address, Duration::from_millis(200))).await.unwrap();
    assert!(matches!(answer.read(16).await, Err(SendError::TimedOut)));
    let answer = outbound.send(request(&outbound, address, Duration::from_secs(5))).await.unwrap();
    let soon = Instant::now() + Duration::from_millis(100);
    assert_eq!(answer.read_excerpt(2, soon).await, Bytes::from_static(b"ab"));
    let answer = outbound.send(request(&outbound, address, Duration::from_secs(5))).await.unwrap();
    let soon = Instant::now() + Duration::from_millis(100);
    assert_eq!(answer.read_excerpt(16, soon).await, Bytes::from_static(b"abc"));
}

#[tokio::test]
async fn no_connection_and_a_broken_one_are_told_apart_without_naming_the_url() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    let outbound = open();
    let error = outbound.send(request(&outbound, nobody, Duration::from_secs(5))).await.unwrap_err();
    assert!(matches!(error, SendError::NotConnected(_)), "{error:?}");
    assert!(!error.to_string().contains("secret"), "{error}");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cutter = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await;
    });
    let error = outbound.send(request(&outbound, address, Duration::from_secs(5))).await.unwrap_err();
    cutter.await.unwrap();
    assert!(matches!(error, SendError::Broken(_)), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
}

#[tokio::test]
async fn dropping_the_call_closes_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (arrived, wait_arrived) = tokio::sync::oneshot::channel();
    let closed = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await;
        arrived.send(()).unwrap();
        stream.read(&mut [0; 1]).await
    });
    let outbound = open();
    let call = tokio::spawn({
        let (outbound, request) = (outbound.clone(), request(&outbound, address, Duration::from_secs(60)));
        async move { outbound.send(request).await.map(|answer| answer.status()) }
    });
    wait_arrived.await.unwrap();
    call.abort();
    let read = tokio::time::timeout(Duration::from_secs(5), closed).await.unwrap().unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}
