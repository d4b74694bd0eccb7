//! The parameters of every listing: what cannot be is refused, and says which parameter it is.

use tidegate_core::TaskId;

use crate::harness::Api;

/// The listings that come in pages.
const PAGED: [&str; 5] = ["/v1/tasks", "/v1/admin/tenants", "/v1/admin/peers", "/v1/admin/workers", "/v1/admin/audit"];
/// What is read whole: it takes no parameters at all.
const WHOLE: [&str; 4] = ["/v1/admin/pauses", "/v1/admin/limits", "/v1/pressure", "/v1/admin/tenants/unknown"];

async fn refused(api: &Api, uri: &str, reason: &str, parameter: &str) {
    let problem = api.get(uri).await.refused(422, reason);
    assert_eq!(problem["parameter"], parameter, "{uri}");
}

#[tokio::test]
async fn a_bad_parameter_of_a_listing_is_refused_everywhere_alike() {
    let api = Api::new();
    let id = TaskId::new(crate::fake::NOW, [7; 10], 0);
    let bad_cursors =
        ["zz", "", "7", "-1", "1.", "2.zz", "1.a%20b", "1.%C3%A9", "%00", &id.to_string(), &"z".repeat(300)];
    for path in PAGED {
        api.get(&format!("{path}?limit=1")).await.expect(200);
        api.get(&format!("{path}?limit=200")).await.expect(200);
        for cursor in bad_cursors {
            refused(&api, &format!("{path}?cursor={cursor}"), "invalid_value", "cursor").await;
        }
        for limit in ["0", "201", "x", "", "-1", "%2B5", "1.5", "99999999999999999999"] {
            refused(&api, &format!("{path}?limit={limit}"), "invalid_value", "limit").await;
        }
        refused(&api, &format!("{path}?nope=1"), "unknown_field", "nope").await;
        refused(&api, &format!("{path}?limit=1&limit=1"), "duplicate_field", "limit").await;
    }
    for path in WHOLE {
        for name in ["cursor", "limit", "nope"] {
            refused(&api, &format!("{path}?{name}=1"), "unknown_field", name).await;
        }
    }
    let task = api.submit("{\"kind\":\"echo\"}").await.expect(202).id();
    for part in ["attempts", "explain"] {
        refused(&api, &format!("/v1/tasks/{task}/{part}?limit=1"), "unknown_field", "limit").await;
    }
}

#[tokio::test]
async fn a_cursor_of_one_sort_of_listing_is_none_of_another() {
    let api = Api::new();
    for _ in 0..2 {
        api.submit("{\"kind\":\"echo\"}").await.expect(202);
    }
    let page = api.get("/v1/tasks?limit=1").await.expect(200).json();
    let cursor = page["next_cursor"].as_str().unwrap();
    api.get(&format!("/v1/tasks?limit=1&cursor={cursor}")).await.expect(200);
    refused(&api, &format!("/v1/admin/audit?cursor={cursor}"), "invalid_value", "cursor").await;
}
