//! A store in memory, with the real rules of the door and faults on demand.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tidegate_api::{Backend, BoxFuture};
use tidegate_core::admission::{Facts, Load, ParentFacts, cell_pressure, decide};
use tidegate_core::explain::{Subject, Surroundings, explain};
use tidegate_core::policy::Policy;
use tidegate_core::submission::Submission;
use tidegate_core::{Class, EpochMs, Fence, Reason, Status, TaskId, TenantId};
use tidegate_store::{
    Admission, AdmitError, AttemptRecord, CancelOutcome, ClassGauges, Explained, Gauges, Group, GroupCancelled,
    StoreError, TaskFilter, TaskPage, TaskRecord,
};
use tokio::sync::watch;

use crate::fake_operations::Decided;

/// The fake's clock stands still, so that answers can be compared.
pub(crate) const NOW: EpochMs = 1_796_000_000_000;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The database refuses connections.
    Unavailable,
    /// The database does not answer.
    Hangs,
    /// The connection breaks during COMMIT.
    OutcomeUnknown,
    /// More waits than is held.
    Overloaded,
    /// A submission with the same key is in flight.
    KeyInFlight,
    /// The database refuses a value.
    Invalid,
    /// The store is shutting down.
    Draining,
    /// A bug.
    Broken,
    /// A worse bug.
    Panics,
}

#[derive(Default)]
struct Held {
    tasks: BTreeMap<TaskId, TaskRecord>,
    attempts: HashMap<TaskId, Vec<AttemptRecord>>,
    keys: HashMap<(TenantId, String), ([u8; 32], TaskId)>,
    room: Facts,
    trouble: Option<Trouble>,
    refusal: Option<(Status, Reason)>,
    submissions: Vec<Submission>,
    cancel_details: Vec<Option<String>>,
    gauges_asked: u32,
}

pub(crate) struct Fake {
    held: Mutex<Held>,
    /// What operators decided, and the changes that it is made of.
    pub(crate) decided: Mutex<Decided>,
    ids: AtomicU64,
    /// Rises whenever a task ends.
    ended: watch::Sender<u64>,
    /// How many wait for an end.
    pub(crate) waiting: watch::Sender<usize>,
}

impl Fake {
    pub(crate) fn new() -> Self {
        Self {
            held: Mutex::default(),
            decided: Mutex::default(),
            ids: AtomicU64::new(1),
            ended: watch::Sender::new(0),
            waiting: watch::Sender::new(0),
        }
    }

    /// The queue holds so many, and nobody is shed before it is full.
    pub(crate) fn room_for(&self, max_queued: u32) {
        let limits = &mut self.decided.lock().unwrap().policy.limits;
        limits.max_queued = max_queued;
        limits.classes.standard.shed_at = None;
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap()
    }

    pub(crate) fn trouble(&self, trouble: Option<Trouble>) {
        self.held().trouble = trouble;
    }

    /// The next submissions are refused like this.
    pub(crate) fn refuse_with(&self, status: Status, reason: Reason) {
        self.held().refusal = Some((status, reason));
    }

    /// Submissions as they came to the door, oldest first.
    pub(crate) fn submissions(&self) -> Vec<Submission> {
        self.held().submissions.clone()
    }

    pub(crate) fn cancel_details(&self) -> Vec<Option<String>> {
        self.held().cancel_details.clone()
    }

    pub(crate) fn gauges_asked(&self) -> u32 {
        self.held().gauges_asked
    }

    /// Changes a task as the rest of the system would.
    pub(crate) fn update(&self, id: TaskId, change: impl FnOnce(&mut TaskRecord)) {
        let mut held = self.held();
        let task = held.tasks.get_mut(&id).unwrap();
        change(task);
        task.queue_position = task.queue_position.filter(|_| task.status == Status::Queued);
        drop(held);
        self.ended.send_modify(|count| *count += 1);
    }

    pub(crate) fn complete(&self, id: TaskId, result: &str) {
        self.update(id, |task| {
            task.status = Status::Completed;
            task.attempt = 1;
            task.deliveries = 1;
            task.fence = Fence(1);
            task.started_ms = Some(task.enqueued_ms + 5);
            task.finished_ms = Some(task.enqueued_ms + 47);
            task.worker = Some("w-1".into());
            task.result = Some(result.into());
        });
    }

    pub(crate) fn add_attempt(&self, id: TaskId, attempt: AttemptRecord) {
        self.held().attempts.entry(id).or_default().push(attempt);
    }

    pub(crate) fn delete(&self, id: TaskId) {
        self.held().tasks.remove(&id);
    }

    pub(crate) async fn trouble_with_reading(&self) -> Result<(), StoreError> {
        let trouble = self.held().trouble;
        match trouble {
            Some(Trouble::Hangs) => std::future::pending().await,
            Some(Trouble::Unavailable) => Err(StoreError::Unavailable(None)),
            Some(Trouble::Broken) => Err(StoreError::Schema("SELECT secret FROM cupboard".into())),
            Some(Trouble::Panics) => panic!("the cupboard is bare"),
            Some(Trouble::OutcomeUnknown) => Err(StoreError::OutcomeUnknown(None)),
            _ => Ok(()),
        }
    }

    async fn decide(&self, submission: Submission) -> Result<Admission, AdmitError> {
        let trouble = self.held().trouble;
        match trouble {
            Some(Trouble::Unavailable) => return Err(AdmitError::Unavailable),
            Some(Trouble::Hangs) => std::future::pending().await,
            Some(Trouble::OutcomeUnknown) => return Err(AdmitError::OutcomeUnknown(submission.id)),
            Some(Trouble::Overloaded) => return Err(AdmitError::Overloaded),
            Some(Trouble::KeyInFlight) => return Err(AdmitError::KeyInFlight),
            Some(Trouble::Invalid) => return Err(AdmitError::Invalid),
            Some(Trouble::Draining) => return Err(AdmitError::Draining),
            Some(Trouble::Panics) => panic!("the door fell in"),
            Some(Trouble::Broken) | None => {}
        }
        let mut held = self.held();
        held.submissions.push(submission.clone());
        if let Some(key) = &submission.idempotency {
            match held.keys.get(&(submission.tenant.clone(), key.key.clone())) {
                Some((hash, id)) if *hash == key.body_sha256 => return Ok(Admission::Replayed { id: *id }),
                Some((_, id)) => return Ok(Admission::KeyReused { id: *id }),
                None => {}
            }
        }
        if let Some(parent) = submission.parent_id {
            // Whatever is named as a parent runs.
            let facts = ParentFacts { deadline: NOW + 86_400_000, depth: 9, fanout: 9, children: 0, running: true };
            held.room.parents.insert(parent, facts);
        }
        let mut verdict = decide(&self.policy(), &held.room, &submission, NOW, 0);
        if let Some((status, reason)) = held.refusal {
            (verdict.decision.status, verdict.decision.reason) = (status, Some(reason));
            verdict.decision.retry_after_ms = Some(1_500);
        }
        held.room.take(&submission, &verdict);
        let decision = verdict.decision;
        if let Some(key) = submission.idempotency.as_ref().filter(|_| !decision.status.is_final()) {
            held.keys.insert((submission.tenant.clone(), key.key.clone()), (key.body_sha256, submission.id));
        }
        let id = submission.id;
        held.tasks.insert(id, record(submission, &decision));
        Ok(Admission::Decided { id, decision })
    }

    fn cancel_now(&self, tenant: &TenantId, id: TaskId, detail: Option<String>) -> CancelOutcome {
        let mut held = self.held();
        held.cancel_details.push(detail.clone());
        let Some(task) = held.tasks.get_mut(&id).filter(|task| task.tenant == *tenant) else {
            return CancelOutcome::Unknown;
        };
        match task.status {
            Status::Cancelled => CancelOutcome::AlreadyCancelled,
            Status::Running => {
                task.cancel_requested_ms = Some(NOW);
                CancelOutcome::Requested
            }
            status if status.is_final() => CancelOutcome::Ended,
            _ => {
                task.status = Status::Cancelled;
                task.queue_position = None;
                task.reason = Some(Reason::CancelRequested);
                task.detail = detail;
                task.finished_ms = Some(NOW);
                task.cancel_requested_ms = Some(NOW);
                drop(held);
                self.ended.send_modify(|count| *count += 1);
                CancelOutcome::Cancelled
            }
        }
    }

    fn cancel_group_now(&self, tenant: &TenantId, group: &Group) -> GroupCancelled {
        let (reason, ids): (_, Vec<TaskId>) = {
            let held = self.held();
            let of = |task: &&TaskRecord| match group {
                Group::Token(token) => task.cancellation_token.as_ref() == Some(token),
                Group::Workflow(id) => task.workflow_id.as_ref() == Some(id),
            };
            let reason = match group {
                Group::Token(_) => Reason::TokenCancelled,
                Group::Workflow(_) => Reason::WorkflowCancelled,
            };
            (reason, held.tasks.values().filter(of).map(|task| task.id).collect())
        };
        let mut reached = GroupCancelled::default();
        for id in ids {
            match self.cancel_now(tenant, id, None) {
                CancelOutcome::Cancelled => {
                    self.update(id, |task| task.reason = Some(reason));
                    reached.cancelled += 1;
                }
                CancelOutcome::Requested => reached.requested += 1,
                _ => {}
            }
        }
        reached
    }

    fn select(&self, tenant: &TenantId, filter: &TaskFilter) -> TaskPage {
        let held = self.held();
        let labels_match = |task: &TaskRecord| {
            let labels: HashMap<String, String> =
                task.labels.as_deref().map(|text| serde_json::from_str(text).unwrap()).unwrap_or_default();
            filter.labels.iter().all(|(name, value)| labels.get(name) == Some(value))
        };
        let mut tasks: Vec<_> = held
            .tasks
            .values()
            .rev()
            .filter(|task| task.tenant == *tenant)
            .filter(|task| filter.before.is_none_or(|before| task.id < before))
            .filter(|task| filter.status.is_none_or(|status| task.status == status))
            .filter(|task| filter.class.is_none_or(|class| task.class == class))
            .filter(|task| filter.kind.as_ref().is_none_or(|kind| task.kind == *kind))
            .filter(|task| filter.peer.is_none() || task.peer == filter.peer)
            .filter(|task| filter.workflow_id.is_none() || task.workflow_id == filter.workflow_id)
            .filter(|task| filter.from_ms.is_none_or(|from| task.enqueued_ms >= from))
            .filter(|task| filter.to_ms.is_none_or(|to| task.enqueued_ms < to))
            .filter(|task| labels_match(task))
            .cloned()
            .collect();
        let more = tasks.len() > usize::from(filter.limit);
        tasks.truncate(usize::from(filter.limit));
        TaskPage { next: tasks.last().filter(|_| more).map(|task| task.id), tasks }
    }
}

fn record(submission: Submission, decision: &tidegate_core::admission::Decision) -> TaskRecord {
    let refused = decision.status.is_final();
    TaskRecord {
        id: submission.id,
        tenant: submission.tenant,
        kind: submission.kind,
        peer: submission.peer,
        class: decision.class,
        priority: submission.priority.get(),
        priority_notes: submission.priority_notes,
        status: decision.status,
        reason: decision.reason,
        detail: None,
        note: None,
        enqueued_ms: decision.times.arrived,
        not_before_ms: decision.times.not_before,
        queue_position: decision.queue_position.and_then(|at| u32::try_from(at).ok()),
        started_ms: None,
        finished_ms: refused.then_some(NOW),
        deadline_ms: decision.times.deadline,
        now_ms: NOW,
        admission_wait_ms: 0,
        attempt: 0,
        max_attempts: u32::from(submission.max_attempts),
        deliveries: 0,
        fence: Fence(0),
        attempt_timeout_ms: submission.attempt_timeout_ms.map(|ms| ms as i64),
        min_useful_ms: submission.min_useful_ms as i64,
        cancel_requested_ms: None,
        cancel_delivered_ms: None,
        cancel_acknowledged_ms: None,
        estimated: submission.cost,
        actual: None,
        worker: None,
        progress: None,
        payload: (!refused).then_some(submission.payload),
        result: None,
        error: None,
        labels: submission.labels,
        workflow_id: submission.workflow_id,
        parent_id: submission.parent_id,
        children: Vec::new(),
        cancellation_token: submission.cancellation_token,
        idempotency_key: submission.idempotency.map(|key| key.key),
        redriven_from: None,
    }
}

/// The task explained by the real rules. Two workers run every kind.
fn explained(task: &TaskRecord, policy: &Policy, room: &Facts) -> Explained {
    let subject = Subject {
        status: task.status,
        reason: task.reason,
        detail: task.detail.as_deref(),
        kind: task.kind.as_str(),
        class: task.class,
        tenant: task.tenant.as_str(),
        peer: task.peer.as_ref().map_or("", |peer| peer.as_str()),
        load: Load::default(),
        since: task.finished_ms.or(task.started_ms).unwrap_or(task.enqueued_ms),
        eligible: task.not_before_ms,
        worker: task.worker.as_deref(),
        reserved_until: None,
        attempt: task.attempt,
        max_attempts: task.max_attempts,
        cancel_requested: task.cancel_requested_ms.is_some(),
        suspect: false,
        position: task.queue_position,
    };
    let around = Surroundings { sessions: 2, slots: 16, ..Surroundings::default() };
    let facts = Facts { now: NOW, live_slots: 16, ..room.clone() };
    Explained {
        id: task.id,
        status: task.status,
        reason: task.reason,
        queue_position: task.queue_position,
        explanation: explain(policy, &facts, &around, &subject),
    }
}

impl Backend for Fake {
    fn policy(&self) -> Arc<Policy> {
        Arc::new(self.decided.lock().unwrap().policy.clone())
    }

    fn next_id(&self) -> TaskId {
        let count = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut random = [0; 10];
        random[1..9].copy_from_slice(&count.to_be_bytes());
        TaskId::new(NOW, random, 0)
    }

    fn pressure(&self) -> f64 {
        cell_pressure(&self.policy(), &self.held().room, NOW)
    }

    fn facts(&self) -> Option<(Arc<Policy>, Arc<Facts>)> {
        Some((self.policy(), Arc::new(self.held().room.clone())))
    }

    fn admit(
        &self,
        submission: Submission,
        _arrived: Instant,
        at_most: Duration,
    ) -> BoxFuture<'_, Result<Admission, AdmitError>> {
        let id = submission.id;
        Box::pin(async move {
            let decided = tokio::time::timeout(at_most, self.decide(submission)).await;
            decided.unwrap_or(Err(AdmitError::OutcomeUnknown(id)))
        })
    }

    fn refuse(&self, submission: &Submission, reason: Reason, _arrived: Instant) -> bool {
        let decision = decide(&self.policy(), &Facts::default(), submission, NOW, 0).decision;
        let decision =
            tidegate_core::admission::Decision { status: Status::Rejected, reason: Some(reason), ..decision };
        let mut held = self.held();
        let recorded = held.trouble.is_none();
        if recorded {
            held.tasks.insert(submission.id, record(submission.clone(), &decision));
        }
        recorded
    }

    fn task<'a>(&'a self, tenant: &'a TenantId, id: TaskId) -> BoxFuture<'a, Result<Option<TaskRecord>, StoreError>> {
        Box::pin(async move {
            self.trouble_with_reading().await?;
            Ok(self.held().tasks.get(&id).filter(|task| task.tenant == *tenant).cloned())
        })
    }

    fn tasks<'a>(
        &'a self,
        tenant: &'a TenantId,
        filter: &'a TaskFilter,
    ) -> BoxFuture<'a, Result<TaskPage, StoreError>> {
        Box::pin(async move {
            self.trouble_with_reading().await?;
            Ok(self.select(tenant, filter))
        })
    }

    fn attempts<'a>(
        &'a self,
        tenant: &'a TenantId,
        id: TaskId,
    ) -> BoxFuture<'a, Result<Option<Vec<AttemptRecord>>, StoreError>> {
        Box::pin(async move {
            self.trouble_with_reading().await?;
            let held = self.held();
            let known = held.tasks.get(&id).is_some_and(|task| task.tenant == *tenant);
            Ok(known.then(|| held.attempts.get(&id).cloned().unwrap_or_default()))
        })
    }

    fn explain<'a>(&'a self, tenant: &'a TenantId, id: TaskId) -> BoxFuture<'a, Result<Option<Explained>, StoreError>> {
        Box::pin(async move {
            self.trouble_with_reading().await?;
            let (policy, held) = (self.policy(), self.held());
            let task = held.tasks.get(&id).filter(|task| task.tenant == *tenant);
            Ok(task.map(|task| explained(task, &policy, &held.room)))
        })
    }

    fn wait_for_end(&self, id: TaskId, at_most: Duration) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut ended = self.ended.subscribe();
            let has_ended = |_: &u64| self.held().tasks.get(&id).is_none_or(|task| task.status.is_final());
            let _counted = Counted::new(&self.waiting);
            Ok(tokio::time::timeout(at_most, ended.wait_for(has_ended)).await.is_ok())
        })
    }

    fn cancel<'a>(
        &'a self,
        tenant: &'a TenantId,
        id: TaskId,
        detail: Option<String>,
    ) -> BoxFuture<'a, Result<CancelOutcome, StoreError>> {
        Box::pin(async move {
            self.trouble_with_reading().await?;
            Ok(self.cancel_now(tenant, id, detail))
        })
    }

    fn cancel_group<'a>(
        &'a self,
        tenant: &'a TenantId,
        group: Group,
    ) -> BoxFuture<'a, Result<GroupCancelled, StoreError>> {
        Box::pin(async move {
            self.trouble_with_reading().await?;
            Ok(self.cancel_group_now(tenant, &group))
        })
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.trouble_with_reading())
    }

    fn gauges(&self) -> BoxFuture<'_, Result<Gauges, StoreError>> {
        Box::pin(async move {
            self.held().gauges_asked += 1;
            self.trouble_with_reading().await?;
            let room = self.held().room.cell;
            let standard = ClassGauges { queued: room.queued, running: room.running, deferred: room.deferred };
            let none = ClassGauges::default();
            Ok(Gauges {
                classes: vec![(Class::Critical, none), (Class::Standard, standard), (Class::Background, none)],
                bytes: room.bytes,
                oldest_queued_ms: Some(1_500),
                sessions: 1,
                slots: 16,
                ..Gauges::default()
            })
        })
    }
}

/// Counts a waiter while it waits.
struct Counted<'a>(&'a watch::Sender<usize>);

impl<'a> Counted<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
