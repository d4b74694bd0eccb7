//! Durations as people type them.

use std::time::Duration;

/// The longest duration that can be typed: a year. Anything longer is a slip.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3_600);

/// Parses `500ms`, `30s`, `1.5s`, `5m`, `2h`, `1d`, or milliseconds without a unit.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    parse_with(text, "ms")
}

/// As [`parse`], but a number without a unit is seconds.
pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    parse_with(text, "s")
}

fn parse_with(text: &str, unit_if_none: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a duration; write 500ms, 30s, 5m, 2h or 1d");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let seconds_per_unit = match if unit.is_empty() { unit_if_none } else { unit } {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err(bad()),
    };
    let number: f64 = number.parse().map_err(|_| bad())?;
    let duration = Duration::try_from_secs_f64(number * seconds_per_unit).map_err(|_| bad())?;
    if duration > LONGEST { Err(format!("{text:?} is longer than a year")) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_nonsense_is_refused() {
        let millis = |text| parse(text).map(|duration| duration.as_millis());
        for (text, expected) in [
            ("250", 250),
            ("500ms", 500),
            ("30s", 30_000),
            ("1.5s", 1_500),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(millis(text), Ok(expected), "{text}");
        }
        assert_eq!(parse_seconds("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_seconds("10ms"), Ok(Duration::from_millis(10)));
        for bad in ["", "s", "-1s", "1 s", "1.2.3s", ".", "1y", "1e9s", "NaN", "inf", "400d", "{}"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
