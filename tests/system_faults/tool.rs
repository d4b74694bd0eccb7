//! Tools over HTTP: what they answer is the result, and however they misbehave the task ends as documented.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_testkit::{Behaviour, FakeTool, Proc};

use crate::fleet::{ALIVE, Fleet, LIMIT, Server, wait_for_number};
use crate::verdict::assert_sound;

/// A real HTTP server that is none of ours. It answers what it was sent, and says who it was sent by.
const PYTHON: &str = r#"
import http.server, json, sys
class Tool(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass
    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = {name: self.headers[name] for name in ("Idempotency-Key", "X-Task-Id", "X-Fence", "X-Attempt")}
        body = json.dumps({"sent": sent, "said": said}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tool)
print(f"http://127.0.0.1:{server.server_address[1]}/", flush=True)
server.serve_forever()
"#;

async fn run(server: &Server, task: Value) -> Value {
    let id = server.caller.add(&task).await;
    server.caller.ended(&id, LIMIT).await
}

/// A server of Python's, where there is a Python.
async fn python_tool() -> Option<(Proc, String)> {
    let there = tokio::process::Command::new("python3").arg("--version").output().await;
    if !there.is_ok_and(|output| output.status.success()) {
        eprintln!("there is no python3 here: tools are tried with our own server alone");
        return None;
    }
    let mut process = Proc::builder("python3").args(["-c", PYTHON]).spawn();
    let url = process.wait_for_url(LIMIT).await;
    Some((process, url))
}

#[tokio::test]
async fn the_answer_of_a_real_tool_is_the_result() {
    let Some((_python, url)) = python_tool().await else { return };
    let fleet = Fleet::new().await.with_tool("tool", &url);
    let server = fleet.serve().await;
    let _worker = fleet.worker(2).await;
    let task = run(&server, json!({"kind": "tool", "payload": {"city": "Rome", "n": 1}})).await;
    assert_eq!(task["status"], "COMPLETED", "{task}");
    let said = json!({"Idempotency-Key": task["id"], "X-Task-Id": task["id"], "X-Fence": "1", "X-Attempt": "1"});
    assert_eq!(task["result"], json!({"sent": {"city": "Rome", "n": 1}, "said": said}));
    assert_sound(fleet.db.url(), &[]).await;
}

#[tokio::test]
async fn tools_that_misbehave_end_their_tasks_as_documented() {
    let (tool, elsewhere) = (FakeTool::start().await, FakeTool::start().await);
    let secret = elsewhere.url("/secret");
    let fleet = Fleet::new().await.with_tool("tool", &tool.url("/")).with("KINDS__TOOL__MAX_ATTEMPTS", 1);
    let fleet =
        fleet.with("WORKER__MAX_RESULT_BYTES", 1_000).with("KINDS__TOOL__BACKOFF", "{ base_ms = 1, max_ms = 1 }");
    let server = fleet.serve().await;
    let _worker = fleet.worker(2).await;
    let (ok, cut_off) = (json!({"kind": "tool"}), json!({"kind": "tool", "attempt_timeout_ms": 400}));
    for (behaviour, task, ending) in [
        (Behaviour::Json(json!({"found": 2})), &ok, ("COMPLETED", None, None)),
        // It is tried no more often than the kind says; here that is once.
        (Behaviour::status(500), &ok, ("FAILED", Some("attempts_exhausted"), Some(true))),
        (Behaviour::CutMidBody, &ok, ("FAILED", Some("attempts_exhausted"), Some(true))),
        (Behaviour::status(404), &ok, ("FAILED", Some("permanent_error"), Some(false))),
        (Behaviour::Redirect(secret), &ok, ("FAILED", Some("permanent_error"), Some(false))),
        (Behaviour::Oversize(100_000), &ok, ("FAILED", Some("output_rejected"), Some(false))),
        (Behaviour::BadJson, &ok, ("FAILED", Some("output_rejected"), Some(false))),
        (Behaviour::Hang, &cut_off, ("TIMED_OUT", Some("attempt_timeout"), None)),
        (Behaviour::Drip(1_000, Duration::from_millis(50)), &cut_off, ("TIMED_OUT", Some("attempt_timeout"), None)),
    ] {
        tool.on("/", [behaviour.clone()]);
        let ended = run(&server, task.clone()).await;
        let found =
            (ended["status"].as_str().unwrap(), ended["reason"].as_str(), ended["error"]["retryable"].as_bool());
        assert_eq!(found.0, ending.0, "{behaviour:?}: {ended}");
        assert_eq!(found.1, ending.1, "{behaviour:?}: {ended}");
        if ending.2.is_some() {
            assert_eq!(found.2, ending.2, "{behaviour:?}: {ended}");
        }
    }
    assert!(elsewhere.seen().is_empty(), "a redirect was followed");
    tool.wait_until_idle(LIMIT).await;

    // With another attempt allowed, what passes by itself is tried again under the same key and a larger fence.
    let before = tool.seen().len();
    tool.on("/", [Behaviour::status(500), Behaviour::Json(json!("at last"))]);
    let ended = run(&server, json!({"kind": "tool", "max_attempts": 2})).await;
    assert_eq!(
        (&ended["status"], &ended["result"], &ended["attempt"]),
        (&"COMPLETED".into(), &"at last".into(), &2.into())
    );
    let seen = tool.seen().split_off(before);
    let headers = |name: &str| seen.iter().map(|seen| seen.header(name).unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(headers("idempotency-key"), [ended["id"].as_str().unwrap(); 2]);
    assert_eq!(
        (headers("x-fence"), headers("x-attempt")),
        (vec!["1".into(), "2".into()], vec!["1".into(), "2".into()])
    );
    wait_for_number(fleet.db.url(), ALIVE, 0).await;
    assert_sound(fleet.db.url(), &[]).await;
}
