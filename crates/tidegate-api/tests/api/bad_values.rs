//! Bad values, each with the answer it gets: never a 2xx, never a 500, always with the place.

use crate::harness::Api;

/// A body of `POST /v1/tasks`, the status, the reason, and the pointer (`-` for none, `*` for whatever follows).
fn bodies() -> Vec<(String, u16, &'static str, &'static str)> {
    let nul = "\\u0000";
    let long = |n: usize| "x".repeat(n);
    let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    let many_labels = (0..17).map(|n| format!("\"l{n}\":\"\"")).collect::<Vec<_>>().join(",");
    let with = |members: &str| format!("{{\"kind\":\"echo\",{members}}}");
    let mut cases = vec![
        // Not JSON.
        (String::new(), 400, "invalid_json", "-"),
        (" ".into(), 400, "invalid_json", "-"),
        ("{".into(), 400, "invalid_json", "-"),
        ("{\"kind\":\"echo\"".into(), 400, "invalid_json", "-"),
        ("{\"kind\":\"echo\",}".into(), 400, "invalid_json", "-"),
        ("{'kind':'echo'}".into(), 400, "invalid_json", "-"),
        ("{\"kind\":\"echo\"} x".into(), 400, "invalid_json", "-"),
        ("{\"kind\":\"echo\"}{}".into(), 400, "invalid_json", "-"),
        ("\u{feff}{\"kind\":\"echo\"}".into(), 400, "invalid_json", "-"),
        ("kind=echo".into(), 400, "invalid_json", "-"),
        (with("\"payload\":NaN"), 400, "invalid_json", "-"),
        (with("\"payload\":01"), 400, "invalid_json", "-"),
        (with("\"payload\":\"\u{1}\""), 400, "invalid_json", "-"),
        (with("\"payload\":\"\0\""), 400, "invalid_json", "-"),
        (with("\"payload\":\"\\x41\""), 400, "invalid_json", "-"),
        // Not an object.
        ("[]".into(), 422, "invalid_value", ""),
        ("null".into(), 422, "invalid_value", ""),
        ("\"echo\"".into(), 422, "invalid_value", ""),
        ("7".into(), 422, "invalid_value", ""),
        // U+0000 and half surrogates.
        (with(&format!("\"payload\":\"{nul}\"")), 422, "invalid_value", "/payload"),
        (with(&format!("\"payload\":{{\"a\":[1,\"x{nul}y\"]}}")), 422, "invalid_value", "/payload/a/1"),
        (with(&format!("\"payload\":{{\"a\":1,\"{nul}\":2}}")), 422, "invalid_value", "/payload"),
        (with("\"payload\":\"\\ud800\""), 422, "invalid_value", "/payload"),
        (with("\"payload\":\"\\udc00\\ud800\""), 422, "invalid_value", "/payload"),
        (with("\"payload\":[\"\\ud83dx\"]"), 422, "invalid_value", "/payload/0"),
        (with("\"payload\":{\"\\udfff\":1}"), 422, "invalid_value", "/payload"),
        (format!("{{\"kind\":\"{nul}\"}}"), 422, "invalid_value", "/kind"),
        ("{\"kind\":\"\\ud800\"}".into(), 422, "invalid_value", "/kind"),
        (with(&format!("\"labels\":{{\"a\":\"{nul}\"}}")), 422, "invalid_value", "/labels/a"),
        (with(&format!("\"labels\":{{\"{nul}\":\"\"}}")), 422, "invalid_value", "/labels"),
        (with(&format!("\"workflow_id\":\"{nul}\"")), 422, "invalid_value", "/workflow_id"),
        (with(&format!("\"{nul}\":1")), 422, "invalid_value", ""),
        // Depth.
        (with(&format!("\"payload\":{}", nested(8_500))), 422, "invalid_value", "/payload/0/0/*"),
        ("[".repeat(100_000), 422, "invalid_value", "/0/0/*"),
        (with(&format!("\"webhook\":{}", "{\"a\":".repeat(9_000))), 422, "invalid_value", "/webhook/a/*"),
        // Members.
        ("{}".into(), 400, "missing_field", "/kind"),
        ("{\"payload\":1}".into(), 400, "missing_field", "/kind"),
        (with("\"kind\":\"sleep\""), 422, "duplicate_field", "/kind"),
        (with("\"peer\":null,\"peer\":\"a\""), 422, "duplicate_field", "/peer"),
        (with("\"payload\":1,\"payloa\\u0064\":2"), 422, "duplicate_field", "/payload"),
        (with("\"Priority\":1"), 422, "unknown_field", "/Priority"),
        (with("\"status\":\"COMPLETED\""), 422, "unknown_field", "/status"),
        (with("\"tenant\":\"other\""), 422, "unknown_field", "/tenant"),
        (with("\"fence\":1"), 422, "unknown_field", "/fence"),
        (with("\"a/b~c\":1"), 422, "unknown_field", "/a~1b~0c"),
        (with("\"__proto__\":{}"), 422, "unknown_field", "/__proto__"),
        // Kind and peer.
        ("{\"kind\":null}".into(), 422, "invalid_value", "/kind"),
        ("{\"kind\":7}".into(), 422, "invalid_value", "/kind"),
        ("{\"kind\":\"\"}".into(), 422, "invalid_value", "/kind"),
        ("{\"kind\":\"a b\"}".into(), 422, "invalid_value", "/kind"),
        ("{\"kind\":\"é\"}".into(), 422, "invalid_value", "/kind"),
        ("{\"kind\":\"a/../b\"}".into(), 422, "invalid_value", "/kind"),
        ("{\"kind\":\"a\\n\"}".into(), 422, "invalid_value", "/kind"),
        (format!("{{\"kind\":\"{}\"}}", long(129)), 422, "invalid_value", "/kind"),
        (with("\"peer\":\"\""), 422, "invalid_value", "/peer"),
        (with("\"peer\":[]"), 422, "invalid_value", "/peer"),
        (with("\"peer\":\"'; DROP TABLE task; --\""), 422, "invalid_value", "/peer"),
        // Cost.
        (with("\"cost\":7"), 422, "invalid_value", "/cost"),
        (with("\"cost\":[]"), 422, "invalid_value", "/cost"),
        (with("\"cost\":{\"tokens\":-1}"), 422, "invalid_value", "/cost/tokens"),
        (with("\"cost\":{\"tokens\":1.5}"), 422, "invalid_value", "/cost/tokens"),
        (with("\"cost\":{\"usd_micros\":9223372036854775808}"), 422, "invalid_value", "/cost/usd_micros"),
        (with("\"cost\":{\"usd\":1}"), 422, "unknown_field", "/cost/usd"),
        (with("\"cost\":{\"tokens\":1,\"tokens\":1}"), 422, "duplicate_field", "/cost/tokens"),
        // Names.
        (with("\"workflow_id\":\"\""), 422, "invalid_value", "/workflow_id"),
        (with("\"workflow_id\":\"a\\tb\""), 422, "invalid_value", "/workflow_id"),
        (with(&format!("\"workflow_id\":\"{}\"", long(256))), 422, "invalid_value", "/workflow_id"),
        (with("\"cancellation_token\":\"\\u001b[31m\""), 422, "invalid_value", "/cancellation_token"),
        (with("\"cancellation_token\":1"), 422, "invalid_value", "/cancellation_token"),
        (with(&format!("\"cancellation_token\":\"{}\"", "é".repeat(256))), 422, "invalid_value", "/cancellation_token"),
        (with("\"parent_id\":\"7\""), 422, "invalid_value", "/parent_id"),
        (with("\"parent_id\":\"018f00000000700080000000000000000\""), 422, "invalid_value", "/parent_id"),
        (with("\"parent_id\":{}"), 422, "invalid_value", "/parent_id"),
        // Labels.
        (with("\"labels\":[]"), 422, "invalid_value", "/labels"),
        (with("\"labels\":{\"a\":1}"), 422, "invalid_value", "/labels/a"),
        (with("\"labels\":{\"a\":null}"), 422, "invalid_value", "/labels/a"),
        (with("\"labels\":{\"\":\"x\"}"), 422, "invalid_value", "/labels/"),
        (with("\"labels\":{\"a\":\"x\",\"a\":\"y\"}"), 422, "duplicate_field", "/labels/a"),
        (with(&format!("\"labels\":{{{many_labels}}}")), 422, "invalid_value", "/labels"),
        (with(&format!("\"labels\":{{\"a\":\"{}\"}}", long(257))), 422, "invalid_value", "/labels/a"),
        (with("\"labels\":{\"a\\nb\":\"x\"}"), 422, "invalid_value", "/labels/a\nb"),
        // What is not served yet, or means nothing.
        (with("\"on_full\":\"explode\""), 422, "invalid_value", "/on_full"),
        (with("\"on_full\":true"), 422, "invalid_value", "/on_full"),
        (with("\"max_wait_ms\":500"), 422, "invalid_value", "/max_wait_ms"),
        (with("\"on_full\":\"reject\",\"max_wait_ms\":500"), 422, "invalid_value", "/max_wait_ms"),
        (with("\"on_full\":null,\"max_wait_ms\":0"), 422, "invalid_value", "/max_wait_ms"),
        (with("\"on_full\":\"reject\",\"max_wait_ms\":-1"), 422, "invalid_value", "/max_wait_ms"),
        (with("\"on_full\":\"wait\",\"max_wait_ms\":60001"), 422, "invalid_value", "/max_wait_ms"),
        (with("\"webhook\":{\"url\":\"https://example.com\"}"), 422, "not_served_yet", "/webhook"),
        (with("\"webhook\":false"), 422, "not_served_yet", "/webhook"),
        // Start and end together.
        (with("\"delay_ms\":1,\"not_before\":\"2030-01-01T00:00:00Z\""), 422, "invalid_value", "/not_before"),
        (with("\"not_before\":\"9999-01-01T00:00:00Z\""), 422, "invalid_value", "/not_before"),
    ];
    for bad in [
        "101",
        "-1",
        "50.0",
        "5e1",
        "256",
        "4294967346",
        "9223372036854775858",
        "true",
        "[]",
        "{}",
        "\"high\"",
        "\"50\"",
        "\"\"",
        "1e400",
    ] {
        cases.push((with(&format!("\"priority\":{bad}")), 422, "invalid_value", "/priority"));
    }
    for bad in [
        "0",
        "-1",
        "1.0",
        "1e3",
        "86400001",
        "9223372036854775807",
        "18446744073709551616",
        "\"1000\"",
        "[1]",
        "false",
        "-0",
    ] {
        cases.push((with(&format!("\"timeout_ms\":{bad}")), 422, "invalid_value", "/timeout_ms"));
    }
    for bad in ["0", "-1", "101", "1.5", "65537", "\"3\"", "1e1"] {
        cases.push((with(&format!("\"max_attempts\":{bad}")), 422, "invalid_value", "/max_attempts"));
    }
    for (name, pointer) in
        [("attempt_timeout_ms", "/attempt_timeout_ms"), ("min_useful_ms", "/min_useful_ms"), ("delay_ms", "/delay_ms")]
    {
        for bad in ["-1", "0.5", "99999999999999999999", "\"1\"", "9223372036854775807"] {
            cases.push((with(&format!("\"{name}\":{bad}")), 422, "invalid_value", pointer));
        }
    }
    cases.push((with("\"attempt_timeout_ms\":0"), 422, "invalid_value", "/attempt_timeout_ms"));
    for bad in [
        "\"\"",
        "\"tomorrow\"",
        "1796000000000",
        "\"2026-11-30\"",
        "\"2026-11-30T00:00:00\"",
        "\"2026-02-30T00:00:00Z\"",
        "\"2026-11-30T25:00:00Z\"",
        "\"infinity\"",
        "\"-infinity\"",
        "\"99999-01-01T00:00:00Z\"",
        "\"2026-11-30T00:00:00+24:00\"",
        "{}",
    ] {
        cases.push((with(&format!("\"deadline\":{bad}")), 422, "invalid_value", "/deadline"));
        cases.push((with(&format!("\"not_before\":{bad}")), 422, "invalid_value", "/not_before"));
    }
    cases
}

#[tokio::test]
async fn a_bad_value_is_named_and_makes_no_task() {
    let api = Api::new();
    let cases = bodies();
    assert!(cases.len() >= 130);
    for (body, status, reason, pointer) in cases {
        let shown: String = body.chars().take(120).collect();
        let answer = api.submit(body).await;
        assert_eq!(answer.problem(), (status, reason.to_owned()), "{shown}: {}", answer.text);
        let problem = answer.json();
        let named = problem.get("pointer").map_or("-", |pointer| pointer.as_str().unwrap());
        match pointer.strip_suffix('*') {
            Some(start) => assert!(named.starts_with(start), "{shown}: {named}"),
            None => assert_eq!(named, pointer, "{shown}"),
        }
        assert!(problem.get("task_id").is_none() && problem.get("outcome").is_none(), "{shown}");
        assert_eq!(answer.header("retry-after"), None, "{shown}");
    }
    assert!(api.fake.submissions().is_empty());
}

#[tokio::test]
async fn what_is_wrong_is_repeated_only_as_far_as_a_sentence_goes() {
    let api = Api::new();
    let long = "é".repeat(1 << 20);
    let with = |members: &str| format!("{{\"kind\":\"echo\",{members}}}");
    for body in [
        with(&format!("\"{long}\":1")),
        with(&format!("\"{long}\":1,\"{long}\":1")),
        with(&format!("\"labels\":{{\"{long}\":1}}")),
        with(&format!("\"labels\":{{\"{long}\":\"x\"}}")),
        with(&format!("\"payload\":{{\"{long}\":\"\\ud800\"}}")),
    ] {
        let answer = api.submit(body).await;
        assert!(answer.text.len() < 2_000 && answer.text.contains('…'), "{}", answer.text.len());
        answer.problem();
    }
    let answer = api.get(&format!("/v1/tasks?{}=1", "x".repeat(20_000))).await;
    assert!(answer.refused(422, "unknown_field")["parameter"].as_str().unwrap().ends_with('…'));
    assert!(answer.text.len() < 1_000);
}

#[tokio::test]
async fn a_body_that_is_no_object_is_told_so() {
    let api = Api::new();
    for uri in ["/v1/tasks", "/v1/tasks/batch"] {
        let problem = api.post(uri, "[]").await.refused(422, "invalid_value");
        assert_eq!(problem["detail"], "the body must be an object", "{uri}");
    }
}

#[tokio::test]
async fn a_body_that_is_not_utf_8_is_no_json() {
    let api = Api::new();
    for bytes in
        [&b"{\"kind\":\"\xff\"}"[..], b"{\"kind\":\"echo\",\"payload\":\"\xc3\x28\"}", b"\xed\xa0\x80", b"\xc0\x80"]
    {
        api.submit(bytes.to_vec()).await.refused(400, "invalid_json");
    }
    // UTF-16 is no UTF-8 either.
    let utf16: Vec<u8> = "{\"kind\":\"echo\"}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    api.submit(utf16).await.refused(400, "invalid_json");
}

#[tokio::test]
async fn a_bad_header_is_named() {
    let api = Api::new();
    let long = "k".repeat(256);
    let cases = [
        ("Idempotency-Key", ""),
        ("Idempotency-Key", "a b"),
        ("Idempotency-Key", "\"\""),
        ("Idempotency-Key", "\"open"),
        ("Idempotency-Key", "k\u{e9}"),
        ("Idempotency-Key", &long),
        ("X-Deadline-Epoch-Ms", ""),
        ("X-Deadline-Epoch-Ms", "soon"),
        ("X-Deadline-Epoch-Ms", "1.5"),
        ("X-Deadline-Epoch-Ms", "1e13"),
        ("X-Deadline-Epoch-Ms", "+1"),
        ("X-Deadline-Epoch-Ms", "99999999999999999999"),
        ("X-Budget", ""),
        ("X-Budget", "2"),
        ("X-Budget", "{\"remaining_s\":-1}"),
        ("X-Budget", "{\"remaining_s\":1e999}"),
        ("X-Budget", "{\"depth\":1.0}"),
        ("X-Budget", "{\"depth\":-1}"),
        ("X-Budget", "{\"fanout\":99999999999}"),
        ("X-Budget", "{\"hops\":1}"),
        ("X-Budget", "{\"depth\":1"),
    ];
    for (name, value) in cases {
        let answer = api.ask("POST", "/v1/tasks").header(name, value).json("{\"kind\":\"echo\"}").send().await;
        let problem = answer.refused(422, "invalid_value");
        assert_eq!(problem["header"], name, "{value}");
    }
    for name in ["Idempotency-Key", "X-Deadline-Epoch-Ms", "X-Budget"] {
        let ask = api.ask("POST", "/v1/tasks").header(name, "1").header(name, "1").json("{\"kind\":\"echo\"}");
        assert_eq!(ask.send().await.refused(400, "duplicate_header")["header"], name);
    }
    assert!(api.fake.submissions().is_empty());
}

#[tokio::test]
async fn a_header_that_says_who_is_asking_must_be_there_once() {
    let api = Api::new();
    for (method, uri) in [("GET", "/v1/tasks"), ("POST", "/v1/tasks"), ("POST", "/v1/tasks/batch"), ("GET", "/livez")] {
        for (name, first, second) in
            [("X-Tenant", "a", "b"), ("X-Tenant", "a", "a"), ("Authorization", "Bearer a", "Bearer b")]
        {
            let ask = api.ask(method, uri).header(name, first).header(name, second).json("{\"kind\":\"echo\"}");
            assert_eq!(ask.send().await.refused(400, "duplicate_header")["header"], name, "{method} {uri}");
        }
    }
    assert!(api.fake.submissions().is_empty());
}

#[tokio::test]
async fn a_compressed_body_is_refused_unread() {
    let api = Api::new();
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    let uris = ["/v1/tasks".to_owned(), "/v1/tasks/batch".to_owned(), format!("/v1/tasks/{id}/cancel")];
    for coding in ["gzip", "br", "identity, gzip", "deflate", "", "x"] {
        for uri in &uris {
            let answer =
                api.ask("POST", uri).header("content-encoding", coding).json("{\"kind\":\"echo\"}").send().await;
            assert_eq!(answer.refused(415, "unsupported_media_type")["header"], "Content-Encoding", "{coding} {uri}");
        }
    }
    let ask = api.ask("POST", "/v1/tasks").header("content-encoding", "Identity").json("{\"kind\":\"echo\"}");
    ask.send().await.expect(202);
    // Without a body there is nothing that could be compressed.
    api.ask("POST", &uris[2]).header("content-encoding", "gzip").send().await.expect(200);
    assert_eq!(api.fake.submissions().len(), 2);
}

#[tokio::test]
async fn the_payload_may_nest_64_levels_wherever_it_is() {
    let api = Api::new();
    let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    for (levels, status) in [(64, 202), (65, 422)] {
        let body = format!("{{\"kind\":\"echo\",\"payload\":{}}}", nested(levels));
        api.submit(body.clone()).await.expect(status);
        // In a batch it is this item's own affair.
        let batch = format!("{{\"tasks\":[{body},{{\"kind\":\"echo\"}}]}}");
        let results = api.post("/v1/tasks/batch", batch).await.expect(200).json();
        let (member, said) = if status == 202 { ("status", "QUEUED") } else { ("reason", "invalid_value") };
        assert_eq!(results["results"][0][member], said);
        assert_eq!(results["results"][1]["status"], "QUEUED");
    }
}

#[tokio::test]
async fn bodies_and_payloads_beyond_their_limits_are_413() {
    let api = Api::with(|settings| {
        settings.max_body_bytes = 1_000;
        settings.max_payload_bytes = 100;
    });
    let body = |payload: usize| format!("{{\"kind\":\"echo\",\"payload\":\"{}\"}}", "x".repeat(payload));
    api.submit(body(98)).await.expect(202);

    let answer = api.submit(body(99)).await;
    let problem = answer.refused(413, "payload_too_large");
    assert_eq!((&problem["outcome"], &problem["pointer"]), (&"REJECTED".into(), &"/payload".into()));
    let refused = api.get(&format!("/v1/tasks/{}", answer.id())).await.expect(200).json();
    assert_eq!((&refused["status"], &refused["reason"]), (&"REJECTED".into(), &"payload_too_large".into()));

    let answer = api.submit(body(2_000)).await;
    assert!(answer.refused(413, "body_too_large").get("task_id").is_none());
    // A length that lies about the body is believed: nothing is read.
    let ask = api.ask("POST", "/v1/tasks").header("content-length", "1001").json(body(1));
    ask.send().await.refused(413, "body_too_large");
}

#[tokio::test]
async fn a_query_that_is_not_known_is_refused() {
    let api = Api::new();
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    for (uri, reason, parameter) in [
        ("/v1/tasks?wait=5", "unknown_field", "wait"),
        ("/v1/tasks?status=", "invalid_value", "status"),
        ("/v1/tasks?status=queued", "invalid_value", "status"),
        ("/v1/tasks?status=NO", "invalid_value", "status"),
        ("/v1/tasks?class=high", "invalid_value", "class"),
        ("/v1/tasks?kind=a%20b", "invalid_value", "kind"),
        ("/v1/tasks?kind=%00", "invalid_value", "kind"),
        ("/v1/tasks?peer=", "invalid_value", "peer"),
        ("/v1/tasks?workflow_id=%00", "invalid_value", "workflow_id"),
        ("/v1/tasks?workflow_id=", "invalid_value", "workflow_id"),
        ("/v1/tasks?label.=x", "invalid_value", "label."),
        ("/v1/tasks?label.a=%00", "invalid_value", "label.a"),
        ("/v1/tasks?label.%00=x", "invalid_value", "label.\0"),
        ("/v1/tasks?from=yesterday", "invalid_value", "from"),
        ("/v1/tasks?to=2026-11-30", "invalid_value", "to"),
        ("/v1/tasks?limit=0", "invalid_value", "limit"),
        ("/v1/tasks?limit=201", "invalid_value", "limit"),
        ("/v1/tasks?limit=-1", "invalid_value", "limit"),
        ("/v1/tasks?limit=%2B5", "invalid_value", "limit"),
        ("/v1/tasks?limit=1e1", "invalid_value", "limit"),
        ("/v1/tasks?limit=99999999999", "invalid_value", "limit"),
        ("/v1/tasks?cursor=", "invalid_value", "cursor"),
        ("/v1/tasks?cursor=1.zz", "invalid_value", "cursor"),
        ("/v1/tasks?cursor=7", "invalid_value", "cursor"),
        ("/v1/tasks?limit=5&limit=5", "duplicate_field", "limit"),
        ("/v1/tasks?offset=5", "unknown_field", "offset"),
        ("/v1/pressure?x=1", "unknown_field", "x"),
    ] {
        assert_eq!(api.get(uri).await.refused(422, reason)["parameter"], parameter, "{uri}");
    }
    for (query, reason) in [
        ("wait_ms=", "invalid_value"),
        ("wait_ms=-1", "invalid_value"),
        ("wait_ms=1.5", "invalid_value"),
        ("wait_ms=x", "invalid_value"),
        ("wait=5", "unknown_field"),
    ] {
        api.get(&format!("/v1/tasks/{id}?{query}")).await.refused(422, reason);
    }
    api.get(&format!("/v1/tasks/{id}/attempts?x")).await.refused(422, "unknown_field");
    api.post("/v1/tasks?wait=5", "{\"kind\":\"echo\"}").await.refused(422, "unknown_field");
    api.post(&format!("/v1/tasks/{id}/cancel?reason=x"), "").await.refused(422, "unknown_field");
}

#[tokio::test]
async fn a_body_needs_its_type() {
    let api = Api::new();
    for content_type in
        ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "", "text/json;application/json"]
    {
        let ask = api.ask("POST", "/v1/tasks").header("content-type", content_type).body("{\"kind\":\"echo\"}");
        ask.send().await.refused(415, "unsupported_media_type");
    }
    api.ask("POST", "/v1/tasks").body("{\"kind\":\"echo\"}").send().await.refused(415, "unsupported_media_type");
    for content_type in ["application/json", "Application/JSON; charset=utf-8", " application/json "] {
        let ask = api.ask("POST", "/v1/tasks").header("content-type", content_type).body("{\"kind\":\"echo\"}");
        ask.send().await.expect(202);
    }
}
