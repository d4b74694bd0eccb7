//! The roles as real processes: each on its own, and how they refuse to start.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::process::Output;
use std::time::Duration;

use serde_json::Value;
use tidegate_testkit::{Behaviour, FakeTool, Proc, TestDb};
use tokio::process::Command;

/// More than any single step here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn role(database: &str, arguments: &[&str]) -> Proc {
    Proc::builder(env!("CARGO_BIN_EXE_tidegate")).args(arguments).env("DATABASE_URL", database).spawn()
}

async fn tidegate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).env_remove("DATABASE_URL").env("TIDEGATE__LOG__LEVEL", "warn").output().await.unwrap()
}

fn stdout(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

#[tokio::test]
async fn the_roles_apart_run_a_task_and_stop_when_told() {
    let database = TestDb::new().await;
    let mut server = role(database.url(), &["serve", "--no-keeper", "--listen", "127.0.0.1:0"]);
    let url = server.wait_for_url(LIMIT).await;
    let mut worker = role(database.url(), &["worker", "--slots", "2"]);
    let mut keeper = role(database.url(), &["keeper"]);
    keeper.wait_for_line("keeping", LIMIT).await;

    let done = tidegate(&["--url", &url, "--json", "submit", "echo", r#"{"n":1.50}"#, "--wait", "60"]).await;
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(stdout(&done)["status"], "COMPLETED");
    // Only the keeper brings a deferred task back into the queue.
    let later = tidegate(&["--url", &url, "--json", "submit", "echo", "--delay", "300ms", "--wait", "60"]).await;
    assert_eq!(stdout(&later)["status"], "COMPLETED");
    let failed = tidegate(&["--url", &url, "submit", "fail", "--max-attempts", "1", "--wait", "60"]).await;
    assert_eq!(failed.status.code(), Some(1));

    for process in [&mut worker, &mut keeper, &mut server] {
        process.terminate();
        assert_eq!(process.wait(LIMIT).await.code(), Some(0), "{}", process.output());
    }
}

#[tokio::test]
async fn an_operator_drains_a_worker_which_finishes_and_ends_and_one_of_up_which_only_stops_serving() {
    let database = TestDb::new().await;
    let mut up = role(database.url(), &["up", "--listen", "127.0.0.1:0"]);
    let url = up.wait_for_url(LIMIT).await;
    let ask = async |arguments: &[&str]| {
        let output = tidegate(&[&["--url", &url, "--json"], arguments].concat()).await;
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        stdout(&output)
    };
    let until_served_by = async |count: usize| {
        tidegate_testkit::poll_until(LIMIT, &format!("{count} workers"), async || {
            let listed = ask(&["workers"]).await["workers"].as_array().unwrap().clone();
            (listed.len() == count).then_some(listed)
        })
        .await
    };
    let own = until_served_by(1).await.remove(0);
    ask(&["workers", "drain", own["id"].as_str().unwrap()]).await;
    until_served_by(0).await;
    let id = ask(&["submit", "sleep", r#"{"ms":1500}"#]).await["id"].as_str().unwrap().to_owned();
    let told = ask(&["explain", &id]).await;
    assert_eq!((&told["status"], &told["blockers"][0]["kind"]), (&"QUEUED".into(), &"no_worker".into()), "{told}");

    let mut worker = role(database.url(), &["worker", "--slots", "2"]);
    tidegate_testkit::poll_until(LIMIT, "the task to run", async || {
        (ask(&["explain", &id]).await["status"] == "RUNNING").then_some(())
    })
    .await;
    let other = until_served_by(1).await.remove(0);
    assert_eq!((&other["slots"], &other["running"], &other["draining"]), (&2.into(), &1.into(), &false.into()));
    let drained = ask(&["workers", "drain", other["id"].as_str().unwrap()]).await;
    assert_eq!(drained["draining"], true);
    assert_eq!(worker.wait(LIMIT).await.code(), Some(0), "{}", worker.output());
    let done = ask(&["get", &id]).await;
    assert_eq!((&done["status"], &done["deliveries"]), (&"COMPLETED".into(), &1.into()), "{done}");
    up.terminate();
    assert_eq!(up.wait(LIMIT).await.code(), Some(0), "{}", up.output());
}

#[tokio::test]
async fn a_configured_kind_calls_its_tool() {
    let database = TestDb::new().await;
    let tool = FakeTool::start().await;
    tool.on("/search", [Behaviour::Json(serde_json::json!({"found": 2}))]);
    let config = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "[outbound]\nallow_networks = [\"127.0.0.0/8\"]\n[kinds.hotels]\nexecutor = \"http\"\n\
         http = {{ url = \"{}\", headers = {{ x-team = \"a\" }} }}\n",
        tool.url("/search")
    );
    std::fs::write(config.path(), text).unwrap();
    let path = config.path().to_str().unwrap();
    let mut up = role(database.url(), &["up", "--config", path, "--listen", "127.0.0.1:0"]);
    let url = up.wait_for_url(LIMIT).await;
    let done = tidegate(&["--url", &url, "--json", "submit", "hotels", r#"{"city":"Rome"}"#, "--wait", "60"]).await;
    let task = stdout(&done);
    assert_eq!((&task["status"], &task["result"]["found"]), (&"COMPLETED".into(), &2.into()), "{task}");
    let seen = tool.seen().remove(0);
    assert_eq!((seen.header("x-team"), &seen.json()["city"]), (Some("a"), &"Rome".into()));
    assert_eq!(seen.header("idempotency-key"), task["id"].as_str());
    up.terminate();
    assert_eq!(up.wait(LIMIT).await.code(), Some(0), "{}", up.output());
}

#[tokio::test]
async fn what_cannot_start_says_why_and_with_which_code() {
    for (arguments, code, part) in [
        (&["serve", "--listen", "0.0.0.0:0"][..], 64, "no API key exists"),
        (&["up", "--listen", "[::]:0"], 64, "no API key exists"),
        (&["worker"], 64, "store.url"),
        (&["keeper", "--config", "/nonexistent.toml"], 64, "/nonexistent.toml"),
        (&["migrate", "--database-url", "mysql://x"], 64, "postgres://"),
    ] {
        let output = tidegate(arguments).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let output = tidegate(&["migrate", "--database-url", &format!("postgres://x:s3cret@{nobody}/x")]).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
}

#[tokio::test]
async fn migrating_twice_is_harmless_and_the_doctor_sees_it() {
    let database = TestDb::new().await;
    let mut answers = Vec::new();
    for _ in 0..2 {
        let output = tidegate(&["migrate", "--json", "--database-url", database.url()]).await;
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        answers.push(stdout(&output));
    }
    let applied = |answer: &Value| answer["applied"].as_array().unwrap().clone();
    assert_eq!(applied(&answers[0]).last(), Some(&answers[0]["version"]), "{answers:?}");
    assert_eq!((applied(&answers[1]).len(), &answers[1]["version"]), (0, &answers[0]["version"]));
    let output = tidegate(&["doctor", "--json", "--url", "http://127.0.0.1:1", "--database-url", database.url()]).await;
    let findings = stdout(&output);
    let verdict = |check: &str| {
        let found = findings.as_array().unwrap().iter().find(|finding| finding["check"] == check);
        found.unwrap_or_else(|| panic!("{check} is not in {findings}"))["verdict"].clone()
    };
    assert_eq!((verdict("schema"), verdict("database"), verdict("server")), ("ok".into(), "ok".into(), "warn".into()));
    assert_eq!(verdict("workers"), "warn", "nobody works there yet");
}

#[tokio::test]
async fn limits_are_those_of_the_file_until_an_operator_changes_them_also_after_a_restart() {
    let database = TestDb::new().await;
    let config = tempfile::NamedTempFile::new().unwrap();
    let write = |max_queued: u32, max_deferred: u32| {
        let text = format!(
            "[limits]\nmax_queued = {max_queued}\nmax_deferred = {max_deferred}\n[tenants.acme]\nmax_queued = 5\n\
             trusted_labels = [\"safety\"]\n[[class_rules]]\nwhen = {{ labels = {{ safety = \"true\" }} }}\npriority = 95\n"
        );
        std::fs::write(config.path(), text).unwrap();
    };
    let path = config.path().to_str().unwrap();
    let serve = || role(database.url(), &["serve", "--config", path, "--listen", "127.0.0.1:0"]);
    let ask = async |url: &str, arguments: &[&str]| {
        let output = tidegate(&[&["--url", url, "--json"], arguments].concat()).await;
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        stdout(&output)
    };
    write(100, 200);
    let mut server = serve();
    let url = server.wait_for_url(LIMIT).await;
    assert_eq!(ask(&url, &["limits"]).await["max_queued"], 100);
    assert_eq!(ask(&url, &["limits", "set", "max_queued=7"]).await["max_queued"], 7);
    assert_eq!(ask(&url, &["tenant", "get", "acme"]).await["max_queued"], 5);
    let raised = ask(&url, &["submit", "echo", "--tenant", "acme", "--label", "safety=true"]).await;
    assert_eq!((&raised["priority"], &raised["class"]), (&95.into(), &"critical".into()));
    let pause = ask(&url, &["pause", "--kind", "echo", "--for", "1h"]).await;
    assert_eq!(ask(&url, &["pauses"]).await["pauses"][0], pause);
    server.terminate();
    assert_eq!(server.wait(LIMIT).await.code(), Some(0), "{}", server.output());

    write(101, 201);
    let mut server = serve();
    let url = server.wait_for_url(LIMIT).await;
    let limits = ask(&url, &["limits"]).await;
    assert_eq!((&limits["max_queued"], &limits["max_deferred"]), (&7.into(), &201.into()));
    assert_eq!(ask(&url, &["pauses"]).await["pauses"][0], pause);
    let shown = tidegate(&["--config", path, "config", "--database-url", database.url()]).await;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("max_queued = 101") && shown.contains("# limits.max_queued: 7 (the files: 101)"), "{shown}");
    assert!(shown.contains("# paused: kind echo (hold)") && !shown.contains("# limits.max_deferred"), "{shown}");
    let shown = stdout(&tidegate(&["--config", path, "--json", "config", "--database-url", database.url()]).await);
    assert_eq!((&shown["limits"]["max_queued"], &shown["in_effect"]["limits"]["max_queued"]), (&101.into(), &7.into()));

    // A file that contradicts what an operator changed is refused, before anything is served.
    ask(&url, &["limits", "set", "default_timeout_ms=200000"]).await;
    server.terminate();
    server.wait(LIMIT).await;
    std::fs::write(config.path(), "[limits]\nmax_timeout_ms = 100000\ndefault_timeout_ms = 1000\n").unwrap();
    let mut server = serve();
    assert_eq!(server.wait(LIMIT).await.code(), Some(64), "{}", server.output());
    assert!(server.output().contains("limits.default_timeout_ms"), "{}", server.output());
}

#[tokio::test]
async fn a_worker_and_a_keeper_on_their_own_can_be_watched_and_stop_without_a_warning() {
    // An error means that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let database = TestDb::migrated().await;
    for name in ["worker", "keeper"] {
        let mut process = role(database.url(), &[name, "--metrics-listen", "127.0.0.1:0"]);
        let url = process.wait_for_url(LIMIT).await;
        let get = async |path: &str| {
            let answer = reqwest::get(format!("{url}{path}")).await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        };
        assert_eq!((get("/livez").await.0, get("/readyz").await.0, get("/v1/tasks").await.0), (200, 200, 404));
        let known = if name == "worker" { "tidegate_heartbeats_total" } else { "tidegate_keeper_expired_total" };
        tidegate_testkit::poll_until(LIMIT, known, async || {
            let (_, text) = get("/metrics").await;
            (text.contains(known) || text.contains("tidegate_leases_reaped_total")).then_some(())
        })
        .await;
        process.terminate();
        assert_eq!(process.wait(LIMIT).await.code(), Some(0), "{}", process.output());
        assert!(!process.output().contains("WARN") && !process.output().contains("ERROR"), "{}", process.output());
    }
}
