//! What every answer has, whatever it says.

use crate::fake::Trouble;
use crate::harness::{Answer, Api};

fn check(answer: &Answer, what: &str) {
    let pressure = answer.header("x-pressure").unwrap_or_else(|| panic!("{what} has no X-Pressure"));
    assert!(pressure.len() == 4 && (0.0..=1.0).contains(&pressure.parse::<f64>().unwrap()), "{what}: {pressure}");
    assert!(answer.header("x-request-id").is_some_and(|id| !id.is_empty()), "{what} has no X-Request-Id");
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{what}");
    assert_eq!(answer.header("cache-control"), Some("no-store"), "{what}");
    assert_eq!(answer.header("referrer-policy"), Some("no-referrer"), "{what}");
    assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("access-control")), "{what}");
}

#[tokio::test]
async fn every_answer_has_a_request_id_and_the_pressure() {
    let api = Api::with_room(1);
    let id = api.submit("{\"kind\":\"echo\"}").await.id();
    for (method, uri, body) in [
        ("POST", "/v1/tasks", "{\"kind\":\"echo\"}"),
        ("POST", "/v1/tasks", "{"),
        ("POST", "/v1/tasks", "{\"kind\":7}"),
        ("POST", "/v1/tasks/batch", "{\"tasks\":[{}]}"),
        ("GET", "/v1/tasks", ""),
        ("GET", "/v1/tasks?x=1", ""),
        ("GET", "/v1/tasks/x", ""),
        ("GET", &format!("/v1/tasks/{id}"), ""),
        ("GET", &format!("/v1/tasks/{id}/attempts"), ""),
        ("GET", &format!("/v1/tasks/{id}/explain"), ""),
        ("POST", &format!("/v1/tasks/{id}/cancel"), ""),
        ("POST", "/v1/cancellations", "{\"token\":\"t\"}"),
        ("POST", "/v1/cancellations", "{}"),
        ("GET", "/v1/pressure", ""),
        ("GET", "/", ""),
        ("GET", "/livez", ""),
        ("HEAD", "/livez", ""),
        ("GET", "/readyz", ""),
        ("GET", "/metrics", ""),
        ("GET", "/openapi.json", ""),
        ("GET", "/docs", ""),
        ("GET", "/docs/", ""),
        ("GET", "/docs/swagger-ui.css", ""),
        ("GET", "/docs/nothing.js", ""),
        ("GET", "/docs/errors", ""),
        ("GET", "/docs/errors/queue_full", ""),
        ("GET", "/docs/errors/nothing", ""),
        ("GET", "/v1/nothing", ""),
        ("DELETE", "/v1/tasks", ""),
        ("BREW", "/v1/tasks", ""),
        ("GET", "/v1/stats", ""),
    ] {
        let answer = api.ask(method, uri).json(body.to_owned()).send().await;
        check(&answer, &format!("{method} {uri}"));
        let named = api.ask(method, uri).header("x-request-id", "abc.DEF-1").json(body.to_owned()).send().await;
        assert_eq!(named.header("x-request-id"), Some("abc.DEF-1"));
    }
    check(&api.ask("GET", "/").host("evil.example").send().await, "a foreign host");
    check(&api.ask("GET", "/").header("authorization", "Bearer x").send().await, "a key");
    for trouble in [Trouble::Unavailable, Trouble::Broken, Trouble::Panics] {
        api.fake.trouble(Some(trouble));
        check(&api.get("/v1/tasks").await, &format!("{trouble:?}"));
    }
}

#[tokio::test]
async fn a_path_or_method_that_is_not_known_is_a_problem() {
    let api = Api::new();
    for uri in ["/nothing", "/v1/tasks/", "/v2/tasks", "/v1/stats", "/v1/webhooks", "/%00", "//", "/v1/tasks/x/y/z"] {
        api.get(uri).await.refused(404, "not_found");
    }
    for (method, uri, allowed) in [
        ("DELETE", "/v1/tasks", "GET,HEAD,POST"),
        ("PUT", "/v1/pressure", "GET,HEAD"),
        ("GET", "/v1/tasks/batch", "POST"),
        ("BREW", "/livez", "GET,HEAD"),
    ] {
        let answer = api.ask(method, uri).send().await;
        answer.refused(405, "method_not_allowed");
        let mut methods: Vec<_> = answer.header("allow").unwrap().split(',').collect();
        methods.sort_unstable();
        assert_eq!(methods.join(","), allowed, "{method} {uri}");
    }
}

#[tokio::test]
async fn a_long_path_is_not_repeated_in_full() {
    let api = Api::new();
    let answer = api.get(&format!("/{}", "x".repeat(5_000))).await;
    answer.refused(404, "not_found");
    assert!(answer.text.len() < 1_000);
}
