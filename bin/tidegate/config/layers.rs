//! Puts the layers of the configuration on one another and remembers which of them said what.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;
use tidegate_core::strict;
use toml::{Table, Value};

use super::error::{ConfigError, Problem};

/// Environment variables with this prefix are keys of the configuration.
const ENV_PREFIX: &str = "TIDEGATE__";
/// Separates the sections in a variable's name.
const ENV_SEPARATOR: &str = "__";
/// The value that takes away what an earlier layer said.
const UNSET: &str = "unset";
/// The largest file that is read. A configuration is written by hand; anything larger was named by mistake.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The layers so far, merged.
#[derive(Debug, Default)]
pub(super) struct Layers {
    merged: Table,
    /// Which layer set a key last, by its dotted path.
    origins: BTreeMap<String, String>,
}

impl Layers {
    /// Adds TOML text.
    pub(super) fn add_text(&mut self, text: &str, origin: &str) -> Result<(), ConfigError> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let place = error.span().map_or_else(String::new, |span| format!(", {}", place(text, span.start)));
            ConfigError::from(Problem::new("", Some(format!("{origin}{place}")), error.message().trim()))
        })?;
        merge(&mut self.merged, table, "", origin, &mut self.origins);
        Ok(())
    }

    /// Adds a file.
    pub(super) fn add_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let origin = path.display().to_string();
        let text = read_bounded(path)
            .map_err(|error| ConfigError::from(Problem::new("", Some(origin.clone()), &error.to_string())))?;
        self.add_text(&text, &origin)
    }

    /// Adds the variables that begin with the prefix, in the order of their names.
    pub(super) fn add_env(&mut self, vars: impl Iterator<Item = (OsString, OsString)>) -> Result<(), ConfigError> {
        let mut ours: Vec<_> = vars
            .filter_map(|(name, value)| Some((name.to_str()?.to_owned(), value)))
            .filter(|(name, _)| name.starts_with(ENV_PREFIX))
            .collect();
        ours.sort();
        for (name, value) in ours {
            let problem = |what| ConfigError::from(Problem::new("", Some(format!("environment, {name}")), what));
            let Ok(text) = value.into_string() else { return Err(problem("is not UTF-8")) };
            let segments: Vec<_> = name[ENV_PREFIX.len()..].split(ENV_SEPARATOR).collect();
            if segments.iter().any(|segment| segment.is_empty()) {
                return Err(problem("must be of the form TIDEGATE__SECTION__KEY"));
            }
            self.add_variable(&segments, text, &format!("environment, {name}"));
        }
        Ok(())
    }

    fn add_variable(&mut self, segments: &[&str], text: String, origin: &str) {
        let mut known = Some(&self.merged);
        let mut path = Vec::with_capacity(segments.len());
        let mut existing = None;
        for segment in segments {
            let key = spelling(known, segment);
            existing = known.and_then(|table| table.get(&key));
            known = existing.and_then(Value::as_table);
            path.push(key);
        }
        let value = value_of(text, existing);
        let layer = path.into_iter().rev().fold(value, |inner, key| Value::Table(Table::from_iter([(key, inner)])));
        if let Value::Table(layer) = layer {
            merge(&mut self.merged, layer, "", origin, &mut self.origins);
        }
    }

    /// The typed whole.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        strict::deserialize(Value::Table(self.merged.clone())).map_err(|error| {
            let path = error.path().to_string();
            let mut key = if path == "." { String::new() } else { path };
            let message = error.inner().message().trim();
            let Some(name) = strict::missing(message) else {
                return ConfigError::from(Problem::new(&key, self.origin(&key), &plain(message)));
            };
            key.push_str(if key.is_empty() { "" } else { "." });
            key.push_str(name);
            ConfigError::from(Problem::new(&key, self.origin(&key), "is missing"))
        })
    }

    /// The layer that said what stands at a key; of a key that is missing, the layer that said what is beside it.
    pub(super) fn origin(&self, key: &str) -> Option<String> {
        self.origin_near(key).or_else(|| key.rsplit_once('.').and_then(|(above, _)| self.origin_near(above)))
    }

    fn origin_near(&self, key: &str) -> Option<String> {
        let inside = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let near = |(path, _): &(&String, &String)| inside(path, key) || inside(key, path);
        self.origins.iter().filter(near).map(|(_, origin)| origin).next_back().cloned()
    }
}

/// A variable's segment is matched with the keys that are there without regard to case, since variables are written
/// in capitals; a new key is in lower case.
fn spelling(table: Option<&Table>, segment: &str) -> String {
    table
        .and_then(|table| table.keys().find(|key| key.eq_ignore_ascii_case(segment)))
        .cloned()
        .unwrap_or_else(|| segment.to_ascii_lowercase())
}

/// The value of a variable: TOML where it is that, else text. Where text stood before, only text is meant: a level of
/// `5` or a currency of `true` is still text.
fn value_of(text: String, existing: Option<&Value>) -> Value {
    let parsed = format!("value = {text}").parse::<Table>().ok().filter(|table| table.len() == 1);
    match parsed.and_then(|mut table| table.remove("value")) {
        Some(value) if !existing.is_some_and(Value::is_str) || value.is_str() => value,
        _ => Value::String(text),
    }
}

/// What stood inside of a value that was replaced is gone, and nobody is to blame for it any more.
fn forget_inside(origins: &mut BTreeMap<String, String>, path: &str) {
    origins.retain(|inner, _| !inner.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')));
}

/// A message of the parser in words that need no knowledge of the program.
fn plain(message: &str) -> String {
    let words = |said: &str| match said {
        strict::OBJECT => "a section with keys of its own".to_owned(),
        strict::ARRAY => "a list".to_owned(),
        said => said.to_owned(),
    };
    let said = strict::in_words(message);
    match said.strip_prefix("must be ").and_then(|said| said.split_once(", not ")) {
        Some((expected, got)) => format!("must be {}, not {}", words(expected), words(got)),
        None => said,
    }
}

fn merge(into: &mut Table, from: Table, above: &str, origin: &str, origins: &mut BTreeMap<String, String>) {
    for (key, value) in from {
        let path = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
        match value {
            Value::String(text) if text == UNSET => {
                into.remove(&key);
                forget_inside(origins, &path);
                origins.insert(path, origin.to_owned());
            }
            Value::Table(inner) => {
                if !into.get(&key).is_some_and(Value::is_table) {
                    into.insert(key.clone(), Value::Table(Table::new()));
                }
                if inner.is_empty() {
                    origins.insert(path.clone(), origin.to_owned());
                }
                if let Some(Value::Table(outer)) = into.get_mut(&key) {
                    merge(outer, inner, &path, origin, origins);
                }
            }
            value => {
                into.insert(key, value);
                forget_inside(origins, &path);
                origins.insert(path, origin.to_owned());
            }
        }
    }
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if read as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::other(format!("is larger than {MAX_FILE_BYTES} bytes")));
    }
    Ok(text)
}

fn place(text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("line {line}, column {column}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layered(texts: &[&str], vars: &[(&str, &str)]) -> Layers {
        let mut layers = Layers::default();
        for (number, text) in texts.iter().enumerate() {
            layers.add_text(text, &format!("layer {number}")).unwrap();
        }
        let vars = vars.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        layers.add_env(vars).unwrap();
        layers
    }

    #[test]
    fn tables_merge_and_everything_else_is_replaced() {
        let layers = layered(&["[a]\nx = 1\ny = [1, 2]\nz = 1", "[a]\ny = [3]\nz = \"unset\"\n[b.c]\nd = 1"], &[]);
        assert_eq!(layers.merged, "[a]\nx = 1\ny = [3]\n[b.c]\nd = 1".parse::<Table>().unwrap());
        assert_eq!(layers.origin("a.x").as_deref(), Some("layer 0"));
        assert_eq!(layers.origin("a.y").as_deref(), Some("layer 1"));
        assert_eq!(layers.origin("a.y[0]").as_deref(), Some("layer 1"));
        assert_eq!(layers.origin("b").as_deref(), Some("layer 1"));
        assert_eq!(layers.origin("b.c.missing").as_deref(), Some("layer 1"));
        assert_eq!(layers.origin("bc"), None);
    }

    #[test]
    fn variables_go_last_and_keep_the_spelling_that_is_there() {
        let vars = [
            ("TIDEGATE__A__X", "7"),
            ("TIDEGATE__A__NAME", "8"),
            ("TIDEGATE__KINDS__HOTELS__URL", "http://x/"),
            ("TIDEGATE__A__LIST", "[\"p\", \"q\"]"),
            ("TIDEGATE__A__GONE", "unset"),
            ("TIDEGATE_URL", "no key of the configuration"),
        ];
        let layers = layered(&["[a]\nx = 1\nname = \"n\"\ngone = 1\n[kinds.Hotels]\nslots = 1"], &vars);
        let expected =
            "[a]\nx = 7\nname = \"8\"\nlist = [\"p\", \"q\"]\n[kinds.Hotels]\nslots = 1\nurl = \"http://x/\"";
        assert_eq!(layers.merged, expected.parse::<Table>().unwrap());
        assert_eq!(layers.origin("a.x").as_deref(), Some("environment, TIDEGATE__A__X"));
    }

    #[test]
    fn a_variable_cannot_smuggle_in_a_second_key() {
        let layers = layered(&[], &[("TIDEGATE__A__X", "1\nevil = 2")]);
        assert_eq!(layers.merged["a"]["x"].as_str(), Some("1\nevil = 2"));
    }

    #[test]
    fn what_is_not_toml_or_not_a_name_is_an_error_with_its_place() {
        let error = Layers::default().add_text("[a]\nx = = 1", "my.toml").unwrap_err().to_string();
        assert!(error.contains("my.toml, line 2, column 5"), "{error}");
        for bad in ["TIDEGATE__", "TIDEGATE__A__", "TIDEGATE____X"] {
            assert!(Layers::default().add_env([(bad.into(), "1".into())].into_iter()).is_err(), "{bad}");
        }
        assert!(Layers::default().add_file(Path::new("/nonexistent/x.toml")).is_err());
    }
}
