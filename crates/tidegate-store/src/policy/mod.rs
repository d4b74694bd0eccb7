//! What operators decide at run time: remembered by each process, changed in the database.
//!
//! Every change counts up one number in its own transaction, under the cell's lock. A transaction that decides reads
//! that number under the same lock and takes the policy from memory while it is the one that memory was read at, so it
//! sees each change wholly or not at all, whichever replica made it. What merely looks ahead uses the remembered
//! policy, which is read again soon after the number has moved.

mod change;
mod named;
mod pauses;
mod seed;
mod stored;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sqlx::Row;
use tidegate_core::EpochMs;
use tidegate_core::policy::Policy;
use tokio::time::sleep;

pub use named::{Held, Named, NamedPage};
pub use pauses::MAX_PAUSES;

use crate::bell::Topic;
use crate::connection::{Tx, call};
use crate::error::StoreError;
use crate::store::{Store, StoreInner};

/// How often a process looks whether the policy has changed: it holds everywhere within a second.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const REVISION: &str = "SELECT n, tidegate.now_ms() AS now_ms FROM tidegate.policy_revision WHERE id = 1";

/// The policy as this process last read it.
#[derive(Default)]
pub(crate) struct Remembered(RwLock<Arc<Policy>>);

impl Remembered {
    fn get(&self) -> Arc<Policy> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns what was remembered before.
    fn set(&self, policy: Arc<Policy>) -> Arc<Policy> {
        std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), policy)
    }
}

impl Store {
    /// The policy as this process last read it, at most about half a second ago. Costs nothing.
    pub fn policy(&self) -> Arc<Policy> {
        self.inner_ref().policy()
    }

    /// Reads the policy that is in effect now, and remembers it.
    pub async fn read_policy(&self) -> Result<Arc<Policy>, StoreError> {
        self.inner_ref().read_policy().await
    }
}

impl StoreInner {
    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.policy.get()
    }

    /// The policy at a revision that was read under the cell's lock, which this transaction still holds.
    pub(crate) async fn policy_at(&self, revision: i64, tx: &mut Tx) -> Result<Arc<Policy>, StoreError> {
        let remembered = self.policy();
        if remembered.revision == revision {
            return Ok(remembered);
        }
        let policy = Arc::new(stored::load(tx).await?);
        self.remember_policy(policy.clone());
        Ok(policy)
    }

    async fn read_policy(&self) -> Result<Arc<Policy>, StoreError> {
        let mut conn = self.connections.get().await?;
        let row = call(self.connections.call_timeout(), sqlx::query(stored::WHOLE).fetch_one(&mut *conn)).await?;
        conn.release();
        let policy = Arc::new(stored::policy_of(&row)?);
        self.remember_policy(policy.clone());
        Ok(policy)
    }

    /// Remembers a policy that is in effect. Workers of this process look again: what was held may run now.
    fn remember_policy(&self, policy: Arc<Policy>) {
        let revision = policy.revision;
        if self.policy.set(policy).revision != revision {
            tracing::debug!(policy.revision = revision, "the policy has changed");
            self.bells.ring(Topic::Work, false);
        }
    }

    /// Counts the revision up in a transaction that changed the policy, commits it, and remembers what it made.
    async fn publish(&self, mut tx: Tx) -> Result<Arc<Policy>, StoreError> {
        // Flows that were passed over for the sake of a limit are looked at again, from the floor of their class.
        let count_up = "WITH unparked AS (UPDATE tidegate.active_flow a SET parked = false, turn = greatest(a.turn, ( \
                SELECT max(c.turn) FROM tidegate.usage c WHERE c.scope = 1 AND c.key = (ARRAY['critical', 'standard', 'background'])[a.class + 1])) \
            WHERE a.parked) UPDATE tidegate.policy_revision SET n = n + 1 WHERE id = 1";
        tx.call(|conn| sqlx::query(count_up).execute(conn)).await?;
        let policy = Arc::new(stored::load(&mut tx).await?);
        tx.commit().await?;
        self.remember_policy(policy.clone());
        Ok(policy)
    }
}

/// Keeps the remembered policy true until the store is closed.
pub(crate) async fn keep_remembered(store: Arc<StoreInner>) {
    let mut looked = EpochMs::MAX;
    loop {
        match look(&store, looked).await {
            Ok(now) => looked = now,
            // Before the first migration there is nothing to read; and whoever needs the database says more.
            Err(error) => tracing::debug!(%error, "could not look at the policy"),
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Reads the policy if it has changed, and has workers look again where a pause has run out since the last look.
async fn look(store: &StoreInner, looked: EpochMs) -> Result<EpochMs, StoreError> {
    let mut conn = store.connections.get().await?;
    let row = call(store.connections.call_timeout(), sqlx::query(REVISION).fetch_one(&mut *conn)).await?;
    conn.release();
    let (revision, now): (i64, EpochMs) = (row.try_get("n")?, row.try_get("now_ms")?);
    let policy = store.policy();
    if policy.revision != revision {
        store.read_policy().await?;
    } else if policy.pauses.iter().any(|pause| pause.in_effect(looked) && !pause.in_effect(now)) {
        store.bells.ring(Topic::Work, false);
    }
    Ok(now)
}
