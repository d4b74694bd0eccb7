//! The order of waiting tasks: which a claim takes, and in what order.

use crate::EpochMs;
use crate::id::TaskId;
use crate::names::{Class, Lane, Priority};
use crate::reason::Reason;
use crate::slots::SlotCaps;

/// The stored sort key, smaller first: `enqueued_ms − priority × ageing_step_ms`. Every waiting task gains one point
/// of priority each step, all alike, so two waiting tasks never change places and linear ageing is a constant.
pub fn rank(enqueued: EpochMs, priority: Priority, ageing_step_ms: u32) -> i64 {
    enqueued.saturating_sub(i64::from(priority.get()) * i64::from(ageing_step_ms))
}

/// The waiting tasks of one flow, as far as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowHead {
    /// The flow's id.
    pub flow: i64,
    /// Its class.
    pub class: Class,
    /// Its lane. What is in the admitted lane has a slot of its own, and is counted as running already.
    pub lane: Lane,
    /// Its tenant among [`ClaimRoom::tenants`], where the tenant has a limit.
    pub tenant: Option<usize>,
    /// Its peer among [`ClaimRoom::peers`], where the peer has a limit.
    pub peer: Option<usize>,
    /// How many tasks wait in it, read or not.
    pub queued: i64,
    /// Its first tasks in order of rank, then id.
    pub tasks: Vec<Waiting>,
}

/// A waiting task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// The task.
    pub id: TaskId,
    /// Its sort key.
    pub rank: i64,
    /// When it must have ended.
    pub deadline: EpochMs,
    /// The least time left that makes a start useful.
    pub min_useful_ms: i64,
}

/// What may still start, at every level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRoom {
    /// How the cell's slots are divided.
    pub caps: SlotCaps,
    /// Tasks that are ADMITTED or RUNNING, by class.
    pub running: [i64; 3],
    /// What each limited tenant may still start, and of each class.
    pub tenants: Vec<(i64, [i64; 3])>,
    /// What each limited peer may still be given.
    pub peers: Vec<i64>,
}

impl ClaimRoom {
    fn may_start(&self, flow: &FlowHead) -> bool {
        let at = flow.class as usize;
        flow.lane == Lane::Admitted
            || self.caps.room(&self.running, flow.class) > 0
                && flow.tenant.is_none_or(|n| self.tenants[n].0 > 0 && self.tenants[n].1[at] > 0)
                && flow.peer.is_none_or(|n| self.peers[n] > 0)
    }

    fn start(&mut self, flow: &FlowHead) {
        if flow.lane == Lane::Admitted {
            return;
        }
        self.running[flow.class as usize] += 1;
        if let Some(n) = flow.tenant {
            self.tenants[n].0 -= 1;
            self.tenants[n].1[flow.class as usize] -= 1;
        }
        if let Some(n) = flow.peer {
            self.peers[n] -= 1;
        }
    }
}

/// What a claim does with the tasks it saw, by the positions of flow and task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chosen {
    /// To start.
    pub start: Vec<(usize, usize)>,
    /// Doomed: to end as EXPIRED instead of starting late.
    pub expire: Vec<(usize, usize, Reason)>,
    /// Whether it stopped because a flow was not read far enough to tell what comes next.
    pub stopped_short: bool,
}

/// Chooses at most `slots` tasks to start: those that a slot is reserved for, then by class, by rank and by id, over
/// all flows that have room at every level; a flow without room is passed over whole. What has no time left to be
/// useful is expired on the way and takes no slot. It stops where a flow was not read far enough to tell what comes
/// next, so the order is exact.
pub fn choose(flows: &[FlowHead], mut room: ClaimRoom, slots: usize, now: EpochMs) -> Chosen {
    let mut chosen = Chosen::default();
    let mut heads: Vec<_> = flows.iter().enumerate().filter_map(|(at, flow)| Head::of(at, flow, 0)).collect();
    let mut heap: std::collections::BinaryHeap<_> = heads.drain(..).map(std::cmp::Reverse).collect();
    while chosen.start.len() < slots {
        let Some(std::cmp::Reverse(head)) = heap.pop() else { break };
        let flow = &flows[head.flow];
        let task = flow.tasks[head.task];
        match doom(&task, now) {
            Some(reason) => chosen.expire.push((head.flow, head.task, reason)),
            None if !room.may_start(flow) => continue,
            None => {
                room.start(flow);
                chosen.start.push((head.flow, head.task));
            }
        }
        match Head::of(head.flow, flow, head.task + 1) {
            Some(next) => heap.push(std::cmp::Reverse(next)),
            None if flow.queued > flow.tasks.len() as i64 => {
                chosen.stopped_short = chosen.start.len() < slots;
                break;
            }
            None => {}
        }
    }
    chosen
}

/// Why a task must not start at `now`, if so.
pub fn doom(task: &Waiting, now: EpochMs) -> Option<Reason> {
    if task.deadline <= now {
        Some(Reason::DeadlinePassed)
    } else if task.deadline.saturating_sub(now) < task.min_useful_ms {
        Some(Reason::DeadlineTooShort)
    } else {
        None
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    unreserved: bool,
    class: Class,
    rank: i64,
    id: TaskId,
    flow: usize,
    task: usize,
}

impl Head {
    fn of(at: usize, flow: &FlowHead, task: usize) -> Option<Self> {
        let waiting = flow.tasks.get(task)?;
        let unreserved = flow.lane != Lane::Admitted;
        Some(Self { unreserved, class: flow.class, rank: waiting.rank, id: waiting.id, flow: at, task })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: EpochMs = 1_000_000;

    fn waiting(n: u8, rank: i64, deadline: EpochMs) -> Waiting {
        Waiting { id: TaskId::new(1, [n; 10], n), rank, deadline, min_useful_ms: 10 }
    }

    fn flow(class: Class, ranks: &[i64]) -> FlowHead {
        let tasks = ranks.iter().enumerate().map(|(n, rank)| waiting(n as u8, *rank, NOW + 1_000)).collect();
        let queued = ranks.len() as i64;
        FlowHead { flow: 1, class, lane: Lane::Fresh, tenant: None, peer: None, queued, tasks }
    }

    fn room() -> ClaimRoom {
        let mut limits = crate::limits::Limits::default();
        limits.classes.critical.reserve = 0.0;
        for class in [&mut limits.classes.critical, &mut limits.classes.background] {
            class.max_share = 1.0;
        }
        ClaimRoom { caps: SlotCaps::of(&limits, 1_000), running: [0; 3], tenants: vec![], peers: vec![] }
    }

    #[test]
    fn a_flow_without_room_is_passed_over_whole() {
        let mut capped = flow(Class::Critical, &[1, 2, 3]);
        capped.peer = Some(0);
        let mut rationed = flow(Class::Standard, &[4, 5, 6]);
        rationed.tenant = Some(0);
        let flows = [capped, rationed, flow(Class::Standard, &[7, 8])];
        let room = ClaimRoom { tenants: vec![(9, [9, 2, 9])], peers: vec![1], ..room() };
        let chosen = choose(&flows, room.clone(), 9, NOW);
        assert_eq!(chosen.start, [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)]);
        let full = ClaimRoom { peers: vec![0], running: [0, 1_000, 0], ..room };
        assert_eq!(choose(&flows, full, 9, NOW).start, []);
    }

    #[test]
    fn what_a_slot_is_reserved_for_goes_first_on_its_own_slot() {
        let mut reserved = flow(Class::Background, &[99]);
        reserved.lane = Lane::Admitted;
        let flows = [flow(Class::Critical, &[1]), reserved];
        let full = ClaimRoom { running: [0, 0, 1_000], ..room() };
        assert_eq!(choose(&flows, full, 2, NOW).start, [(1, 0)]);
        assert_eq!(choose(&flows, room(), 1, NOW).start, [(1, 0)]);
    }

    #[test]
    fn class_goes_before_rank() {
        let flows = [flow(Class::Background, &[1, 2]), flow(Class::Critical, &[90, 91]), flow(Class::Standard, &[5])];
        assert_eq!(choose(&flows, room(), 4, NOW).start, [(1, 0), (1, 1), (2, 0), (0, 0)]);
    }

    #[test]
    fn the_doomed_are_expired_and_take_no_slot() {
        let mut flow = flow(Class::Standard, &[1, 2, 3]);
        flow.tasks[0].deadline = NOW;
        flow.tasks[1].deadline = NOW + 9;
        let chosen = choose(&[flow], room(), 1, NOW);
        assert_eq!(chosen.expire, [(0, 0, Reason::DeadlinePassed), (0, 1, Reason::DeadlineTooShort)]);
        assert_eq!(chosen.start, [(0, 2)]);
    }

    #[test]
    fn it_stops_where_it_did_not_read_far_enough() {
        let mut short = flow(Class::Standard, &[1]);
        short.queued = 2;
        let flows = [short, flow(Class::Standard, &[5, 6])];
        let chosen = choose(&flows, room(), 3, NOW);
        assert_eq!((chosen.start.as_slice(), chosen.stopped_short), ([(0, 0)].as_slice(), true));
        assert!(!choose(&flows, room(), 1, NOW).stopped_short);
        assert!(!choose(&flows[1..], room(), 3, NOW).stopped_short);
    }

    proptest! {
        #[test]
        fn two_waiting_tasks_of_one_step_never_change_places(a in 0i64..1_000_000, b in 0i64..1_000_000, p in 0i64..=100, q in 0i64..=100, step in 1u32..10_000, later in 0i64..1_000_000) {
            let rank_of = |at, p| Priority::new(p).map(|p| rank(at, p, step)).unwrap_or_default();
            // What each has gained by waiting until `later` after both arrived, in points.
            let now = a.max(b) + later;
            let aged = |at: i64, p: i64| i128::from(p) * i128::from(step) + i128::from(now - at);
            prop_assert_eq!(rank_of(a, p).cmp(&rank_of(b, q)), aged(b, q).cmp(&aged(a, p)));
        }

        #[test]
        fn what_is_chosen_is_the_front_of_the_whole_order(ranks in proptest::collection::vec((0usize..4, 0i64..50), 0..40), slots in 0usize..50) {
            let mut flows: Vec<_> = [Class::Critical, Class::Standard, Class::Standard, Class::Background].map(|class| flow(class, &[])).into();
            for (n, (at, rank)) in ranks.iter().enumerate() {
                flows[*at].tasks.push(waiting(n as u8, *rank, NOW + 1_000));
                flows[*at].queued += 1;
            }
            flows.iter_mut().for_each(|flow| flow.tasks.sort_by_key(|task| (task.rank, task.id)));
            let mut all: Vec<_> = flows.iter().flat_map(|flow| flow.tasks.iter().map(|task| (flow.class, task.rank, task.id))).collect();
            all.sort();
            let chosen = choose(&flows, room(), slots, NOW);
            let got: Vec<_> = chosen.start.iter().map(|(f, t)| (flows[*f].class, flows[*f].tasks[*t].rank, flows[*f].tasks[*t].id)).collect();
            prop_assert_eq!(&got[..], &all[..slots.min(all.len())]);
        }
    }
}
