//! Limits, tenants, peers and pauses, read and changed while the cell runs; and the class that a submission earns.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidegate_core::Kind;
use tidegate_core::class_rules::{ClassRule, When};
use tidegate_core::limits::Limits;
use tidegate_store::WorkerRecord;
use uuid::Uuid;

use crate::fake::{NOW, Trouble};
use crate::harness::{Answer, Api};

async fn patch(api: &Api, uri: &str, change: Value) -> Answer {
    api.ask("PATCH", uri).header("content-type", "application/merge-patch+json").body(change.to_string()).send().await
}

async fn delete(api: &Api, uri: &str) -> Answer {
    api.ask("DELETE", uri).send().await
}

#[tokio::test]
async fn limits_are_read_whole_and_changed_key_by_key() {
    let api = Api::new();
    let read = api.get("/v1/admin/limits").await.expect(200).json();
    assert_eq!(read, serde_json::to_value(Limits::default()).unwrap());
    let change = json!({"max_running": 3, "classes": {"standard": {"max_queued": 9}}});
    let changed = patch(&api, "/v1/admin/limits", change).await.expect(200).json();
    assert_eq!((&changed["max_running"], &changed["classes"]["standard"]["max_queued"]), (&json!(3), &json!(9)));
    assert_eq!((&changed["max_queued"], &changed["classes"]["standard"]["from"]), (&json!(100_000), &json!(40)));
    assert_eq!(api.get("/v1/admin/limits").await.json(), changed);
    let changed = patch(&api, "/v1/admin/limits", json!({"max_running": null})).await.expect(200).json();
    assert_eq!(changed["max_running"], Value::Null);
    let plain = api.ask("PATCH", "/v1/admin/limits").json("{\"max_queued\":7}").send().await.expect(200);
    assert_eq!(plain.json()["max_queued"], 7);
    assert_eq!(api.get("/v1/pressure").await.json()["limits"]["max_queued"], 7);
}

#[tokio::test]
async fn a_change_that_cannot_be_is_refused_with_its_pointer() {
    let api = Api::new();
    for (uri, change, reason, pointer) in [
        ("/v1/admin/limits", json!({"max_queued": null}), "invalid_value", "/max_queued"),
        ("/v1/admin/limits", json!({"max_bytes": null}), "invalid_value", "/max_bytes"),
        ("/v1/admin/limits", json!({"max_deferred": null}), "invalid_value", "/max_deferred"),
        ("/v1/admin/limits", json!({"max_queud": 1}), "unknown_field", "/max_queud"),
        ("/v1/admin/limits", json!({"classes": {"a/b": {}}}), "unknown_field", "/classes/a~1b"),
        (
            "/v1/admin/limits",
            json!({"classes": {"critical": {"reserve": 2}}}),
            "invalid_value",
            "/classes/critical/reserve",
        ),
        ("/v1/admin/limits", json!({"max_queued": 1.5}), "invalid_value", "/max_queued"),
        ("/v1/admin/limits", json!([]), "invalid_value", ""),
        ("/v1/admin/peers/hotels", json!({"aimd": {"initial": 5}}), "invalid_value", "/aimd/min"),
        ("/v1/admin/limits", json!([0]), "invalid_value", ""),
        ("/v1/admin/limits", json!({"classes": []}), "invalid_value", "/classes"),
        ("/v1/admin/limits", json!({"classes": {"critical": []}}), "invalid_value", "/classes/critical"),
        ("/v1/admin/tenants/acme", json!({"classes": {"background": [1, 2]}}), "invalid_value", "/classes/background"),
        ("/v1/admin/peers/hotels", json!({"retry_budget": [0.5, 3]}), "invalid_value", "/retry_budget"),
        ("/v1/admin/tenants/acme", json!({"weight": 0}), "invalid_value", "/weight"),
        ("/v1/admin/tenants/acme", json!({"usage": {}}), "unknown_field", "/usage"),
        ("/v1/admin/tenants/acme", json!({"name": "other"}), "invalid_value", "/name"),
        ("/v1/admin/peers/hotels", json!({"aimd": {"initial": 0, "min": 1, "max": 2}}), "invalid_value", "/aimd"),
    ] {
        let problem = patch(&api, uri, change.clone()).await.refused(422, reason);
        assert_eq!(problem["pointer"], pointer, "{change}");
    }
    for (body, reason, pointer) in [
        ("{\"max_queued\":1,\"max_queued\":2}", "duplicate_field", "/max_queued"),
        ("{\"classes\":{\"critical\":{\"from\":90,\"from\":91}}}", "duplicate_field", "/classes/critical/from"),
        ("{\"max_tokens\":1e999}", "invalid_value", "/max_tokens"),
        ("{\"trusted\\u0000\":1}", "invalid_value", ""),
    ] {
        let answer = api.ask("PATCH", "/v1/admin/limits").json(body).send().await;
        assert_eq!(answer.refused(422, reason)["pointer"], pointer, "{body}");
    }
    api.ask("PATCH", "/v1/admin/limits").json("{").send().await.refused(400, "invalid_json");
    let typed = api.ask("PATCH", "/v1/admin/limits").header("content-type", "text/plain").body("{}").send().await;
    typed.refused(415, "unsupported_media_type");
    let long = format!("{{\"x\":\"{}\"}}", "x".repeat(200_000));
    api.ask("PATCH", "/v1/admin/limits").json(long).send().await.refused(413, "body_too_large");
    assert_eq!(api.get("/v1/admin/limits").await.json(), serde_json::to_value(Limits::default()).unwrap());
    api.get("/v1/admin/tenants/acme").await.refused(404, "not_found");
}

#[tokio::test]
async fn a_tenant_is_made_by_its_first_change_and_read_with_what_it_holds() {
    let api = Api::new();
    api.get("/v1/admin/tenants/acme").await.refused(404, "not_found");
    let made = patch(&api, "/v1/admin/tenants/acme", json!({"name": "acme", "max_queued": 5})).await.expect(200);
    insta::assert_snapshot!(serde_json::to_string_pretty(&made.json()).unwrap());
    assert_eq!(api.get("/v1/admin/tenants/acme").await.json(), made.json());
    patch(&api, "/v1/admin/tenants/acme", json!({"max_queued": null, "max_priority": 40})).await.expect(200);
    let read = api.get("/v1/admin/tenants/acme").await.json();
    assert_eq!((&read["max_queued"], &read["max_priority"]), (&Value::Null, &json!(40)));
    assert_eq!(delete(&api, "/v1/admin/tenants/acme").await.expect(204).text, "");
    delete(&api, "/v1/admin/tenants/acme").await.refused(404, "not_found");
}

#[tokio::test]
async fn what_cannot_be_a_name_is_a_bad_value_whatever_is_asked_of_it() {
    let api = Api::new();
    let long = "k".repeat(129);
    for path in ["/v1/admin/tenants", "/v1/admin/peers"] {
        for name in ["a%20b", "%C3%A9", "a%2Fb", "a%00", "%FF", "a@b", &long] {
            for method in ["GET", "PATCH", "DELETE"] {
                let answer = api.ask(method, &format!("{path}/{name}")).json("{}").send().await;
                assert_eq!(answer.refused(422, "invalid_value")["parameter"], "name", "{method} {path}/{name}");
            }
        }
        for method in ["GET", "DELETE"] {
            api.ask(method, &format!("{path}/unknown")).send().await.refused(404, "not_found");
        }
        patch(&api, &format!("{path}/{}", "k".repeat(128)), json!({})).await.expect(200);
    }
}

#[tokio::test]
async fn a_peer_is_made_by_its_first_change_and_read_with_what_uses_it() {
    let api = Api::new();
    let change = json!({"max_in_flight": 2, "aimd": {"initial": 1, "min": 1, "max": 4}});
    let made = patch(&api, "/v1/admin/peers/hotels", change).await.expect(200);
    insta::assert_snapshot!(serde_json::to_string_pretty(&made.json()).unwrap());
    assert_eq!(api.get("/v1/admin/peers/hotels").await.json(), made.json());
    delete(&api, "/v1/admin/peers/hotels").await.expect(204);
    api.get("/v1/admin/peers/hotels").await.refused(404, "not_found");
}

#[tokio::test]
async fn lists_come_in_pages() {
    let api = Api::new();
    for name in ["c", "a", "b"] {
        patch(&api, &format!("/v1/admin/tenants/{name}"), json!({})).await.expect(200);
    }
    let page = api.get("/v1/admin/tenants?limit=2").await.expect(200).json();
    assert_eq!((&page["tenants"][0]["name"], &page["tenants"][1]["name"]), (&json!("a"), &json!("b")));
    let next = page["next_cursor"].as_str().unwrap();
    let page = api.get(&format!("/v1/admin/tenants?limit=2&cursor={next}")).await.expect(200).json();
    assert_eq!((page["tenants"].as_array().unwrap().len(), &page["next_cursor"]), (1, &Value::Null));
    assert_eq!(api.get("/v1/admin/peers").await.expect(200).json(), json!({"peers": [], "next_cursor": null}));
}

#[tokio::test]
async fn a_pause_is_made_listed_and_ended() {
    let api = Api::new();
    let body = json!({"class": "background", "mode": "refuse", "until": "2030-01-01T00:00:00Z", "reason": "quiet"});
    let made = api.post("/v1/admin/pauses", body.to_string()).await.expect(201);
    let id = made.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(made.header("location"), Some(format!("/v1/admin/pauses/{id}").as_str()));
    insta::assert_snapshot!(serde_json::to_string_pretty(&made.json()).unwrap());
    assert_eq!(api.get("/v1/admin/pauses").await.json(), json!({"pauses": [made.json()]}));
    delete(&api, &format!("/v1/admin/pauses/{id}")).await.expect(204);
    delete(&api, &format!("/v1/admin/pauses/{id}")).await.refused(404, "not_found");
    delete(&api, "/v1/admin/pauses/x").await.refused(404, "not_found");
    let held = api.post("/v1/admin/pauses", "{\"kind\":\"echo\",\"until\":null}").await.expect(201).json();
    assert_eq!((&held["mode"], &held["until"], &held["reason"]), (&json!("hold"), &Value::Null, &Value::Null));
    for (body, status, reason, pointer) in [
        ("{}", 400, "missing_field", ""),
        ("{\"kind\":\"a\",\"tenant\":\"b\"}", 422, "invalid_value", "/tenant"),
        ("{\"class\":\"urgent\"}", 422, "invalid_value", "/class"),
        ("{\"kind\":\"a b\"}", 422, "invalid_value", "/kind"),
        ("{\"kind\":\"a\",\"mode\":\"stop\"}", 422, "invalid_value", "/mode"),
        ("{\"kind\":\"a\",\"until\":\"soon\"}", 422, "invalid_value", "/until"),
        ("{\"kind\":\"a\",\"reason\":\"\\t\"}", 422, "invalid_value", "/reason"),
        ("{\"kind\":\"a\",\"for_ms\":1}", 422, "unknown_field", "/for_ms"),
        ("{\"kind\":\"a\",\"kind\":\"b\"}", 422, "duplicate_field", "/kind"),
    ] {
        let problem = api.post("/v1/admin/pauses", body).await.refused(status, reason);
        assert_eq!(problem["pointer"], pointer, "{body}");
    }
}

#[tokio::test]
async fn a_store_that_fails_is_said_so() {
    let api = Api::new();
    api.fake.trouble(Some(Trouble::Unavailable));
    for (method, uri) in [
        ("GET", "/v1/admin/limits"),
        ("PATCH", "/v1/admin/limits"),
        ("GET", "/v1/admin/tenants"),
        ("GET", "/v1/admin/tenants/a"),
        ("PATCH", "/v1/admin/peers/a"),
        ("DELETE", "/v1/admin/peers/a"),
        ("GET", "/v1/admin/pauses"),
        ("DELETE", "/v1/admin/pauses/018f0000-0000-7000-8000-000000000007"),
    ] {
        api.ask(method, uri).json("{}").send().await.refused(503, "store_unavailable");
    }
}

fn ruled(rules: Vec<ClassRule>) -> Api {
    Api::with(|settings| settings.class_rules = rules)
}

fn safety() -> ClassRule {
    let labels = BTreeMap::from([("safety".to_owned(), "true".to_owned())]);
    ClassRule { when: When { labels, ..When::default() }, priority: Some(95), add: None }
}

#[tokio::test]
async fn a_label_raises_only_a_tenant_that_is_trusted_with_it() {
    let api = ruled(vec![safety()]);
    let body = json!({"kind": "echo", "priority": 20, "labels": {"safety": "true"}}).to_string();
    let plain = api.submit(body.clone()).await.expect(202).json();
    assert_eq!((&plain["priority"], &plain["priority_notes"]), (&json!(20), &json!([])));
    patch(&api, "/v1/admin/tenants/default", json!({"trusted_labels": ["safety"]})).await.expect(200);
    let raised = api.submit(body.clone()).await.expect(202);
    let note = "raised from 20 to 95 by class rule 1: label safety is true";
    assert_eq!((&raised.json()["priority"], &raised.json()["class"]), (&json!(95), &json!("critical")));
    assert_eq!(raised.json()["priority_notes"], json!([note]));
    let read = api.get(&format!("/v1/tasks/{}", raised.id())).await.json();
    assert_eq!((&read["priority"], &read["priority_notes"]), (&json!(95), &json!([note])));
    let batch = api.post("/v1/tasks/batch", format!("{{\"tasks\":[{body}]}}")).await.expect(200).json();
    assert_eq!(batch["results"][0]["class"], "critical");
}

#[tokio::test]
async fn a_tenants_cap_holds_for_what_is_asked_and_what_is_earned() {
    let when = When { left_below_ms: Some(5_000), kind: Kind::parse("echo").ok(), ..When::default() };
    let api = ruled(vec![ClassRule { when, priority: None, add: Some(20) }]);
    let submitted = |body: Value| api.submit(body.to_string());
    let late = submitted(json!({"kind": "echo", "timeout_ms": 4_000})).await.expect(202).json();
    assert_eq!(late["priority"], 70);
    assert_eq!(submitted(json!({"kind": "echo", "priority": 100})).await.json()["priority"], 100, "no key, no cap");
    patch(&api, "/v1/admin/tenants/default", json!({"max_priority": 60})).await.expect(200);
    let capped = submitted(json!({"kind": "echo", "timeout_ms": 4_000})).await.expect(202).json();
    assert_eq!((&capped["priority"], capped["priority_notes"].as_array().unwrap().len()), (&json!(60), 2));
    let capped = submitted(json!({"kind": "echo", "priority": "critical"})).await.expect(202).json();
    assert_eq!(capped["priority_notes"], json!(["lowered from 90 to 60, the tenant's max_priority"]));
}

#[tokio::test]
async fn the_name_of_a_class_is_its_lowest_priority_as_it_is_now() {
    let api = Api::new();
    let body = "{\"kind\":\"echo\",\"priority\":\"critical\"}";
    assert_eq!(api.submit(body).await.expect(202).json()["priority"], 90);
    patch(&api, "/v1/admin/limits", json!({"classes": {"critical": {"from": 95}}})).await.expect(200);
    assert_eq!(api.submit(body).await.expect(202).json()["priority"], 95);
}

#[tokio::test]
async fn workers_are_listed_and_drained() {
    let api = Api::new();
    assert_eq!(api.get("/v1/admin/workers").await.expect(200).json(), json!({"workers": [], "next_cursor": null}));
    let worker = |n: u128| WorkerRecord {
        id: Uuid::from_u128(n),
        worker: format!("w{n}"),
        kinds: vec!["echo".into()],
        slots: 4,
        running: 1,
        draining: false,
        started_ms: NOW - 60_000,
        expires_ms: NOW + 10_000,
        lease_ms: 15_000,
    };
    api.fake.decided.lock().unwrap().workers = vec![worker(1), worker(2)];
    let page = api.get("/v1/admin/workers?limit=1").await.expect(200).json();
    let first = json!({
        "id": "00000000-0000-0000-0000-000000000001", "worker": "w1", "kinds": ["echo"], "slots": 4, "running": 1,
        "draining": false, "started_at": "2026-11-30T00:52:20.000Z", "last_beat_at": "2026-11-30T00:53:15.000Z",
        "expires_at": "2026-11-30T00:53:30.000Z", "lease_ms": 15_000
    });
    let next = page["next_cursor"].as_str().unwrap();
    assert_eq!(page["workers"], json!([first]));
    let page = api.get(&format!("/v1/admin/workers?cursor={next}")).await.expect(200).json();
    assert_eq!((&page["workers"][0]["worker"], &page["next_cursor"]), (&json!("w2"), &Value::Null));
    let second = Uuid::from_u128(2).to_string();
    for _ in 0..2 {
        let drained = api.post(&format!("/v1/admin/workers/{second}/drain"), "").await.expect(200).json();
        assert_eq!((&drained["id"], &drained["draining"]), (&json!(second), &json!(true)));
    }
    let drain = format!("/v1/admin/workers/{}/drain", Uuid::from_u128(1));
    for (body, status, reason, pointer) in [
        ("{\"force\":true}", 422, "unknown_field", Some("/force")),
        ("{\"a/b\":{}}", 422, "unknown_field", Some("/a~1b")),
        ("[]", 422, "invalid_value", Some("")),
        ("null", 422, "invalid_value", Some("")),
        ("{", 400, "invalid_json", None),
    ] {
        let problem = api.post(&drain, body).await.refused(status, reason);
        assert_eq!(problem.get("pointer").and_then(Value::as_str), pointer, "{body}");
    }
    let typed = api.ask("POST", &drain).header("content-type", "text/plain").body("{}").send().await;
    typed.refused(415, "unsupported_media_type");
    api.post(&drain, "x".repeat(17_000)).await.refused(413, "body_too_large");
    assert_eq!(api.get("/v1/admin/workers").await.json()["workers"][0]["draining"], false, "nothing was done");
    api.post(&drain, " {} ").await.expect(200);
    for unknown in ["00000000-0000-0000-0000-000000000009", "x"] {
        api.post(&format!("/v1/admin/workers/{unknown}/drain"), "").await.refused(404, "not_found");
    }
}

#[tokio::test]
async fn who_changed_what_is_listed_newest_first() {
    let api = Api::new();
    assert_eq!(api.get("/v1/admin/audit").await.expect(200).json(), json!({"entries": [], "next_cursor": null}));
    patch(&api, "/v1/admin/limits", json!({"max_queued": 7})).await.expect(200);
    patch(&api, "/v1/admin/tenants/acme", json!({"max_queued": 5})).await.expect(200);
    let page = api.get("/v1/admin/audit?limit=1").await.expect(200).json();
    let newest = &page["entries"][0];
    assert_eq!((&newest["actor"], &newest["action"]), (&json!("local"), &json!("tenant.patch")));
    assert_eq!((&newest["target"], &newest["before"]["max_queued"]), (&json!("acme"), &Value::Null));
    assert_eq!(newest["before"]["weight"], newest["after"]["weight"], "the default was in effect");
    assert_eq!((&newest["after"]["max_queued"], &newest["at"]), (&json!(5), &json!("2026-11-30T00:53:20.000Z")));
    let next = page["next_cursor"].as_str().unwrap();
    let page = api.get(&format!("/v1/admin/audit?cursor={next}")).await.expect(200).json();
    assert_eq!((page["entries"].as_array().unwrap().len(), &page["next_cursor"]), (1, &Value::Null));
    let oldest = &page["entries"][0];
    assert_eq!((&oldest["target"], &oldest["before"]["max_queued"]), (&Value::Null, &json!(100_000)));
    assert_eq!(oldest["after"]["max_queued"], 7);
}
