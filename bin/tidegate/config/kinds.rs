//! `[kinds.NAME]`: what runs the tasks of a kind, and under which policy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_core::PeerName;
use tidegate_core::backoff::BackoffPolicy;
use tidegate_core::kind_policy::{Effects, KindPolicy};

use super::secret::{Secret, SecretUrl};

/// One kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct KindConfig {
    pub(crate) executor: Option<ExecutorName>,
    pub(crate) peer: Option<PeerName>,
    pub(crate) min_useful_ms: u64,
    pub(crate) attempt_timeout_ms: Option<u64>,
    pub(crate) concurrency: Option<u32>,
    pub(crate) max_attempts: u16,
    pub(crate) effects: Effects,
    pub(crate) fanout: u32,
    pub(crate) cost_overrun: f64,
    pub(crate) backoff: BackoffPolicy,
    pub(crate) http: Option<HttpTool>,
    /// Settings of executors that are not available yet: taken so that the message is about the executor.
    #[serde(skip_serializing)]
    pub(crate) model: Option<toml::Value>,
    #[serde(skip_serializing)]
    pub(crate) mcp: Option<toml::Value>,
    #[serde(skip_serializing)]
    pub(crate) a2a: Option<toml::Value>,
    #[serde(skip_serializing)]
    pub(crate) command: Option<toml::Value>,
}

/// What can run a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ExecutorName {
    Echo,
    Sleep,
    Fail,
    Http,
    Model,
    Mcp,
    A2a,
    Command,
}

/// An HTTP tool: the payload is posted to a URL and a 2xx JSON body is the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpTool {
    pub(crate) url: SecretUrl,
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, Secret>,
}

impl Default for KindConfig {
    fn default() -> Self {
        let policy = KindPolicy::default();
        Self {
            executor: None,
            peer: policy.peer,
            min_useful_ms: policy.min_useful_ms,
            attempt_timeout_ms: policy.attempt_timeout_ms,
            concurrency: None,
            max_attempts: policy.max_attempts,
            effects: policy.effects,
            fanout: policy.fanout,
            cost_overrun: policy.cost_overrun,
            backoff: policy.backoff,
            http: None,
            model: None,
            mcp: None,
            a2a: None,
            command: None,
        }
    }
}

impl KindConfig {
    /// The policy, as the core knows it.
    pub(crate) fn policy(&self) -> KindPolicy {
        KindPolicy {
            peer: self.peer.clone(),
            min_useful_ms: self.min_useful_ms,
            attempt_timeout_ms: self.attempt_timeout_ms,
            max_attempts: self.max_attempts,
            effects: self.effects,
            fanout: self.fanout,
            cost_overrun: self.cost_overrun,
            backoff: self.backoff,
        }
    }
}

impl ExecutorName {
    /// The name as it is written in a file.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Sleep => "sleep",
            Self::Fail => "fail",
            Self::Http => "http",
            Self::Model => "model",
            Self::Mcp => "mcp",
            Self::A2a => "a2a",
            Self::Command => "command",
        }
    }
}
