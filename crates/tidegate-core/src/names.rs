//! Names and small numbers that cannot hold nonsense: parsed once at the edge, trusted everywhere after.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The longest name of a kind, tenant or peer, in bytes.
pub const MAX_NAME_BYTES: usize = 128;

/// Why a text is no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// It is empty, too long, or holds a character outside `[A-Za-z0-9._:-]`.
    #[error("must be 1 to {MAX_NAME_BYTES} characters of A-Z a-z 0-9 . _ : -")]
    Characters,
    /// It is part of a path, where clients leave the dot segments of RFC 3986 out.
    #[error("must not be . or .., which cannot be part of a path")]
    DotSegment,
}

fn check_name(text: &str) -> Result<(), BadName> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-');
    if (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed) {
        Ok(())
    } else {
        Err(BadName::Characters)
    }
}

/// The same for a name that stands in paths.
fn check_segment(text: &str) -> Result<(), BadName> {
    if matches!(text, "." | "..") { Err(BadName::DotSegment) } else { check_name(text) }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $check:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Parses a name: 1 to 128 characters of `[A-Za-z0-9._:-]`.
            pub fn parse(text: &str) -> Result<Self, BadName> {
                $check(text)?;
                Ok(Self(text.into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;
            fn try_from(text: String) -> Result<Self, BadName> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

name! {
    /// What sort of work a task is; it chooses the handler.
    Kind, check_name
}
name! {
    /// Who pays: owns keys, a weight and limits.
    TenantId, check_segment
}
name! {
    /// A downstream dependency with limits of its own.
    PeerName, check_segment
}

impl TenantId {
    /// The tenant of requests without a key on loopback.
    pub fn default_tenant() -> Self {
        Self("default".into())
    }
}

/// How much a task matters, 0 to 100, higher first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Priority(u8);

/// A priority above 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 0 to 100")]
pub struct BadPriority;

impl Priority {
    /// The priority of a submission that names none.
    pub const DEFAULT: Self = Self(50);
    /// The highest priority there is.
    pub const MAX: Self = Self(100);

    /// A priority from 0 to 100.
    pub fn new(value: i64) -> Result<Self, BadPriority> {
        match u8::try_from(value) {
            Ok(value) if value <= 100 => Ok(Self(value)),
            _ => Err(BadPriority),
        }
    }

    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }
}

/// The three bands of priority, most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Work that others wait for.
    Critical,
    /// The usual work.
    Standard,
    /// Work that may wait, and is shed first.
    Background,
}

impl Class {
    /// Every class, most important first.
    pub const ALL: [Self; 3] = [Self::Critical, Self::Standard, Self::Background];

    /// The name on the wire and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Standard => "standard",
            Self::Background => "background",
        }
    }

    /// The class of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == text)
    }

    /// The number that the database stores: 0 is critical.
    pub fn code(self) -> i16 {
        self as i16
    }

    /// The class of that stored number.
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.code() == code)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a waiting task waits apart from others of its class, tenant, kind and peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// A slot is reserved for it.
    Admitted,
    /// Never started.
    Fresh,
    /// Back after a retry, a loss, a snooze or a hand-back: its rank is old.
    Returned,
    /// Lost twice: it runs only where no other such task runs.
    Suspect,
}

impl Lane {
    /// Every lane.
    pub const ALL: [Self; 4] = [Self::Admitted, Self::Fresh, Self::Returned, Self::Suspect];

    /// The number that the database stores.
    pub fn code(self) -> i16 {
        self as i16
    }

    /// The lane of that stored number.
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|lane| lane.code() == code)
    }
}

/// The number that makes a late writer change nothing: each start of a task carries a larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_only_what_urls_logs_and_labels_can_carry() {
        for good in ["a", "A9._:-", &"k".repeat(128)] {
            assert_eq!(Kind::parse(good).map(|kind| kind.as_str().to_owned()), Ok(good.to_owned()));
        }
        for bad in ["", " ", "a b", "é", "a/b", "a\n", "a\0", &"k".repeat(129)] {
            assert_eq!(Kind::parse(bad), Err(BadName::Characters), "{bad:?}");
            assert_eq!(TenantId::parse(bad), Err(BadName::Characters), "{bad:?}");
        }
        for dots in [".", ".."] {
            assert_eq!(TenantId::parse(dots), Err(BadName::DotSegment));
            assert_eq!(PeerName::parse(dots), Err(BadName::DotSegment));
        }
        assert!(PeerName::parse("...").is_ok() && TenantId::parse("a.").is_ok() && Kind::parse(".").is_ok());
    }

    #[test]
    fn priorities_end_at_one_hundred() {
        assert_eq!(Priority::new(0).map(Priority::get), Ok(0));
        assert_eq!(Priority::new(100), Ok(Priority::MAX));
        for bad in [-1, 101, 256, i64::MIN, i64::MAX] {
            assert_eq!(Priority::new(bad), Err(BadPriority), "{bad}");
        }
    }

    #[test]
    fn codes_and_names_lead_back() {
        for class in Class::ALL {
            assert_eq!(Class::from_code(class.code()), Some(class));
            assert_eq!(Class::parse(class.as_str()), Some(class));
        }
        for lane in Lane::ALL {
            assert_eq!(Lane::from_code(lane.code()), Some(lane));
        }
    }
}
