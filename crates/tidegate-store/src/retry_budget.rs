//! What retries may cost: one budget for the fleet per peer, or per kind where there is no peer.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::Row;
use tidegate_core::policy::Policy;

use crate::changes::flow_of;
use crate::connection::Tx;
use crate::directory::FlowKey;
use crate::error::StoreError;
use crate::ledger::Ledger;
use crate::released::Released;
use crate::session::Session;
use crate::types::Report;

const SPENT: &str = "SELECT d.scope, d.key, u.retry_spent FROM unnest($1::smallint[], $2::text[]) AS d(scope, key) \
    CROSS JOIN LATERAL (SELECT u.retry_spent FROM tidegate.usage u WHERE u.scope = d.scope AND u.key = d.key \
        ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1) u";

/// The budgets that the settlements of one turn ask, as they were when it began.
pub(crate) struct RetryBudgets {
    policy: Arc<Policy>,
    spent: HashMap<(i16, String), i64>,
}

impl RetryBudgets {
    /// Whether another retry may be made, after those that this turn makes already.
    pub(crate) fn has_token(&self, flow: &FlowKey, ledger: &Ledger) -> bool {
        let spent = self.spent.get(&key_of(flow)).copied().unwrap_or(0) + ledger.retry_spent(flow);
        self.policy.retry_budget(&flow.peer).has_token(spent)
    }
}

impl Session {
    /// Reads the budgets that these reports will ask, inside the transaction that holds the cell's row; nothing is read
    /// where none of them asks for a retry, as in most turns.
    pub(crate) async fn retry_budgets(
        &self,
        reports: &[&Report],
        gone: &[(usize, Released)],
        flows: &HashMap<i64, Arc<FlowKey>>,
        tx: &mut Tx,
    ) -> Result<RetryBudgets, StoreError> {
        let mut keys = Vec::new();
        for (report, released) in gone {
            if reports[*report].ending.asks_for_retry() {
                keys.push(key_of(&*flow_of(flows, released.flow)?));
            }
        }
        keys.sort_unstable();
        keys.dedup();
        let mut spent = HashMap::new();
        if !keys.is_empty() {
            let (scopes, names): (Vec<i16>, Vec<String>) = keys.into_iter().unzip();
            for row in tx.call(|conn| sqlx::query(SPENT).bind(scopes).bind(names).fetch_all(conn)).await? {
                spent.insert((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?);
            }
        }
        Ok(RetryBudgets { policy: self.store.policy(), spent })
    }
}

fn key_of(flow: &FlowKey) -> (i16, String) {
    match flow.peer.is_empty() {
        true => (6, flow.kind.clone()),
        false => (3, flow.peer.clone()),
    }
}
