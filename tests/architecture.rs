//! The rules of ARCHITECTURE.md that a compiler does not check: who may use whom, how long a file may be, and that the
//! core asks neither the clock nor chance.

#![allow(clippy::unwrap_used)] // All of this file is a test, its helpers too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// No source file is longer than this many lines; most stay far below.
const MAX_LINES: usize = 600;

/// Which of our crates each of our crates may use. What is missing here may use none and be used by none, so a new room
/// has to be thought about once.
const MAY_USE: [(&str, &[&str]); 11] = [
    ("tidegate-core", &[]),
    ("tidegate-flow", &["tidegate-core"]),
    ("tidegate-outbound", &[]),
    ("tidegate-wire", &["tidegate-core"]),
    ("tidegate-store", &["tidegate-core"]),
    ("tidegate-worker", &["tidegate-core", "tidegate-flow", "tidegate-store", "tidegate-outbound"]),
    ("tidegate-keeper", &["tidegate-core", "tidegate-store", "tidegate-outbound"]),
    ("tidegate-api", &["tidegate-core", "tidegate-store", "tidegate-wire"]),
    ("tidegate-client", &["tidegate-core", "tidegate-flow", "tidegate-wire"]),
    ("tidegate-testkit", &["tidegate-core", "tidegate-store"]),
    (
        "tidegate",
        &[
            "tidegate-core",
            "tidegate-flow",
            "tidegate-outbound",
            "tidegate-wire",
            "tidegate-store",
            "tidegate-worker",
            "tidegate-keeper",
            "tidegate-api",
            "tidegate-client",
        ],
    ),
];

/// Crates of others that only some rooms may use: SQL has one home, and so has the HTTP server.
const KEPT_TO: [(&str, &[&str]); 3] = [
    ("sqlx", &["tidegate-store", "tidegate-testkit"]),
    ("axum", &["tidegate-api", "tidegate-testkit", "tidegate"]),
    (
        "tokio",
        &[
            "tidegate-flow",
            "tidegate-outbound",
            "tidegate-store",
            "tidegate-worker",
            "tidegate-keeper",
            "tidegate-api",
            "tidegate-client",
            "tidegate-testkit",
            "tidegate",
        ],
    ),
];

/// What core must not name. Its clippy.toml bans the calls that clippy can see; this also sees what is imported.
const NOT_IN_CORE: [&str; 6] = ["Instant", "SystemTime", "Utc::now", "rand::", "std::env", "std::fs"];

/// An edge from one crate to another, and whether it is only for tests.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Edge {
    from: String,
    to: String,
    is_dev: bool,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What `cargo metadata` says of the workspace's own crates.
fn metadata() -> Value {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn edges(metadata: &Value) -> Vec<Edge> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut edges = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        for dependency in package["dependencies"].as_array().unwrap() {
            let is_dev = dependency["kind"] == "dev";
            edges.push(Edge { from: text(&package["name"]), to: text(&dependency["name"]), is_dev });
        }
    }
    edges
}

/// Every edge that no rule allows, said in words.
fn violations(edges: &[Edge]) -> Vec<String> {
    let may_use: BTreeMap<&str, &[&str]> = MAY_USE.into_iter().collect();
    let kept_to: BTreeMap<&str, &[&str]> = KEPT_TO.into_iter().collect();
    let is_ours = |name: &str| name == "tidegate" || name.starts_with("tidegate-");
    let is_allowed = |edge: &Edge| {
        let (from, to) = (edge.from.as_str(), edge.to.as_str());
        if is_ours(to) {
            // Tests may use the kit, and in the directions that hold otherwise anything.
            (edge.is_dev && to == "tidegate-testkit") || may_use.get(from).is_some_and(|allowed| allowed.contains(&to))
        } else {
            edge.is_dev || kept_to.get(to).is_none_or(|allowed| allowed.contains(&from))
        }
    };
    edges.iter().filter(|edge| !is_allowed(edge)).map(|edge| format!("{} uses {}", edge.from, edge.to)).collect()
}

#[test]
fn crates_use_one_another_only_in_the_allowed_directions() {
    let metadata = metadata();
    let edges = edges(&metadata);
    assert!(edges.iter().any(|edge| edge.from == "tidegate-store" && edge.to == "sqlx"), "the check sees the edges");
    assert_eq!(violations(&edges), Vec::<String>::new());

    let known: BTreeSet<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        assert!(known.contains(name), "{name} has no place in MAY_USE yet");
    }
}

/// The twin: each of these must be found.
#[test]
fn a_forbidden_direction_is_found() {
    let dependency = |name: &str, kind: Value| json!({"name": name, "kind": kind});
    let forbidden = [
        ("tidegate-core", "tidegate-store"),
        ("tidegate-core", "tokio"),
        ("tidegate-worker", "tidegate-keeper"),
        ("tidegate-keeper", "tidegate-api"),
        ("tidegate-api", "tidegate-worker"),
        ("tidegate-client", "tidegate-store"),
        ("tidegate-wire", "tidegate-api"),
        ("tidegate-outbound", "tidegate-worker"),
        ("tidegate-store", "tidegate-testkit"),
        ("tidegate-worker", "sqlx"),
        ("tidegate-client", "sqlx"),
        ("tidegate", "sqlx"),
        ("tidegate-keeper", "axum"),
        ("tidegate-newcomer", "tidegate-core"),
    ];
    for (from, to) in forbidden {
        let metadata = json!({"packages": [{"name": from, "dependencies": [dependency(to, Value::Null)]}]});
        assert_eq!(violations(&edges(&metadata)), [format!("{from} uses {to}")]);
    }
    // For tests some of it is fine, but not the direction between rooms.
    for (from, to, is_fine) in [
        ("tidegate-core", "tidegate-testkit", true),
        ("tidegate", "sqlx", true),
        ("tidegate-worker", "tidegate-api", false),
    ] {
        let metadata = json!({"packages": [{"name": from, "dependencies": [dependency(to, json!("dev"))]}]});
        assert_eq!(violations(&edges(&metadata)).is_empty(), is_fine, "{from} uses {to} in tests");
    }
}

/// Every Rust file of ours below a directory.
fn rust_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                rust_files(&path, files);
            }
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
}

#[test]
fn no_source_file_is_too_long_to_read() {
    let mut files = Vec::new();
    rust_files(root(), &mut files);
    assert!(files.iter().any(|file| file.ends_with("tests/architecture.rs")), "the check sees the files");
    let too_long: Vec<String> = files
        .iter()
        .map(|file| (file, std::fs::read_to_string(file).unwrap().lines().count()))
        .filter(|(_, lines)| *lines > MAX_LINES)
        .map(|(file, lines)| format!("{} has {lines} lines", file.display()))
        .collect();
    assert_eq!(too_long, Vec::<String>::new());
}

/// The lines of a source that name what core must not.
fn impure_lines(source: &str) -> Vec<&str> {
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    source.lines().filter(|line| !is_comment(line) && NOT_IN_CORE.iter().any(|name| line.contains(name))).collect()
}

#[test]
fn core_asks_neither_the_clock_nor_chance() {
    let core = root().join("crates/tidegate-core");
    let bans = std::fs::read_to_string(core.join("clippy.toml")).unwrap();
    for ban in ["std::time::Instant::now", "std::time::SystemTime::now", "std::env::var"] {
        assert!(bans.contains(ban), "core's clippy.toml must ban {ban}");
    }
    let mut files = Vec::new();
    rust_files(&core.join("src"), &mut files);
    assert!(!files.is_empty());
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        assert_eq!(impure_lines(&source), Vec::<&str>::new(), "in {}", file.display());
    }
    // The twin.
    assert_eq!(impure_lines("// Instant\nuse std::time::{Duration, Instant};\nlet x = 1;").len(), 1);
}
