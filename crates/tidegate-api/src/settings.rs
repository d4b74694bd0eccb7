//! What the API is told at start, and what its handlers share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tidegate_core::class_rules::ClassRule;
use tidegate_core::kind_policy::KindPolicy;
use tidegate_core::{Kind, TenantId};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
use crate::body::IngestBudget;
use crate::gauges::GaugeCache;
use crate::metric::AcceptedMetrics;

/// How the API behaves. Every bound has its reason beside it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether requests from loopback need no key. True for `up`, and for `serve` bound to loopback.
    pub keyless: bool,
    /// What raises or lowers the priority that callers ask for.
    pub class_rules: Vec<ClassRule>,
    /// The policies of the kinds; one that is missing has the default policy.
    pub kinds: HashMap<Kind, KindPolicy>,
    /// Most bytes of one payload: it is copied several times on its way to a worker.
    pub max_payload_bytes: usize,
    /// Most bytes of one body: a batch of 1,000 small tasks fits.
    pub max_body_bytes: usize,
    /// Most bytes of bodies held at once, so that callers cannot fill the memory.
    pub max_ingest_bytes: usize,
    /// The longest a task may be put off: what lies further away is a mistaken unit.
    pub max_delay_ms: u64,
    /// The longest a body may take to arrive.
    pub body_timeout: Duration,
    /// The longest silence within a body.
    pub body_idle_timeout: Duration,
    /// The longest that a connection may take to its first whole request head.
    pub first_request_timeout: Duration,
    /// The longest that a later request head may take, and that a connection may idle.
    pub header_timeout: Duration,
    /// The longest that a client may leave an answer unread before its connection is cut.
    pub write_stall_timeout: Duration,
    /// Most bytes of headers of one request.
    pub max_header_bytes: u32,
    /// Most connections at once. When all are taken, the oldest that has sent no request yet makes way.
    pub max_connections: usize,
    /// Most requests at once on one HTTP/2 connection.
    pub max_streams: u32,
    /// Most callers that wait for a task to end. Beyond it a wait returns at once, with the task as it is.
    pub max_long_polls: usize,
    /// The longest a read may take before it is answered with `store_unavailable`.
    pub read_timeout: Duration,
    /// The longest a write may take before it is answered with `outcome_unknown`: longer than the store's own limits,
    /// which give a better answer.
    pub write_timeout: Duration,
    /// The longest that requests in flight may take once the server shuts down.
    pub drain_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            keyless: true,
            class_rules: Vec::new(),
            kinds: HashMap::new(),
            max_payload_bytes: 256 << 10,
            max_body_bytes: 8 << 20,
            max_ingest_bytes: 256 << 20,
            max_delay_ms: 10 * 366 * 86_400_000,
            body_timeout: Duration::from_secs(30),
            body_idle_timeout: Duration::from_secs(10),
            first_request_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            write_stall_timeout: Duration::from_secs(30),
            max_header_bytes: 128 << 10,
            max_connections: 8_192,
            max_streams: 64,
            max_long_polls: 4_096,
            read_timeout: Duration::from_millis(1_800),
            write_timeout: Duration::from_secs(15),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// The state of one server. Cheap to clone.
#[derive(Clone)]
pub struct AppState(pub(crate) App);

/// What the handlers share.
pub(crate) type App = Arc<Shared>;

/// What the handlers share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) settings: Settings,
    pub(crate) prometheus: Option<PrometheusHandle>,
    pub(crate) ingest: IngestBudget,
    pub(crate) long_polls: Semaphore,
    pub(crate) draining: CancellationToken,
    pub(crate) gauges: GaugeCache,
    pub(crate) accepted: AcceptedMetrics,
    pub(crate) default_tenant: TenantId,
    default_policy: KindPolicy,
}

impl AppState {
    /// The state of one server. `prometheus` renders what the process's metrics recorder has gathered; without it
    /// `/metrics` is empty.
    pub fn new(backend: Arc<dyn Backend>, settings: Settings, prometheus: Option<PrometheusHandle>) -> Self {
        Self(Arc::new(Shared {
            backend,
            prometheus,
            ingest: IngestBudget::new(settings.max_ingest_bytes),
            long_polls: Semaphore::new(settings.max_long_polls.min(Semaphore::MAX_PERMITS)),
            draining: CancellationToken::new(),
            gauges: GaugeCache::default(),
            accepted: AcceptedMetrics::default(),
            default_tenant: TenantId::default_tenant(),
            default_policy: KindPolicy::default(),
            settings,
        }))
    }

    /// From now on submissions are refused, `/readyz` says so, and waits return at once. [`crate::serve`] calls it
    /// when its shutdown begins; calling it earlier gives a load balancer time to notice.
    pub fn start_draining(&self) {
        self.0.draining.cancel();
    }
}

impl Shared {
    /// The policy of a kind.
    pub(crate) fn policy(&self, kind: &Kind) -> &KindPolicy {
        self.settings.kinds.get(kind).unwrap_or(&self.default_policy)
    }
}
