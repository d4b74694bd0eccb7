use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::decode;

#[test]
fn labels_know_every_route_and_no_other() {
    let document = document::document();
    let documented: BTreeSet<_> = document.paths.paths.keys().map(String::as_str).collect();
    assert_eq!(documented, PATTERNS.iter().copied().collect());
}

/// What is registered with `routes!` is in the document; so nothing may be registered otherwise.
#[test]
fn no_route_is_registered_beside_the_document() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("routes/tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for call in [".route(", ".route_service(", ".nest(", ".nest_service(", ".merge("] {
                    assert!(!text.contains(call), "{path:?} calls {call}");
                }
                files += 1;
            }
        }
    }
    assert!(files > 20);
}

#[test]
fn every_operation_has_an_auth_class() {
    let text = serde_json::to_value(document::document()).unwrap();
    for (path, item) in text["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(operation[document::AUTH_CLASS].is_string(), "{method} {path}");
        }
    }
}

/// The schema of a submission and the decoder must know the same members.
#[test]
fn the_document_and_the_decoder_know_the_same_members() {
    let text = serde_json::to_value(document::document()).unwrap();
    let properties = text["components"]["schemas"]["SubmitRequest"]["properties"].as_object().unwrap();
    let documented: BTreeSet<_> = properties.keys().map(String::as_str).collect();
    assert_eq!(documented, decode::MEMBER_NAMES.iter().copied().collect());
}
