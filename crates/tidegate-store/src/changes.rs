//! Everything that happens to tasks after admission: ends, starts, returns, promotions and cancels, gathered in one
//! transaction that holds the cell's row, and written together with the counters and the outbox.

mod completed;
mod rare;

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::Row;
use tidegate_core::admission::Candidate;
use tidegate_core::backoff::BackoffPolicy;
use tidegate_core::kind_policy::Effects;
use tidegate_core::order::virtual_cost;
use tidegate_core::peer::RetryBudget;
use tidegate_core::settlement::{Ending, Settlement, settle};
use tidegate_core::submission::Cost;
use tidegate_core::{Class, EpochMs, Reason, Status, TaskId};
use uuid::Uuid;

use crate::children;
use crate::connection::Tx;
use crate::directory::FlowKey;
use crate::error::StoreError;
use crate::ledger::{Holding, Ledger, Rings, ledger_sql};
pub(crate) use crate::released::{Released, holding_at, holding_of};
use crate::store::StoreInner;
use crate::types::{Settled, TaskError};

const CHANGES: &str = ledger_sql!("ledger_wake.sql", "ledger_free.sql"; "changes.sql");
/// The same for what most turns are: see `completed.rs`.
const CHANGES_PLAIN: &str = ledger_sql!("ledger_free.sql"; "changes_plain.sql");

/// What an attempt left behind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leavings {
    pub(crate) result: Option<String>,
    pub(crate) error: Option<TaskError>,
    pub(crate) usage: Option<Cost>,
}

/// A task that waits in the queue, by its place there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) flow: i64,
    pub(crate) rank: i64,
    pub(crate) id: TaskId,
    /// The session whose slot is reserved for it, where it is ADMITTED.
    pub(crate) reserved: Option<Uuid>,
}

#[derive(Default)]
struct End {
    id: Uuid,
    status: &'static str,
    reason: Option<&'static str>,
    attempt: Option<(EpochMs, i32, i16, i16)>,
    number: Option<i16>,
    worker: Option<String>,
    leavings: Leavings,
    detail: Option<String>,
    delivered_ms: Option<EpochMs>,
    acknowledged: bool,
    cancelled: bool,
}

/// A task that starts.
pub(crate) struct Begin {
    pub(crate) place: Place,
    /// Whose lease it is to be.
    pub(crate) session: Uuid,
    pub(crate) effects: Effects,
    /// What its tenant is charged for the run, and in which class.
    pub(crate) charged_ms: i64,
    pub(crate) charged_in: Class,
}

struct Return {
    released: Released,
    key: FlowKey,
    eligible: EpochMs,
    reason: Reason,
    failures: u16,
    losses: u16,
    error: Option<TaskError>,
}

struct Attempt {
    released: Released,
    outcome: &'static str,
    reason: Option<Reason>,
    leavings: Leavings,
}

/// The changes of one transaction.
#[derive(Default)]
pub(crate) struct Changes {
    ledger: Ledger,
    ends: Vec<End>,
    /// Ends whose records are written already.
    written_ends: usize,
    unready: Vec<Place>,
    starts: Vec<Begin>,
    returns: Vec<Return>,
    attempts: Vec<Attempt>,
    undeferred: Vec<Uuid>,
    promoted: Vec<Uuid>,
    readmitted: Vec<(Place, i64, bool)>,
    requests: Vec<(Uuid, Uuid, Reason, Option<String>)>,
    settled_cancels: Vec<Uuid>,
    /// Tasks that are cancelled, or asked to stop, and may have started others.
    stopped: Vec<Uuid>,
    /// Tasks whose input is to be held.
    quarantined: Vec<Uuid>,
    /// Flows that no claim need meet before something of their tenant ends.
    parked: Vec<i64>,
    /// Where flows stand in their line from now on.
    moved: Vec<(i64, i64)>,
}

impl Changes {
    /// What moves so far.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether nothing changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
            && self.written_ends == 0
            && self.starts.is_empty()
            && self.returns.is_empty()
            && self.promoted.is_empty()
            && self.readmitted.is_empty()
            && self.requests.is_empty()
            && self.parked.is_empty()
            && self.moved.is_empty()
    }

    /// An attempt ended: its task ends, or goes back to wait.
    #[allow(clippy::too_many_arguments, reason = "the facts of one settlement")]
    pub(crate) fn settle(
        &mut self,
        released: Released,
        key: &FlowKey,
        ending: Ending,
        leavings: Leavings,
        worker: Option<&str>,
        backoff: BackoffPolicy,
        now: EpochMs,
        random: f64,
    ) -> Settled {
        let mut released = released;
        released.worker = worker.map(str::to_owned).or(released.worker);
        if released.running.cancel.is_some() {
            self.settled_cancels.push(released.id.0);
        }
        self.ledger.slots(released.session, -1);
        if matches!(ending, Ending::Completed | Ending::Failed { .. } | Ending::AttemptTimedOut | Ending::DeadlineHit) {
            self.ledger.ran(key, now - released.running.started);
        }
        match settle(&released.running, ending, backoff, now, random) {
            Settlement::End { status, reason } => {
                self.end_running(released, key, ending, status, reason, leavings);
                Settled::Ended(status)
            }
            Settlement::Return { reason, eligible, lane, failures, losses } => {
                self.ledger.transition(
                    key,
                    released.id,
                    Some(Status::Running),
                    Status::Deferred,
                    Some(reason),
                    released.holding,
                );
                if reason == Reason::RetryBackoff {
                    self.ledger.spend_retry(key, RetryBudget::RETRY);
                }
                let error = leavings.error.clone();
                self.attempts.push(Attempt {
                    released: released.clone(),
                    outcome: outcome_of(ending),
                    reason: Some(reason),
                    leavings,
                });
                self.returns.push(Return {
                    released,
                    key: FlowKey { lane, ..key.clone() },
                    eligible,
                    reason,
                    failures,
                    losses,
                    error,
                });
                Settled::Returned(reason)
            }
        }
    }

    fn end_running(
        &mut self,
        released: Released,
        key: &FlowKey,
        ending: Ending,
        status: Status,
        reason: Option<Reason>,
        leavings: Leavings,
    ) {
        self.ledger.transition(key, released.id, Some(Status::Running), status, reason, released.holding);
        if status == Status::Cancelled {
            self.stops(released.id);
        }
        if ending == Ending::Lost && reason == Some(Reason::Quarantined) {
            self.quarantined.push(released.id.0);
        }
        let running = &released.running;
        let failed = matches!(ending, Ending::Failed { .. } | Ending::AttemptTimedOut);
        let lost = matches!(ending, Ending::Lost);
        let mut end = End {
            id: released.id.0,
            status: status.as_str(),
            reason: reason.map(Reason::as_str),
            attempt: Some((
                running.started,
                released.deliveries,
                running.failures as i16 + i16::from(failed),
                running.losses as i16 + i16::from(lost),
            )),
            number: Some(running.failures as i16 + 1),
            worker: released.worker.clone(),
            delivered_ms: released.delivered_ms,
            acknowledged: running.cancel.is_some() && ending == Ending::Cancelled,
            ..End::default()
        };
        end.leavings = leavings;
        if status == Status::Completed {
            end.leavings.result.get_or_insert_with(|| "null".to_owned());
        } else if end.leavings.result.is_some() || lost {
            // Too late to be the task's result, but not lost.
            let outcome = if end.leavings.result.is_some() { "late" } else { "lost" };
            self.attempts.push(Attempt { released, outcome, reason, leavings: end.leavings.clone() });
            end.leavings.result = None;
        }
        self.ends.push(end);
    }

    /// A task that waits in the queue, or is deferred, ends. `in_order` says that it was the next to be taken.
    #[allow(clippy::too_many_arguments, reason = "the facts of one end")]
    pub(crate) fn end_waiting(
        &mut self,
        place: Place,
        key: &FlowKey,
        from: Status,
        to: Status,
        reason: Reason,
        holding: Holding,
        detail: Option<String>,
        in_order: bool,
    ) {
        let from = match place.reserved {
            Some(session) => {
                self.ledger.slots(session, -1);
                Status::Admitted
            }
            None => from,
        };
        self.ledger.transition(key, place.id, Some(from), to, Some(reason), holding);
        match from {
            Status::Deferred => self.undeferred.push(place.id.0),
            _ => {
                self.unready.push(place);
                if in_order {
                    self.ledger.taken_in_order(place.flow, place.rank, place.id);
                } else {
                    self.ledger.leaves(place.flow);
                }
            }
        }
        let cancelled = to == Status::Cancelled;
        let end = End {
            id: place.id.0,
            status: to.as_str(),
            reason: Some(reason.as_str()),
            detail,
            cancelled,
            ..End::default()
        };
        self.ends.push(end);
    }

    /// A waiting task loses its place, the last in its flow, to a more important one.
    pub(crate) fn displace(&mut self, lost: &Candidate, key: &FlowKey) {
        let place = Place { flow: lost.flow, rank: lost.rank, id: lost.id, reserved: None };
        let (status, reason) = (Status::Shed, Reason::Displaced);
        self.ledger.transition(key, place.id, Some(Status::Queued), status, Some(reason), lost.load);
        self.ledger.displaced(place.flow, place.rank, place.id);
        self.unready.push(place);
        let end = End { id: place.id.0, status: status.as_str(), reason: Some(reason.as_str()), ..End::default() };
        self.ends.push(end);
    }

    /// A task starts; `in_order` where nothing waits before it in its flow any more. One whose slot was reserved takes the
    /// slot that is counted already.
    pub(crate) fn start(&mut self, begin: Begin, key: &FlowKey, holding: Holding, in_order: bool) {
        let place = begin.place;
        let from = if place.reserved.is_some() { Status::Admitted } else { Status::Queued };
        self.ledger.transition(key, place.id, Some(from), Status::Running, None, holding);
        match in_order {
            true => self.ledger.taken_in_order(place.flow, place.rank, place.id),
            false => self.ledger.leaves(place.flow),
        }
        if place.reserved.is_none() {
            self.ledger.slots(begin.session, 1);
        }
        self.starts.push(begin);
    }

    /// What a tenant was charged for a run is corrected to what it took.
    pub(crate) fn correct(&mut self, released: &Released, key: &FlowKey, weight: f64, now: EpochMs) {
        let took = virtual_cost(now - released.running.started, weight);
        self.ledger.turn(released.charged_in, &key.tenant, took - virtual_cost(released.charged_ms, weight));
    }

    /// Tenants were served: their virtual times and the floors of the classes move on.
    pub(crate) fn served(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// A flow is left out of its line until something of its tenant ends.
    pub(crate) fn park(&mut self, flow: i64) {
        self.parked.push(flow);
    }

    /// A flow stands in its line by another virtual time from now on.
    pub(crate) fn stand(&mut self, flow: i64, turn: i64) {
        self.moved.push((flow, turn));
    }

    /// A task whose reserved slot nobody claimed goes to the queue, or waits among the deferred, in the flow `to`.
    pub(crate) fn readmit(&mut self, place: Place, key: &FlowKey, to: i64, queued: bool, holding: Holding) {
        let (status, reason) = if queued { (Status::Queued, None) } else { (Status::Deferred, Some(Reason::Overload)) };
        self.ledger.transition(key, place.id, Some(Status::Admitted), status, reason, holding);
        self.ledger.leaves(place.flow);
        if let Some(session) = place.reserved {
            self.ledger.slots(session, -1);
        }
        if queued {
            self.ledger.enters(to, place.rank, place.id);
        }
        self.readmitted.push((place, to, queued));
    }

    /// A tenant's bucket of tokens is corrected to what was used.
    pub(crate) fn reconcile(&mut self, tenant: &str, tokens_ns: i64) {
        self.ledger.draw(tenant, 0, tokens_ns);
    }

    /// A deferred task goes to the queue.
    pub(crate) fn promote(&mut self, place: Place, key: &FlowKey, holding: Holding) {
        self.ledger.transition(key, place.id, Some(Status::Deferred), Status::Queued, None, holding);
        self.ledger.enters(place.flow, place.rank, place.id);
        self.promoted.push(place.id.0);
    }

    /// A cancel is asked of a running task.
    pub(crate) fn request_cancel(&mut self, id: TaskId, session: Uuid, reason: Reason, detail: Option<String>) {
        self.requests.push((id.0, session, reason, detail));
        self.stops(id);
    }

    /// A task that ran, and so may have started others, is cancelled or asked to stop.
    pub(crate) fn stops(&mut self, id: TaskId) {
        self.stopped.push(id.0);
    }

    /// Writes everything. Returns whom to ring after the commit.
    pub(crate) async fn write(self, store: &StoreInner, tx: &mut Tx, now: EpochMs) -> Result<Rings, StoreError> {
        let row = {
            let query =
                if self.is_plain() { self.bind_plain(now, store.process) } else { self.bind_hot(now, store.process) };
            tx.call(|conn| query.fetch_one(conn)).await?
        };
        let mut rings = self.ledger.close(&row, tx).await?;
        let (ended, unready, leased): (i64, i64, i64) =
            (row.try_get("ended")?, row.try_get("unready")?, row.try_get("leased")?);
        if unready != self.unready.len() as i64 || leased != self.starts.len() as i64 {
            return Err(StoreError::Busy(sqlx::Error::RowNotFound));
        }
        tell_missing(self.ends.len() as i64 - ended);
        self.write_rare(store, tx, now).await?;
        if !self.stopped.is_empty() {
            rings.parents = children::mark(self.stopped, tx).await?;
        }
        Ok(rings)
    }

    fn bind_hot(
        &self,
        now: EpochMs,
        process: Uuid,
    ) -> sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments> {
        macro_rules! end {
            (|$end:ident| $value:expr) => {
                self.ends.iter().map(|$end| $value).collect::<Vec<_>>()
            };
        }
        self.ledger
            .bind(CHANGES, now, process)
            .bind(end!(|e| e.id))
            .bind(end!(|e| e.status))
            .bind(end!(|e| e.reason))
            .bind(end!(|e| e.attempt.map(|attempt| attempt.0)))
            .bind(end!(|e| e.attempt.map(|attempt| attempt.1)))
            .bind(end!(|e| e.attempt.map(|attempt| attempt.2)))
            .bind(end!(|e| e.attempt.map(|attempt| attempt.3)))
            .bind(end!(|e| e.worker.as_deref()))
            .bind(end!(|e| e.leavings.result.as_deref()))
            .bind(end!(|e| e.leavings.error.as_ref().map(|error| error.kind.clone())))
            .bind(end!(|e| e.leavings.error.as_ref().map(|error| error.message.clone())))
            .bind(end!(|e| e.leavings.error.as_ref().map(|error| error.retryable)))
            .bind(end!(|e| e.leavings.usage.map(|usage| usage.tokens as i64)))
            .bind(end!(|e| e.leavings.usage.map(|usage| usage.usd_micros as i64)))
            .bind(end!(|e| e.detail.clone()))
            .bind(end!(|e| e.delivered_ms))
            .bind(end!(|e| e.acknowledged))
            .bind(end!(|e| e.cancelled))
            .bind(self.unready.iter().map(|place| place.flow).collect::<Vec<_>>())
            .bind(self.unready.iter().map(|place| place.rank).collect::<Vec<_>>())
            .bind(self.unready.iter().map(|place| place.id.0).collect::<Vec<_>>())
            .bind(self.starts.iter().map(|start| start.place.flow).collect::<Vec<_>>())
            .bind(self.starts.iter().map(|start| start.place.rank).collect::<Vec<_>>())
            .bind(self.starts.iter().map(|start| start.place.id.0).collect::<Vec<_>>())
            .bind(self.starts.iter().map(|start| start.effects.code()).collect::<Vec<_>>())
            .bind(self.starts.iter().map(|start| start.session).collect::<Vec<_>>())
            .bind(end!(|e| e.number))
            .bind(self.starts.iter().map(|start| start.charged_ms).collect::<Vec<_>>())
            .bind(self.starts.iter().map(|start| start.charged_in.code()).collect::<Vec<_>>())
    }
}

/// Tells that tasks ended whose records are gone: someone removed them by hand. Their counters were given back all the same.
fn tell_missing(missing: i64) {
    if missing != 0 {
        tracing::error!(missing, "tasks ended that have no record");
        metrics::counter!("tidegate_records_missing_total").increment(missing.unsigned_abs());
    }
}

/// How an attempt that did not end its task is called in the list of attempts.
fn outcome_of(ending: Ending) -> &'static str {
    match ending {
        Ending::Failed { .. } => "failed",
        Ending::AttemptTimedOut | Ending::DeadlineHit => "timed_out",
        Ending::Snoozed { .. } => "snoozed",
        Ending::HandedBack => "handed_back",
        Ending::Lost => "lost",
        Ending::Cancelled => "cancelled",
        Ending::Completed => "late",
    }
}

/// The flow that a set of described flows holds, or an error that says the tables are out of step.
pub(crate) fn flow_of(flows: &HashMap<i64, Arc<FlowKey>>, id: i64) -> Result<Arc<FlowKey>, StoreError> {
    flows.get(&id).cloned().ok_or_else(|| StoreError::Schema(format!("flow {id} is gone")))
}
