//! Ways into the operator's own network that have worked elsewhere, and none of which may work here.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up should stop")]

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use tidegate_outbound::{Outbound, OutboundOptions, Refused, Request, SendError};
use tokio::time::Instant;

/// URLs whose text says enough. (A name's addresses are checked when it is resolved: see below.)
const REFUSED: &[(&str, Refused)] = &[
    // Loopback, in every spelling that the parser of browsers understands.
    ("http://127.0.0.1/", Refused::Address),
    ("http://127.0.0.1:8080/x?y=z", Refused::Address),
    ("http://127.1/", Refused::Address),
    ("http://127.0.1/", Refused::Address),
    ("http://2130706433/", Refused::Address),
    ("http://0x7f000001/", Refused::Address),
    ("http://0x7f.0.0.1/", Refused::Address),
    ("http://0177.0.0.1/", Refused::Address),
    ("http://017700000001/", Refused::Address),
    ("http://127.0.0.1./", Refused::Address),
    ("http://%31%32%37.0.0.1/", Refused::Address),
    ("http://①②⑦.⓪.⓪.①/", Refused::Address),
    ("http://127。0。0。1/", Refused::Address),
    ("http://[::1]/", Refused::Address),
    ("http://[0:0:0:0:0:0:0:1]/", Refused::Address),
    // Nothing, and everything.
    ("http://0/", Refused::Address),
    ("http://0.0.0.0/", Refused::Address),
    ("http://[::]/", Refused::Address),
    ("http://255.255.255.255/", Refused::Address),
    // IPv4 inside IPv6.
    ("http://[::ffff:127.0.0.1]/", Refused::Address),
    ("http://[::ffff:7f00:1]/", Refused::Address),
    ("http://[::127.0.0.1]/", Refused::Address),
    ("http://[64:ff9b::127.0.0.1]/", Refused::Address),
    ("http://[64:ff9b::a9fe:a9fe]/", Refused::Address),
    ("http://[64:ff9b:1::7f00:1]/", Refused::Address),
    ("http://[2002:7f00:1::]/", Refused::Address),
    ("http://[2001:0:7f00:1::1]/", Refused::Address),
    // Private networks and the metadata services in them.
    ("http://10.0.0.1/", Refused::Address),
    ("http://172.16.0.1/", Refused::Address),
    ("http://172.31.255.255/", Refused::Address),
    ("http://192.168.1.1/", Refused::Address),
    ("http://100.64.0.1/", Refused::Address),
    ("http://100.100.100.200/latest/meta-data/", Refused::Address),
    ("http://169.254.169.254/latest/meta-data/", Refused::Address),
    ("http://0xa9fea9fe/", Refused::Address),
    ("http://2852039166/", Refused::Address),
    ("http://[::ffff:169.254.169.254]/", Refused::Address),
    ("http://[fd00:ec2::254]/", Refused::Address),
    ("http://[fe80::1]/", Refused::Address),
    ("http://[fc00::1]/", Refused::Address),
    ("http://192.0.0.192/", Refused::Address),
    ("http://168.63.129.16/", Refused::Address),
    ("http://198.18.0.1/", Refused::Address),
    ("http://224.0.0.1/", Refused::Address),
    ("http://[ff02::1]/", Refused::Address),
    ("https://240.0.0.1/", Refused::Address),
    // Credentials, which also disguise the host.
    ("http://example.com@127.0.0.1/", Refused::Credentials),
    ("http://user:secret@example.com/", Refused::Credentials),
    ("http://:@127.0.0.1:80@example.com/", Refused::Credentials),
    // Ports of the system's services.
    ("http://example.com:22/", Refused::Port(22)),
    ("http://example.com:25/", Refused::Port(25)),
    ("https://example.com:0/", Refused::Port(0)),
    // Not what parsers agree on.
    ("http://example.com/#part", Refused::Fragment),
    ("http://example.com\\@127.0.0.1/", Refused::NotAUrl),
    ("http://127.0.\n0.1/", Refused::NotAUrl),
    ("http://exa mple.com/", Refused::NotAUrl),
    ("http://[::1%25eth0]/", Refused::NotAUrl),
    ("http://1.2.3.4.5/", Refused::NotAUrl),
    ("http://256.256.256.256/", Refused::NotAUrl),
    ("http://", Refused::NotAUrl),
    ("//127.0.0.1/", Refused::NotAUrl),
    ("/etc/passwd", Refused::NotAUrl),
    ("", Refused::NotAUrl),
];

fn closed() -> Outbound {
    Outbound::new(OutboundOptions::default()).unwrap()
}

#[test]
fn no_spelling_of_a_forbidden_address_passes() {
    let outbound = closed();
    for (url, expected) in REFUSED {
        assert_eq!(outbound.check(url).map(|url| url.to_string()).as_ref(), Err(expected), "{url:?}");
    }
    for scheme in ["ftp", "file", "gopher", "unix", "ws", "data", "javascript"] {
        let url = format!("{scheme}://example.com/");
        assert_eq!(outbound.check(&url), Err(Refused::Scheme(scheme.to_owned())), "{url}");
    }
    assert_eq!(outbound.check(&format!("http://example.com/{}", "x".repeat(2_048))), Err(Refused::TooLong));
}

#[test]
fn what_is_public_passes() {
    let outbound = closed();
    for url in [
        "https://example.com/",
        "http://example.com:80/hook?key=1",
        "https://example.com:8443/a/b",
        "https://1.1.1.1/",
        "http://[2606:4700:4700::1111]:8080/",
        "https://bücher.example/",
    ] {
        assert!(outbound.check(url).is_ok(), "{url}");
    }
}

#[test]
fn plain_http_can_be_forbidden() {
    let strict = Outbound::new(OutboundOptions { plain_http: false, ..OutboundOptions::default() }).unwrap();
    assert_eq!(strict.check("http://example.com/"), Err(Refused::Scheme("http".to_owned())));
    assert!(strict.check("https://example.com/").is_ok());
}

#[tokio::test]
async fn a_name_for_a_forbidden_address_is_refused_when_it_is_checked_and_when_it_is_sent() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for host in ["localhost", "LOCALHOST", "localhost."] {
        let url = format!("http://{host}:{port}/?key=secret");
        let outbound = closed();
        let checked = outbound.check_resolved(&url, Duration::from_secs(5)).await;
        // "localhost." may be unknown to a resolver; then it leads nowhere at all.
        assert!(checked == Err(Refused::Address) || host.ends_with('.'), "{host}: {checked:?}");
        let request = Request {
            method: Method::POST,
            url: outbound.check(&url).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            deadline: Instant::now() + Duration::from_secs(5),
        };
        let error = outbound.send(request).await.map(|answer| answer.status()).unwrap_err();
        assert!(matches!(error, SendError::Refused(Refused::Address)) || host.ends_with('.'), "{host}: {error:?}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let accepted = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(accepted.is_err(), "somebody connected");
}
