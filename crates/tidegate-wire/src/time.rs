//! Instants on the wire: RFC 3339 in UTC, with milliseconds.

use std::fmt;

use chrono::{DateTime, Datelike, Timelike, Utc};
use serde::{Deserialize, Serialize};
use tidegate_core::EpochMs;

/// The first and the last instant that RFC 3339 can write: years 0000 to 9999.
const RANGE_MS: std::ops::RangeInclusive<EpochMs> = -62_167_219_200_000..=253_402_300_799_999;

/// An instant, written like `2026-11-30T08:15:00.000Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(EpochMs);

/// A text that is not an RFC 3339 date and time with an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be an RFC 3339 date and time with an offset, such as 2026-11-30T08:15:00Z")]
pub struct BadTimestamp;

impl Timestamp {
    /// The instant so many milliseconds after the epoch. What RFC 3339 cannot write becomes the nearest it can.
    pub fn from_ms(ms: EpochMs) -> Self {
        Self(ms.clamp(*RANGE_MS.start(), *RANGE_MS.end()))
    }

    /// Milliseconds since the epoch.
    pub fn as_ms(self) -> EpochMs {
        self.0
    }

    /// Parses RFC 3339. What is finer than a millisecond is cut off; a leap second is the second after it.
    pub fn parse(text: &str) -> Result<Self, BadTimestamp> {
        // The format has at most 35 characters with nanoseconds; a longer fraction says nothing that we keep.
        const LONGEST: usize = 64;
        if text.len() > LONGEST {
            return Err(BadTimestamp);
        }
        DateTime::parse_from_rfc3339(text).map(|at| Self::from_ms(at.timestamp_millis())).map_err(|_| BadTimestamp)
    }
}

impl Timestamp {
    /// The text, digit by digit: two of them are in every answer about a task, and the general way takes longer than
    /// all the rest of such an answer.
    fn text(self) -> [u8; 24] {
        let at = DateTime::<Utc>::from_timestamp_millis(self.0).unwrap_or(DateTime::<Utc>::UNIX_EPOCH);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let mut put = |last: usize, digits: usize, mut number: u32| {
            for place in text[last + 1 - digits..=last].iter_mut().rev() {
                // One digit.
                *place = b'0' + (number % 10) as u8;
                number /= 10;
            }
        };
        // Within the range of a timestamp a year has four digits and no sign.
        put(3, 4, at.year().unsigned_abs());
        put(6, 2, at.month());
        put(9, 2, at.day());
        put(12, 2, at.hour());
        put(15, 2, at.minute());
        put(18, 2, at.second());
        put(22, 3, at.timestamp_subsec_millis());
        text
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).map_err(|_| fmt::Error)?)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.text();
        serializer.serialize_str(std::str::from_utf8(&text).map_err(serde::ser::Error::custom)?)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_written_in_utc_with_milliseconds() {
        assert_eq!(Timestamp::from_ms(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::from_ms(1_790_000_000_123).to_string(), "2026-09-21T14:13:20.123Z");
        assert_eq!(serde_json::to_string(&Timestamp::from_ms(-1)).unwrap(), "\"1969-12-31T23:59:59.999Z\"");
        // A leap day, and the same text as the general way writes.
        for ms in [1_709_210_096_007, -62_167_219_200_000, 253_402_300_799_999, 951_782_400_000] {
            let general = DateTime::<Utc>::from_timestamp_millis(ms).unwrap();
            let general = general.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
            assert_eq!(Timestamp::from_ms(ms).to_string(), general);
        }
        assert_eq!(Timestamp::from_ms(i64::MAX).to_string(), "9999-12-31T23:59:59.999Z");
        assert_eq!(Timestamp::from_ms(i64::MIN).to_string(), "0000-01-01T00:00:00.000Z");
    }

    #[test]
    fn an_instant_leads_back_whatever_its_offset() {
        for text in ["2026-09-21T14:13:20.123Z", "2026-09-21T16:13:20.123999999+02:00", "2026-09-21t14:13:20.123z"] {
            assert_eq!(Timestamp::parse(text).map(Timestamp::as_ms), Ok(1_790_000_000_123), "{text}");
        }
        // 30 June 2015 had a leap second.
        assert_eq!(Timestamp::parse("2015-06-30T23:59:60Z").map(Timestamp::as_ms), Ok(1_435_708_800_000));
    }

    #[test]
    fn what_names_no_instant_is_refused() {
        for bad in [
            "",
            "now",
            "1790000000",
            "2026-09-21",
            "2026-09-21T14:13:20",
            "2026-02-30T00:00:00Z",
            "2026-09-21T24:00:00Z",
            "2026-09-21T14:13:61Z",
            "+12026-09-21T14:13:20Z",
            "2026-09-21T14:13:20+99:00",
            "2026-09-21T14:13:20.Z",
            "infinity",
            "2026-09-21T14:13:20Z ",
            "２０26-09-21T14:13:20Z",
        ] {
            assert_eq!(Timestamp::parse(bad), Err(BadTimestamp), "{bad}");
        }
        assert!(Timestamp::parse(&format!("2026-09-21T14:13:20.{}Z", "0".repeat(100))).is_err());
    }
}
