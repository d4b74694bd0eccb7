//! Pages for people, and probes.

use tidegate_core::Status;

use crate::fake::Trouble;
use crate::harness::Api;

#[tokio::test]
async fn the_status_page_shows_how_things_stand_and_escapes_what_it_shows() {
    let api = Api::new();
    let answer = api.submit("{\"kind\":\"echo\"}").await;
    api.fake.update(answer.id(), |task| {
        task.status = Status::Running;
        task.worker = Some("<script>alert(1)</script>".into());
    });
    let page = api.get("/").await.expect(200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    for shown in [
        "Pressure 0.00",
        "standard",
        "Oldest queued 1.5 s",
        "1 sessions",
        "16 slots",
        "RUNNING",
        &answer.id().to_string(),
    ] {
        assert!(page.text.contains(shown), "{shown} is missing: {}", page.text);
    }
    assert!(page.text.contains("&lt;script&gt;alert(1)") && !page.text.contains("<script"));
    // Nothing is loaded, and the only style allowed is the one with this answer's nonce.
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; style-src 'nonce-"), "{policy}");
    let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap();
    assert!(page.text.contains(&format!("<style nonce=\"{nonce}\">")));
    assert!(!page.text.contains("src=") && !page.text.contains("style=") && !page.text.contains("http://"));
    assert_ne!(api.get("/").await.header("content-security-policy"), Some(policy));
    assert_eq!(page.header("x-frame-options"), Some("DENY"));
}

#[tokio::test]
async fn the_status_page_says_that_the_database_is_away() {
    let api = Api::new();
    api.fake.trouble(Some(Trouble::Unavailable));
    let page = api.get("/").await.expect(200);
    assert!(page.text.contains("the database cannot be reached"));
}

#[tokio::test]
async fn the_api_is_shown_without_the_internet() {
    let api = Api::new();
    let enter = api.get("/docs").await.expect(303);
    assert_eq!(enter.header("location"), Some("/docs/"));
    let index = api.get("/docs/").await.expect(200);
    assert!(index.header("content-type").unwrap().starts_with("text/html"));
    for part in ["swagger-ui.css", "swagger-ui-bundle.js", "swagger-ui-standalone-preset.js", "swagger-initializer.js"]
    {
        assert!(index.text.contains(part));
        api.get(&format!("/docs/{part}")).await.expect(200);
    }
    assert!(api.get("/docs/swagger-initializer.js").await.text.contains("/openapi.json"));
    assert!(!index.text.contains("http://") && !index.text.contains("https://"), "{}", index.text);
    api.get("/docs/..%2fCargo.toml").await.refused(404, "not_found");
}

#[tokio::test]
async fn the_type_of_every_problem_leads_to_its_page() {
    let api = Api::with_room(0);
    for body in ["{\"kind\":\"echo\"}", "{", "{\"kind\":7}", "{\"x\":1}"] {
        let problem = api.submit(body).await.json();
        let page = api.get(problem["type"].as_str().unwrap()).await.expect(200);
        assert!(page.text.contains(problem["title"].as_str().unwrap()));
    }
    let list = api.get("/docs/errors").await.expect(200);
    assert!(list.text.contains("href=\"/docs/errors/tenant_rate\""));
}

#[tokio::test]
async fn metrics_show_what_is_known_even_without_the_database() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    // This process runs this test alone or beside others that count too: names are asserted, not numbers.
    let _ = metrics::set_global_recorder(recorder);
    tidegate_api::describe_metrics();
    let api = Api::new();
    let state = tidegate_api::AppState::new(api.fake.clone(), tidegate_api::Settings::default(), Some(handle));
    let api = api.over(state);
    api.submit("{\"kind\":\"echo\"}").await.expect(202);
    api.get("/v1/tasks/x").await.expect(404);
    api.get("/some/invented/path").await.expect(404);
    let text = api.get("/metrics").await.expect(200).text;
    for line in [
        "tidegate_http_requests_total{route=\"/v1/tasks\",method=\"POST\",status=\"202\"}",
        "tidegate_http_requests_total{route=\"/v1/tasks/{id}\",method=\"GET\",status=\"404\"}",
        "tidegate_http_requests_total{route=\"none\",method=\"GET\",status=\"404\"}",
        "tidegate_queue_tasks{class=\"standard\",state=\"queued\"}",
        "tidegate_queue_oldest_seconds{state=\"queued\"} 1.5",
        "tidegate_sessions 1",
        "tidegate_session_slots 16",
        "tidegate_leases 0",
        "tidegate_pressure_ratio",
        "tidegate_http_request_seconds",
    ] {
        assert!(text.contains(line), "{line} is missing from\n{text}");
    }
    assert!(!text.contains("invented"));
    api.fake.trouble(Some(Trouble::Unavailable));
    assert!(api.get("/metrics").await.expect(200).text.contains("tidegate_pressure_ratio"));
}
