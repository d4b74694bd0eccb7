//! The headers of a submission.

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::EpochMs;
use tidegate_core::budget::Budget;
use tidegate_core::json;
use tidegate_wire::{Fault, header};

use crate::decode::value::Bad;
use crate::rejection::Rejection;

/// The longest idempotency key, in characters.
const MAX_KEY: usize = 255;
/// Most hops or children that a budget can speak of: what the database can hold.
const MAX_BUDGET_COUNT: u32 = i32::MAX as u32;

/// What the headers say about a submission. The hash of an idempotent submission does not cover them: they change
/// from one try to the next.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SubmitHeaders {
    pub(crate) idempotency_key: Option<String>,
    pub(crate) deadline: Option<EpochMs>,
    pub(crate) remaining_ms: Option<u64>,
    pub(crate) depth: Option<u32>,
    pub(crate) fanout: Option<u32>,
    pub(crate) traceparent: Option<String>,
}

impl SubmitHeaders {
    /// Reads the headers; each that is there must make sense, except `traceparent`, whose specification has a bad one
    /// ignored.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self, Rejection> {
        let mut read = Self::default();
        let names = &NAMES;
        if let Some(text) = text(headers, &names.key, "Idempotency-Key")? {
            read.idempotency_key = Some(key(text).map_err(|bad| bad.at_header("Idempotency-Key"))?);
        }
        if let Some(text) = text(headers, &names.deadline, "X-Deadline-Epoch-Ms")? {
            read.deadline = Some(deadline(text).map_err(|bad| bad.at_header("X-Deadline-Epoch-Ms"))?);
        }
        if let Some(text) = text(headers, &names.budget, "X-Budget")? {
            let (budget, remaining_ms) = budget(text).map_err(|bad| bad.at_header("X-Budget"))?;
            read.remaining_ms = remaining_ms;
            read.depth = budget.depth;
            read.fanout = budget.fanout;
        }
        let traceparent = headers.get(&names.traceparent).and_then(|value| value.to_str().ok());
        read.traceparent = traceparent.filter(|text| is_traceparent(text)).map(str::to_owned);
        Ok(read)
    }
}

struct Names {
    key: HeaderName,
    deadline: HeaderName,
    budget: HeaderName,
    traceparent: HeaderName,
}

static NAMES: Names = Names {
    key: HeaderName::from_static(header::IDEMPOTENCY_KEY),
    deadline: HeaderName::from_static(header::X_DEADLINE_EPOCH_MS),
    budget: HeaderName::from_static(header::X_BUDGET),
    traceparent: HeaderName::from_static(header::TRACEPARENT),
};

/// Refuses an idempotency key where it would do nothing: its sender relies on it.
pub(crate) fn no_idempotency_key(headers: &HeaderMap) -> Result<(), Rejection> {
    if headers.contains_key(&NAMES.key) {
        return Err(Bad::value("does not work for a batch: submit the tasks one by one").at_header("Idempotency-Key"));
    }
    Ok(())
}

/// The one value of a header, if it is there.
pub(crate) fn only<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
    shown: &'static str,
) -> Result<Option<&'a HeaderValue>, Rejection> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (_, Some(_)) => {
            let detail = format!("{shown} must be there once");
            Err(Rejection::fault(Fault::DuplicateHeader, detail).at_header(shown))
        }
        (value, None) => Ok(value),
    }
}

/// The text of a header that must be there once, if it is there.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName, shown: &'static str) -> Result<Option<&'a str>, Rejection> {
    let Some(value) = only(headers, name, shown)? else { return Ok(None) };
    value.to_str().map(Some).map_err(|_| Bad::value("must hold visible ASCII characters").at_header(shown))
}

/// An idempotency key: `abc` and `"abc"` are the same key.
fn key(text: &str) -> Result<String, Bad> {
    let bad = || Bad::value(format!("must be 1 to {MAX_KEY} visible ASCII characters, in double quotes or not"));
    let key = match text.strip_prefix('"') {
        Some(rest) => unquote(rest).ok_or_else(bad)?,
        None => text.to_owned(),
    };
    let visible = key.bytes().all(|b| b.is_ascii_graphic());
    if (1..=MAX_KEY).contains(&key.len()) && visible { Ok(key) } else { Err(bad()) }
}

/// The text of a quoted string (RFC 8941, section 3.3.3) after its opening quote.
fn unquote(rest: &str) -> Option<String> {
    let mut text = String::with_capacity(rest.len());
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return chars.next().is_none().then_some(text),
            '\\' => text.push(chars.next().filter(|c| matches!(c, '"' | '\\'))?),
            c => text.push(c),
        }
    }
}

fn deadline(text: &str) -> Result<EpochMs, Bad> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let number = if digits.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None };
    number.ok_or_else(|| Bad::value("must be a whole number of milliseconds since 1970"))
}

fn budget(text: &str) -> Result<(Budget, Option<u64>), Bad> {
    const SHAPE: &str = "must be a JSON object such as {\"remaining_s\":12.5,\"depth\":2,\"fanout\":4}";
    json::check(text, 1).map_err(|_| Bad::value(SHAPE))?;
    // Serde would take an array of the three as well.
    if !text.trim_start().starts_with('{') {
        return Err(Bad::value(SHAPE));
    }
    let budget: Budget = serde_json::from_str(text).map_err(|_| Bad::value(SHAPE))?;
    let remaining_ms = budget.remaining_ms().map_err(|bad| Bad::value(bad.to_string()))?;
    if budget.depth.max(budget.fanout).is_some_and(|count| count > MAX_BUDGET_COUNT) {
        return Err(Bad::value(format!("must have depth and fanout of at most {MAX_BUDGET_COUNT}")));
    }
    Ok((budget, remaining_ms))
}

/// Whether a text is a W3C trace context: version, trace id, parent id and flags, in lower-case hex. Later versions
/// may say more behind it.
fn is_traceparent(text: &str) -> bool {
    /// What a later version may have in all; longer ones are not worth keeping.
    const LONGEST: usize = 128;
    let hex = |range: std::ops::Range<usize>| {
        let digits = text.as_bytes().get(range)?;
        digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')).then_some(digits)
    };
    let dash = |at: usize| text.as_bytes().get(at) == Some(&b'-');
    let some_not_zero = |digits: Option<&[u8]>| digits.is_some_and(|digits| digits.iter().any(|b| *b != b'0'));
    let version = hex(0..2);
    version.is_some_and(|version| version != b"ff")
        && dash(2)
        && some_not_zero(hex(3..35))
        && dash(35)
        && some_not_zero(hex(36..52))
        && dash(52)
        && hex(53..55).is_some()
        && (text.len() == 55 || version != Some(b"00") && dash(55) && text.len() <= LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_quoted_or_not() {
        assert_eq!(key("abc-1").as_deref(), Ok("abc-1"));
        assert_eq!(key("\"abc-1\"").as_deref(), Ok("abc-1"));
        assert_eq!(key("\"a\\\"b\\\\\"").as_deref(), Ok("a\"b\\"));
        assert_eq!(key("a\"b").as_deref(), Ok("a\"b"));
        assert!(key(&"k".repeat(255)).is_ok());
        assert!(key(&format!("\"{}\"", "k".repeat(255))).is_ok());
        for bad in ["", "\"", "\"\"", "a b", "\"a b\"", "\"a", "\"a\"b", "\"a\\n\"", "é", "a\u{7f}", &"k".repeat(256)]
        {
            assert!(key(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_deadline_is_a_whole_number() {
        assert_eq!(deadline("1790000000000"), Ok(1_790_000_000_000));
        assert_eq!(deadline("-1"), Ok(-1));
        for bad in ["", "-", "+1", "1.5", "1e3", "x", "1 ", "9223372036854775808", "NaN", "0x10", "１"] {
            assert!(deadline(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_budget_is_an_object_of_three() {
        let ok = |text: &str| budget(text).map(|(budget, ms)| (ms, budget.depth, budget.fanout));
        assert_eq!(ok("{\"remaining_s\":12.5,\"depth\":2,\"fanout\":4}"), Ok((Some(12_500), Some(2), Some(4))));
        assert_eq!(ok("{}"), Ok((None, None, None)));
        assert_eq!(ok("{\"depth\":0}"), Ok((None, Some(0), None)));
        for bad in [
            "",
            "1",
            "[]",
            "null",
            "{\"depth\":-1}",
            "{\"depth\":1.5}",
            "{\"depth\":\"1\"}",
            "{\"fanout\":4294967295}",
            "{\"fanout\":99999999999}",
            "{\"remaining_s\":-1}",
            "{\"remaining_s\":1e400}",
            "{\"remaining_s\":1e13}",
            "{\"remaining_s\":\"1\"}",
            "{\"hops\":1}",
            "{\"depth\":1,\"depth\":2}",
            "{\"depth\":{}}",
        ] {
            assert!(budget(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_trace_context_that_is_none_is_ignored() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(is_traceparent(good));
        assert!(is_traceparent(&format!("cc{}-more", &good[2..])));
        for bad in [
            "",
            "00",
            &good.to_uppercase(),
            &format!("ff{}", &good[2..]),
            &format!("{good}-more"),
            &good.replace('-', "_"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            &good[..54],
            &format!("cc{}-{}", &good[2..], "x".repeat(200)),
        ] {
            assert!(!is_traceparent(bad), "{bad}");
        }
    }
}
