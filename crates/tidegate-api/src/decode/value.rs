//! Single values: from the text of a JSON value to a number or string within its bounds, never rounded or cut.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use serde_json::value::RawValue;
use tidegate_wire::Fault;

use crate::rejection::{Rejection, shown};

/// A value that cannot be what it should be; whoever knows the place adds it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bad {
    fault: Fault,
    detail: Cow<'static, str>,
}

impl Bad {
    /// A value that a member of this type cannot have.
    pub(crate) fn value(detail: impl Into<Cow<'static, str>>) -> Self {
        Self { fault: Fault::InvalidValue, detail: detail.into() }
    }

    /// A value of the contract that this version does not serve yet.
    pub(crate) fn not_served_yet(detail: &'static str) -> Self {
        Self { fault: Fault::NotServedYet, detail: Cow::Borrowed(detail) }
    }

    /// The refusal, at the place of the value.
    pub(crate) fn at(self, pointer: String) -> Rejection {
        let place = if pointer.is_empty() { "the body".into() } else { shown(&pointer) };
        Rejection::fault(self.fault, format!("{place} {}", self.detail)).at_pointer(pointer)
    }

    /// The refusal, at a header.
    pub(crate) fn at_header(self, name: &'static str) -> Rejection {
        Rejection::fault(self.fault, format!("{name} {}", self.detail)).at_header(name)
    }

    /// The refusal, at a query parameter.
    pub(crate) fn at_parameter(self, name: &str) -> Rejection {
        Rejection::fault(self.fault, format!("{} {}", shown(name), self.detail)).at_parameter(name.to_owned())
    }
}

/// An integer within bounds. `1.0` and `1e3` are not written as integers, and a client that means one writes one.
pub(crate) fn integer(raw: &RawValue, bounds: RangeInclusive<i64>) -> Result<i64, Bad> {
    let out_of_bounds = || Bad::value(format!("must be an integer from {} to {}", bounds.start(), bounds.end()));
    let text = raw.get();
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(out_of_bounds());
    }
    text.parse().ok().filter(|number| bounds.contains(number)).ok_or_else(out_of_bounds)
}

/// An integer within bounds that cannot be negative.
pub(crate) fn count(raw: &RawValue, bounds: RangeInclusive<u64>) -> Result<u64, Bad> {
    let signed = |bound: &u64| i64::try_from(*bound).unwrap_or(i64::MAX);
    integer(raw, signed(bounds.start())..=signed(bounds.end())).map(i64::unsigned_abs)
}

/// A string. The text it comes from has been checked, so it holds characters only.
pub(crate) fn string(raw: &RawValue) -> Result<Cow<'_, str>, Bad> {
    let text = raw.get();
    match text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Ok(Cow::Borrowed(plain)),
        Some(_) => serde_json::from_str(text).map(Cow::Owned).map_err(|_| Bad::value("must be a string")),
        None => Err(Bad::value("must be a string")),
    }
}

/// A string of a bounded number of characters, none of them a control character: they end up in logs and listings.
pub(crate) fn text(raw: &RawValue, lengths: RangeInclusive<usize>) -> Result<Cow<'_, str>, Bad> {
    let text = string(raw)?;
    check_text(&text, lengths)?;
    Ok(text)
}

/// Checks the length of a text in characters, and that it holds no control characters.
pub(crate) fn check_text(text: &str, lengths: RangeInclusive<usize>) -> Result<(), Bad> {
    // Counting stops soon after the most that may be.
    let length = text.chars().take(lengths.end() + 1).count();
    if !lengths.contains(&length) {
        return Err(Bad::value(format!("must have {} to {} characters", lengths.start(), lengths.end())));
    }
    if text.chars().any(char::is_control) { Err(Bad::value("must not hold control characters")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> &RawValue {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn integers_are_written_as_integers() {
        for (text, number) in [("0", 0), ("-0", 0), ("7", 7), ("-5", -5), ("9223372036854775807", i64::MAX)] {
            assert_eq!(integer(raw(text), i64::MIN..=i64::MAX), Ok(number), "{text}");
        }
        for text in ["1.0", "1e3", "1E0", "9223372036854775808", "1e400", "\"1\"", "true", "null", "[]", "{}"] {
            assert!(integer(raw(text), i64::MIN..=i64::MAX).is_err(), "{text}");
        }
        assert!(integer(raw("101"), 0..=100).is_err());
        assert_eq!(count(raw("-1"), 0..=u64::MAX).ok(), None);
        assert_eq!(count(raw("18446744073709551615"), 0..=u64::MAX).ok(), None);
    }

    #[test]
    fn strings_are_what_they_mean() {
        assert_eq!(string(raw("\"a\"")), Ok(Cow::Borrowed("a")));
        assert_eq!(string(raw("\"\\u0061\\n\"")).as_deref(), Ok("a\n"));
        assert_eq!(string(raw("\"\"")).as_deref(), Ok(""));
        assert!(string(raw("1")).is_err());
    }

    #[test]
    fn texts_have_bounds_in_characters() {
        assert_eq!(text(raw("\"ééé\""), 1..=3).as_deref(), Ok("ééé"));
        assert!(text(raw("\"éééé\""), 1..=3).is_err());
        assert!(text(raw("\"\""), 1..=3).is_err());
        assert!(text(raw("\"\\t\""), 1..=3).is_err());
        assert!(text(raw("\"\\u0085\""), 1..=3).is_err());
    }
}
