//! Asked over plain TCP: what comes back is seen as it is on the wire.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// Sends a request and returns the open connection.
async fn send(tool: &FakeTool, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(tool.address()).await.unwrap();
    let body = "{\"a\":1}";
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: tool\r\nx-fence: 7\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// The whole answer, head and body, until the connection ends.
async fn ask(tool: &FakeTool, path: &str) -> String {
    let mut answer = Vec::new();
    send(tool, path).await.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_request_is_echoed_and_remembered() {
    let tool = FakeTool::start().await;
    let answer = ask(&tool, "/any?q=1").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("{\"a\":1}"), "{answer}");
    let seen = tool.wait_for_requests(1, LIMIT).await;
    assert_eq!((seen[0].method.as_str(), seen[0].uri.to_string().as_str()), ("POST", "/any?q=1"));
    assert_eq!((seen[0].header("x-fence"), seen[0].header("x-other")), (Some("7"), None));
    assert_eq!(seen[0].json(), serde_json::json!({"a": 1}));
    assert_eq!((tool.in_flight(), tool.max_in_flight()), (0, 1));
}

#[tokio::test]
async fn a_script_is_followed_to_its_last_line_which_stays() {
    let tool = FakeTool::start().await;
    tool.on("/s", [Behaviour::retry_after(503, 2), Behaviour::status(500), Behaviour::Json(serde_json::json!([1]))]);
    let first = ask(&tool, "/s").await;
    assert!(first.starts_with("HTTP/1.1 503") && first.contains("retry-after: 2\r\n"), "{first}");
    assert!(ask(&tool, "/s").await.starts_with("HTTP/1.1 500"));
    for _ in 0..2 {
        assert!(ask(&tool, "/s").await.ends_with("[1]"));
    }
    assert!(ask(&tool, "/elsewhere").await.ends_with("{\"a\":1}"));
}

#[tokio::test]
async fn every_fault_looks_on_the_wire_as_it_says() {
    let tool = FakeTool::start().await;
    tool.on("/r", [Behaviour::Redirect("http://127.0.0.1:1/x".to_owned())]);
    let answer = ask(&tool, "/r").await;
    assert!(answer.starts_with("HTTP/1.1 302") && answer.contains("location: http://127.0.0.1:1/x\r\n"), "{answer}");
    tool.on("/b", [Behaviour::BadJson]);
    assert!(ask(&tool, "/b").await.ends_with("{\"open\": [1, 2"));
    tool.on("/c", [Behaviour::CutMidBody]);
    let answer = ask(&tool, "/c").await;
    assert!(answer.contains("content-length: 1000\r\n") && answer.ends_with("{\"half\": \"of an"), "{answer}");
    tool.on("/o", [Behaviour::Oversize(100_000)]);
    let answer = ask(&tool, "/o").await;
    assert_eq!(answer.matches('x').count() + 2, 100_000);
    tool.on("/d", [Behaviour::Drip(5, Duration::from_millis(5))]);
    let started = Instant::now();
    assert!(ask(&tool, "/d").await.contains("\"\r\n"));
    assert!(started.elapsed() >= Duration::from_millis(25));
    tool.wait_until_idle(LIMIT).await;
}

#[tokio::test]
async fn what_hangs_is_in_flight_until_the_caller_leaves() {
    let tool = FakeTool::start().await;
    tool.on("/h", [Behaviour::Hang]);
    tool.on("/d", [Behaviour::Drip(1_000, Duration::from_secs(1))]);
    let (hung, dripped) = (send(&tool, "/h").await, send(&tool, "/d").await);
    tool.wait_for_requests(2, LIMIT).await;
    assert_eq!((tool.in_flight(), tool.max_in_flight()), (2, 2));
    drop(hung);
    poll_until(LIMIT, "the first to be given up", async || (tool.in_flight() == 1).then_some(())).await;
    tool.count_anew();
    assert_eq!(tool.max_in_flight(), 1);
    drop(dripped);
    tool.wait_until_idle(LIMIT).await;
    assert_eq!(tool.max_in_flight(), 1);
}
