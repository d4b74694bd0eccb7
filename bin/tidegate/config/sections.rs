//! The sections that say how the parts of the program run. Each key is explained in `config/default.toml`.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::listen::Listen;
use super::secret::SecretUrl;

/// `[server]`: the API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    pub(crate) listen: Listen,
    pub(crate) max_connections: u32,
    pub(crate) header_timeout_ms: u64,
    pub(crate) body_timeout_ms: u64,
    pub(crate) write_stall_timeout_ms: u64,
    pub(crate) max_header_bytes: u32,
    pub(crate) max_body_bytes: u32,
    pub(crate) max_payload_bytes: u32,
    pub(crate) max_ingest_bytes: u64,
    pub(crate) max_long_polls: u32,
    pub(crate) shutdown_grace_ms: u64,
}

/// `[store]`: the database.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Store {
    pub(crate) url: Option<SecretUrl>,
    pub(crate) direct_url: Option<SecretUrl>,
    pub(crate) max_connections: u32,
    pub(crate) connect_timeout_ms: u64,
    pub(crate) statement_timeout_ms: u64,
    pub(crate) lock_timeout_ms: u64,
    pub(crate) idle_in_transaction_timeout_ms: u64,
    pub(crate) batch_max_tasks: u32,
    pub(crate) batch_max_bytes: u32,
    pub(crate) max_waiting_submissions: u32,
}

/// `[worker]`: what runs the tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Worker {
    pub(crate) slots: u32,
    pub(crate) kinds: Vec<tidegate_core::Kind>,
    pub(crate) lease_ms: u64,
    pub(crate) shutdown_grace_ms: u64,
    pub(crate) cancel_grace_ms: u64,
    pub(crate) stop_grace_ms: u64,
    pub(crate) settle_reserve_ms: u64,
    pub(crate) max_result_bytes: u32,
    pub(crate) metrics_listen: Option<Listen>,
}

/// `[keeper]`: the upkeep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Keeper {
    pub(crate) sweep_interval_ms: u64,
    pub(crate) reap_interval_ms: u64,
    pub(crate) audit_interval_ms: u64,
    pub(crate) prune_interval_ms: u64,
    pub(crate) snapshot_interval_ms: u64,
    pub(crate) snapshot_alert_ms: u64,
    pub(crate) metrics_listen: Option<Listen>,
}

/// `[retention]`: how long what has ended is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retention {
    pub(crate) finished_ms: u64,
    pub(crate) refused_ms: u64,
    pub(crate) idempotency_ms: u64,
    pub(crate) partition_ms: u64,
}

/// `[outbound]`: what tools and webhooks may reach.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outbound {
    pub(crate) allow_networks: Vec<IpNet>,
    pub(crate) connect_timeout_ms: u64,
}

/// `[log]`: what is written about all this.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    pub(crate) level: String,
    pub(crate) format: LogFormat,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Human on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}
