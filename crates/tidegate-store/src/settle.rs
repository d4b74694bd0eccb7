//! What a turn settles: leases are taken away, and it is decided what becomes of each task.

use sqlx::Row;
use tidegate_core::EpochMs;
use tidegate_core::admission::tokens_bucket;
use tidegate_core::peer::PeerLimits;
use tidegate_core::settlement::Ending;
use uuid::Uuid;

use crate::changes::{Changes, Leavings, Released, flow_of};
use crate::connection::Tx;
use crate::error::StoreError;
use crate::permits::end_with_leases;
use crate::released::{REPORT, REPORT_OF_KNOWN, token_shift};
use crate::session::Session;
use crate::types::{Report, Settled};

const RELEASE: &str = include_str!("release.sql");
const RELEASE_KNOWN: &str = include_str!("release_known.sql");

/// What a turn is to settle, and who ran each of it.
#[derive(Clone, Copy)]
pub(crate) struct Reported<'a> {
    pub(crate) reports: &'a [&'a Report],
    pub(crate) workers: &'a [&'a str],
}

impl Session {
    /// Takes the leases of the reports away and decides what becomes of each task.
    pub(crate) async fn settle(
        &self,
        Reported { reports, workers }: Reported<'_>,
        settled: &mut [Settled],
        changes: &mut Changes,
        tx: &mut Tx,
    ) -> Result<Option<EpochMs>, StoreError> {
        let ids: Vec<Uuid> = reports.iter().map(|report| report.id.0).collect();
        let fences: Vec<i32> = reports.iter().map(|report| i32::try_from(report.fence.0).unwrap_or(-1)).collect();
        let known = self.known(reports);
        let (sql, report) = if known.is_some() { (RELEASE_KNOWN, REPORT_OF_KNOWN) } else { (RELEASE, REPORT) };
        let rows = tx.call(|conn| sqlx::query(sql).bind(ids).bind(fences).fetch_all(conn)).await?;
        let now: Option<EpochMs> = rows.first().map(|row| row.try_get(0)).transpose()?;
        let Some(at) = now else { return Ok(None) };
        let mut gone = Vec::with_capacity(rows.len());
        for row in &rows {
            let n = (row.try_get::<i64, _>(report)? - 1) as usize;
            let released = match &known {
                Some(known) => known[n].clone().told(row)?,
                None => Released::from_row(row)?,
            };
            gone.push((n, released));
        }
        let flows = self.store.directory.describe(tx, gone.iter().map(|(_, released)| released.flow)).await?;
        let policy = self.store.policy();
        let budgets = self.retry_budgets(reports, &gone, &flows, tx).await?;
        let mut permits = Vec::new();
        for (n, mut released) in gone {
            let report = &reports[n];
            permits.extend(released.permit_owner());
            let key = flow_of(&flows, released.flow)?;
            released.running.may_retry = budgets.has_token(&key, changes.ledger());
            changes.correct(&released, &key, policy.tenant(&key.tenant).weight, at);
            self.store.runs.charge(&key.tenant, &key.kind, at - released.started());
            let leavings = Leavings { result: report.result.clone(), error: report.error.clone(), usage: report.usage };
            let random = rand::random_range(0.0..1.0);
            if matches!(report.ending, Ending::Completed) {
                self.store.runs.record(&key.kind, at - released.started());
            }
            let estimated = released.tokens();
            settled[n] =
                changes.settle(released, &key, report.ending, leavings, Some(workers[n]), report.backoff, at, random);
            if let Some(usage) = report.usage {
                // The estimate was taken at the door, once: it is given back with the last attempt, not with each.
                let taken = matches!(settled[n], Settled::Ended(_)).then_some(estimated).unwrap_or(0);
                let shift = token_shift(tokens_bucket(policy.tenant(&key.tenant)), taken, usage.tokens);
                changes.reconcile(&key.tenant, shift);
                // A peer is sent what the attempt is expected to use, each time.
                let bucket = policy.peer(&key.peer).and_then(PeerLimits::tokens);
                changes.served().draw_peer(&key.peer, 0, token_shift(bucket, estimated, usage.tokens));
            }
        }
        end_with_leases(permits, changes, tx).await?;
        Ok(now)
    }

    /// The leases of these reports, where all of them are remembered.
    fn known(&self, reports: &[&Report]) -> Option<Vec<Released>> {
        let state = self.state();
        let lease = |report: &&Report| state.held.get(&(report.id, report.fence))?.lease.clone();
        reports.iter().map(lease).collect()
    }
}
