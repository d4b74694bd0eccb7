//! `/livez`, `/readyz` and `/metrics` alone, for processes that serve no API: workers and keepers.
//!
//! One small request a connection, and few connections at once: probes and scrapers need no more.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::access::{host_and_port, is_loopback_name};

/// Most connections at once; more wait.
const MAX_CONNECTIONS: usize = 32;
/// The longest that one connection lives: a request's head, its answer, and the reading of it.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a request's head.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// How long `/readyz` waits for the database.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait after a failed accept: the process is out of file descriptors, and others must finish first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the probes of a process tell.
#[derive(Clone)]
pub struct Probes {
    /// What the process's metrics recorder has gathered.
    pub prometheus: PrometheusHandle,
    /// Asks whether the process has its database.
    pub ready: Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>,
    /// Cancelled once the process drains: from then on it is not ready.
    pub draining: CancellationToken,
}

/// Serves the probes until `shutdown`. Where the listener is on loopback, Host has to be as well, so that no web page can
/// read the metrics through a name of its own.
pub async fn serve_probes(listener: &TcpListener, probes: Probes, shutdown: CancellationToken) -> io::Result<()> {
    let address = listener.local_addr()?;
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let next = async {
            // The semaphore is never closed.
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let Some((place, accepted)) = shutdown.run_until_cancelled(next).await else { return Ok(()) };
        match accepted {
            Ok((stream, _)) => {
                let answered = answer_one(stream, probes.clone(), address);
                tokio::spawn(async move {
                    let _place = place;
                    let _slow = timeout(CONNECTION_TIMEOUT, answered).await;
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a probe's connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn answer_one(stream: TcpStream, probes: Probes, address: SocketAddr) {
    let service = service_fn(|request: Request<Incoming>| {
        let probes = probes.clone();
        async move { Ok::<_, Infallible>(probes.answer(&request, address).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(CONNECTION_TIMEOUT).keep_alive(false);
    let served = builder.max_buf_size(MAX_HEAD_BYTES).serve_connection(TokioIo::new(stream), service).await;
    if let Err(error) = served {
        tracing::debug!(%error, "a probe's connection broke");
    }
}

impl Probes {
    async fn answer<B>(&self, request: &Request<B>, address: SocketAddr) -> Response<Full<Bytes>> {
        if address.ip().to_canonical().is_loopback() && !is_asked_locally(request) {
            return text(StatusCode::FORBIDDEN, "Host must be localhost or a loopback address\n");
        }
        let path = request.uri().path();
        if !matches!(path, "/livez" | "/readyz" | "/metrics") {
            return text(StatusCode::NOT_FOUND, "here are /livez, /readyz and /metrics\n");
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "ask with GET\n");
        }
        match path {
            "/livez" => text(StatusCode::OK, "live\n"),
            "/metrics" => text(StatusCode::OK, self.prometheus.render()),
            _ if self.draining.is_cancelled() => text(StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
            _ => match timeout(PING_TIMEOUT, (self.ready)()).await {
                Ok(true) => text(StatusCode::OK, "ready\n"),
                _ => text(StatusCode::SERVICE_UNAVAILABLE, "the database does not answer\n"),
            },
        }
    }
}

fn is_asked_locally<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    hosts.next().is_none() && host.is_some_and(|host| is_loopback_name(host_and_port(host).0))
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    async fn ask(probes: &Probes, method: &str, path: &str, host: &str, address: &str) -> (u16, String) {
        let request = Request::builder().method(method).uri(path).header(HOST, host).body(()).unwrap();
        let response = probes.answer(&request, address.parse().unwrap()).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn probes_tell_how_the_process_is_and_nothing_to_foreign_pages() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || metrics::gauge!("tidegate_slots").set(7.0));
        let there = Arc::new(AtomicBool::new(true));
        let seen = there.clone();
        let probes = Probes {
            prometheus: recorder.handle(),
            ready: Arc::new(move || Box::pin(std::future::ready(seen.load(Ordering::Relaxed)))),
            draining: CancellationToken::new(),
        };
        let local = async |method, path| ask(&probes, method, path, "localhost:9", "127.0.0.1:9").await;
        assert_eq!(local("GET", "/livez").await, (200, "live\n".to_owned()));
        assert_eq!(local("GET", "/readyz").await.0, 200);
        assert!(local("GET", "/metrics").await.1.contains("tidegate_slots 7"));
        assert_eq!((local("GET", "/v1/tasks").await.0, local("POST", "/metrics").await.0), (404, 405));
        assert_eq!(ask(&probes, "GET", "/metrics", "evil.example", "127.0.0.1:9").await.0, 403);
        assert_eq!(ask(&probes, "GET", "/metrics", "worker-1.internal", "10.0.0.1:9").await.0, 200);
        there.store(false, Ordering::Relaxed);
        assert_eq!(local("GET", "/readyz").await.0, 503);
        there.store(true, Ordering::Relaxed);
        probes.draining.cancel();
        assert_eq!((local("GET", "/readyz").await.0, local("GET", "/livez").await.0), (503, 200));
    }
}
