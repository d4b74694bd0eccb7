//! A counter between a program and its Postgres: passes everything on and counts the statements that are asked for, as
//! they stand in the protocol. So the count is exact, and needs no extension and no rights in the database.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use url::Url;

use crate::exit::Failure;

/// The longest simple query that is looked into; ours are far shorter. What is beyond it is passed on all the same.
const MAX_QUERY: usize = 64 * 1024;
/// What is read at once.
const CHUNK: usize = 16 * 1024;
/// The port of a Postgres whose URL names none.
const DEFAULT_PORT: u16 = 5432;

/// The counter, until it is dropped.
pub(super) struct QueryCounter {
    url: String,
    counted: Arc<AtomicU64>,
    _stop: DropGuard,
}

impl QueryCounter {
    /// Puts itself before a database that is reached over TCP.
    pub(super) async fn start(database_url: &str) -> Result<Self, Failure> {
        let bad = |why: &str| Failure::Usage(format!("queries cannot be counted: the database's URL {why}"));
        let mut url = Url::parse(database_url).map_err(|_| bad("is not one"))?;
        if url.query_pairs().any(|(name, _)| name == "host") {
            return Err(bad("leads to a socket; name a host and a port"));
        }
        let host = url.host_str().unwrap_or("127.0.0.1").to_owned();
        let upstream = (host, url.port().unwrap_or(DEFAULT_PORT));
        let listening = async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            Ok::<_, io::Error>((listener.local_addr()?, listener))
        };
        let (address, listener) = listening.await.map_err(|error| Failure::other("cannot listen", error))?;
        point(&mut url, address).ok_or_else(|| bad("cannot be changed"))?;
        let (counted, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        tokio::spawn({
            let (counted, stop) = (counted.clone(), stop.clone());
            async move { stop.run_until_cancelled(accept(listener, upstream, counted)).await }
        });
        Ok(Self { url: url.into(), counted, _stop: stop.drop_guard() })
    }

    /// The database, with the counter before it.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Statements so far.
    pub(super) fn counted(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }
}

/// Leads a URL to another address. What is encrypted cannot be counted, so nothing is.
fn point(url: &mut Url, address: SocketAddr) -> Option<()> {
    url.set_ip_host(address.ip()).ok()?;
    url.set_port(Some(address.port())).ok()?;
    let kept: Vec<(String, String)> = url.query_pairs().filter(|(name, _)| name != "sslmode").map(owned).collect();
    url.query_pairs_mut().clear().extend_pairs(kept).append_pair("sslmode", "disable");
    Some(())
}

fn owned(pair: (std::borrow::Cow<'_, str>, std::borrow::Cow<'_, str>)) -> (String, String) {
    (pair.0.into_owned(), pair.1.into_owned())
}

async fn accept(listener: TcpListener, upstream: (String, u16), counted: Arc<AtomicU64>) -> io::Result<()> {
    // Dropped with us, and all connections with it.
    let mut open = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await?;
        let (upstream, counted) = (upstream.clone(), counted.clone());
        open.spawn(async move {
            // A connection that breaks ends on both sides, which is all that there is to do.
            let _ = pass_on(client, &upstream, &counted).await;
        });
        while open.try_join_next().is_some() {}
    }
}

async fn pass_on(client: TcpStream, upstream: &(String, u16), counted: &AtomicU64) -> io::Result<()> {
    let server = TcpStream::connect((upstream.0.as_str(), upstream.1)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asked = async {
        let mut statements = Statements::default();
        let mut chunk = vec![0; CHUNK];
        loop {
            let length = from_client.read(&mut chunk).await?;
            if length == 0 {
                return to_server.shutdown().await;
            }
            counted.fetch_add(statements.count(&chunk[..length]), Ordering::Relaxed);
            to_server.write_all(&chunk[..length]).await?;
        }
    };
    let answered = tokio::io::copy(&mut from_server, &mut to_client);
    tokio::select! {
        asked = asked => asked,
        answered = answered => answered.map(drop),
    }
}

/// Finds statements in what a client sends: each Execute of the extended protocol, and each statement of a simple query.
#[derive(Debug, Default)]
struct Statements {
    /// Whether the first message, which alone has no type, has passed.
    started: bool,
    /// Type and length of the message that is coming in, as far as they are there.
    head: Vec<u8>,
    /// What is still to come of its body.
    left: usize,
    /// The text of a simple query.
    query: Option<Vec<u8>>,
}

impl Statements {
    /// Counts those that are complete with these bytes.
    fn count(&mut self, mut bytes: &[u8]) -> u64 {
        let mut found = 0;
        while !bytes.is_empty() {
            if self.left > 0 {
                let (body, rest) = bytes.split_at(self.left.min(bytes.len()));
                if let Some(query) = &mut self.query {
                    query.extend(body.iter().take(MAX_QUERY.saturating_sub(query.len())));
                }
                self.left -= body.len();
                bytes = rest;
            } else {
                self.head.push(bytes[0]);
                bytes = &bytes[1..];
                found += self.head_is_whole();
            }
            if self.left == 0
                && let Some(query) = self.query.take()
            {
                found += statements_of(&query);
            }
        }
        found
    }

    /// Sees whether the head is complete, and what it announces. Returns how many statements that is by itself.
    fn head_is_whole(&mut self) -> u64 {
        let (kind, length) = match (self.started, self.head.as_slice()) {
            (false, [a, b, c, d]) => (None, [*a, *b, *c, *d]),
            (true, [kind, a, b, c, d]) => (Some(*kind), [*a, *b, *c, *d]),
            _ => return 0,
        };
        self.started = true;
        self.head.clear();
        // The length counts itself.
        self.left = (u32::from_be_bytes(length) as usize).saturating_sub(4);
        self.query = (kind == Some(b'Q')).then(Vec::new);
        u64::from(kind == Some(b'E'))
    }
}

/// The statements of a simple query. None of ours has a semicolon inside a string.
fn statements_of(query: &[u8]) -> u64 {
    let is_blank = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0;
    query.split(|byte| *byte == b';').filter(|statement| !statement.iter().all(is_blank)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = kind.into_iter().collect();
        bytes.extend((body.len() as u32 + 4).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn statements_are_counted_however_the_bytes_come() {
        let mut bytes = message(None, b"\0\x03\0\0user\0tidegate\0\0");
        for (kind, body) in [
            (b'p', &b"secret\0"[..]),
            (b'Q', b"BEGIN; SELECT 1; \0"),
            (b'P', b"s\0SELECT ';'\0\0\0"),
            (b'B', b"EEEE"),
            (b'E', b"\0\0\0\0\0"),
            (b'S', b""),
            (b'Q', b"COMMIT\0"),
            (b'X', b""),
        ] {
            bytes.extend(message(Some(kind), body));
        }
        for size in [1, 2, 3, 7, bytes.len()] {
            let mut statements = Statements::default();
            let counted: u64 = bytes.chunks(size).map(|chunk| statements.count(chunk)).sum();
            assert_eq!(counted, 4, "in pieces of {size}");
        }
    }

    #[test]
    fn a_url_is_led_to_the_counter_and_keeps_the_rest() {
        let mut url = Url::parse("postgres://u:p@db.example/x?application_name=a&sslmode=require").unwrap();
        point(&mut url, "127.0.0.1:9".parse().unwrap()).unwrap();
        assert_eq!(url.as_str(), "postgres://u:p@127.0.0.1:9/x?application_name=a&sslmode=disable");
    }
}
