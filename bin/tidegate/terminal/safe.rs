//! Text from elsewhere, made harmless for a terminal.
//!
//! A payload may hold escape sequences that recolour, rewrite or even type into a terminal, and marks that turn the
//! direction of the text around so that it reads as something else (CVE-2021-42574).

use std::borrow::Cow;

/// Replaces every character that is not plain text by a visible escape. Line breaks and tabs too: a value shown on a
/// line of its own must not be able to look like the next line.
pub(crate) fn safe(text: &str) -> Cow<'_, str> {
    replace(text, is_harmful, |c| format!("\\u{{{:x}}}", u32::from(c)))
}

/// The same for JSON text, with JSON's own escapes, so that it stays the same JSON. Line breaks may stay: outside
/// strings they are layout, inside strings JSON has none.
pub(crate) fn safe_json(text: &str) -> Cow<'_, str> {
    replace(text, |c| is_harmful(c) && !matches!(c, '\n' | '\r' | '\t'), |c| format!("\\u{:04x}", u32::from(c)))
}

fn replace(text: &str, harmful: impl Fn(char) -> bool, escape: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.chars().any(&harmful) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if harmful(c) { safe.push_str(&escape(c)) } else { safe.push(c) }
    }
    Cow::Owned(safe)
}

/// Control characters (C0, DEL, C1), line and paragraph separators, and what changes the direction of text or hides in
/// it. All lie in the basic plane, so four hexadecimal digits name them.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61C}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_and_direction_marks_become_visible() {
        assert_eq!(safe("plain ünïcödé 文字"), "plain ünïcödé 文字");
        assert_eq!(safe("\u{1b}[2J\u{7f}\u{9b}31m"), "\\u{1b}[2J\\u{7f}\\u{9b}31m");
        assert_eq!(safe("a\nb\r\tc"), "a\\u{a}b\\u{d}\\u{9}c");
        assert_eq!(safe("a\u{202e}b\u{2066}c\u{feff}"), "a\\u{202e}b\\u{2066}c\\u{feff}");
    }

    #[test]
    fn json_stays_the_same_json() {
        let text = "{\n  \"a\u{9b}\u{7f}\": \"\u{202e}x\"\n}";
        let shown = safe_json(text);
        assert!(shown.chars().all(|c| c == '\n' || !is_harmful(c)), "{shown}");
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(parse(text), parse(&shown));
    }
}
