//! What the README promises is there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_testkit::{Proc, TestDb};
use tokio::process::Command;

/// More than any single step here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).unwrap()
}

/// The Rust sources below a directory.
fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn every_test_that_keeps_a_promise_is_there() {
    let mut files = Vec::new();
    for directory in ["bin", "crates", "tests"] {
        sources(&root().join(directory), &mut files);
    }
    let functions: BTreeSet<String> = files
        .iter()
        .flat_map(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            let names = text.lines().filter_map(|line| {
                let name = line.trim_start().trim_start_matches("async ").strip_prefix("fn ")?;
                Some(name.split('(').next()?.to_owned())
            });
            names.collect::<Vec<_>>()
        })
        .collect();
    let mut promises = 0;
    for row in readme().lines().filter(|line| line.starts_with("| **")) {
        let names: Vec<_> = row.split('|').nth(3).unwrap().split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test keeps: {row}");
        for name in names {
            assert!(functions.contains(name), "there is no test {name}");
        }
        promises += 1;
    }
    assert!(promises >= 10, "only {promises} rows were found");
}

#[test]
fn every_link_leads_to_a_file() {
    for link in readme().split("](").skip(1) {
        let target = link.split(')').next().unwrap();
        assert!(target.starts_with("http") || root().join(target).exists(), "{target} is not there");
    }
}

#[tokio::test]
async fn the_first_task_of_the_readme_completes() {
    let readme = readme();
    let start = readme.find("curl -sS").unwrap();
    let curl = readme[start..].split("\n\n").next().unwrap();
    let database = TestDb::new().await;
    let mut up = Proc::builder(env!("CARGO_BIN_EXE_tidegate"))
        .args(["up", "--listen", "127.0.0.1:0"])
        .env("DATABASE_URL", database.url())
        .spawn();
    let url = up.wait_for_url(LIMIT).await;
    let curl = curl.replace("http://127.0.0.1:8080", &url);
    let output = Command::new("sh").args(["-c", &curl]).output().await.unwrap();
    let answer = String::from_utf8_lossy(&output.stdout);
    assert!(answer.contains(r#""status":"COMPLETED""#) && answer.contains("world"), "{curl}\n{answer}");
    up.terminate();
    assert_eq!(up.wait(LIMIT).await.code(), Some(0), "{}", up.output());
}
