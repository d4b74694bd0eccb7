//! A TCP proxy that fails as networks do.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use url::Url;

/// How much is forwarded at a time.
const CHUNK_BYTES: usize = 16 * 1024;

/// What a URL without a port means for Postgres.
const POSTGRES_PORT: u16 = 5432;

/// How the network behaves, for the connections there are and those to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It works.
    None,
    /// Nothing arrives and nobody is told: sockets stay open, new connections are taken and stay silent. What was sent
    /// meanwhile arrives when the fault is lifted, as TCP would send it again.
    Blackhole,
    /// Every piece is held back for this long, each way.
    Delay(Duration),
    /// New connections are reset. Those that exist go on.
    Refuse,
}

/// A proxy on the loopback address in front of some other address. It and its connections end with this value.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    network: watch::Sender<Network>,
    open: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

/// A text that marks the connections whose client has sent it, in one piece.
type Mark = Option<&'static str>;

/// The state of the network. Connections are numbered as they come, so an event can be for those of before only.
#[derive(Debug, Clone, Copy)]
struct Network {
    fault: Fault,
    opened: u64,
    /// Pieces that may pass before everything is cut; `None` is any number.
    left: Option<u64>,
    cut_up_to: u64,
    stranded_up_to: u64,
    /// Whether connections that are marked are silent.
    marked_silent: bool,
}

impl FaultProxy {
    /// Starts one in front of `upstream`, a `host:port`.
    ///
    /// # Panics
    /// If no port can be had.
    pub async fn start(upstream: impl Into<String>) -> Self {
        FaultProxy::start_marking(upstream, None).await
    }

    async fn start_marking(upstream: impl Into<String>, mark: Mark) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.unwrap_or_else(|error| panic!("a port for a fault proxy: {error}"));
        let address = listener.local_addr().unwrap_or_else(|error| panic!("the address of a fault proxy: {error}"));
        let start = Network {
            fault: Fault::None,
            opened: 0,
            left: None,
            cut_up_to: 0,
            stranded_up_to: 0,
            marked_silent: false,
        };
        let network = watch::Sender::new(start);
        let open = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(accept(listener, upstream.into(), mark, network.clone(), Arc::clone(&open)));
        FaultProxy { address, network, open, task }
    }

    /// Starts one in front of the server of a database URL and returns it with the URL that leads through it.
    ///
    /// # Panics
    /// If the URL has no host to connect to by TCP.
    pub async fn for_database(url: &str) -> (Self, String) {
        FaultProxy::for_database_marking(url, None).await
    }

    /// The same; connections on which `text` is sent are marked from then on, for [`FaultProxy::silence_marked`]. A
    /// statement is sent whole when a connection runs it for the first time, so part of it marks those that run it.
    ///
    /// # Panics
    /// As [`FaultProxy::for_database`].
    pub async fn for_database_with(url: &str, text: &'static str) -> (Self, String) {
        FaultProxy::for_database_marking(url, Some(text)).await
    }

    async fn for_database_marking(url: &str, mark: Mark) -> (Self, String) {
        let mut url = Url::parse(url).unwrap_or_else(|error| panic!("a database URL: {error}"));
        let Some(host) = url.host_str() else { panic!("the database URL has no host: {url}") };
        let upstream = format!("{host}:{}", url.port().unwrap_or(POSTGRES_PORT));
        let proxy = FaultProxy::start_marking(upstream, mark).await;
        let replaced = url.set_ip_host(proxy.address.ip()).and_then(|()| url.set_port(Some(proxy.address.port())));
        assert!(replaced.is_ok(), "the database URL cannot be rewritten: {url}");
        (proxy, url.into())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes how the network behaves, for all connections.
    pub fn set(&self, fault: Fault) {
        self.network.send_modify(|network| network.fault = fault);
    }

    /// Resets every connection there is. New ones work, unless a fault is set.
    pub fn cut_all(&self) {
        self.network.send_modify(|network| network.cut_up_to = network.opened);
    }

    /// Lets so many more pieces pass, counted both ways, and instead of the next one resets every connection there is; new
    /// ones work again. A piece is what is read at once: for a client that waits for each answer, each question is one
    /// and each answer is one. With 0, 1, 2, … every moment of an exchange is broken once.
    pub fn cut_after(&self, pieces: u64) {
        self.network.send_modify(|network| network.left = Some(pieces));
    }

    /// Calls off what [`FaultProxy::cut_after`] asked for, and tells whether it had happened.
    pub fn was_cut(&self) -> bool {
        let mut was_cut = false;
        self.network.send_modify(|network| was_cut = network.left.take().is_none());
        was_cut
    }

    /// Makes every connection there is silent for good, as when a firewall forgets them: both ends still believe in it.
    /// New ones work, unless a fault is set.
    pub fn strand_all(&self) {
        self.network.send_modify(|network| network.stranded_up_to = network.opened);
    }

    /// Makes the connections that are marked silent, those to come too, or lets them speak again. All others go on.
    pub fn silence_marked(&self, silent: bool) {
        self.network.send_modify(|network| network.marked_silent = silent);
    }

    /// How many connections are open.
    pub fn open_connections(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(
    listener: TcpListener,
    upstream: String,
    mark: Mark,
    network: watch::Sender<Network>,
    open: Arc<AtomicUsize>,
) {
    // Dropped with this task, which ends them all.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let mut number = 0;
                network.send_modify(|network| {
                    network.opened += 1;
                    number = network.opened;
                });
                let marked = Arc::default();
                let line = Line { number, mark, marked, network: network.subscribe(), control: network.clone() };
                connections.spawn(connect(client, upstream.clone(), line, OpenCount::new(&open)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Counts an open connection for as long as it lives.
struct OpenCount(Arc<AtomicUsize>);

impl OpenCount {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::SeqCst);
        OpenCount(Arc::clone(open))
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One connection's view of the network.
#[derive(Clone)]
struct Line {
    number: u64,
    mark: Mark,
    marked: Arc<AtomicBool>,
    network: watch::Receiver<Network>,
    control: watch::Sender<Network>,
}

impl Line {
    fn is_refused(&self) -> bool {
        self.network.borrow().fault == Fault::Refuse
    }

    /// Returns when something may pass, having held it back for as long as it takes.
    async fn pass(&mut self) {
        let (number, marked) = (self.number, &self.marked);
        let silent = |network: &Network| {
            network.fault == Fault::Blackhole
                || network.stranded_up_to >= number
                || network.marked_silent && marked.load(Ordering::SeqCst)
        };
        let passes = self.network.wait_for(|network| !silent(network)).await.map(|network| network.fault);
        match passes {
            Ok(Fault::Delay(delay)) => tokio::time::sleep(delay).await,
            Ok(_) => {}
            // The proxy is gone and this task about to be.
            Err(_) => std::future::pending().await,
        }
    }

    /// Marks the connection where the client's piece has the text.
    fn read(&self, piece: &[u8]) {
        if let Some(text) = self.mark
            && piece.windows(text.len()).any(|window| window == text.as_bytes())
        {
            self.marked.store(true, Ordering::SeqCst);
        }
    }

    /// Counts a piece. When one too many comes, everything is cut instead.
    fn count(&self) {
        self.control.send_if_modified(|network| {
            match &mut network.left {
                None => return false,
                Some(0) => {
                    network.left = None;
                    network.cut_up_to = network.opened;
                }
                Some(left) => *left -= 1,
            }
            true
        });
    }

    /// Whether the connection is cut.
    fn is_cut(&self) -> bool {
        self.network.borrow().cut_up_to >= self.number
    }

    /// Returns when the connection is cut.
    async fn cut(&mut self) {
        let number = self.number;
        // An error means that the proxy is gone: as good as cut.
        let _ = self.network.wait_for(|network| network.cut_up_to >= number).await;
    }
}

async fn connect(client: TcpStream, upstream: String, mut line: Line, _open: OpenCount) {
    let mut for_cut = line.clone();
    if line.is_refused() {
        reset(client);
        return;
    }
    let reached = tokio::select! {
        reached = async {
            line.pass().await;
            TcpStream::connect(&upstream).await
        } => reached.ok(),
        () = for_cut.cut() => None,
    };
    let Some(mut server) = reached else {
        reset(client);
        return;
    };
    let mut client = client;
    // Small pieces go at once: the proxy adds no delay that nobody asked for. Without it, it would still be right.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let is_orderly = tokio::select! {
        ended = forward(&mut client, &mut server, &line) => ended.is_ok(),
        () = for_cut.cut() => false,
    };
    if !is_orderly {
        reset(client);
        reset(server);
    }
}

/// Forwards both ways until both have ended.
async fn forward(client: &mut TcpStream, server: &mut TcpStream, line: &Line) -> std::io::Result<()> {
    let (client_reads, client_writes) = client.split();
    let (server_reads, server_writes) = server.split();
    // What is marked is what a client sends.
    let back = Line { mark: None, ..line.clone() };
    tokio::try_join!(pump(client_reads, server_writes, line.clone()), pump(server_reads, client_writes, back))?;
    Ok(())
}

async fn pump(
    mut from: tokio::net::tcp::ReadHalf<'_>,
    mut to: tokio::net::tcp::WriteHalf<'_>,
    mut line: Line,
) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let length = from.read(&mut chunk).await?;
        line.read(&chunk[..length]);
        // The news that the other end has closed is held back like anything else.
        line.pass().await;
        if length == 0 {
            return to.shutdown().await;
        }
        line.count();
        if line.is_cut() {
            return Err(std::io::ErrorKind::ConnectionReset.into());
        }
        to.write_all(&chunk[..length]).await?;
    }
}

/// Closes with a reset, so that the other end gets an error and not an orderly end.
fn reset(stream: TcpStream) {
    // If it fails the socket is closed in order: the peer is still told.
    let _ = stream.set_zero_linger();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::poll_until;
    use std::io::ErrorKind;

    const LIMIT: Duration = Duration::from_secs(20);
    /// Long enough for what should not happen to have happened.
    const QUIET: Duration = Duration::from_millis(100);

    /// A server that sends back what it gets, and a proxy before it.
    async fn echo() -> FaultProxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut reads, mut writes) = stream.split();
                    let _ = tokio::io::copy(&mut reads, &mut writes).await;
                });
            }
        });
        FaultProxy::start(address.to_string()).await
    }

    async fn ask(stream: &mut TcpStream) -> std::io::Result<()> {
        stream.write_all(b"ping").await?;
        hear(stream).await
    }

    async fn hear(stream: &mut TcpStream) -> std::io::Result<()> {
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        assert_eq!(&answer, b"ping");
        Ok(())
    }

    async fn is_silent(stream: &mut TcpStream) -> bool {
        tokio::time::timeout(QUIET, stream.read_u8()).await.is_err()
    }

    #[tokio::test]
    async fn it_forwards_and_passes_on_the_end() {
        let proxy = echo().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut stream).await.unwrap();
        assert_eq!(proxy.open_connections(), 1);
        stream.shutdown().await.unwrap();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
        poll_until(LIMIT, "the end", async || (proxy.open_connections() == 0).then_some(())).await;
    }

    #[tokio::test]
    async fn a_blackhole_tells_nobody_and_what_was_sent_arrives_later() {
        let proxy = echo().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut stream).await.unwrap();
        proxy.set(Fault::Blackhole);
        stream.write_all(b"ping").await.unwrap();
        let mut newcomer = TcpStream::connect(proxy.address()).await.unwrap();
        newcomer.write_all(b"ping").await.unwrap();
        assert!(is_silent(&mut stream).await && is_silent(&mut newcomer).await);
        proxy.set(Fault::None);
        hear(&mut stream).await.unwrap();
        hear(&mut newcomer).await.unwrap();
    }

    #[tokio::test]
    async fn a_stranded_connection_never_speaks_again_and_new_ones_do() {
        let proxy = echo().await;
        let mut old = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut old).await.unwrap();
        proxy.strand_all();
        old.write_all(b"ping").await.unwrap();
        assert!(is_silent(&mut old).await);
        ask(&mut TcpStream::connect(proxy.address()).await.unwrap()).await.unwrap();
        assert!(is_silent(&mut old).await);
    }

    #[tokio::test]
    async fn a_cut_is_a_reset_even_of_what_is_stranded() {
        let proxy = echo().await;
        for strand in [false, true] {
            let mut old = TcpStream::connect(proxy.address()).await.unwrap();
            ask(&mut old).await.unwrap();
            if strand {
                proxy.strand_all();
            }
            proxy.cut_all();
            assert_eq!(old.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            ask(&mut TcpStream::connect(proxy.address()).await.unwrap()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_exchange_is_cut_at_the_piece_that_was_named() {
        let proxy = echo().await;
        for pieces in 0..4 {
            let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
            proxy.cut_after(pieces);
            // Each question and each answer is a piece: two pass for each exchange that works.
            for _ in 0..pieces / 2 {
                ask(&mut stream).await.unwrap();
            }
            ask(&mut stream).await.unwrap_err();
            assert!(proxy.was_cut());
            ask(&mut TcpStream::connect(proxy.address()).await.unwrap()).await.unwrap();
        }
        proxy.cut_after(10);
        ask(&mut TcpStream::connect(proxy.address()).await.unwrap()).await.unwrap();
        assert!(!proxy.was_cut());
    }

    #[tokio::test]
    async fn refusing_resets_newcomers_only() {
        let proxy = echo().await;
        let mut old = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut old).await.unwrap();
        proxy.set(Fault::Refuse);
        let refused = async { ask(&mut TcpStream::connect(proxy.address()).await?).await };
        refused.await.unwrap_err();
        ask(&mut old).await.unwrap();
    }

    #[tokio::test]
    async fn a_delay_holds_back_each_way() {
        let proxy = echo().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut stream).await.unwrap();
        proxy.set(Fault::Delay(QUIET));
        let started = std::time::Instant::now();
        ask(&mut stream).await.unwrap();
        assert!(started.elapsed() >= 2 * QUIET);
    }

    #[tokio::test]
    async fn what_is_marked_can_be_silenced_alone() {
        let db = crate::TestDb::new().await;
        let (proxy, url) = FaultProxy::for_database_with(db.url(), "AS beat").await;
        let connect = async || <sqlx::PgConnection as sqlx::Connection>::connect(&url).await.unwrap();
        let (mut beating, mut other) = (connect().await, connect().await);
        let beat = async |connection: &mut sqlx::PgConnection| {
            let beat = sqlx::query("SELECT 1 AS beat").execute(connection);
            tokio::time::timeout(QUIET * 5, beat).await.is_ok_and(|beat| beat.is_ok())
        };
        assert!(beat(&mut beating).await);
        proxy.silence_marked(true);
        assert!(!beat(&mut beating).await && !beat(&mut connect().await).await);
        sqlx::query("SELECT 1 AS other").execute(&mut other).await.unwrap();
        proxy.silence_marked(false);
        assert!(beat(&mut connect().await).await);
    }

    #[tokio::test]
    async fn a_database_is_reached_through_it() {
        let db = crate::TestDb::new().await;
        let (proxy, url) = FaultProxy::for_database(db.url()).await;
        assert!(url.contains(&proxy.address().to_string()) && url.ends_with(db.name()));
        let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&url).await.unwrap();
        let one: i32 = sqlx::query_scalar("SELECT 1").fetch_one(&mut connection).await.unwrap();
        assert_eq!(one, 1);
        proxy.cut_all();
        let cut: sqlx::Result<i32> = sqlx::query_scalar("SELECT 1").fetch_one(&mut connection).await;
        cut.unwrap_err();
    }
}
