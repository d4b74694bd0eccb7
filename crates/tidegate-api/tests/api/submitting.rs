//! Submissions that are well-formed: what reaches the door, and what comes back.

use tidegate_core::submission::{OnFull, Start};
use tidegate_core::{Priority, Reason, Status};

use crate::fake::Trouble;
use crate::harness::Api;

const FULL: &str = r#"{
    "kind": "summarise", "payload": {"b": 1.50, "a": [1e300, "é", "\u00e9"], "b": null}, "priority": 50,
    "timeout_ms": 30000, "min_useful_ms": 200, "delay_ms": 0, "cost": {"tokens": 1200, "usd_micros": 900},
    "peer": "gpt", "max_attempts": 3, "attempt_timeout_ms": 10000, "cancellation_token": "trip-42",
    "workflow_id": "wf-7", "parent_id": "018f0000-0000-7000-8000-000000000007", "on_full": "reject",
    "max_wait_ms": 500, "labels": {"safety": "true", "b": ""}, "webhook": null
}"#;

#[tokio::test]
async fn a_small_submission_becomes_a_task() {
    let api = Api::new();
    let answer = api.submit("{\"kind\":\"echo\"}").await.expect(202);
    assert_eq!(answer.header("location"), Some(format!("/v1/tasks/{}", answer.id()).as_str()));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    insta::assert_snapshot!(answer.stable());
}

#[tokio::test]
async fn a_full_submission_reaches_the_door_whole_and_reads_the_same_later() {
    let api = Api::new();
    let answer = api.ask("POST", "/v1/tasks").header("idempotency-key", "\"k-1\"").json(FULL).send().await.expect(202);
    insta::assert_snapshot!(answer.stable());
    let later = api.get(&format!("/v1/tasks/{}", answer.id())).await.expect(200);
    assert_eq!(answer.stable(), later.stable());

    let submission = &api.fake.submissions()[0];
    assert_eq!(submission.payload, "{\"b\": 1.50, \"a\": [1e300, \"é\", \"\\u00e9\"], \"b\": null}");
    assert_eq!(submission.timing.start, Start::Now);
    assert_eq!(submission.timing.timeout_ms, Some(30_000));
    assert_eq!(submission.idempotency.as_ref().unwrap().key, "k-1");
    // Byte for byte in the answer too.
    assert!(answer.text.contains(&submission.payload) && later.text.contains(&submission.payload));
}

#[tokio::test]
async fn how_long_to_wait_may_be_said_beside_every_way_in_and_counts_for_one() {
    let api = Api::new();
    for (said, meant) in [
        ("", OnFull::Reject),
        ("\"on_full\":\"reject\",", OnFull::Reject),
        ("\"on_full\":\"defer\",", OnFull::Defer),
        ("\"on_full\":\"wait\",", OnFull::Wait { max_wait_ms: 500 }),
    ] {
        api.submit(format!("{{{said}\"max_wait_ms\":500,\"kind\":\"echo\"}}")).await.expect(202);
        assert_eq!(api.fake.submissions().last().unwrap().on_full, meant);
    }
}

#[tokio::test]
async fn a_payload_comes_back_as_it_was_sent() {
    let api = Api::new();
    for payload in [
        "1e400",
        "-0.0",
        "123456789012345678901234567890.10",
        "{\"z\":1,\"a\":2,\"z\":3}",
        "[ 1 ,\t2\n]",
        "\"\\/\\u00e9\u{7f}\u{ffff}\"",
        "false",
        "null",
    ] {
        let answer = api.submit(format!(" {{ \"payload\" : {payload} , \"kind\":\"echo\"}} ")).await.expect(202);
        let member = format!("\"payload\":{payload},");
        assert!(answer.text.contains(&member), "{payload}: {}", answer.text);
        assert_eq!(api.fake.submissions().last().unwrap().payload, payload);
        let id = &answer.text[7..43];
        assert!(api.get(&format!("/v1/tasks/{id}")).await.expect(200).text.contains(&member), "{payload}");
    }
}

#[tokio::test]
async fn what_is_not_said_is_the_kinds() {
    let api = Api::new();
    api.submit("{\"kind\":\"hotels\"}").await.expect(202);
    api.submit(
        "{\"kind\":\"hotels\",\"peer\":\"inns\",\"min_useful_ms\":0,\"max_attempts\":1,\"attempt_timeout_ms\":9}",
    )
    .await
    .expect(202);
    api.submit("{\"kind\":\"hotels\",\"peer\":null,\"priority\":null,\"labels\":null,\"cost\":null}").await.expect(202);
    let seen = api.fake.submissions();
    for submission in [&seen[0], &seen[2]] {
        assert_eq!(submission.peer.as_ref().unwrap().as_str(), "hotels");
        assert_eq!((submission.min_useful_ms, submission.max_attempts), (200, 7));
        assert_eq!((submission.attempt_timeout_ms, submission.fanout), (Some(5_000), 3));
        assert_eq!(submission.payload, "null");
    }
    assert_eq!(seen[1].peer.as_ref().unwrap().as_str(), "inns");
    assert_eq!((seen[1].min_useful_ms, seen[1].max_attempts, seen[1].attempt_timeout_ms), (0, 1, Some(9)));
}

#[tokio::test]
async fn headers_and_body_combine() {
    let api = Api::new();
    let send = |deadline: &'static str, budget: &'static str, body: &'static str| {
        let ask = api.ask("POST", "/v1/tasks").header("x-deadline-epoch-ms", deadline).header("x-budget", budget);
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        ask.header("traceparent", trace).json(body).send()
    };
    send("1796000100000", "{\"remaining_s\":50.5,\"depth\":0,\"fanout\":9}", "{\"kind\":\"echo\"}").await.expect(202);
    send("1796000100000", "{}", "{\"kind\":\"echo\",\"deadline\":\"2026-11-30T00:53:30Z\"}").await.expect(202);
    let seen = api.fake.submissions();
    assert_eq!((seen[0].timing.deadline, seen[0].timing.remaining_ms), (Some(1_796_000_100_000), Some(50_500)));
    // A budget can only narrow what the kind allows.
    assert_eq!((seen[0].depth, seen[0].fanout), (0, 4));
    assert!(seen[0].traceparent.is_some());
    assert_eq!(seen[1].timing.deadline, Some(1_796_000_010_000));
    assert_eq!((seen[1].depth, seen[1].fanout), (2, 4));
}

#[tokio::test]
async fn a_priority_is_a_number_or_a_class() {
    let api = Api::new();
    for (priority, number, class) in [
        ("0", 0, "background"),
        ("100", 100, "critical"),
        ("\"critical\"", 90, "critical"),
        ("\"standard\"", 40, "standard"),
        ("\"background\"", 0, "background"),
        ("\"b\\u0061ckground\"", 0, "background"),
    ] {
        let answer = api.submit(format!("{{\"kind\":\"echo\",\"priority\":{priority}}}")).await.expect(202);
        assert_eq!((&answer.json()["priority"], &answer.json()["class"]), (&number.into(), &class.into()));
    }
    assert_eq!(api.fake.submissions()[2].priority, Priority::new(90).unwrap());
}

#[tokio::test]
async fn starts_are_relative_or_absolute() {
    let api = Api::new();
    let answer = api.submit("{\"kind\":\"echo\",\"delay_ms\":60000}").await.expect(202);
    assert_eq!((&answer.json()["status"], &answer.json()["reason"]), (&"DEFERRED".into(), &"scheduled".into()));
    assert_eq!(answer.json()["not_before"], "2026-11-30T00:54:20.000Z");
    // A leap second and a time long past are instants like others.
    for at in ["2016-12-31T23:59:60Z", "0000-01-01T00:00:00Z"] {
        let answer = api.submit(format!("{{\"kind\":\"echo\",\"not_before\":\"{at}\"}}")).await.expect(202);
        assert_eq!(answer.json()["status"], "QUEUED", "{at}");
    }
}

#[tokio::test]
async fn a_full_queue_is_503_with_a_task_that_can_be_read() {
    let api = Api::with_room(1);
    api.submit("{\"kind\":\"echo\"}").await.expect(202);
    let answer = api.submit("{\"kind\":\"echo\"}").await;
    answer.refused(503, "queue_full");
    insta::assert_snapshot!(answer.stable());
    assert_eq!(answer.header("x-shed-reason"), Some("queue_full"));
    assert_eq!(answer.header("x-pressure"), Some("1.00"));
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(seconds, answer.json()["retry_after_ms"].as_u64().unwrap().div_ceil(1_000));
    let read = api.get(&format!("/v1/tasks/{}", answer.id())).await.expect(200);
    insta::assert_snapshot!(read.stable());
}

#[tokio::test]
async fn a_deadline_that_passed_is_503_without_retry_after() {
    let api = Api::new();
    for ask in [
        api.ask("POST", "/v1/tasks").header("x-deadline-epoch-ms", "1790000000000").json("{\"kind\":\"echo\"}"),
        api.ask("POST", "/v1/tasks").header("x-deadline-epoch-ms", "-9223372036854775808").json("{\"kind\":\"echo\"}"),
        api.ask("POST", "/v1/tasks").json("{\"kind\":\"echo\",\"deadline\":\"2020-01-01T00:00:00Z\"}"),
        api.ask("POST", "/v1/tasks").header("x-budget", "{\"remaining_s\":0}").json("{\"kind\":\"echo\"}"),
    ] {
        let answer = ask.send().await;
        let problem = answer.refused(503, "deadline_passed");
        assert_eq!(problem["outcome"], "EXPIRED");
        assert!(problem.get("retry_after_ms").is_none() && answer.header("retry-after").is_none());
        assert_eq!(answer.header("x-shed-reason"), Some("deadline"));
        api.get(&format!("/v1/tasks/{}", answer.id())).await.expect(200);
    }
    let answer = api.submit("{\"kind\":\"echo\",\"timeout_ms\":10,\"min_useful_ms\":11}").await;
    answer.refused(503, "deadline_too_short");
    assert_eq!(answer.header("x-shed-reason"), Some("deadline"));
}

#[tokio::test]
async fn every_refusal_of_the_door_keeps_the_table_of_the_contract() {
    for (status, reason, code) in [
        (Status::Rejected, Reason::TenantRate, 429),
        (Status::Rejected, Reason::Quarantined, 422),
        (Status::Rejected, Reason::ByteBudget, 503),
        (Status::Shed, Reason::LowPriority, 503),
        (Status::Cancelled, Reason::TokenCancelled, 409),
    ] {
        let api = Api::new();
        api.fake.refuse_with(status, reason);
        let answer = api.submit("{\"kind\":\"echo\"}").await;
        let problem = answer.refused(code, reason.as_str());
        assert_eq!(problem["outcome"], status.as_str());
        let again_later = matches!(code, 429 | 503);
        assert_eq!(answer.header("retry-after").is_some(), again_later, "{reason}");
        assert_eq!(answer.header("x-shed-reason"), again_later.then_some(reason.as_str()));
        assert_eq!(api.get(&format!("/v1/tasks/{}", answer.id())).await.expect(200).json()["status"], status.as_str());
    }
}

#[tokio::test]
async fn a_key_makes_one_task() {
    let api = Api::new();
    let send = |key: &'static str, body: &'static str| {
        api.ask("POST", "/v1/tasks").header("idempotency-key", key).json(body).send()
    };
    let first = send("k", "{\"kind\":\"echo\",\"payload\":{\"a\":1,\"b\":2}}").await.expect(202);
    let again = send("\"k\"", " {\"payload\": {\"b\":2, \"a\":1}, \"kind\":\"echo\"}").await.expect(200);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.id(), first.id());
    assert_eq!(again.json()["idempotency_key"], "k");

    api.fake.complete(first.id(), "{\"done\": true}");
    let again = send("k", "{\"kind\":\"echo\",\"payload\":{\"a\":1,\"b\":2}}").await.expect(200);
    assert_eq!(again.json()["status"], "COMPLETED");
    insta::assert_snapshot!(again.stable());

    let other = send("k", "{\"kind\":\"echo\",\"payload\":{\"a\":1,\"b\":2.0}}").await;
    let problem = other.refused(422, "key_reused");
    assert_eq!((&problem["header"], other.id()), (&"Idempotency-Key".into(), first.id()));
    // Another tenant's key is another key.
    let ask = api.ask("POST", "/v1/tasks").header("idempotency-key", "k").header("x-tenant", "other");
    assert_ne!(ask.json("{\"kind\":\"echo\"}").send().await.expect(202).id(), first.id());
    // A key whose task is gone already.
    api.fake.delete(first.id());
    send("k", "{\"kind\":\"echo\",\"payload\":{\"a\":1,\"b\":2}}").await.refused(404, "not_found");
}

#[tokio::test]
async fn a_refusal_does_not_burn_the_key() {
    let api = Api::with_room(0);
    let send = || api.ask("POST", "/v1/tasks").header("idempotency-key", "k").json("{\"kind\":\"echo\"}").send();
    let (first, second) = (send().await, send().await);
    first.refused(503, "queue_full");
    second.refused(503, "queue_full");
    assert_ne!(first.id(), second.id());
}

#[tokio::test]
async fn what_is_no_decision_is_a_problem_too() {
    for (trouble, status, reason, has_id, retry) in [
        (Trouble::Unavailable, 503, "store_unavailable", false, true),
        (Trouble::OutcomeUnknown, 503, "outcome_unknown", true, true),
        (Trouble::Overloaded, 503, "waiters_full", false, true),
        (Trouble::Draining, 503, "draining", false, true),
        (Trouble::KeyInFlight, 409, "key_in_flight", false, true),
        (Trouble::Invalid, 422, "invalid_value", false, false),
    ] {
        let api = Api::new();
        api.fake.trouble(Some(trouble));
        let answer = api.submit("{\"kind\":\"echo\"}").await;
        let problem = answer.refused(status, reason);
        assert_eq!(problem.get("task_id").is_some(), has_id, "{trouble:?}");
        assert_eq!(answer.header("retry-after").is_some(), retry, "{trouble:?}");
        assert_eq!(answer.header("x-shed-reason"), (status == 503).then_some(reason), "{trouble:?}");
    }
}

#[tokio::test]
async fn a_store_that_never_answers_is_an_unknown_outcome_in_the_end() {
    let api = Api::with(|settings| settings.write_timeout = std::time::Duration::from_millis(20));
    api.fake.trouble(Some(Trouble::Hangs));
    assert!(api.submit("{\"kind\":\"echo\"}").await.refused(503, "outcome_unknown").get("task_id").is_some());
}

#[tokio::test]
async fn a_draining_server_takes_nothing_new_but_still_reads_and_cancels() {
    let api = Api::new();
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    api.state.start_draining();
    let seen = api.fake.submissions().len();
    let refused = api.submit("{\"kind\":\"echo\",\"priority\":70}").await;
    assert_eq!(refused.refused(503, "draining")["outcome"], "REJECTED");
    assert!(refused.header("retry-after").is_some());
    let read = api.get(&format!("/v1/tasks/{}", refused.id())).await.expect(200).json();
    assert_eq!((&read["status"], &read["reason"]), (&"REJECTED".into(), &"draining".into()));
    assert_eq!((&read["priority"], &read["payload"]), (&70.into(), &serde_json::Value::Null));
    // Each item of a batch alone.
    let batch = r#"{"tasks":[{"kind":"echo"},{"kind":"a b"},{"kind":"echo"}]}"#;
    let results = api.post("/v1/tasks/batch", batch).await.expect(200).json();
    for (at, (reason, readable)) in
        [("draining", true), ("invalid_value", false), ("draining", true)].iter().enumerate()
    {
        let item = &results["results"][at];
        assert_eq!((&item["reason"], item["task_id"].is_string()), (&(*reason).into(), *readable), "{item}");
        if let Some(id) = item["task_id"].as_str() {
            let read = api.get(&format!("/v1/tasks/{id}")).await.expect(200).json();
            assert_eq!((&read["status"], &item["outcome"]), (&"REJECTED".into(), &"REJECTED".into()));
            assert!(item["retry_after_ms"].is_u64());
        }
    }
    assert_eq!(api.fake.submissions().len(), seen, "nothing came to the door");
    // What is wrong stays wrong.
    api.submit("{").await.refused(400, "invalid_json");
    api.submit("{\"kind\":\"echo\",\"nope\":1}").await.refused(422, "unknown_field");
    api.get("/readyz").await.refused(503, "draining");
    api.get("/livez").await.expect(200);
    api.get(&format!("/v1/tasks/{id}")).await.expect(200);
    api.post(&format!("/v1/tasks/{id}/cancel"), "").await.expect(200);
}

#[tokio::test]
async fn bodies_in_flight_share_one_budget() {
    let api = Api::with(|settings| settings.max_ingest_bytes = 64);
    api.submit(format!("{{\"kind\":\"echo\",\"payload\":\"{}\"}}", "x".repeat(64))).await.refused(503, "ingest_full");
    // What was taken is given back.
    for _ in 0..10 {
        api.submit(format!("{{\"kind\":\"echo\",\"payload\":\"{}\"}}", "x".repeat(20))).await.expect(202);
    }
}

#[tokio::test]
async fn the_tenant_is_the_one_that_the_caller_names() {
    let api = Api::new();
    let ask = api.ask("POST", "/v1/tasks").header("x-tenant", "acme").json("{\"kind\":\"echo\"}");
    let answer = ask.send().await.expect(202);
    assert_eq!(answer.json()["tenant"], "acme");
    assert_eq!(api.fake.submissions()[0].tenant.as_str(), "acme");
    for bad in ["", "a b", "a/b", "é"] {
        let ask = api.ask("POST", "/v1/tasks").header("x-tenant", bad).json("{\"kind\":\"echo\"}");
        assert_eq!(ask.send().await.refused(422, "invalid_value")["header"], "X-Tenant");
    }
}
