//! Values that must never be printed.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use url::Url;

/// What is printed in a secret's place.
pub(crate) const REDACTED: &str = "[redacted]";

/// A text that `Debug`, `Display` and serialisation replace.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl Secret {
    /// The secret itself, for the one who needs it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(REDACTED)
    }
}

impl std::str::FromStr for Secret {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// A URL whose password and query are secrets: `Debug`, `Display` and serialisation show the rest. Text that is no
/// URL is a secret as a whole.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct SecretUrl(String);

impl SecretUrl {
    /// The URL itself, for the one who connects.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether it looks like the way to a Postgres.
    pub(crate) fn is_postgres(&self) -> bool {
        self.0.starts_with("postgres://") || self.0.starts_with("postgresql://")
    }
}

impl From<String> for SecretUrl {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl std::str::FromStr for SecretUrl {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Url::parse(&self.0) {
            Ok(url) => f.write_str(&redact(url)),
            Err(_) => f.write_str(REDACTED),
        }
    }
}

/// The query may hold a password (`?password=`, `?key=`): of each pair only the name stays, except where the value is
/// known to be harmless and worth reading.
fn redact(mut url: Url) -> String {
    const HARMLESS: [&str; 7] =
        ["sslmode", "host", "port", "dbname", "application_name", "target_session_attrs", "connect_timeout"];
    if url.password().is_some() && url.set_password(Some("redacted")).is_err() {
        return REDACTED.to_owned();
    }
    let pairs: Vec<_> = url.query_pairs().into_owned().collect();
    if !pairs.is_empty() {
        let shown = pairs.iter().map(|(name, value)| {
            (name.as_str(), if HARMLESS.contains(&name.as_str()) { value.as_str() } else { "redacted" })
        });
        url.query_pairs_mut().clear().extend_pairs(shown);
    }
    url.into()
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for SecretUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_shown_to_nobody() {
        let secret = Secret::from("hunter2".to_owned());
        assert_eq!(format!("{secret:?}"), REDACTED);
        assert_eq!(serde_json::to_string(&secret).unwrap(), format!("\"{REDACTED}\""));
        assert_eq!(secret.reveal(), "hunter2");
    }

    #[test]
    fn of_a_url_the_password_and_unknown_query_values_are_hidden() {
        let shown = |text: &str| SecretUrl::from(text.to_owned()).to_string();
        assert_eq!(
            shown("postgres://me:pw@db:5432/x?sslmode=require"),
            "postgres://me:redacted@db:5432/x?sslmode=require"
        );
        assert_eq!(shown("postgres://db/x?password=pw&host=/run"), "postgres://db/x?password=redacted&host=%2Frun");
        assert_eq!(shown("postgres://db/x"), "postgres://db/x");
        assert_eq!(shown("https://tool.example/?key=pw"), "https://tool.example/?key=redacted");
        assert_eq!(shown("host=db password=pw"), REDACTED);
    }
}
