//! The command line, run as a program against a server that says what it is told to.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[allow(dead_code, reason = "shared with the tests of the client, which use more of it")]
#[path = "../crates/tidegate-client/tests/fake/mod.rs"]
mod fake;

use std::process::{Output, Stdio};

use fake::{Behaviour, Fake, answer};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

const ID: &str = "019a0000-0000-7000-8000-000000000000";

fn task(status: &str, payload: &str) -> String {
    format!(
        r#"{{"id":"{ID}","kind":"echo","tenant":"default","status":"{status}","reason":null,"detail":null,"priority":50,"class":"standard","priority_notes":[],"attempt":1,"max_attempts":3,"deliveries":1,"fence":1,"enqueued_at":"2026-11-30T08:15:00.000Z","not_before":null,"started_at":null,"finished_at":null,"deadline":"2026-11-30T08:20:00.000Z","remaining_ms":1,"admission_wait_ms":0,"queue_wait_ms":1,"run_ms":null,"queue_position":null,"estimated_start_ms":null,"note":null,"cancel":null,"cost":{{"estimated":{{"tokens":0,"usd_micros":0}},"actual":null}},"peer":null,"worker":null,"progress":null,"payload":{payload},"result":{payload},"error":null,"labels":null,"workflow_id":null,"parent_id":null,"children":[],"cancellation_token":null,"idempotency_key":null,"redriven_from":null,"new_in_later_versions":true}}"#
    )
}

fn problem(status: u16, reason: &str, more: &str) -> String {
    format!(
        r#"{{"type":"/docs/errors/{reason}","title":"T","status":{status},"detail":"D","reason":"{reason}"{more}}}"#
    )
}

fn command(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).env_clear().env("TIDEGATE_URL", url).stdin(Stdio::null());
    command
}

async fn run(behaviours: Vec<Behaviour>, arguments: &[&str]) -> (Output, Fake) {
    let fake = Fake::start(behaviours).await;
    let output = command(&fake.url(), arguments).output().await.unwrap();
    (output, fake)
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[tokio::test]
async fn the_exit_code_tells_what_became_of_it() {
    let accepted = |status| answer("202 Accepted", &[], &task(status, "null"));
    let read = |status| answer("200 OK", &[], &task(status, "null"));
    let rejected = format!(r#","task_id":"{ID}","outcome":"REJECTED""#);
    let full = || answer("503 Service Unavailable", &[], &problem(503, "queue_full", &rejected));
    let invalid = || answer("422 Unprocessable Content", &[], &problem(422, "invalid_value", ""));
    let unknown = || answer("404 Not Found", &[], &problem(404, "not_found", ""));
    let reached = || answer("200 OK", &[], r#"{"cancelled":2,"requested":1}"#);
    let ended = || answer("409 Conflict", &[], &problem(409, "already_ended", ""));
    for (behaviours, arguments, code) in [
        (vec![accepted("QUEUED")], vec!["submit", "echo"], 0),
        (vec![accepted("QUEUED"), read("RUNNING"), read("COMPLETED")], vec!["submit", "echo", "--wait"], 0),
        (vec![accepted("QUEUED"), read("FAILED")], vec!["submit", "echo", "--wait", "{}"], 1),
        (vec![accepted("QUEUED"), read("RUNNING")], vec!["submit", "echo", "--wait", "0"], 0),
        (vec![full()], vec!["submit", "echo"], 3),
        (vec![invalid()], vec!["submit", "no/name"], 2),
        (vec![], vec!["submit", "echo", "{a: 1}"], 2),
        (vec![], vec!["submit"], 2),
        (vec![Behaviour::Close], vec!["submit", "echo"], 4),
        (vec![read("FAILED")], vec!["get", ID], 0),
        (vec![read("FAILED")], vec!["get", ID, "--wait"], 1),
        (vec![read("RUNNING")], vec!["get", ID, "--wait", "0"], 0),
        (vec![], vec!["submit", "echo", "--label", "a=1", "--label", "a=2"], 2),
        (vec![], vec!["list", "--label", "a=1", "--label", "a=1"], 2),
        (vec![unknown()], vec!["get", ID], 1),
        (vec![], vec!["get", "no-id"], 2),
        (vec![read("CANCELLED")], vec!["cancel", ID], 0),
        (vec![ended()], vec!["cancel", ID], 1),
        (vec![reached()], vec!["cancel", "--token", "t"], 0),
        (vec![reached()], vec!["cancel", "--workflow", "w"], 0),
        (vec![invalid()], vec!["cancel", "--token", ""], 2),
        (vec![], vec!["cancel"], 2),
        (vec![], vec!["cancel", "--token", "t", "--workflow", "w"], 2),
        (vec![], vec!["cancel", ID, "--token", "t"], 2),
        (vec![], vec!["--config", "/nonexistent.toml", "config"], 64),
    ] {
        let (output, _fake) = run(behaviours, &arguments).await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(code <= 1 || !output.stderr.is_empty(), "{arguments:?} ended with {code} and said nothing");
    }
    let output = command("http://127.0.0.1:1", &["get", ID]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
}

#[tokio::test]
async fn who_waited_in_vain_is_told_that_it_goes_on() {
    for arguments in [&["get", ID, "--wait", "0", "--json"][..], &["submit", "echo", "--wait", "0", "--json"]] {
        let running = || answer("200 OK", &[], &task("RUNNING", "null"));
        let (output, _fake) = run(vec![running(), running()], arguments).await;
        let said =
            format!("tidegate: task {ID} has not ended yet (RUNNING); wait for it with: tidegate get {ID} --wait");
        assert_eq!((output.status.code(), stderr(&output).trim_end()), (Some(0), &*said));
        assert!(stdout(&output).starts_with('{'));
    }
}

#[tokio::test]
async fn json_is_the_servers_own() {
    let body = task("COMPLETED", r#"{"b":1.50,"a":1e400}"#);
    let (output, _fake) = run(vec![answer("200 OK", &[], &body)], &["get", ID, "--json"]).await;
    assert_eq!(stdout(&output).trim_end(), body);
    let refused = problem(429, "tenant_rate", r#","retry_after_ms":1500"#);
    let (output, _fake) =
        run(vec![answer("429 Too Many Requests", &[], &refused)], &["submit", "echo", "--json"]).await;
    assert_eq!(stdout(&output).trim_end(), refused);
    assert!(stderr(&output).contains("1.5 s"), "{}", stderr(&output));
}

#[tokio::test]
async fn text_from_a_payload_cannot_reach_the_terminal_as_an_escape() {
    let body = task("COMPLETED", "\"\u{9b}31m\u{7f}\u{202e}\"");
    let (output, _fake) = run(vec![answer("200 OK", &[], &body)], &["get", ID]).await;
    let shown = stdout(&output);
    assert!(shown.contains(r#"payload       "\u009b31m\u007f\u202e""#), "{shown}");
    let hostile = problem(422, "invalid_value", "").replace("\"D\"", "\"\\u001b[2J\\nD\"");
    let (output, _fake) = run(vec![answer("422 Unprocessable Content", &[], &hostile)], &["submit", "echo"]).await;
    assert!(!stderr(&output).contains('\u{1b}'), "{}", stderr(&output));
}

#[tokio::test]
async fn a_payload_from_standard_input_arrives_as_it_is() {
    let fake = Fake::start(vec![answer("202 Accepted", &[], &task("QUEUED", "null"))]).await;
    let mut child = command(&fake.url(), &["submit", "echo", "-", "--priority", "critical", "--label", "a=b"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(br#"{"z": 1.500, "a": 1e400}"#).await.unwrap();
    assert!(child.wait().await.unwrap().success());
    let requests = fake.requests();
    let expected = r#"{"kind":"echo","payload":{"z": 1.500, "a": 1e400},"priority":"critical","labels":{"a":"b"}}"#;
    assert!(requests[0].ends_with(expected), "{}", requests[0]);
}

#[tokio::test]
async fn a_list_is_a_table_whose_end_names_the_next_page() {
    let page = format!(r#"{{"tasks":[{},{}],"next_cursor":"c2"}}"#, task("QUEUED", "null"), task("FAILED", "null"));
    let (output, fake) = run(vec![answer("200 OK", &[], &page)], &["list", "--status", "QUEUED", "--limit", "2"]).await;
    let lines: Vec<_> = stdout(&output).lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("ID ") && lines[2].contains("FAILED") && lines[2].starts_with(ID), "{lines:?}");
    assert!(stderr(&output).contains("--cursor c2"));
    assert!(fake.requests()[0].starts_with("get /v1/tasks?status=queued&limit=2 "), "{}", fake.requests()[0]);
}

#[tokio::test]
async fn a_list_goes_on_to_the_first_page_that_holds_any() {
    let empty = |cursor: &str| answer("200 OK", &[], &format!(r#"{{"tasks":[],"next_cursor":{cursor}}}"#));
    let found = format!(r#"{{"tasks":[{}],"next_cursor":null}}"#, task("RUNNING", "null"));
    let pages = vec![empty("\"c2\""), empty("\"c3\""), answer("200 OK", &[], &found)];
    let (output, fake) = run(pages, &["list", "--status", "RUNNING"]).await;
    assert!(stdout(&output).contains("RUNNING") && stderr(&output).is_empty(), "{output:?}");
    assert!(fake.requests()[2].contains("cursor=c3"), "{}", fake.requests()[2]);
    let (output, _fake) = run(vec![empty("\"c2\""), empty("null")], &["list", "--status", "RUNNING"]).await;
    assert_eq!((stdout(&output), stderr(&output)), ("", "no tasks\n"));
}

#[tokio::test]
async fn a_reader_that_leaves_is_not_complained_about() {
    let mut child = command("http://127.0.0.1:1", &["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().await.unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
}

#[tokio::test]
async fn a_wrong_configuration_is_told_with_key_and_origin() {
    let output = command("http://127.0.0.1:1", &["config"]).env("TIDEGATE__WORKER__SLOTS", "0").output().await.unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(stderr(&output).contains("worker.slots (environment, TIDEGATE__WORKER__SLOTS): must be 1 to"));
    let output = command("http://127.0.0.1:1", &["config"])
        .env("TIDEGATE__STORE__URL", "postgres://me:s3cret@db/x")
        .output()
        .await
        .unwrap();
    assert!(stdout(&output).contains("postgres://me:redacted@db/x") && !stdout(&output).contains("s3cret"));
}

#[tokio::test]
async fn operators_read_and_change_limits() {
    let limits = r#"{"max_queued":7,"max_running":null,"classes":{"critical":{"from":90}},"of_tomorrow":1}"#;
    let ok = || answer("200 OK", &[], limits);
    let (output, fake) = run(vec![ok()], &["limits"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines: Vec<_> = stdout(&output).lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(
        lines,
        [["max_queued", "7"], ["max_running", "-"], ["classes.critical.from", "90"], ["of_tomorrow", "1"]]
    );
    assert!(fake.requests()[0].starts_with("get /v1/admin/limits http/1.1"));
    let (output, fake) =
        run(vec![ok()], &["--json", "limits", "set", "max_running=none", "classes.critical.from=91"]).await;
    assert_eq!(stdout(&output).trim(), limits);
    let request = fake.requests().remove(0);
    assert!(request.starts_with("patch /v1/admin/limits") && request.contains("application/merge-patch+json"));
    assert!(request.ends_with(r#"{"max_running":null,"classes":{"critical":{"from":91}}}"#), "{request}");
    let (_, fake) = run(vec![ok()], &["limits", "patch", r#"{"max_queued":9}"#]).await;
    assert!(fake.requests()[0].ends_with(r#"{"max_queued":9}"#));
    let refused =
        answer("422 Unprocessable Content", &[], &problem(422, "unknown_field", r#","pointer":"/max_queud""#));
    let (output, _fake) = run(vec![refused], &["limits", "set", "max_queud=1"]).await;
    assert_eq!(output.status.code(), Some(2));
    for bad in [
        &["limits", "set"][..],
        &["limits", "set", "max_queued"],
        &["limits", "set", "a=1", "a.b=2"],
        &["limits", "patch", "[]"],
    ] {
        let output = command("http://127.0.0.1:1", bad).output().await.unwrap();
        assert_eq!(output.status.code(), Some(2), "{bad:?}");
    }
}

#[tokio::test]
async fn operators_list_change_and_delete_tenants_and_peers() {
    let page = r#"{"tenants":[{"name":"acme","weight":2.0,"max_queued":5,"max_running":null,"usage":{"queued":3,"running":1}}],"next_cursor":"acme"}"#;
    let (output, fake) =
        run(vec![answer("200 OK", &[], page)], &["tenant", "list", "--limit", "1", "--cursor", "a"]).await;
    let rows: Vec<_> = stdout(&output).lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(rows[0], ["NAME", "WEIGHT", "MAX_QUEUED", "MAX_RUNNING", "RATE_PER_MINUTE", "QUEUED", "RUNNING"]);
    assert_eq!(rows[1], ["acme", "2.0", "5", "-", "-", "3", "1"]);
    assert!(stderr(&output).contains("--cursor acme"));
    assert!(fake.requests()[0].starts_with("get /v1/admin/tenants?limit=1&cursor=a http/1.1"));
    let page = r#"{"peers":[{"name":"hotels","max_in_flight":2,"max_waiting":null,"max_wait_ms":null,"requests_per_minute":600,"tokens_per_minute":90000,"usage":{"in_flight":1,"waiting":4}}],"next_cursor":null}"#;
    let (output, _fake) = run(vec![answer("200 OK", &[], page)], &["peer", "list"]).await;
    let rows: Vec<_> = stdout(&output).lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(rows[0][4..6], ["REQUESTS_PER_MINUTE", "TOKENS_PER_MINUTE"]);
    assert_eq!(rows[1], ["hotels", "2", "-", "-", "600", "90000", "1", "4"]);
    let peer = || answer("200 OK", &[], r#"{"name":"hotels","max_in_flight":2}"#);
    let (output, fake) = run(vec![peer()], &["peer", "set", "hotels", "max_in_flight=2"]).await;
    assert!(stdout(&output).contains("max_in_flight  2"), "{}", stdout(&output));
    assert!(fake.requests()[0].starts_with("patch /v1/admin/peers/hotels"));
    let (output, fake) = run(vec![answer("204 No Content", &[], "")], &["tenant", "delete", "a/b"]).await;
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), ""), "{}", stderr(&output));
    assert!(fake.requests()[0].starts_with("delete /v1/admin/tenants/a%2fb"));
    let unknown = answer("404 Not Found", &[], &problem(404, "not_found", ""));
    let (output, _fake) = run(vec![unknown], &["peer", "get", "nobody"]).await;
    assert_eq!(output.status.code(), Some(1));
}

#[tokio::test]
async fn a_task_is_explained_in_a_sentence_and_a_table() {
    let blocker = r#"{"kind":"tenant_limit","name":"tenants.acme.max_running","limit":4,"in_use":4,"until":null,"pause_id":null,"detail":"d"}"#;
    let told = format!(
        r#"{{"id":"{ID}","status":"QUEUED","reason":null,"since":"2026-11-30T08:15:00.000Z","waiting_ms":3200,"eligible_at":null,"queue_position":7,"estimated_start_ms":1500,"blockers":[{blocker}],"summary":"Queued for 3.2 s: d.","of_tomorrow":1}}"#
    );
    let ok = || answer("200 OK", &[], &told);
    let (output, fake) = run(vec![ok()], &["explain", ID]).await;
    let lines: Vec<_> = stdout(&output).lines().collect();
    assert_eq!(lines[..3], ["Queued for 3.2 s: d.", "It is expected to start in 1.5 s.", ""], "{}", stderr(&output));
    let words: Vec<_> = lines[4].split_whitespace().collect();
    assert_eq!(words, ["tenant_limit", "tenants.acme.max_running", "4", "4", "-"]);
    assert!(fake.requests()[0].starts_with(&format!("get /v1/tasks/{ID}/explain http/1.1")));
    let (output, _fake) = run(vec![ok()], &["--json", "explain", ID, "--tenant", "acme"]).await;
    assert_eq!(stdout(&output).trim(), told);
    let unknown = answer("404 Not Found", &[], &problem(404, "not_found", ""));
    let (output, _fake) = run(vec![unknown], &["explain", ID]).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(command("http://127.0.0.1:1", &["explain", "x"]).output().await.unwrap().status.code(), Some(2));
}

#[tokio::test]
async fn operators_see_who_changed_what() {
    let entry = |target: &str, before: &str, after: &str| {
        format!(
            r#"{{"id":7,"at":"2026-11-30T08:15:00.000Z","actor":"local","action":"tenant.patch","target":{target},"before":{before},"after":{after}}}"#
        )
    };
    let entries = [
        entry("\"acme\"", r#"{"max_queued":5,"weight":1.0}"#, r#"{"max_queued":7,"weight":1.0}"#),
        entry("null", "null", r#"{"weight":2}"#),
    ];
    let page = format!(r#"{{"entries":[{}],"next_cursor":"7"}}"#, entries.join(","));
    let listed = || answer("200 OK", &[], &page);
    let (output, fake) = run(vec![listed()], &["audit", "--limit", "2"]).await;
    let lines: Vec<_> = stdout(&output).lines().collect();
    assert!(lines[1].contains("local") && lines[1].ends_with("acme    max_queued: 5 → 7"), "{lines:?}");
    assert!(lines[2].ends_with("-       weight: - → 2"), "{lines:?}");
    assert!(stderr(&output).contains("more with --cursor 7"));
    assert!(fake.requests()[0].starts_with("get /v1/admin/audit?limit=2 "), "{}", fake.requests()[0]);
    let (output, _fake) = run(vec![listed()], &["--json", "audit", "--cursor", "9"]).await;
    assert_eq!(stdout(&output).trim(), page);
}

#[tokio::test]
async fn operators_list_and_drain_workers() {
    let worker = |draining: bool| {
        format!(
            r#"{{"id":"{ID}","worker":"w1","kinds":["echo","sleep"],"slots":4,"running":1,"draining":{draining},"started_at":"2026-11-30T08:15:00.000Z","last_beat_at":"2026-11-30T08:16:00.000Z","expires_at":"2026-11-30T08:16:15.000Z","lease_ms":15000}}"#
        )
    };
    let page = format!(r#"{{"workers":[{}],"next_cursor":"c2"}}"#, worker(false));
    let listed = || answer("200 OK", &[], &page);
    let (output, fake) = run(vec![listed()], &["workers", "--limit", "1"]).await;
    let words: Vec<_> = stdout(&output).lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((words[0], words[4], words[7]), (ID, "working", "echo,sleep"), "{}", stderr(&output));
    assert!(stderr(&output).contains("more with --cursor c2"));
    assert!(fake.requests()[0].starts_with("get /v1/admin/workers?limit=1 "), "{}", fake.requests()[0]);
    let (output, fake) = run(vec![listed()], &["--json", "workers", "list", "--cursor", "c1"]).await;
    assert_eq!(stdout(&output).trim(), page);
    assert!(fake.requests()[0].starts_with("get /v1/admin/workers?limit=50&cursor=c1 "), "{}", fake.requests()[0]);
    let drained = answer("200 OK", &[], &worker(true));
    let (output, fake) = run(vec![drained], &["workers", "drain", ID]).await;
    assert!(stdout(&output).contains("draining"), "{}", stderr(&output));
    assert!(fake.requests()[0].starts_with(&format!("post /v1/admin/workers/{ID}/drain ")));
    let unknown = answer("404 Not Found", &[], &problem(404, "not_found", ""));
    let (output, _fake) = run(vec![unknown], &["workers", "drain", ID]).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(command("http://127.0.0.1:1", &["workers", "drain"]).output().await.unwrap().status.code(), Some(2));
}

#[tokio::test]
async fn operators_pause_and_resume() {
    let pause = format!(
        r#"{{"id":"{ID}","tenant":"acme","mode":"hold","until":null,"reason":"x","created_at":"2026-11-30T08:15:00.000Z"}}"#
    );
    let list = |headers: &[&str]| answer("200 OK", headers, &format!(r#"{{"pauses":[{pause}]}}"#));
    let made = || answer("201 Created", &[], &pause);
    let (output, fake) = run(vec![made()], &["pause", "--tenant", "acme", "--refuse", "--reason", "x"]).await;
    assert_eq!((output.status.code(), stdout(&output).trim()), (Some(0), ID), "{}", stderr(&output));
    assert!(fake.requests()[0].ends_with(r#"{"tenant":"acme","mode":"refuse","reason":"x"}"#));
    // A time from now counts by the server's clock.
    let behaviours = vec![list(&["date: Mon, 30 Nov 2026 08:15:00 GMT"]), made()];
    let (_, fake) = run(behaviours, &["pause", "--kind", "echo", "--for", "10m"]).await;
    assert!(
        fake.requests()[1].ends_with(r#"{"kind":"echo","until":"2026-11-30T08:25:00.000Z"}"#),
        "{:?}",
        fake.requests()
    );
    let (output, _fake) = run(vec![list(&[])], &["pauses"]).await;
    assert!(stdout(&output).contains("tenant acme") && stdout(&output).contains("hold"), "{}", stdout(&output));
    let gone = || answer("204 No Content", &[], "");
    let (output, fake) = run(vec![list(&[]), gone()], &["resume", "--tenant", "acme"]).await;
    assert_eq!((output.status.code(), stdout(&output).trim()), (Some(0), ID));
    assert!(fake.requests()[1].starts_with(&format!("delete /v1/admin/pauses/{ID}")));
    let (output, _fake) = run(vec![list(&[])], &["resume", "--tenant", "other"]).await;
    assert_eq!(output.status.code(), Some(1));
    let (output, _fake) = run(vec![gone()], &["--json", "resume", ID]).await;
    assert_eq!(stdout(&output).trim(), format!(r#"{{"resumed":["{ID}"]}}"#));
    for bad in [&["pause"][..], &["pause", "--kind", "a", "--peer", "b"], &["pause", "--class", "urgent"], &["resume"]]
    {
        let output = command("http://127.0.0.1:1", bad).output().await.unwrap();
        assert_eq!(output.status.code(), Some(2), "{bad:?}");
    }
}

#[tokio::test]
async fn a_load_is_sized() {
    let sized = async |arguments: &[&str]| command("http://127.0.0.1:1", arguments).output().await.unwrap();
    let asked = ["size", "--rate", "100", "--run-ms", "100", "--slots", "20", "--wait-ms", "250", "--json"];
    let json: serde_json::Value = serde_json::from_str(stdout(&sized(&asked).await)).unwrap();
    assert_eq!((&json["slots_needed"], &json["max_queued"]), (&13.into(), &50.into()));
    assert_eq!((&json["max_expected_wait_ms"], &json["capacity_per_second"]), (&250.into(), &200.0.into()));
    let output = sized(&["size", "--rate", "400", "--run-ms", "100", "--slots", "20"]).await;
    assert!(stdout(&output).contains("slots needed          50"), "{}", stdout(&output));
    assert!(stdout(&output).contains("never catch up"));
    assert_eq!(sized(&["size", "--rate", "0", "--run-ms", "1"]).await.status.code(), Some(2));
}

#[tokio::test]
async fn an_environment_variable_that_is_empty_counts_as_not_set() {
    for (name, url) in [("TIDEGATE_API_KEY", "127.0.0.1:1"), ("TIDEGATE_URL", "127.0.0.1:8080")] {
        let mut command = command("http://127.0.0.1:1", &["doctor"]);
        let output = command.env(name, "").output().await.unwrap();
        assert!(stdout(&output).contains(url), "{name}: {}{}", stdout(&output), stderr(&output));
    }
}
