//! Who is asking. Without a key only the machine itself may ask, and no web page on its behalf.
//!
//! A server on loopback can be reached by any page in the user's browser: by a form, an image, or a name of the
//! attacker's that resolves to 127.0.0.1 (DNS rebinding). The page controls neither the Host nor the Origin that the
//! browser sends, so these tell it apart. A proxy would make the whole world look local, so its marks are refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use tidegate_core::TenantId;
use tidegate_store::Actor;
use tidegate_wire::{Fault, header};

use crate::decode::only;
use crate::rejection::Rejection;
use crate::settings::Shared;

static X_TENANT: HeaderName = HeaderName::from_static(header::X_TENANT);

/// The other end of the connection. The accept loop puts it into each request's extensions; a request without it is
/// nobody's.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Who is asking. In each request's extensions once the gate let it in.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) tenant: TenantId,
}

impl Caller {
    /// To whom changes of operators are put down. Nobody has a key yet.
    pub(crate) fn actor(&self) -> Actor {
        Actor::local()
    }
}

/// Decides who is asking, or refuses.
pub(crate) fn admit(app: &Shared, parts: &Parts) -> Result<Caller, Rejection> {
    if only(&parts.headers, &AUTHORIZATION, "Authorization")?.is_some() {
        return Err(Rejection::fault(
            Fault::Unauthorized,
            "this server knows no keys yet: send no Authorization header",
        ));
    }
    let local = parts.extensions.get::<Peer>().is_some_and(|peer| peer.0.ip().to_canonical().is_loopback());
    if !app.settings.keyless || !local {
        return Err(Rejection::fault(Fault::Unauthorized, "a key is needed: only loopback may ask without one"));
    }
    check_local(parts).map_err(|detail| Rejection::fault(Fault::Forbidden, detail))?;
    let tenant = match only(&parts.headers, &X_TENANT, "X-Tenant")? {
        None => app.default_tenant.clone(),
        Some(name) => TenantId::parse(name.to_str().unwrap_or_default())
            .map_err(|bad| Rejection::fault(Fault::InvalidValue, format!("X-Tenant {bad}")).at_header("X-Tenant"))?,
    };
    Ok(Caller { tenant })
}

/// Refuses what a browser may have sent for a page of someone else, and what came through a proxy.
fn check_local(parts: &Parts) -> Result<(), &'static str> {
    if parts.headers.keys().any(is_forwarding) {
        return Err("a request without a key must not come through a proxy (Forwarded, X-Forwarded-*)");
    }
    let authority = authority(parts)?;
    if !is_loopback_name(host_and_port(authority).0) {
        return Err("without a key, Host must be localhost or a loopback address");
    }
    for origin in parts.headers.get_all(ORIGIN) {
        if !origin.to_str().is_ok_and(|origin| is_same_origin(origin, authority)) {
            return Err("without a key, Origin must be this server itself");
        }
    }
    match told_once(&parts.headers, "sec-fetch-site")? {
        Some("cross-site") => Err("without a key, no other site may ask (Sec-Fetch-Site: cross-site)"),
        _ => Ok(()),
    }
}

fn is_forwarding(name: &HeaderName) -> bool {
    name.as_str() == "forwarded" || name.as_str().starts_with("x-forwarded-")
}

/// What the client calls this server: Host, which in HTTP/2 is `:authority`. If both are there, they must agree.
fn authority(parts: &Parts) -> Result<&str, &'static str> {
    let host = told_once(&parts.headers, HOST.as_str())?;
    let uri = parts.uri.authority().map(http::uri::Authority::as_str);
    match (host, uri) {
        (Some(host), Some(uri)) if !host.eq_ignore_ascii_case(uri) => Err("Host and the request target must agree"),
        (Some(name), _) | (None, Some(name)) => Ok(name),
        (None, None) => Err("without a key, Host must be there"),
    }
}

/// The one value of a header.
fn told_once<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, &'static str> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match (value.to_str(), values.next()) {
        (Ok(value), None) => Ok(Some(value)),
        _ => Err("Host and Sec-Fetch-Site must be there once, in visible ASCII"),
    }
}

/// Divides `host[:port]`. A port that is no number stays part of the host, which then is no loopback name.
pub(crate) fn host_and_port(authority: &str) -> (&str, Option<u16>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => match port.parse() {
            Ok(number) if port.bytes().all(|b| b.is_ascii_digit()) => (host, Some(number)),
            _ => (authority, None),
        },
        _ => (authority, None),
    }
}

/// `localhost`, an address of 127.0.0.0/8, or `[::1]`. Names that merely resolve there could be anybody's.
pub(crate) fn is_loopback_name(host: &str) -> bool {
    if let Some(literal) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return literal.parse::<Ipv6Addr>().is_ok_and(|ip| IpAddr::V6(ip).to_canonical().is_loopback());
    }
    host.eq_ignore_ascii_case("localhost") || host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether an Origin names the same scheme, host and port as this server, by its (loopback) authority. It speaks plain
/// HTTP only, and with no key there is no proxy that would speak TLS for it.
fn is_same_origin(origin: &str, authority: &str) -> bool {
    const DEFAULT_PORT: u16 = 80;
    let Some(rest) = origin.strip_prefix("http://") else { return false };
    let (origin_host, origin_port) = host_and_port(rest);
    let (host, port) = host_and_port(authority);
    is_loopback_name(origin_host)
        && origin_host.eq_ignore_ascii_case(host)
        && origin_port.unwrap_or(DEFAULT_PORT) == port.unwrap_or(DEFAULT_PORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_itself_is_a_loopback_name() {
        for good in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"] {
            assert!(is_loopback_name(good), "{good}");
        }
        for bad in [
            "",
            "localhost.",
            "localhost.evil.com",
            "evil.com",
            "127.0.0.1.nip.io",
            "127.1",
            "0.0.0.0",
            "0177.0.0.1",
            "2130706433",
            "128.0.0.1",
            "::1",
            "[::2]",
            "[::]",
            "[::1",
            "a@127.0.0.1",
            "xn--localhost",
            "127.0.0.1:80:80",
        ] {
            assert!(!is_loopback_name(bad), "{bad}");
        }
    }

    #[test]
    fn a_port_is_a_number() {
        assert_eq!(host_and_port("localhost:8080"), ("localhost", Some(8080)));
        assert_eq!(host_and_port("localhost"), ("localhost", None));
        assert_eq!(host_and_port("[::1]:1"), ("[::1]", Some(1)));
        assert_eq!(host_and_port("[::1]"), ("[::1]", None));
        for odd in ["localhost:", "localhost:x", "localhost:+1", "localhost:99999", "::1", "a:b:1"] {
            assert!(!is_loopback_name(host_and_port(odd).0), "{odd}");
        }
    }

    #[test]
    fn an_origin_is_ours_only_with_the_same_scheme_host_and_port() {
        for (origin, authority) in [
            ("http://localhost:8080", "localhost:8080"),
            ("http://LOCALHOST", "localhost:80"),
            ("http://[::1]", "[::1]"),
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
        ] {
            assert!(is_same_origin(origin, authority), "{origin} {authority}");
        }
        for (origin, authority) in [
            ("null", "localhost:8080"),
            ("https://localhost:8080", "localhost:8080"),
            ("https://[::1]", "[::1]:443"),
            ("https://localhost", "localhost"),
            ("", "localhost"),
            ("http://localhost:3000", "localhost:8080"),
            ("http://evil.com", "evil.com"),
            ("http://localhost.evil.com:8080", "localhost:8080"),
            ("http://127.0.0.1:8080", "localhost:8080"),
            ("file://localhost", "localhost"),
            ("http://localhost:8080/", "localhost:8080"),
        ] {
            assert!(!is_same_origin(origin, authority), "{origin} {authority}");
        }
    }
}
