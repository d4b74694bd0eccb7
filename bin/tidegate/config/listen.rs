//! Where the server listens, and who may be let in there without a key.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An address and a port: `127.0.0.1:8080`, `[::1]:8080` or `localhost:8080`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Listen(pub(crate) SocketAddr);

/// Text that names no address and port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be an address and a port, as in 127.0.0.1:8080 or [::1]:8080")]
pub(crate) struct BadListen;

impl Listen {
    /// Whether only this machine can reach it.
    pub(crate) fn is_loopback(self) -> bool {
        self.0.ip().to_canonical().is_loopback()
    }
}

impl FromStr for Listen {
    type Err = BadListen;

    fn from_str(text: &str) -> Result<Self, BadListen> {
        if let Some(port) = text.strip_prefix("localhost:") {
            let port = port.parse().map_err(|_| BadListen)?;
            return Ok(Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)));
        }
        text.parse().map(Self).map_err(|_| BadListen)
    }
}

impl TryFrom<String> for Listen {
    type Error = BadListen;
    fn try_from(text: String) -> Result<Self, BadListen> {
        text.parse()
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> String {
        listen.to_string()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A server that anybody could use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} can be reached from other machines and no API key exists, so anybody could use this server. Listen on \
     127.0.0.1, or create a key first"
)]
pub(crate) struct OpenToAll(pub(crate) Listen);

/// Refuses to serve without keys beyond loopback.
pub(crate) fn refuse_open_to_all(listen: Listen, has_keys: bool) -> Result<(), OpenToAll> {
    if has_keys || listen.is_loopback() { Ok(()) } else { Err(OpenToAll(listen)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_parsed_and_nonsense_refused() {
        for (text, shown) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("[::1]:0", "[::1]:0"),
            ("localhost:9", "127.0.0.1:9"),
            ("0.0.0.0:80", "0.0.0.0:80"),
        ] {
            assert_eq!(text.parse::<Listen>().map(|listen| listen.to_string()), Ok(shown.to_owned()));
        }
        for bad in ["", "8080", ":8080", "127.0.0.1", "localhost:", "localhost:65536", "example.com:80"] {
            assert_eq!(bad.parse::<Listen>(), Err(BadListen), "{bad}");
        }
    }

    #[test]
    fn beyond_loopback_a_server_without_keys_does_not_start() {
        let refused = |text: &str, has_keys| refuse_open_to_all(text.parse().unwrap(), has_keys).is_err();
        for inside in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "localhost:1"] {
            assert!(!refused(inside, false), "{inside}");
        }
        for outside in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1", "169.254.0.1:1"] {
            assert!(refused(outside, false), "{outside}");
            assert!(!refused(outside, true), "{outside}");
        }
    }
}
