//! What runs the kinds.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_core::Kind;
use tidegate_outbound::{Outbound, OutboundOptions, Refused};
use tidegate_worker::http_tool::{BadHttpTool, HttpToolOptions, http_tool};
use tidegate_worker::{Executor, KindOptions, Registry, builtin};

use super::kinds::{ExecutorName, HttpTool, KindConfig};
use super::{Config, ms};

impl Config {
    /// The executors of all kinds. Part of checking the whole: a tool that can never be called is found before the
    /// first task asks for it.
    ///
    /// # Errors
    /// Each key that stands in the way, and what is wrong with it.
    pub(crate) fn registry(&self) -> Result<Registry, Vec<(String, String)>> {
        let mut registry = Registry::new();
        let mut problems = Vec::new();
        let mut outbound = None;
        for (name, kind) in &self.kinds {
            match self.executor(kind, &mut outbound) {
                Ok(executor) => registry.register(name.clone(), self.kind_options(kind), executor),
                Err((key, what)) => problems.push((format!("kinds.{name}.{key}"), what)),
            }
        }
        if problems.is_empty() { Ok(registry) } else { Err(problems) }
    }

    /// How many tasks of a kind one worker runs at once, where the configuration says so.
    pub(crate) fn at_once(&self) -> HashMap<Kind, u32> {
        self.kinds.iter().filter_map(|(name, kind)| Some((name.clone(), kind.concurrency?))).collect()
    }

    fn executor(
        &self,
        kind: &KindConfig,
        outbound: &mut Option<Outbound>,
    ) -> Result<Arc<dyn Executor>, (&'static str, String)> {
        let available = "echo, sleep, fail and http are";
        match (kind.executor, &kind.http) {
            (None, _) => Err(("executor", "is missing: echo, sleep, fail or http".to_owned())),
            (Some(ExecutorName::Http), None) => {
                Err(("http", "is missing: the executor \"http\" needs http = { url = … }".to_owned()))
            }
            (Some(ExecutorName::Http), Some(tool)) => self.tool(tool, outbound),
            (Some(_), Some(_)) => Err(("http", "has no meaning: the executor is not \"http\"".to_owned())),
            (Some(ExecutorName::Echo), None) => Ok(builtin::echo()),
            (Some(ExecutorName::Sleep), None) => Ok(builtin::sleep()),
            (Some(ExecutorName::Fail), None) => Ok(builtin::fail()),
            (Some(other), None) => {
                Err(("executor", format!("\"{}\" is not available yet; {available}", other.as_str())))
            }
        }
    }

    fn tool(
        &self,
        tool: &HttpTool,
        outbound: &mut Option<Outbound>,
    ) -> Result<Arc<dyn Executor>, (&'static str, String)> {
        let client = match outbound {
            Some(client) => client,
            None => {
                let options = OutboundOptions {
                    allow_networks: self.outbound.allow_networks.clone(),
                    connect_timeout: ms(self.outbound.connect_timeout_ms),
                    ..OutboundOptions::default()
                };
                outbound.insert(Outbound::new(options).map_err(|error| ("http", error.to_string()))?)
            }
        };
        let headers = tool.headers.iter().map(|(name, value)| (name.clone(), value.reveal().to_owned())).collect();
        let options = HttpToolOptions { url: tool.url.reveal().to_owned(), headers };
        http_tool(&options, client.clone()).map_err(|error| match &error {
            BadHttpTool::Url(Refused::Address) => {
                ("http.url", format!("{error}; [outbound] allow_networks lists those"))
            }
            BadHttpTool::Url(_) => ("http.url", error.to_string()),
            _ => ("http.headers", error.to_string()),
        })
    }

    fn kind_options(&self, kind: &KindConfig) -> KindOptions {
        KindOptions {
            effects: kind.effects,
            backoff: kind.backoff,
            max_result_bytes: self.worker.max_result_bytes as usize,
        }
    }
}
