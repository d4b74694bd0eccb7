//! What the documents say is what the code does: metrics, reasons, states.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tidegate_core::explain::BlockerKind;
use tidegate_core::state::{Event, next_state};
use tidegate_core::{Reason, Status};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The names of metrics that the sources record: string literals right inside `counter!`, `gauge!` or `histogram!`, and
/// the API's, which are constants.
fn recorded() -> BTreeSet<String> {
    let mut files = Vec::new();
    for room in ["crates", "bin"] {
        sources(&root().join(room), &mut files);
    }
    let constants = read("crates/tidegate-api/src/metric.rs");
    let literals = constants.split('"').skip(1).step_by(2).filter(|literal| literal.starts_with("tidegate_"));
    let mut names: BTreeSet<String> = literals.map(str::to_owned).collect();
    assert!(names.len() > 5);
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        for open in ["counter!(", "gauge!(", "histogram!("] {
            for part in text.split(open).skip(1) {
                if let Some(name) = part.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next()) {
                    names.insert(name.to_owned());
                }
            }
        }
    }
    names
}

#[test]
fn every_metric_is_documented_and_every_documented_metric_is_recorded() {
    let page = read("docs/metrics.md");
    let documented: BTreeSet<_> =
        page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned())).collect();
    assert!(documented.len() > 20);
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    let all: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    for name in recorded() {
        assert!(documented.contains(&name), "docs/metrics.md does not tell of {name}");
    }
    for name in documented {
        assert!(all.contains(&format!("\"{name}\"")), "nothing records {name}");
    }
}

#[test]
fn every_reason_has_a_page() {
    for reason in Reason::ALL {
        let page = read(&format!("docs/errors/{reason}.md"));
        assert!(page.lines().count() > 2, "{reason}");
    }
}

#[test]
fn the_diagram_the_table_and_the_database_agree_on_the_states() {
    let name = |event: Event| match event {
        Event::TimeOut => "time_out".to_owned(),
        event => format!("{event:?}").to_lowercase(),
    };
    let mut table = BTreeSet::new();
    for from in std::iter::once(None).chain(Status::ALL.map(Some)) {
        for event in Event::ALL {
            if let Ok(to) = next_state(from, event) {
                let from = from.map_or("[*]".to_owned(), |from| from.to_string());
                table.insert(format!("{from} --> {to}: {}", name(event)));
            }
        }
    }
    let page = read("docs/state-machine.md");
    let drawn: BTreeSet<_> = page
        .lines()
        .map(str::trim)
        .filter(|line| line.contains(" --> ") && line.contains(": "))
        .map(str::to_owned)
        .collect();
    assert_eq!(drawn, table);
    let migration = read("migrations/0001_create_queue.sql");
    let check = migration.split("CONSTRAINT task_state CHECK").nth(1).unwrap().split("PARTITION BY").next().unwrap();
    for status in Status::ALL {
        assert_eq!(check.contains(&format!("'{status}'")), status.is_final(), "{status} in the CHECK of tidegate.task");
    }
}

/// The names of members, at any depth.
fn members(value: &serde_json::Value, into: &mut BTreeSet<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        into.insert(name.clone());
        members(value, into);
    }
}

#[test]
fn the_page_about_waiting_tells_every_sort_of_blocker() {
    let page = read("docs/explain.md");
    for kind in BlockerKind::ALL {
        assert!(page.contains(&format!("`{}`", kind.as_str())), "docs/explain.md does not tell of {}", kind.as_str());
    }
}

#[test]
fn the_page_about_limits_tells_every_key() {
    let page = read("docs/limits.md");
    let mut keys = BTreeSet::new();
    let tenant = tidegate_core::tenant::TenantLimits::default().shown();
    members(&serde_json::to_value(tidegate_core::limits::Limits::default()).unwrap(), &mut keys);
    members(&serde_json::to_value(tenant).unwrap(), &mut keys);
    let peer = serde_json::to_value(tidegate_core::peer::PeerLimits::default()).unwrap();
    keys.extend(peer.as_object().unwrap().keys().cloned());
    assert!(keys.len() > 35);
    let untold: Vec<_> = keys
        .iter()
        .filter(|key| !page.contains(&format!("`{key}`")) && !page.contains(&format!("`classes.{key}`")))
        .filter(|key| !["classes", "standard", "background"].contains(&key.as_str()))
        .collect();
    assert_eq!(untold, Vec::<&String>::new());
}
