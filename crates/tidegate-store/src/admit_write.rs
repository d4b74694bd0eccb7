//! Writes the tasks of a batch that were let in: their records, their places, the counters and the outbox.

use std::collections::{BTreeMap, HashMap};

use sqlx::postgres::PgRow;
use tidegate_core::{EpochMs, Status};
use uuid::Uuid;

use crate::connection::Tx;
use crate::directory::FlowKey;
use crate::door::{Decided, Door, Flows, holding, is_plain};
use crate::error::StoreError;
use crate::ledger::{Ledger, Rings, ledger_sql};

const ADMIT: &str = ledger_sql!("ledger_wake.sql", "ledger_free_none.sql"; "admit.sql");
const ADMIT_PLAIN: &str = ledger_sql!("ledger_wake.sql", "ledger_free_none.sql"; "admit_plain.sql");
const ADMIT_BEHIND: &str = ledger_sql!("ledger_free_none.sql"; "admit_plain.sql");

impl Door {
    /// Writes what was let in, `behind` others where something waits in every flow already. Tells whom to ring after the
    /// commit.
    pub(crate) async fn write(
        &self,
        decided: &[Decided<'_>],
        batch: &Flows,
        behind: bool,
        now: EpochMs,
        tx: &mut Tx,
    ) -> Result<Rings, StoreError> {
        if decided.is_empty() {
            return Ok(Rings::default());
        }
        let (keys, flow_of) = lanes(decided, batch);
        let flows = self.store.directory.resolve_in(tx, &keys).await?;
        let mut ledger = Ledger::default();
        let mut alike: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (Decided { submission, verdict, .. }, flow) in decided.iter().zip(&flow_of) {
            let decision = &verdict.decision;
            let tasks = alike.entry((*flow, decision.status, decision.reason)).or_default();
            tasks.push((submission.id, holding(submission)));
            match decision.status {
                Status::Queued => ledger.enters(flows[*flow], decision.rank, submission.id),
                Status::Admitted => {
                    ledger.enters(flows[*flow], decision.rank, submission.id);
                    if let Some(session) = decision.session {
                        ledger.slots(Uuid::from_u128(session), 1);
                    }
                }
                _ => {}
            }
            ledger.draw(submission.tenant.as_str(), verdict.rate_ns, verdict.tokens_ns);
        }
        for ((flow, status, reason), tasks) in alike {
            ledger.transitions(&keys[flow], tasks, None, status, reason);
        }
        let places: Vec<_> = flow_of.iter().map(|flow| (flows[*flow], &keys[*flow])).collect();
        let row = self.insert(decided, &places, behind, &ledger, now, tx).await?;
        ledger.close(&row, tx).await
    }

    async fn insert(
        &self,
        rows: &[Decided<'_>],
        places: &[(i64, &FlowKey)],
        behind: bool,
        ledger: &Ledger,
        now: EpochMs,
        tx: &mut Tx,
    ) -> Result<PgRow, StoreError> {
        macro_rules! column {
            (|$submission:ident, $decision:ident| $value:expr) => {
                rows.iter()
                    .map(|Decided { submission: $submission, verdict, .. }| {
                        let $decision = &verdict.decision;
                        $value
                    })
                    .collect::<Vec<_>>()
            };
        }
        let plain = rows.iter().all(|row| is_plain(row.submission, &row.verdict.decision));
        let sql = match (plain, behind) {
            (true, true) => ADMIT_BEHIND,
            (true, false) => ADMIT_PLAIN,
            (false, _) => ADMIT,
        };
        let query = ledger
            .bind(sql, now, self.store.process)
            .bind(column!(|s, _d| s.id.0))
            .bind(places.iter().map(|(flow, _)| *flow).collect::<Vec<_>>())
            .bind(column!(|_s, d| d.rank))
            .bind(column!(|_s, d| d.times.arrived))
            .bind(column!(|_s, d| d.times.deadline))
            .bind(column!(|s, _d| s.min_useful_ms as i64))
            .bind(column!(|s, _d| s.attempt_timeout_ms.map(|ms| ms as i64)))
            .bind(column!(|s, _d| s.max_attempts as i16))
            .bind(column!(|s, _d| i16::from(s.priority.get())))
            .bind(column!(|s, _d| s.cost.tokens as i64))
            .bind(column!(|s, _d| s.cost.usd_micros as i64))
            .bind(column!(|_s, d| (now - d.times.arrived) as i32))
            .bind(column!(|s, _d| s.payload.as_str()))
            .bind(column!(|_s, d| d.depth as i32))
            .bind(column!(|s, _d| s.fanout as i32))
            .bind(places.iter().map(|(_, key)| key.class.code()).collect::<Vec<_>>())
            .bind(places.iter().map(|(_, key)| key.tenant.as_str()).collect::<Vec<_>>())
            .bind(places.iter().map(|(_, key)| key.kind.as_str()).collect::<Vec<_>>())
            .bind(
                places
                    .iter()
                    .map(|(_, key)| Some(key.peer.as_str()).filter(|peer| !peer.is_empty()))
                    .collect::<Vec<_>>(),
            )
            .bind(column!(|s, _d| s.payload.len() as i32));
        if plain {
            return tx.call(|conn| query.fetch_one(conn)).await;
        }
        let keyed: Vec<_> =
            rows.iter().filter_map(|row| Some((row.submission, row.submission.idempotency.as_ref()?))).collect();
        let query = query
            .bind(column!(|_s, d| d.times.not_before))
            .bind(column!(|_s, d| d.reason.map(|reason| reason.as_str())))
            .bind(column!(|s, _d| s.parent_id.map(|id| id.0)))
            .bind(column!(|s, _d| s.cancellation_token.as_deref()))
            .bind(column!(|s, _d| s.workflow_id.as_deref()))
            .bind(column!(|s, _d| s.idempotency.as_ref().map(|idempotency| idempotency.key.as_str())))
            .bind(column!(|s, _d| s.traceparent.as_deref()))
            .bind(column!(|s, _d| s.labels.as_deref()))
            .bind(column!(|s, _d| (!s.priority_notes.is_empty()).then(|| s.priority_notes.join("\n"))))
            .bind(column!(|_s, d| d.session.map(Uuid::from_u128)))
            .bind(keyed.iter().map(|(s, _)| s.tenant.as_str()).collect::<Vec<_>>())
            .bind(keyed.iter().map(|(_, idempotency)| idempotency.key.as_str()).collect::<Vec<_>>())
            .bind(keyed.iter().map(|(_, idempotency)| idempotency.body_sha256.as_slice()).collect::<Vec<_>>())
            .bind(keyed.iter().map(|(s, _)| s.id.0).collect::<Vec<Uuid>>())
            .bind(self.options.key_retention.as_millis() as i64);
        tx.call(|conn| query.fetch_one(conn)).await
    }
}

/// The flows of a batch by lane, and to which of them each task goes.
fn lanes(decided: &[Decided<'_>], batch: &Flows) -> (Vec<FlowKey>, Vec<usize>) {
    let mut keys: Vec<FlowKey> = Vec::new();
    let mut places = HashMap::new();
    let of = decided.iter().map(|decided| {
        let (flow, lane) = (decided.flow, decided.lane());
        *places.entry((flow, lane)).or_insert_with(|| {
            keys.push(FlowKey { lane, ..batch.keys[flow].clone() });
            keys.len() - 1
        })
    });
    let of = of.collect();
    (keys, of)
}
