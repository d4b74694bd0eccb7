//! The accept loop: connections within limits, cut when they are slow, drained when the server ends.
//!
//! `axum::serve` bounds neither connections nor the time to a request's head. Here a connection must bring its first
//! whole request head within a time (which covers silence, a trickled head, and a protocol that is never told), each
//! later one too, and read its answers. When all places are taken, the oldest connection that has sent nothing whole
//! yet makes way: slow ones pile up there, and one that sends a request is past it within milliseconds.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::body::Body;
use futures_util::stream::{FuturesUnordered, StreamExt};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Peer;
use crate::metric;
use crate::routes::Api;
use crate::settings::{App, AppState, Settings};
use crate::timer::ConnectionTimer;
use crate::unreadable::Explained;

/// How long to wait after a failed accept: the process is out of file descriptors, and others must finish first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection may be silent before the kernel asks whether its peer is still there.
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);
/// How often an HTTP/2 connection is asked whether it is still there, and how long it may take to say so.
const H2_PING_EVERY: Duration = Duration::from_secs(20);
const H2_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves the API on a listener until `shutdown` is cancelled; then takes no more connections, lets requests in flight
/// finish within the drain time, and returns.
pub async fn serve(listener: TcpListener, state: AppState, shutdown: CancellationToken) -> io::Result<()> {
    let settings = state.0.settings.clone();
    let server = Arc::new(Server {
        api: Api::new(state.clone()),
        app: state.0.clone(),
        builder: builder(&settings),
        settings,
        closing: shutdown.clone(),
        killed: CancellationToken::new(),
    });
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(server.settings.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
    let newcomers = Newcomers::default();
    let _end = server.killed.clone().drop_guard();

    loop {
        let (stream, address) = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    pause_after(&error).await;
                    continue;
                }
            },
        };
        let place = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            place = newcomers.find_place(&places) => place,
        };
        let newcomer = newcomers.add();
        connections.spawn(Arc::clone(&server).serve_connection(stream, address, newcomer, place));
    }

    drop(listener);
    state.start_draining();
    connections.close();
    if tokio::time::timeout(server.settings.drain_timeout, connections.wait()).await.is_err() {
        tracing::warn!(connections = connections.len(), "the drain time is over: cutting what is left");
        server.killed.cancel();
        connections.wait().await;
    }
    Ok(())
}

/// What failed with one connection concerns nobody else; what failed for lack of resources needs a pause.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind as K;
    if matches!(error.kind(), K::ConnectionAborted | K::ConnectionReset | K::ConnectionRefused | K::Interrupted) {
        return;
    }
    tracing::warn!(%error, "a connection could not be accepted");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

fn builder(settings: &Settings) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .header_read_timeout(settings.header_timeout)
        .max_buf_size(usize::try_from(settings.max_header_bytes).unwrap_or(usize::MAX));
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(H2_PING_EVERY)
        .keep_alive_timeout(H2_PING_TIMEOUT)
        .max_concurrent_streams(settings.max_streams)
        .max_header_list_size(settings.max_header_bytes);
    builder
}

struct Server {
    api: Api,
    app: App,
    builder: auto::Builder<TokioExecutor>,
    settings: Settings,
    /// Connections finish what they are at.
    closing: CancellationToken,
    /// Connections end now.
    killed: CancellationToken,
}

impl Server {
    async fn serve_connection(
        self: Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        newcomer: Arc<Newcomer>,
        _place: OwnedSemaphorePermit,
    ) {
        let _counted = Counted::new();
        if let Err(error) = set_options(&stream, &self.settings) {
            tracing::debug!(%error, "a connection was gone before it was served");
            return;
        }
        let service = service_fn(|mut request: hyper::Request<Incoming>| {
            newcomer.known.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(Peer(address));
            let answer = self.api.answer(request.map(Body::new));
            async { Ok::<_, Infallible>(answer.await) }
        });
        let io = TokioIo::new(Explained::new(stream, self.app.clone()));
        let mut builder = self.builder.clone();
        builder.http1().timer(ConnectionTimer::default());
        let mut connection = pin!(builder.serve_connection(io, service));
        // What ends a connection from outside is looked at when it has happened, not whenever the connection moves:
        // each look takes locks that all connections share.
        let first_request = Instant::now() + self.settings.first_request_timeout;
        let mut orders = FuturesUnordered::new();
        orders.push(self.order(&newcomer, first_request, false));
        loop {
            tokio::select! {
                biased;
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(error = &*error, "a connection broke");
                    }
                    return;
                }
                Some(order) = orders.next() => match order {
                    Order::End => return,
                    Order::Finish => {
                        connection.as_mut().graceful_shutdown();
                        orders.push(self.order(&newcomer, first_request, true));
                    }
                }
            }
        }
    }

    /// Waits for what a connection is told to do. `first_request` is when it must have sent one.
    async fn order(&self, newcomer: &Newcomer, first_request: Instant, finishing: bool) -> Order {
        let silent = async {
            sleep_until(first_request).await;
            if newcomer.known.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = self.killed.cancelled() => Order::End,
            () = self.closing.cancelled(), if !finishing => Order::Finish,
            () = newcomer.make_way.cancelled() => Order::End,
            () = silent => Order::End,
        }
    }
}

/// What a connection is told to do from outside.
enum Order {
    /// To take no more requests, and to end when it has answered those it has.
    Finish,
    /// To end at once.
    End,
}

/// Sends small answers at once, and gives up on a peer that is gone or does not read.
fn set_options(stream: &TcpStream, settings: &Settings) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(TCP_KEEPALIVE))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(settings.write_stall_timeout))?;
    #[cfg(not(target_os = "linux"))]
    let _ = settings;
    Ok(())
}

/// Counts a connection while it is there.
struct Counted;

impl Counted {
    fn new() -> Self {
        metric::connections(1.0);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        metric::connections(-1.0);
    }
}

/// A connection, as far as it matters for who makes way.
#[derive(Default)]
struct Newcomer {
    /// It has sent a whole request.
    known: AtomicBool,
    /// It has to go.
    make_way: CancellationToken,
}

/// The connections that may not have sent a request yet, oldest first. What is gone or known is dropped when it comes
/// to the front, so at most those of one first-request time are here.
#[derive(Default)]
struct Newcomers(Mutex<VecDeque<Weak<Newcomer>>>);

impl Newcomers {
    fn add(&self) -> Arc<Newcomer> {
        let newcomer = Arc::new(Newcomer::default());
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while queue.front().is_some_and(|front| unknown(front).is_none()) {
            queue.pop_front();
        }
        queue.push_back(Arc::downgrade(&newcomer));
        newcomer
    }

    /// A place for one more connection. If there is none, the oldest unknown connection makes way.
    async fn find_place(&self, places: &Arc<Semaphore>) -> OwnedSemaphorePermit {
        loop {
            if let Ok(place) = Arc::clone(places).try_acquire_owned() {
                return place;
            }
            self.evict();
            // The semaphore is never closed, so this ends with a place.
            if let Ok(place) = Arc::clone(places).acquire_owned().await {
                return place;
            }
        }
    }

    fn evict(&self) {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(front) = queue.pop_front() {
            if let Some(oldest) = unknown(&front) {
                oldest.make_way.cancel();
                metric::evicted();
                return;
            }
        }
    }
}

/// The connection, if it is still there and has sent no request.
fn unknown(newcomer: &Weak<Newcomer>) -> Option<Arc<Newcomer>> {
    newcomer.upgrade().filter(|newcomer| !newcomer.known.load(Ordering::Relaxed))
}
