//! Holds `config/default.toml`, the typed configuration and `docs/configuration.md` together.

use std::collections::BTreeSet;

use super::{Config, DEFAULTS, check};

/// The defaults with every commented key and example switched on.
fn everything() -> String {
    DEFAULTS.lines().map(|line| if is_commented_key(line) { &line[1..] } else { line }).fold(
        String::new(),
        |mut text, line| {
            text.push_str(line);
            text.push('\n');
            text
        },
    )
}

fn is_commented_key(line: &str) -> bool {
    line.starts_with('#') && line[1..].starts_with(|c: char| c.is_ascii_lowercase() || c == '[')
}

/// The dotted keys of a value; names that an operator chooses and places in a list count as `*`.
fn keys(value: &serde_json::Value, above: &str, into: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                let path = match above {
                    "" => key.clone(),
                    "kinds" | "tenants" | "peers" | "kinds.*.http.headers" | "class_rules.*.when.labels" => {
                        format!("{above}.*")
                    }
                    _ => format!("{above}.{key}"),
                };
                into.insert(path.clone());
                keys(value, &path, into);
            }
        }
        serde_json::Value::Array(items) if above == "class_rules" => {
            items.iter().for_each(|item| keys(item, "class_rules.*", into));
        }
        _ => {}
    }
}

#[test]
fn every_key_of_the_program_is_in_the_defaults_and_the_other_way_round() {
    // That the file holds no key which the program does not know is seen by parsing it.
    let config: Config = toml::from_str(&everything()).unwrap();
    assert_eq!(check::problems(&config), []);
    let mut known = BTreeSet::new();
    keys(&serde_json::to_value(&config).unwrap(), "", &mut known);
    let mut written = BTreeSet::new();
    let table: toml::Table = everything().parse().unwrap();
    keys(&serde_json::to_value(table).unwrap(), "", &mut written);
    // The three classes have the same keys; they are written out once.
    let once = |keys: BTreeSet<String>| -> BTreeSet<String> {
        keys.into_iter().map(|key| key.replace(".standard", ".critical").replace(".background", ".critical")).collect()
    };
    assert_eq!(once(known), once(written));
}

#[test]
fn every_key_has_a_comment_above_it() {
    let mut commented = false;
    for (number, line) in DEFAULTS.lines().enumerate() {
        let is_key = is_commented_key(line) || line.starts_with(|c: char| c.is_ascii_lowercase());
        if is_key && !line.trim_start_matches('#').starts_with('[') {
            assert!(commented, "line {} of config/default.toml: {line}", number + 1);
        }
        commented = line.starts_with("# ");
    }
}

/// Where the generated part of `docs/configuration.md` begins.
const MARK: &str = "<!-- From here on generated from config/default.toml: run the tests with TIDEGATE_BLESS=1. -->\n";

/// The keys as tables, one for each section.
fn tables() -> String {
    let mut text = String::new();
    let mut comment: Vec<&str> = Vec::new();
    // The head of the file explains the file.
    let (_, sections) = DEFAULTS.split_once("\n\n").unwrap();
    for line in sections.lines() {
        if let Some(words) = line.strip_prefix("# ") {
            comment.push(words);
            continue;
        }
        let words = std::mem::take(&mut comment).join(" ");
        let key = line.strip_prefix('#').unwrap_or(line);
        if key.starts_with('[') {
            text.push_str(&format!("\n## `{key}`\n\n"));
            if !words.is_empty() {
                text.push_str(&format!("{words}\n\n"));
            }
            text.push_str("| key | default | meaning |\n|---|---|---|\n");
        } else if let Some((key, value)) = key.split_once(" = ") {
            let example = if line.starts_with('#') { format!("(as in `{value}`)") } else { format!("`{value}`") };
            text.push_str(&format!("| `{key}` | {} | {} |\n", example.replace('|', "\\|"), words.replace('|', "\\|")));
        }
    }
    text
}

#[test]
fn the_page_about_the_configuration_is_that_of_the_defaults() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (by_hand, generated) = page.split_once(MARK).unwrap();
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(&path, format!("{by_hand}{MARK}{}", tables())).unwrap();
        return;
    }
    assert_eq!(generated, tables(), "run the tests once with TIDEGATE_BLESS=1");
}
