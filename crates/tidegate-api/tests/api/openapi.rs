//! The OpenAPI document: no drift, and nothing served that it does not speak of.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tidegate_api::openapi_json;

use crate::harness::Api;

fn document() -> Value {
    serde_json::from_str(openapi_json()).unwrap()
}

fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let each = paths.iter().flat_map(|(path, item)| {
        item.as_object()
            .unwrap()
            .iter()
            .map(move |(method, operation)| (method.to_uppercase(), path.clone(), operation))
    });
    each.collect()
}

/// To accept a change: `UPDATE_OPENAPI=1 cargo test -p tidegate-api openapi`.
#[test]
fn the_committed_document_is_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(&path, openapi_json()).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == openapi_json(), "docs/openapi.json differs from the code: run with UPDATE_OPENAPI=1");
}

#[test]
fn it_is_3_1_and_every_operation_has_a_stable_name_and_an_auth_class() {
    let document = document();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let mut names = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let name = operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path} has no operationId"));
        assert!(names.insert(name), "{name} is there twice");
        let class = operation["x-auth-class"].as_str().unwrap_or_else(|| panic!("{method} {path} has no auth class"));
        assert!(["public", "submit", "read", "cancel", "admin"].contains(&class), "{method} {path}: {class}");
        assert!(!path.starts_with("/v1/") || class != "public", "{method} {path} is public");
        assert!(operation["security"].is_array(), "{method} {path}");
        assert!(operation["summary"].as_str().is_some_and(|text| text.ends_with('.')), "{method} {path}");
    }
    let names: Vec<_> = names.into_iter().collect();
    insta::assert_snapshot!(names.join("\n"));
}

#[test]
fn every_refusal_that_a_caller_may_meet_is_spoken_of() {
    let document = document();
    for (method, path, operation) in operations(&document).into_iter().filter(|(_, path, _)| path.starts_with("/v1/")) {
        let responses = operation["responses"].as_object().unwrap();
        let mut refusals = vec!["401", "403", "422", "503"];
        // Draining a worker takes a body in which nothing may be said.
        if operation.get("requestBody").is_some() || path.ends_with("/drain") {
            refusals.extend(["400", "413", "415"]);
        }
        for status in refusals {
            let said = responses.get(status).or_else(|| responses.get("4XX").filter(|_| status.starts_with('4')));
            let said = said.unwrap_or_else(|| panic!("{method} {path} does not speak of {status}"));
            let schema = &said["content"]["application/problem+json"]["schema"]["$ref"];
            assert_eq!(schema, "#/components/schemas/Problem", "{method} {path} {status}");
        }
    }
}

#[test]
fn every_reference_leads_somewhere() {
    fn walk(value: &Value, document: &Value) {
        match value {
            Value::Object(members) => {
                if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
                    let pointer = reference.strip_prefix('#').unwrap();
                    assert!(document.pointer(pointer).is_some(), "{reference}");
                }
                members.values().for_each(|value| walk(value, document));
            }
            Value::Array(items) => items.iter().for_each(|value| walk(value, document)),
            _ => {}
        }
    }
    let document = document();
    walk(&document, &document);
}

#[tokio::test]
async fn every_operation_of_the_document_is_served() {
    let api = Api::new();
    for (method, path, _) in operations(&document()) {
        let uri = path
            .replace("{id}", "018f0000-0000-7000-8000-000000000007")
            .replace("{name}", "unknown")
            .replace("{file}", "swagger-ui.css")
            .replace("{reason}", "queue_full");
        let answer = api.ask(&method, &uri).send().await;
        assert_ne!(answer.status, 405, "{method} {path}");
        if answer.status == 404 {
            // Known, but what it names is not.
            let detail = answer.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.starts_with("there is no such "), "{method} {path}: {detail}");
        }
    }
}
