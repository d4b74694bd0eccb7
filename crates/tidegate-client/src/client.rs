//! A client and how it is built.

use std::fmt;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Url, redirect};
use tidegate_wire::header;

use crate::Error;

/// How long a connection may take to open. A server that is up answers in a network's round trip.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call may take, beside the time that it asks the server to wait.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest answer that is read: a page of 200 tasks with payload and result of 256 KiB each, and some more.
const DEFAULT_MAX_ANSWER_BYTES: usize = 128 << 20;

/// A client of one server. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    pub(crate) http: reqwest::Client,
    pub(crate) base: Url,
    pub(crate) timeout: Duration,
    pub(crate) max_answer_bytes: usize,
}

/// What a client can be told beside the server's URL.
#[derive(Clone)]
pub struct ClientBuilder {
    url: String,
    key: Option<String>,
    tenant: Option<String>,
    timeout: Duration,
    max_answer_bytes: usize,
}

impl Client {
    /// A client of the server at `url`, as in `http://127.0.0.1:8080`, with an API key where it needs one.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the URL or the key cannot be used.
    pub fn new(url: &str, key: Option<&str>) -> Result<Self, Error> {
        let builder = Self::builder(url);
        match key {
            Some(key) => builder.key(key).build(),
            None => builder.build(),
        }
    }

    /// A client with more to say.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder {
            url: url.to_owned(),
            key: None,
            tenant: None,
            timeout: DEFAULT_TIMEOUT,
            max_answer_bytes: DEFAULT_MAX_ANSWER_BYTES,
        }
    }

    /// The server's host and port, for messages.
    pub(crate) fn host(&self) -> String {
        let host = self.base.host_str().unwrap_or_default();
        self.base.port_or_known_default().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }
}

impl ClientBuilder {
    /// The API key.
    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// The tenant to act for: without a key on loopback, or with an admin's key.
    #[must_use]
    pub fn tenant(mut self, tenant: &str) -> Self {
        self.tenant = Some(tenant.to_owned());
        self
    }

    /// How long a call may take, beside the time that it asks the server to wait. 30 s where nothing is said.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The largest answer that is read, in bytes. 128 MiB where nothing is said.
    #[must_use]
    pub fn max_answer_bytes(mut self, bytes: usize) -> Self {
        self.max_answer_bytes = bytes;
        self
    }

    /// Builds the client. Where the process has no TLS provider yet, ring becomes it.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the URL, the key or the tenant cannot be used.
    pub fn build(self) -> Result<Client, Error> {
        let base = parse_base(&self.url)?;
        let mut headers = HeaderMap::new();
        if let Some(key) = self.key {
            let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                .map_err(|_| Error::Invalid("the API key holds a character that no key has".to_owned()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(tenant) = self.tenant {
            let value = HeaderValue::try_from(tenant)
                .map_err(|_| Error::Invalid("the tenant holds a character that no name has".to_owned()))?;
            headers.insert(HeaderName::from_static(header::X_TENANT), value);
        }
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // An error means that somebody else was quicker, which is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let mut builder = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("tidegate-client/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never());
        if is_loopback(&base) {
            // A proxy of the environment cannot know this machine's own loopback.
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| Error::Invalid(format!("cannot build the client: {error}")))?;
        Ok(Client { http, base, timeout: self.timeout, max_answer_bytes: self.max_answer_bytes })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("host", &self.host()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").finish_non_exhaustive()
    }
}

fn parse_base(text: &str) -> Result<Url, Error> {
    let bad = |what: &str| Error::Invalid(format!("the server's URL {what}"));
    let mut url = Url::parse(text).map_err(|error| bad(&format!("cannot be read: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(bad("must begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("must not hold a user or a password; give the API key apart"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("must have no query and no fragment"));
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || literal.is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_or_refused() {
        for (text, base) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/"),
            ("https://x.example/queue", "https://x.example/queue/"),
        ] {
            assert_eq!(parse_base(text).map(|url| url.to_string()).unwrap(), base);
        }
        for bad in ["", "127.0.0.1:8080", "ftp://x", "http://", "http://u:p@x", "http://x/?a=b", "http://x/#f"] {
            assert!(matches!(parse_base(bad), Err(Error::Invalid(_))), "{bad}");
        }
        let loopback = |text: &str| is_loopback(&parse_base(text).unwrap());
        assert!(loopback("http://localhost:1") && loopback("http://[::1]:1") && loopback("http://127.8.0.1"));
        assert!(!loopback("http://10.0.0.1") && !loopback("http://localhost.example"));
    }

    #[test]
    fn a_key_that_no_header_can_carry_is_refused_and_none_is_printed() {
        assert!(matches!(Client::new("http://x", Some("a\nb")), Err(Error::Invalid(_))));
        let shown = format!("{:?}", Client::new("http://x", Some("s3cret")).unwrap());
        assert_eq!(shown, "Client { host: \"x:80\", .. }");
        let shown = format!("{:?}", Client::builder("http://x").key("s3cret"));
        assert!(!shown.contains("s3cret"));
    }
}
