//! Which URLs a request may go to, as far as the text of the URL tells.

use std::net::IpAddr;

use url::{Host, Url};

use crate::address::AddressPolicy;

/// The longest URL, in bytes. Longer ones meet limits of servers and proxies anyway.
pub const MAX_URL_BYTES: usize = 2_048;

/// Ports below this belong to services of the system, which are never a tool's; 80 and 443 apart.
const FIRST_UNPRIVILEGED_PORT: u16 = 1_024;

/// Why a request may not leave. Its text names no part of the URL but the port and the scheme.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is not a URL.
    #[error("is not a valid absolute URL")]
    NotAUrl,
    /// It is longer than [`MAX_URL_BYTES`].
    #[error("is longer than {MAX_URL_BYTES} bytes")]
    TooLong,
    /// It is neither `https` nor, where that is allowed, `http`.
    #[error("has the scheme {0:?}, which is not allowed")]
    Scheme(String),
    /// It carries a user name or a password.
    #[error("must not carry a user name or a password")]
    Credentials,
    /// It has a fragment, which would never be sent.
    #[error("must not have a fragment")]
    Fragment,
    /// It names a port that is not allowed.
    #[error("names port {0}; allowed are 80, 443 and those from {FIRST_UNPRIVILEGED_PORT} on")]
    Port(u16),
    /// The host is an address, or a name for addresses, outside of the public internet and of the listed networks.
    #[error("leads to an address that is neither public nor in an allowed network")]
    Address,
}

/// What the text of a URL may say.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guard {
    pub(crate) addresses: AddressPolicy,
    pub(crate) plain_http: bool,
}

impl Guard {
    /// Parses and checks a URL. The address behind a name is checked when it is resolved.
    pub(crate) fn check(&self, text: &str) -> Result<Url, Refused> {
        if text.len() > MAX_URL_BYTES {
            return Err(Refused::TooLong);
        }
        // The parser of browsers drops line breaks and tabs inside a URL; nobody means that here.
        if text.bytes().any(|b| b.is_ascii_control() || b == b' ' || b == b'\\') {
            return Err(Refused::NotAUrl);
        }
        let url = Url::parse(text).map_err(|_| Refused::NotAUrl)?;
        self.check_parsed(&url)?;
        Ok(url)
    }

    /// Checks a URL that was parsed before.
    pub(crate) fn check_parsed(&self, url: &Url) -> Result<(), Refused> {
        if url.as_str().len() > MAX_URL_BYTES {
            return Err(Refused::TooLong);
        }
        match url.scheme() {
            "https" => {}
            "http" if self.plain_http => {}
            other => return Err(Refused::Scheme(other.chars().take(16).collect())),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused::Credentials);
        }
        if url.fragment().is_some() {
            return Err(Refused::Fragment);
        }
        match url.port_or_known_default() {
            Some(80 | 443 | FIRST_UNPRIVILEGED_PORT..) => {}
            port => return Err(Refused::Port(port.unwrap_or(0))),
        }
        let literal = match url.host() {
            None => return Err(Refused::NotAUrl),
            Some(Host::Domain(_)) => return Ok(()),
            Some(Host::Ipv4(v4)) => IpAddr::V4(v4),
            Some(Host::Ipv6(v6)) => IpAddr::V6(v6),
        };
        if self.addresses.allows(literal) { Ok(()) } else { Err(Refused::Address) }
    }
}
