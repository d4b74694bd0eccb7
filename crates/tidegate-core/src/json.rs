//! JSON from strangers: checked, repaired and hashed as text, never rewritten.
//!
//! Payloads are opaque and kept byte for byte, so this module walks the text (RFC 8259) without building values. It
//! is iterative: depth costs no stack.

use sha2::{Digest, Sha256};

/// The deepest nesting of arrays and objects that is let in. Deeper documents are attacks more often than data, and
/// overflow the stack of many a parser downstream.
pub const MAX_DEPTH: usize = 64;

/// What is wrong with a text that claims to be JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not JSON at all.
    #[error("is not valid JSON")]
    Syntax,
    /// Nested deeper than allowed.
    #[error("is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// The character U+0000, which neither Postgres nor C strings can carry.
    #[error("holds the character U+0000")]
    Nul,
    /// Half of a surrogate pair: not a character.
    #[error("holds half of a surrogate pair")]
    LoneSurrogate,
}

/// A fault and where it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the value at {pointer:?} {fault}")]
pub struct JsonError {
    /// What is wrong.
    pub fault: Fault,
    /// Where, as a JSON pointer (RFC 6901). A bad key is named by the object that holds it.
    pub pointer: String,
    /// Where, in bytes from the start of the text.
    pub offset: usize,
}

/// Checks that `text` is one JSON value nested at most `max_depth` deep, whose strings hold only characters.
pub fn check(text: &str, max_depth: usize) -> Result<(), JsonError> {
    Walker::new(text, max_depth).walk(&mut Ignore)
}

/// Checks only that `text` is one JSON value, however deep and whatever its strings hold: for a list whose items are
/// checked one by one.
pub fn check_syntax(text: &str) -> Result<(), JsonError> {
    Walker::new(text, usize::MAX).walk(&mut Repairs(Vec::new()))
}

/// SHA-256 of the value with the keys of objects sorted, numbers as written, strings by what they mean, and white
/// space dropped: two bodies that say the same have the same hash. The text must have passed [`check`].
pub fn canonical_sha256(text: &str) -> [u8; 32] {
    Sha256::digest(canonical(text).as_bytes()).into()
}

/// The canonical form that [`canonical_sha256`] hashes. A text that is not JSON is its own canonical form.
pub fn canonical(text: &str) -> String {
    match serde_json::from_str::<&serde_json::value::RawValue>(text) {
        Ok(raw) => {
            let mut out = String::with_capacity(text.len());
            write_canonical(raw.get(), &mut out);
            out
        }
        Err(_) => text.to_owned(),
    }
}

fn write_canonical(text: &str, out: &mut String) {
    use serde_json::value::RawValue;
    use std::collections::BTreeMap;
    match text.as_bytes().first() {
        Some(b'{') => {
            let Ok(map) = serde_json::from_str::<BTreeMap<String, &RawValue>>(text) else {
                return out.push_str(text);
            };
            out.push('{');
            for (index, (key, value)) in map.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push_str(&serde_json::Value::String(key).to_string());
                out.push(':');
                write_canonical(value.get(), out);
            }
            out.push('}');
        }
        Some(b'[') => {
            let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text) else { return out.push_str(text) };
            out.push('[');
            for (index, item) in items.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_canonical(item.get(), out);
            }
            out.push(']');
        }
        Some(b'"') => match serde_json::from_str::<String>(text) {
            Ok(string) => out.push_str(&serde_json::Value::String(string).to_string()),
            Err(_) => out.push_str(text),
        },
        _ => out.push_str(text),
    }
}

/// Makes a JSON text that came back from outside safe to keep: U+0000 and half surrogates become U+FFFD. Nothing
/// else changes. Returns an error only where the text is not JSON, or nested too deep to hand on.
pub fn repair(text: &str) -> Result<String, JsonError> {
    let mut repairs = Repairs(Vec::new());
    Walker::new(text, MAX_DEPTH).walk(&mut repairs)?;
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for at in repairs.0 {
        out.push_str(&text[copied..at]);
        out.push_str("\\ufffd");
        copied = at + "\\u0000".len();
    }
    out.push_str(&text[copied..]);
    Ok(out)
}

/// Makes a plain text (an error message) safe to keep: NUL and other control characters except line breaks and tabs
/// become U+FFFD, and what exceeds `max_bytes` is cut at a character.
pub fn repair_text(text: &str, max_bytes: usize) -> String {
    let mut end = text.len().min(max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let clean = |c: char| if c.is_control() && !matches!(c, '\n' | '\t' | '\r') { '\u{FFFD}' } else { c };
    text[..end].chars().map(clean).collect()
}

/// Appends one key or index to a JSON pointer, escaped.
pub fn push_pointer(pointer: &mut String, token: &str) {
    pointer.push('/');
    for c in token.chars() {
        match c {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            c => pointer.push(c),
        }
    }
}

/// What to do about a bad escape at a byte offset: go on, or stop.
trait OnBadEscape {
    fn bad(&mut self, offset: usize, fault: Fault) -> Result<(), Fault>;
}

struct Ignore;
impl OnBadEscape for Ignore {
    fn bad(&mut self, _: usize, fault: Fault) -> Result<(), Fault> {
        Err(fault)
    }
}

struct Repairs(Vec<usize>);
impl OnBadEscape for Repairs {
    fn bad(&mut self, offset: usize, _: Fault) -> Result<(), Fault> {
        self.0.push(offset);
        Ok(())
    }
}

enum Level {
    Array {
        index: usize,
    },
    /// The key whose value is being read, as the range of its text between the quotes; none while a key is read.
    Object {
        key: Option<(usize, usize)>,
    },
}

struct Walker<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    levels: Vec<Level>,
    max_depth: usize,
}

impl<'a> Walker<'a> {
    fn new(text: &'a str, max_depth: usize) -> Self {
        Self { text, bytes: text.as_bytes(), at: 0, levels: Vec::new(), max_depth }
    }

    fn walk(mut self, on_bad: &mut impl OnBadEscape) -> Result<(), JsonError> {
        match self.document(on_bad) {
            Ok(()) => Ok(()),
            Err(fault) => Err(JsonError { fault, pointer: self.pointer(), offset: self.at }),
        }
    }

    fn document(&mut self, on_bad: &mut impl OnBadEscape) -> Result<(), Fault> {
        self.space();
        'value: loop {
            // A value starts here.
            match self.peek() {
                Some(open @ (b'{' | b'[')) => {
                    if self.levels.len() == self.max_depth {
                        return Err(Fault::TooDeep);
                    }
                    self.at += 1;
                    self.space();
                    if open == b'[' {
                        if self.peek() != Some(b']') {
                            self.levels.push(Level::Array { index: 0 });
                            continue 'value;
                        }
                    } else if self.peek() != Some(b'}') {
                        self.levels.push(Level::Object { key: None });
                        self.key(on_bad)?;
                        continue 'value;
                    }
                    self.at += 1;
                }
                Some(b'"') => drop(self.string(on_bad)?),
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word("true")?,
                Some(b'f') => self.word("false")?,
                Some(b'n') => self.word("null")?,
                _ => return Err(Fault::Syntax),
            }
            // A value ended here: close what closes, or go on to the next.
            loop {
                self.space();
                match (self.levels.last_mut(), self.bytes.get(self.at)) {
                    (None, None) => return Ok(()),
                    (Some(Level::Array { .. }), Some(b']')) | (Some(Level::Object { .. }), Some(b'}')) => {
                        self.levels.pop();
                        self.at += 1;
                    }
                    (Some(Level::Array { index }), Some(b',')) => {
                        *index += 1;
                        self.at += 1;
                        self.space();
                        continue 'value;
                    }
                    (Some(Level::Object { key }), Some(b',')) => {
                        *key = None;
                        self.at += 1;
                        self.space();
                        self.key(on_bad)?;
                        continue 'value;
                    }
                    _ => return Err(Fault::Syntax),
                }
            }
        }
    }

    fn key(&mut self, on_bad: &mut impl OnBadEscape) -> Result<(), Fault> {
        let name = if self.peek() == Some(b'"') { self.string(on_bad)? } else { return Err(Fault::Syntax) };
        if let Some(Level::Object { key }) = self.levels.last_mut() {
            *key = Some(name);
        }
        self.space();
        if self.peek() != Some(b':') {
            return Err(Fault::Syntax);
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    fn string(&mut self, on_bad: &mut impl OnBadEscape) -> Result<(usize, usize), Fault> {
        self.at += 1;
        let start = self.at;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok((start, self.at - 1));
                }
                Some(b'\\') => match self.bytes.get(self.at + 1) {
                    Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
                    Some(b'u') => self.unicode_escape(on_bad)?,
                    _ => return Err(Fault::Syntax),
                },
                Some(0x20..) => self.at += 1,
                _ => return Err(Fault::Syntax),
            }
        }
    }

    fn unicode_escape(&mut self, on_bad: &mut impl OnBadEscape) -> Result<(), Fault> {
        let unit = self.hex4(self.at).ok_or(Fault::Syntax)?;
        let mut length = 6;
        match unit {
            0 => on_bad.bad(self.at, Fault::Nul)?,
            0xD800..=0xDBFF => match self.hex4(self.at + 6) {
                Some(0xDC00..=0xDFFF) => length = 12,
                _ => on_bad.bad(self.at, Fault::LoneSurrogate)?,
            },
            0xDC00..=0xDFFF => on_bad.bad(self.at, Fault::LoneSurrogate)?,
            _ => {}
        }
        self.at += length;
        Ok(())
    }

    /// The code unit of an escape that starts at `at`, if one does.
    fn hex4(&self, at: usize) -> Option<u16> {
        let escape = self.bytes.get(at..at + 6)?;
        let digits = escape.strip_prefix(b"\\u")?;
        digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | (*digit as char).to_digit(16)? as u16))
    }

    fn number(&mut self) -> Result<(), Fault> {
        self.at += usize::from(self.peek() == Some(b'-'));
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Fault> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at > start { Ok(()) } else { Err(Fault::Syntax) }
    }

    fn word(&mut self, word: &str) -> Result<(), Fault> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(Fault::Syntax);
        }
        self.at += word.len();
        Ok(())
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn pointer(&self) -> String {
        let mut pointer = String::new();
        for level in &self.levels {
            match level {
                Level::Array { index } => push_pointer(&mut pointer, &index.to_string()),
                Level::Object { key: Some((start, end)) } => push_pointer(&mut pointer, &self.text[*start..*end]),
                // A key is what failed: name the object itself.
                Level::Object { key: None } => {}
            }
        }
        pointer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fault(text: &str) -> Option<(Fault, String)> {
        check(text, MAX_DEPTH).err().map(|error| (error.fault, error.pointer))
    }

    #[test]
    fn valid_json_passes() {
        for good in [
            "null",
            " true ",
            "-0.0e+10",
            "1e400",
            "123456789012345678901234567890",
            "\"\\u00e9\\ud83d\\ude00\\n\"",
            "[]",
            "{}",
            "[[],{},[{}]]",
            "{\"a\":{\"b\":[1,2,{\"c\":null}]}}",
            "{\"a\":1,\"a\":2}",
            "\"\u{FFFF}\"",
        ] {
            assert_eq!(fault(good), None, "{good}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for bad in [
            "",
            " ",
            "nul",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "--1",
            "[1,]",
            "[,1]",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "[1 2]",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\n\"",
            "1 2",
            "[",
            "{\"a\":1",
            "]",
            "NaN",
            "Infinity",
            "'a'",
            "[1}",
            "\u{FEFF}1",
            "/**/1",
        ] {
            assert_eq!(fault(bad).map(|(fault, _)| fault), Some(Fault::Syntax), "{bad:?}");
        }
    }

    #[test]
    fn faults_are_named_with_their_pointer() {
        let nul = "\\u0000";
        for (text, fault_is, pointer) in [
            (format!("\"{nul}\""), Fault::Nul, ""),
            (format!("{{\"a\":[1,\"x{nul}\"]}}"), Fault::Nul, "/a/1"),
            (format!("{{\"ok\":1,\"a/b~c\":\"{nul}\"}}"), Fault::Nul, "/a~1b~0c"),
            ("{\"a\":\"\\ud800\"}".into(), Fault::LoneSurrogate, "/a"),
            ("{\"a\":\"\\ud800\\u0041\"}".into(), Fault::LoneSurrogate, "/a"),
            ("{\"a\":\"\\udc00\\ud800\"}".into(), Fault::LoneSurrogate, "/a"),
        ] {
            assert_eq!(fault(&text), Some((fault_is, pointer.to_owned())), "{text}");
        }
        // A bad key is named by the object that holds it; an empty key is a key.
        for (text, pointer) in [
            (format!("{{\"{nul}\":1}}"), ""),
            (format!("{{\"a\":{{\"ok\":1,\"{nul}\":2}}}}"), "/a"),
            (format!("{{\"\":\"{nul}\"}}"), "/"),
        ] {
            assert_eq!(fault(&text), Some((Fault::Nul, pointer.to_owned())), "{text}");
        }
    }

    #[test]
    fn depth_has_a_limit_and_costs_no_stack() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(fault(&nested(64)), None);
        assert_eq!(fault(&nested(65)).map(|(fault, _)| fault), Some(Fault::TooDeep));
        assert_eq!(fault(&"[{\"a\":".repeat(1_000_000)).map(|(fault, _)| fault), Some(Fault::TooDeep));
    }

    #[test]
    fn syntax_alone_lets_pass_what_each_item_is_asked_for() {
        let deep = format!("[{}1{}]", "[".repeat(500), "]".repeat(500));
        for good in ["[\"\\u0000\",\"\\ud800\"]", deep.as_str()] {
            assert!(check_syntax(good).is_ok() && check(good, MAX_DEPTH).is_err(), "{good}");
        }
        assert!(check_syntax("[1,]").is_err());
    }

    #[test]
    fn repairs_touch_only_what_cannot_be_kept() {
        let repaired = repair("{\"a\": \"x\\u0000y\\ud800z\\ud83d\\ude00\", \"\\udfff\": 1.50}");
        assert_eq!(repaired.as_deref(), Ok("{\"a\": \"x\\ufffdy\\ufffdz\\ud83d\\ude00\", \"\\ufffd\": 1.50}"));
        assert!(repair("{").is_err());
        assert_eq!(repair_text("a\0b\u{1b}[31mc\nd", 100), "a\u{FFFD}b\u{FFFD}[31mc\nd");
        assert_eq!(repair_text("aéé", 4), "aé");
    }

    #[test]
    fn sameness_ignores_order_and_space_but_not_numbers() {
        let same = |a, b| canonical_sha256(a) == canonical_sha256(b);
        assert!(same("{\"a\":1,\"b\":[true, null]}", " {\"b\" : [true,null], \"a\":1}"));
        assert!(same("\"\\u0041\"", "\"A\""));
        assert!(!same("1", "1.0"));
        assert!(!same("[1,2]", "[2,1]"));
        assert!(!same("{\"a\":1}", "{\"a\":\"1\"}"));
    }

    proptest! {
        #[test]
        fn the_walker_agrees_with_serde_json(text in "[\\[\\]{}:,\"\\\\u0-9a-f. -]{0,24}") {
            let theirs = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
            let ours = !matches!(fault(&text), Some((Fault::Syntax, _)));
            prop_assert_eq!(theirs, ours, "{}", text);
        }

        #[test]
        fn whatever_serde_json_writes_passes_and_hashes_the_same_as_itself(keys in proptest::collection::btree_map("\\PC{0,4}", any::<f64>().prop_filter("finite", |x| x.is_finite()), 0..6)) {
            let text = serde_json::to_string(&keys).unwrap_or_default();
            prop_assert_eq!(fault(&text), None);
            prop_assert_eq!(repair(&text), Ok(text.clone()));
            prop_assert_eq!(canonical_sha256(&text), canonical_sha256(&canonical(&text)));
        }
    }
}
