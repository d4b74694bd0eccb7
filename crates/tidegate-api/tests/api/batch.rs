//! Batches: each item decided alone, in order.

use crate::fake::Trouble;
use crate::harness::Api;

#[tokio::test]
async fn each_item_gets_its_answer_in_order() {
    let api = Api::with(|settings| settings.max_payload_bytes = 50);
    api.fake.room_for(2);
    let body = format!(
        r#"{{"tasks":[
            {{"kind":"echo"}}, {{"kind":"a b"}}, {{"payload":1}}, {{"kind":"echo","priority":101}}, 7,
            {{"kind":"echo","timeout_ms":5,"min_useful_ms":9}}, {{"kind":"echo","delay_ms":1000}},
            {{"kind":"echo","payload":"{}"}}, {{"kind":"echo","nope":1}}, {{"kind":"echo"}}, {{"kind":"echo"}}]}}"#,
        "x".repeat(60)
    );
    let answer = api.post("/v1/tasks/batch", body).await.expect(200);
    insta::assert_snapshot!(answer.stable());
    let results = answer.json();
    let results = results["results"].as_array().unwrap();
    assert_eq!(results.len(), 11);
    for result in results.iter().filter(|result| result.get("task_id").is_some()) {
        let read = api.get(&format!("/v1/tasks/{}", result["task_id"].as_str().unwrap())).await.expect(200);
        assert_eq!(read.json()["status"], result["outcome"]);
    }
}

#[tokio::test]
async fn a_place_goes_to_the_first_in_the_list_however_long_it_is() {
    let api = Api::with_room(300);
    let items: Vec<_> = (0..1_000).map(|n| format!("{{\"kind\":\"echo\",\"payload\":{n}}}")).collect();
    let answer = api.post("/v1/tasks/batch", format!("{{\"tasks\":[{}]}}", items.join(","))).await.expect(200);
    let results = answer.json();
    for (at, result) in results["results"].as_array().unwrap().iter().enumerate() {
        assert_eq!(result["outcome"], if at < 300 { "QUEUED" } else { "REJECTED" }, "{at}");
    }
    let order: Vec<_> =
        api.fake.submissions().iter().map(|submission| submission.payload.parse::<usize>().unwrap()).collect();
    assert_eq!(order, (0..1_000).collect::<Vec<usize>>());
}

#[tokio::test]
async fn a_batch_that_is_wrong_as_a_whole_is_refused_as_a_whole() {
    let api = Api::new();
    let too_many = format!("{{\"tasks\":[{}]}}", vec!["{\"kind\":\"echo\"}"; 1_001].join(","));
    for (body, status, reason, pointer) in [
        ("", 400, "invalid_json", None),
        ("{}", 400, "missing_field", Some("/tasks")),
        ("[]", 422, "invalid_value", Some("")),
        ("{\"tasks\":{}}", 422, "invalid_value", Some("/tasks")),
        ("{\"tasks\":null}", 422, "invalid_value", Some("/tasks")),
        ("{\"tasks\":[],\"atomic\":true}", 422, "unknown_field", Some("/atomic")),
        ("{\"tasks\":[],\"tasks\":[]}", 422, "duplicate_field", Some("/tasks")),
        (&too_many, 422, "invalid_value", Some("/tasks")),
    ] {
        let problem = api.post("/v1/tasks/batch", body.to_owned()).await.refused(status, reason);
        assert_eq!(problem.get("pointer").map(|pointer| pointer.as_str().unwrap()), pointer);
    }
    let ask = api.ask("POST", "/v1/tasks/batch").header("idempotency-key", "k").json("{\"tasks\":[]}");
    assert_eq!(ask.send().await.refused(422, "invalid_value")["header"], "Idempotency-Key");
    assert!(api.fake.submissions().is_empty());
    assert_eq!(api.post("/v1/tasks/batch", "{\"tasks\":[]}").await.expect(200).text, "{\"results\":[]}");
}

#[tokio::test]
async fn a_string_that_cannot_be_kept_is_its_own_items_fault() {
    let api = Api::new();
    for bad in ["\\u0000", "\\ud800"] {
        let body = format!(
            "{{\"tasks\":[{{\"kind\":\"echo\"}},{{\"kind\":\"echo\",\"payload\":[\"{bad}\"]}},{{\"kind\":\"echo\"}}]}}"
        );
        let results = api.post("/v1/tasks/batch", body).await.expect(200).json();
        let results = results["results"].as_array().unwrap();
        assert_eq!(results[1]["pointer"], "/tasks/1/payload/0");
        assert_eq!((&results[0]["status"], &results[2]["status"]), (&"QUEUED".into(), &"QUEUED".into()));
    }
}

#[tokio::test]
async fn a_store_that_is_away_is_said_for_each() {
    let api = Api::new();
    api.fake.trouble(Some(Trouble::Unavailable));
    let answer = api.post("/v1/tasks/batch", "{\"tasks\":[{\"kind\":\"echo\"},{}]}").await.expect(200);
    let results = answer.json();
    assert_eq!(results["results"][0]["reason"], "store_unavailable");
    assert_eq!(results["results"][1]["reason"], "missing_field");
}
