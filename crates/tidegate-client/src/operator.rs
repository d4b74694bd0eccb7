//! The calls of operators. Limits, tenants and peers are JSON objects: what a newer server says more is kept.

use std::time::Duration;

use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::Value;
use tidegate_wire::{MERGE_PATCH_JSON, Pause, PauseList, PauseRequest};

use crate::calls::with_query;
use crate::{Answer, AuditPage, Client, Error, WorkerDocument, WorkerPage};

/// What has limits of its own and a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// Who pays.
    Tenant,
    /// A downstream dependency.
    Peer,
}

impl Named {
    /// The name of the collection, in paths and answers.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Tenant => "tenants",
            Self::Peer => "peers",
        }
    }
}

impl Client {
    /// The limits of the cell that are in effect.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn limits(&self) -> Result<Answer<Value>, Error> {
        self.send(self.request(Method::GET, &["v1", "admin", "limits"]), Duration::ZERO).await
    }

    /// Changes limits of the cell: a JSON merge patch in which `null` is "no limit". The answer is what is in effect
    /// then.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 422 and a pointer where a key is not known or cannot have the value.
    pub async fn patch_limits(&self, change: &Value) -> Result<Answer<Value>, Error> {
        self.patch(&["v1", "admin", "limits"], change).await
    }

    /// A page of tenants or peers that somebody configured or that hold anything, by name.
    ///
    /// # Errors
    /// [`Error::Problem`] where the cursor is none of the server's.
    pub async fn list_named(&self, what: Named, limit: u16, cursor: Option<&str>) -> Result<Answer<Value>, Error> {
        let request = self.request(Method::GET, &["v1", "admin", what.plural()]);
        self.send(with_query(request, &page(limit, cursor))?, Duration::ZERO).await
    }

    /// A tenant's or peer's limits, and what it holds.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 404 where nobody configured it and it holds nothing.
    pub async fn get_named(&self, what: Named, name: &str) -> Result<Answer<Value>, Error> {
        self.send(self.request(Method::GET, &["v1", "admin", what.plural(), name]), Duration::ZERO).await
    }

    /// Changes a tenant's or peer's limits, configured before or not, as [`Client::patch_limits`] does.
    ///
    /// # Errors
    /// As [`Client::patch_limits`].
    pub async fn patch_named(&self, what: Named, name: &str, change: &Value) -> Result<Answer<Value>, Error> {
        self.patch(&["v1", "admin", what.plural(), name], change).await
    }

    /// Takes all limits from a tenant or peer.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 404 where nobody configured it.
    pub async fn delete_named(&self, what: Named, name: &str) -> Result<Answer<()>, Error> {
        self.send_for_nothing(self.request(Method::DELETE, &["v1", "admin", what.plural(), name])).await
    }

    /// Makes a pause.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 422 where it cannot be meant.
    pub async fn pause(&self, pause: &PauseRequest) -> Result<Answer<Pause>, Error> {
        self.send(self.request(Method::POST, &["v1", "admin", "pauses"]).json(pause), Duration::ZERO).await
    }

    /// The pauses that are in effect, oldest first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn pauses(&self) -> Result<Answer<PauseList>, Error> {
        self.send(self.request(Method::GET, &["v1", "admin", "pauses"]), Duration::ZERO).await
    }

    /// Ends a pause.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 404 where there is none with this id.
    pub async fn resume(&self, id: &str) -> Result<Answer<()>, Error> {
        self.send_for_nothing(self.request(Method::DELETE, &["v1", "admin", "pauses", id])).await
    }

    /// A page of what operators changed, newest first.
    ///
    /// # Errors
    /// [`Error::Problem`] where the cursor is none of the server's.
    pub async fn audit(&self, limit: u16, cursor: Option<&str>) -> Result<Answer<AuditPage>, Error> {
        let request = self.request(Method::GET, &["v1", "admin", "audit"]);
        self.send(with_query(request, &page(limit, cursor))?, Duration::ZERO).await
    }

    /// A page of the live sessions of workers, oldest first.
    ///
    /// # Errors
    /// [`Error::Problem`] where the cursor is none of the server's.
    pub async fn workers(&self, limit: u16, cursor: Option<&str>) -> Result<Answer<WorkerPage>, Error> {
        let request = self.request(Method::GET, &["v1", "admin", "workers"]);
        self.send(with_query(request, &page(limit, cursor))?, Duration::ZERO).await
    }

    /// Has a worker take nothing more, finish what it runs and leave. It can be repeated.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 404 where no such session lives.
    pub async fn drain_worker(&self, id: &str) -> Result<Answer<WorkerDocument>, Error> {
        self.send(self.request(Method::POST, &["v1", "admin", "workers", id, "drain"]), Duration::ZERO).await
    }

    async fn patch(&self, segments: &[&str], change: &Value) -> Result<Answer<Value>, Error> {
        let request = self.request(Method::PATCH, segments).header(CONTENT_TYPE, MERGE_PATCH_JSON);
        self.send(request.body(change.to_string()), Duration::ZERO).await
    }
}

/// The parameters of a page.
fn page(limit: u16, cursor: Option<&str>) -> Vec<(String, String)> {
    let mut pairs = vec![("limit".to_owned(), limit.to_string())];
    pairs.extend(cursor.map(|cursor| ("cursor".to_owned(), cursor.to_owned())));
    pairs
}
