//! How a worker is set up.

use std::collections::HashMap;
use std::time::Duration;

use tidegate_core::Kind;

use crate::registry::Registry;

/// Most tasks that one session runs at once. More are better spread over processes.
const MAX_SLOTS: u32 = 10_000;
/// The shortest lease: three heartbeats and a margin must fit in, with a database that answers in some 10 ms.
const MIN_LEASE: Duration = Duration::from_millis(300);

/// How a worker is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerOptions {
    /// A name for people; each boot is a session of its own whatever its name.
    pub name: String,
    /// How many tasks run at once.
    pub slots: u32,
    /// How long leases live without a heartbeat. One is sent every third of this.
    pub lease: Duration,
    /// How long handlers may go on after shutdown was asked for.
    pub shutdown_grace: Duration,
    /// The part of a task's time that is kept back for handing in its answer.
    pub settle_reserve: Duration,
    /// How long a handler may take to stop once its time is over, its lease is lost or the shutdown grace has passed;
    /// then it is dropped.
    pub stop_grace: Duration,
    /// How long a handler may take to stop once it was cancelled; then it is dropped.
    pub cancel_grace: Duration,
    /// How many tasks of a kind run at once, where that is fewer than the slots.
    pub at_once: HashMap<Kind, u32>,
    /// The kinds to run, of those that the registry has; `None` is all.
    pub kinds: Option<Vec<Kind>>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            name: "worker".to_owned(),
            slots: 16,
            lease: Duration::from_secs(15),
            shutdown_grace: Duration::from_secs(30),
            settle_reserve: Duration::from_millis(50),
            stop_grace: Duration::from_millis(100),
            cancel_grace: Duration::from_secs(5),
            at_once: HashMap::new(),
            kinds: None,
        }
    }
}

/// Options that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadOptions {
    /// No slot, or too many.
    #[error("slots must be 1 to {MAX_SLOTS}, not {0}")]
    Slots(u32),
    /// Too short for heartbeats to fit in.
    #[error("the lease must be at least {MIN_LEASE:?}, not {0:?}")]
    Lease(Duration),
    /// A kind that nothing in the registry runs.
    #[error("no handler for the kind {0}")]
    UnknownKind(Kind),
    /// Nothing to run.
    #[error("there is no kind to run")]
    NoKinds,
}

impl WorkerOptions {
    /// The part of the registry that is to be run.
    pub(crate) fn checked(&self, mut registry: Registry) -> Result<Registry, BadOptions> {
        if !(1..=MAX_SLOTS).contains(&self.slots) {
            return Err(BadOptions::Slots(self.slots));
        }
        if self.lease < MIN_LEASE {
            return Err(BadOptions::Lease(self.lease));
        }
        if let Some(kinds) = &self.kinds {
            if let Some(unknown) = kinds.iter().find(|kind| registry.get(kind).is_none()) {
                return Err(BadOptions::UnknownKind(unknown.clone()));
            }
            registry.retain(|kind| kinds.contains(kind));
        }
        if registry.kinds().is_empty() { Err(BadOptions::NoKinds) } else { Ok(registry) }
    }
}
