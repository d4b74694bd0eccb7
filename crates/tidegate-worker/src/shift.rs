//! What a session's main loop, its heartbeat and its runs share: who runs what, and whether the leases still live.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::submission::Cost;
use tidegate_core::{Fence, TaskId};
use tidegate_store::Beat;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::measure;
use crate::port::Progress;
use crate::stop::{Cause, Signal};

/// One task that is being run.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) id: TaskId,
    pub(crate) fence: Fence,
    pub(crate) signal: Signal,
    said: Mutex<Said>,
}

/// What a handler has said so far.
#[derive(Debug, Default)]
struct Said {
    progress: Option<Arc<str>>,
    /// Whether the progress is not known to have arrived.
    fresh: bool,
    usage: Option<Cost>,
}

impl Slot {
    pub(crate) fn new(id: TaskId, fence: Fence) -> Self {
        Self { id, fence, signal: Signal::default(), said: Mutex::default() }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_progress(&self, text: Arc<str>) {
        let mut said = self.said();
        said.progress = Some(text);
        said.fresh = true;
    }

    pub(crate) fn set_usage(&self, used: Cost) {
        self.said().usage = Some(used);
    }

    pub(crate) fn usage(&self) -> Option<Cost> {
        self.said().usage
    }

    /// What it said that is not known to have arrived.
    fn fresh_progress(&self) -> Option<Progress> {
        let said = self.said();
        let text = said.progress.clone().filter(|_| said.fresh)?;
        Some(Progress { id: self.id, fence: self.fence, text })
    }

    /// `sent` has arrived. What was said meanwhile is still fresh.
    fn progress_arrived(&self, sent: &Arc<str>) {
        let mut said = self.said();
        if said.progress.as_ref().is_some_and(|progress| Arc::ptr_eq(progress, sent)) {
            said.fresh = false;
        }
    }
}

/// One session's share of the worker.
#[derive(Debug, Default)]
pub(crate) struct Shift {
    table: Mutex<Table>,
    lost: CancellationToken,
    draining: CancellationToken,
    ended: CancellationToken,
    /// Rung when a heartbeat should be sent at once.
    pub(crate) beat_now: Notify,
}

#[derive(Debug, Default)]
struct Table {
    /// The fence is in the key: after a loss the same task may come again while its old handler has not stopped yet.
    slots: HashMap<(TaskId, Fence), Arc<Slot>>,
    lost: bool,
}

impl Shift {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a task in, unless the session is lost.
    pub(crate) fn enter(&self, slot: Arc<Slot>) -> bool {
        let mut table = self.table();
        if table.lost {
            return false;
        }
        table.slots.insert((slot.id, slot.fence), slot);
        true
    }

    /// Its handler has stopped.
    pub(crate) fn leave(&self, slot: &Slot) {
        self.table().slots.remove(&(slot.id, slot.fence));
    }

    /// The tasks that are being run.
    pub(crate) fn leases(&self) -> Vec<(TaskId, Fence)> {
        self.table().slots.keys().copied().collect()
    }

    /// What handlers said of their progress that is not known to have arrived.
    pub(crate) fn fresh_progress(&self) -> Vec<Progress> {
        self.table().slots.values().filter_map(|slot| slot.fresh_progress()).collect()
    }

    /// These have arrived.
    pub(crate) fn progress_arrived(&self, sent: &[Progress]) {
        let table = self.table();
        for progress in sent {
            if let Some(slot) = table.slots.get(&(progress.id, progress.fence)) {
                slot.progress_arrived(&progress.text);
            }
        }
    }

    /// Whether nothing is being run.
    pub(crate) fn is_idle(&self) -> bool {
        self.table().slots.is_empty()
    }

    /// Does what the answer to a heartbeat says, which named `held`.
    pub(crate) fn obey(&self, held: &[(TaskId, Fence)], beat: &Beat) {
        if beat.draining {
            self.draining.cancel();
        }
        let table = self.table();
        let lost: HashSet<TaskId> = beat.lost.iter().copied().collect();
        let cancel: HashSet<TaskId> = beat.cancel.iter().copied().collect();
        for (id, fence) in held {
            let Some(slot) = table.slots.get(&(*id, *fence)) else { continue };
            if lost.contains(id) && slot.signal.cause() != Some(Cause::Lost) {
                tracing::warn!(task.id = %id, task.fence = fence.0, "a lease was lost: its handler is stopped");
                measure::leases_lost(1);
                slot.signal.stop(Cause::Lost);
            } else if cancel.contains(id) {
                slot.signal.stop(Cause::Cancelled);
            }
        }
    }

    /// Tells every handler to stop.
    pub(crate) fn stop_all(&self, cause: Cause) {
        self.table().slots.values().for_each(|slot| slot.signal.stop(cause));
    }

    /// The session's leases are not its own any more, or might not be: everything stops, and nothing that ends from
    /// now on is reported.
    pub(crate) fn lose(&self, why: &'static str) {
        let mut table = self.table();
        if table.lost {
            return;
        }
        table.lost = true;
        let running = table.slots.len();
        tracing::warn!(tasks = running, why, "the session was lost: its handlers are stopped");
        measure::leases_lost(running);
        table.slots.values().for_each(|slot| slot.signal.stop(Cause::Lost));
        drop(table);
        self.lost.cancel();
    }

    /// Completes when the session is lost.
    pub(crate) async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Completes when an operator had the session drain.
    pub(crate) async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Whether an operator had the session drain.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Ends the heartbeat.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }

    /// Completes when there is nothing left to heartbeat for.
    pub(crate) async fn over(&self) {
        tokio::select! {
            () = self.ended.cancelled() => {}
            () = self.lost.cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: u128, fence: i64) -> Arc<Slot> {
        Arc::new(Slot::new(TaskId(uuid::Uuid::from_u128(number)), Fence(fence)))
    }

    #[test]
    fn a_loss_that_was_found_under_an_older_fence_stops_nothing_newer() {
        let shift = Shift::default();
        let old = slot(1, 1);
        assert!(shift.enter(old.clone()));
        let held = shift.leases();
        shift.leave(&old);
        let new = slot(1, 2);
        assert!(shift.enter(new.clone()));
        shift.obey(&held, &Beat { lost: vec![new.id], ..Beat::default() });
        assert_eq!(new.signal.cause(), None);
        shift.obey(&shift.leases(), &Beat { lost: vec![new.id], ..Beat::default() });
        assert_eq!(new.signal.cause(), Some(Cause::Lost));
    }

    #[test]
    fn a_lost_session_stops_all_and_takes_nothing_in() {
        let shift = Shift::default();
        let running = slot(1, 1);
        assert!(shift.enter(running.clone()));
        shift.lose("test");
        assert_eq!(running.signal.cause(), Some(Cause::Lost));
        assert!(!shift.enter(slot(2, 1)));
    }

    #[test]
    fn progress_is_sent_until_it_has_arrived() {
        let shift = Shift::default();
        let running = slot(1, 1);
        assert!(shift.enter(running.clone()));
        running.set_progress("1".into());
        let sent = shift.fresh_progress();
        running.set_progress("2".into());
        shift.progress_arrived(&sent);
        let sent = shift.fresh_progress();
        assert_eq!(sent[0].text.as_ref(), "2");
        shift.progress_arrived(&sent);
        assert!(shift.fresh_progress().is_empty());
    }
}
