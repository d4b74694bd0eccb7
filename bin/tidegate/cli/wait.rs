//! `--wait`, with or without how long.

use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use super::duration;

/// How long to wait for a task to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Until it ends.
    UntilItEnds,
    /// So long at most.
    AtMost(Duration),
}

/// The option's name and the value that [`join_wait`] gives it where none was typed.
const OPTION: &str = "--wait";
const WITHOUT_VALUE: &str = "--wait=forever";

impl FromStr for Wait {
    type Err = String;

    /// Parses seconds, a duration with a unit, or `forever`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "forever" => Ok(Self::UntilItEnds),
            _ => duration::parse_seconds(text).map(Self::AtMost),
        }
    }
}

/// Ties `--wait` to its value before clap sees it. The value is optional and a payload may follow: without this,
/// `submit echo --wait '{}'` would take the payload for the time.
pub(crate) fn join_wait(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut joined = Vec::new();
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            joined.push(argument);
            joined.extend(arguments);
            break;
        }
        if argument != OPTION {
            joined.push(argument);
            continue;
        }
        let is_value = |next: &OsString| next.to_str().is_some_and(|text| text.parse::<Wait>().is_ok());
        match arguments.next_if(is_value) {
            Some(value) => joined.push([OPTION.into(), value].join(&OsString::from("="))),
            None => joined.push(WITHOUT_VALUE.into()),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_optional_and_a_payload_is_not_taken_for_it() {
        let joined = |line: &str| {
            let words = join_wait(line.split(' ').map(OsString::from));
            words.join(&OsString::from(" ")).into_string().unwrap_or_default()
        };
        assert_eq!(joined("submit echo {} --wait"), "submit echo {} --wait=forever");
        assert_eq!(joined("submit echo --wait {}"), "submit echo --wait=forever {}");
        assert_eq!(joined("submit --wait echo {}"), "submit --wait=forever echo {}");
        assert_eq!(joined("submit echo --wait 10 {}"), "submit echo --wait=10 {}");
        assert_eq!(joined("submit echo --wait 500ms"), "submit echo --wait=500ms");
        assert_eq!(joined("submit echo --wait=3"), "submit echo --wait=3");
        assert_eq!(joined("submit echo --wait --json"), "submit echo --wait=forever --json");
        assert_eq!(joined("dev-postgres -- x --wait"), "dev-postgres -- x --wait");
    }

    #[test]
    fn seconds_are_meant_where_no_unit_is_given() {
        assert_eq!("10".parse(), Ok(Wait::AtMost(Duration::from_secs(10))));
        assert_eq!("forever".parse(), Ok(Wait::UntilItEnds));
        assert!("soon".parse::<Wait>().is_err());
    }
}
