//! The client: one request, at most one connection, bounded in time and size.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};
use ipnet::IpNet;
use tokio::time::{Instant, timeout_at};
use url::{Host, Url};

use crate::address::AddressPolicy;
use crate::resolver::{GuardedResolver, LookupError};
use crate::target::{Guard, Refused};

/// How long an idle connection is kept for the next call. Many servers close theirs after 5 s; a call on a connection
/// that is just being closed fails without need, so ours goes first.
const IDLE_CONNECTION: Duration = Duration::from_secs(4);

/// Idle connections kept for one host. More would rarely be reused within [`IDLE_CONNECTION`].
const MAX_IDLE_PER_HOST: usize = 32;

/// How the client is set up.
#[derive(Debug, Clone)]
pub struct OutboundOptions {
    /// Networks outside of the public internet that may be reached.
    pub allow_networks: Vec<IpNet>,
    /// Whether `http` is allowed beside `https`. For addresses that tenants choose: in development only.
    pub plain_http: bool,
    /// How long resolving, connecting and the TLS handshake may take together.
    pub connect_timeout: Duration,
    /// The `User-Agent` of every request.
    pub user_agent: String,
}

impl Default for OutboundOptions {
    fn default() -> Self {
        Self {
            allow_networks: Vec::new(),
            plain_http: true,
            connect_timeout: Duration::from_secs(3),
            user_agent: concat!("tidegate/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

/// The client could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client could not be set up")]
pub struct OutboundError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// Why there is no answer, or no whole one. Texts never hold the URL: its query may be a secret.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// It was not sent, because the URL is not allowed. Another try changes nothing.
    #[error("the URL {0}")]
    Refused(Refused),
    /// There was no connection: nothing was sent.
    #[error("no connection: {0}")]
    NotConnected(String),
    /// The connection broke. The other side may have acted on the request.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The deadline passed. The other side may have acted on the request.
    #[error("no answer before the deadline")]
    TimedOut,
    /// The body is larger than the caller wanted to read.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// The most bytes that were to be read.
        limit: usize,
    },
}

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// Where to; checked again each time it is sent.
    pub url: Url,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, sent as it is.
    pub body: Bytes,
    /// When the whole exchange must be over, the answer's body included.
    pub deadline: Instant,
}

/// The beginning of an answer: status and headers are there, the body is not read yet. Dropping it ends the
/// exchange: the connection (the stream, with HTTP/2) is closed.
#[derive(Debug)]
pub struct Answer {
    response: reqwest::Response,
    deadline: Instant,
}

/// One guarded HTTP client. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct Outbound {
    client: reqwest::Client,
    guard: Arc<Guard>,
    resolver: GuardedResolver,
}

impl Outbound {
    /// A client of its own, with its own connections.
    pub fn new(options: OutboundOptions) -> Result<Self, OutboundError> {
        let addresses = AddressPolicy::new(options.allow_networks);
        let resolver = GuardedResolver::new(addresses.clone());
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls()?)
            .dns_resolver(Arc::new(resolver.clone()))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .referer(false)
            // Whoever calls decides about retries, and counts them.
            .retry(reqwest::retry::never())
            .connect_timeout(options.connect_timeout)
            .pool_idle_timeout(IDLE_CONNECTION)
            .pool_max_idle_per_host(MAX_IDLE_PER_HOST)
            .user_agent(options.user_agent)
            .build()
            .map_err(|error| OutboundError(error.into()))?;
        Ok(Self { client, guard: Arc::new(Guard { addresses, plain_http: options.plain_http }), resolver })
    }

    /// Parses a URL and checks what its text tells. For configuration and for URLs that callers hand in.
    pub fn check(&self, url: &str) -> Result<Url, Refused> {
        self.guard.check(url)
    }

    /// Like [`Outbound::check`], and resolves the name, within `limit`. A name that does not resolve now may later:
    /// only one that leads nowhere but to forbidden addresses is refused.
    pub async fn check_resolved(&self, url: &str, limit: Duration) -> Result<Url, Refused> {
        let url = self.guard.check(url)?;
        if let Some(Host::Domain(name)) = url.host()
            && let Ok(Err(LookupError::Refused(refused))) =
                tokio::time::timeout(limit, self.resolver.lookup(name)).await
        {
            return Err(refused);
        }
        Ok(url)
    }

    /// Sends a request and waits for status and headers. Dropping the future closes the connection.
    pub async fn send(&self, request: Request) -> Result<Answer, SendError> {
        self.guard.check_parsed(&request.url).map_err(SendError::Refused)?;
        let deadline = request.deadline;
        let sending =
            self.client.request(request.method, request.url).headers(request.headers).body(request.body).send();
        match timeout_at(deadline, sending).await {
            Err(_) => Err(SendError::TimedOut),
            Ok(Err(error)) => Err(classify(error)),
            Ok(Ok(response)) => Ok(Answer { response, deadline }),
        }
    }
}

impl Answer {
    /// The status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The headers.
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Reads the body, at most `limit` bytes of it. Beyond that reading stops and the connection is closed.
    pub async fn read(mut self, limit: usize) -> Result<Bytes, SendError> {
        // A body that announces its size is refused before it is read.
        if self.response.content_length().is_some_and(|length| length > limit as u64) {
            return Err(SendError::TooLarge { limit });
        }
        let mut body = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            if body.len() + chunk.len() > limit {
                return Err(SendError::TooLarge { limit });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// Reads the beginning of the body for a message: at most `limit` bytes and until `until`, whatever comes of it.
    pub async fn read_excerpt(mut self, limit: usize, until: Instant) -> Bytes {
        self.deadline = self.deadline.min(until);
        let mut body = BytesMut::new();
        while body.len() < limit
            && let Ok(Some(chunk)) = self.chunk().await
        {
            body.extend_from_slice(&chunk[..chunk.len().min(limit - body.len())]);
        }
        body.freeze()
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, SendError> {
        match timeout_at(self.deadline, self.response.chunk()).await {
            Err(_) => Err(SendError::TimedOut),
            Ok(read) => read.map_err(classify),
        }
    }
}

/// TLS 1.2 and 1.3 with the certificates that the system trusts.
fn tls() -> Result<rustls::ClientConfig, OutboundError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        // Plain HTTP still works, so this is no reason not to start.
        tracing::warn!(errors = ?found.errors, "the system trusts no certificates: every https request will fail");
    }
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| OutboundError(error.into()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn classify(error: reqwest::Error) -> SendError {
    let error = error.without_url();
    // The cause at the bottom says most and repeats nothing.
    let mut cause: &(dyn std::error::Error + 'static) = &error;
    loop {
        if let Some(LookupError::Refused(refused)) = cause.downcast_ref() {
            return SendError::Refused(refused.clone());
        }
        match cause.source() {
            Some(deeper) => cause = deeper,
            None if error.is_connect() => return SendError::NotConnected(cause.to_string()),
            None => return SendError::Broken(cause.to_string()),
        }
    }
}
