//! Which code runs which kind, and under which policy.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_core::Kind;
use tidegate_core::backoff::BackoffPolicy;
use tidegate_core::kind_policy::Effects;

use crate::handler::Executor;

/// The largest result where the kind or its peer says nothing, in bytes: as much as a payload may have.
pub const DEFAULT_MAX_RESULT_BYTES: usize = 256 * 1_024;

/// What holds for the runs of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindOptions {
    /// What a repeated run may do to the world.
    pub effects: Effects,
    /// The delays between attempts.
    pub backoff: BackoffPolicy,
    /// The largest result, in bytes of JSON.
    pub max_result_bytes: usize,
}

impl Default for KindOptions {
    fn default() -> Self {
        Self {
            effects: Effects::default(),
            backoff: BackoffPolicy::default(),
            max_result_bytes: DEFAULT_MAX_RESULT_BYTES,
        }
    }
}

/// The executors of a worker, by kind.
#[derive(Clone, Default)]
pub struct Registry {
    entries: HashMap<Kind, Entry>,
}

#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) options: KindOptions,
    pub(crate) executor: Arc<dyn Executor>,
}

impl Registry {
    /// With nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets `executor` run the tasks of `kind`, instead of any other that did.
    pub fn register(&mut self, kind: Kind, options: KindOptions, executor: Arc<dyn Executor>) {
        self.entries.insert(kind, Entry { options, executor });
    }

    /// The kinds in it, in order.
    pub fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<_> = self.entries.keys().cloned().collect();
        kinds.sort();
        kinds
    }

    pub(crate) fn get(&self, kind: &Kind) -> Option<&Entry> {
        self.entries.get(kind)
    }

    /// Only the kinds that `keep` says.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Kind) -> bool) {
        self.entries.retain(|kind, _| keep(kind));
    }

    /// What a session registers.
    pub(crate) fn session_kinds(&self) -> Vec<(Kind, Effects)> {
        self.kinds().into_iter().filter_map(|kind| Some((kind.clone(), self.get(&kind)?.options.effects))).collect()
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.kinds()).finish()
    }
}
