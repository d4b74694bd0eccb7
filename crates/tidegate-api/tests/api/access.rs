//! Who may ask: DNS rebinding, foreign pages, proxies and strangers are refused, on every route.

use crate::harness::Api;

const ROUTES: &[(&str, &str)] = &[
    ("GET", "/"),
    ("GET", "/livez"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/docs/"),
    ("GET", "/docs/errors/queue_full"),
    ("GET", "/v1/tasks"),
    ("GET", "/v1/tasks/018f0000-0000-7000-8000-000000000007"),
    ("GET", "/v1/tasks/018f0000-0000-7000-8000-000000000007/attempts"),
    ("GET", "/v1/pressure"),
    ("POST", "/v1/tasks"),
    ("POST", "/v1/tasks/batch"),
    ("POST", "/v1/tasks/018f0000-0000-7000-8000-000000000007/cancel"),
    ("POST", "/v1/cancellations"),
    ("GET", "/nowhere"),
    ("DELETE", "/v1/tasks"),
];

#[tokio::test]
async fn a_name_that_merely_leads_here_is_refused() {
    let api = Api::new();
    for host in [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "localhost.evil.example:8080",
        "127.0.0.1.nip.io",
        "127.0.0.1.nip.io:8080",
        "localtest.me",
        "0.0.0.0:8080",
        "10.0.0.1",
        "[::2]:8080",
        "127.0.0.1@evil.example",
        "localhost:80:80",
        "127.1",
        "2130706433",
        "localhost.",
        "",
        " ",
    ] {
        for (method, uri) in ROUTES {
            api.ask(method, uri).host(host).json("{\"kind\":\"echo\"}").send().await.refused(403, "forbidden");
        }
    }
    api.ask("GET", "/livez").without_header("host").send().await.refused(403, "forbidden");
    api.ask("GET", "/livez").header("host", "evil.example").send().await.refused(403, "forbidden");
    assert!(api.fake.submissions().is_empty());
}

#[tokio::test]
async fn the_names_of_this_machine_are_let_in() {
    let api = Api::new();
    for host in ["localhost", "LocalHost:8080", "127.0.0.1", "127.8.8.8:1", "[::1]", "[::1]:8080"] {
        api.ask("POST", "/v1/tasks").host(host).json("{\"kind\":\"echo\"}").send().await.expect(202);
    }
    // In HTTP/2 the name is in the request's target.
    let ask = || api.ask("GET", "http://localhost:8080/livez").without_header("host");
    ask().send().await.expect(200);
    ask().header("host", "LOCALHOST:8080").send().await.expect(200);
    ask().header("host", "127.0.0.1:8080").send().await.refused(403, "forbidden");
    api.ask("GET", "http://evil.example/livez").without_header("host").send().await.refused(403, "forbidden");
    api.ask("GET", "http://evil.example/livez").send().await.refused(403, "forbidden");
    api.ask("GET", "/livez").at_peer("[::1]:5").send().await.expect(200);
    api.ask("GET", "/livez").at_peer("[::ffff:127.0.0.1]:5").send().await.expect(200);
}

#[tokio::test]
async fn a_foreign_page_is_refused() {
    let api = Api::new();
    for origin in [
        "https://evil.example",
        "http://localhost:3000",
        "http://localhost",
        "http://127.0.0.1:8081",
        "https://127.0.0.1:8080",
        "http://localhost:8080",
        "null",
        "",
        "file://",
        "http://127.0.0.1:8080.evil.example",
    ] {
        for (method, uri) in ROUTES {
            let ask = api.ask(method, uri).header("origin", origin).json("{\"kind\":\"echo\"}");
            let answer = ask.send().await;
            answer.refused(403, "forbidden");
            assert_eq!(answer.header("access-control-allow-origin"), None);
        }
    }
    for (method, uri) in ROUTES {
        let ask = api.ask(method, uri).header("sec-fetch-site", "cross-site").json("{\"kind\":\"echo\"}");
        ask.send().await.refused(403, "forbidden");
    }
    assert!(api.fake.submissions().is_empty());
    let ask =
        api.ask("POST", "/v1/tasks").header("origin", "http://127.0.0.1:8080").header("sec-fetch-site", "same-origin");
    ask.json("{\"kind\":\"echo\"}").send().await.expect(202);
}

#[tokio::test]
async fn there_is_no_cors() {
    let api = Api::new();
    let preflight = api
        .ask("OPTIONS", "/v1/tasks")
        .header("origin", "http://127.0.0.1:8080")
        .header("access-control-request-method", "POST");
    let answer = preflight.send().await;
    answer.refused(405, "method_not_allowed");
    assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("access-control")));
}

#[tokio::test]
async fn what_came_through_a_proxy_is_refused() {
    let api = Api::new();
    for name in ["forwarded", "x-forwarded-for", "X-Forwarded-Host", "x-forwarded-proto", "x-forwarded-anything"] {
        for (method, uri) in ROUTES {
            let ask = api.ask(method, uri).header(name, "127.0.0.1").json("{\"kind\":\"echo\"}");
            ask.send().await.refused(403, "forbidden");
        }
    }
    assert!(api.fake.submissions().is_empty());
}

#[tokio::test]
async fn strangers_need_a_key_and_no_key_is_known_yet() {
    let api = Api::new();
    let keyed = Api::with(|settings| settings.keyless = false);
    for (method, uri) in ROUTES {
        for ask in [
            api.ask(method, uri).at_peer("10.1.2.3:4"),
            api.ask(method, uri).at_peer("[2001:db8::1]:4"),
            api.ask(method, uri).at_peer("[::ffff:10.1.2.3]:4"),
            api.ask(method, uri).at_no_peer(),
            api.ask(method, uri).header("authorization", "Bearer tg_x"),
            api.ask(method, uri).header("authorization", "Basic eDp5"),
            api.ask(method, uri).header("authorization", ""),
            keyed.ask(method, uri),
        ] {
            let answer = ask.json("{\"kind\":\"echo\"}").send().await;
            answer.refused(401, "unauthorized");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
    }
    assert!(api.fake.submissions().is_empty() && keyed.fake.submissions().is_empty());
}
