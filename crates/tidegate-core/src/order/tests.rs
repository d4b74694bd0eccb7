//! The order as a table and as properties.

use super::*;
use proptest::prelude::*;

const NOW: EpochMs = 1_000_000;

fn waiting(n: u8, rank: i64, deadline: EpochMs) -> Waiting {
    Waiting { id: TaskId::new(1, [n; 10], n), rank, enqueued: NOW, deadline, min_useful_ms: 10, tokens: 0 }
}

fn flow(class: Class, ranks: &[i64]) -> FlowHead {
    let tasks = ranks.iter().enumerate().map(|(n, rank)| waiting(n as u8, *rank, NOW + 1_000)).collect();
    let queued = ranks.len() as i64;
    FlowHead { flow: 1, class, lane: Lane::Fresh, tenant: 0, peer: None, kind: None, run_ms: 100, queued, tasks }
}

fn room() -> ClaimRoom {
    let mut limits = crate::limits::Limits::default();
    limits.classes.critical.reserve = 0.0;
    for class in [&mut limits.classes.critical, &mut limits.classes.background] {
        class.max_share = 1.0;
    }
    ClaimRoom {
        caps: SlotCaps::of(&limits, 1_000),
        running: [0; 3],
        floors: [0; 3],
        promote_after_ms: [None; 3],
        tenants: vec![tenant(), tenant()],
        peers: vec![],
        kinds: vec![],
        suspects: 1,
    }
}

fn tenant() -> TenantRoom {
    TenantRoom { left: i64::MAX, left_of_class: [i64::MAX; 3], weight: 1.0, turns: [0; 3] }
}

fn peer(left: i64) -> PeerRoom {
    PeerRoom { left, requests: None, tokens: None }
}

fn started(chosen: &Chosen) -> Vec<(usize, usize)> {
    chosen.start.iter().map(|start| (start.flow, start.task)).collect()
}

#[test]
fn a_flow_without_room_is_passed_over_whole() {
    let mut limited = flow(Class::Critical, &[1, 2, 3]);
    limited.peer = Some(0);
    let mut rationed = flow(Class::Standard, &[4, 5, 6]);
    rationed.tenant = 1;
    let flows = [limited, rationed, flow(Class::Standard, &[7, 8])];
    let of_class = [9, 2, 9];
    let tenants = vec![tenant(), TenantRoom { left: 9, left_of_class: of_class, ..tenant() }];
    let room = ClaimRoom { tenants, peers: vec![peer(1)], ..room() };
    let chosen = choose(&flows, room.clone(), 9, NOW);
    assert_eq!(started(&chosen), [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1)]);
    assert_eq!(chosen.capped, [1]);
    let full = ClaimRoom { peers: vec![peer(0)], running: [0, 1_000, 0], ..room };
    assert_eq!(started(&choose(&flows, full, 9, NOW)), []);
}

#[test]
fn the_tenant_that_was_served_less_for_its_weight_goes_next() {
    let tasks = |tenant| FlowHead { tenant, ..flow(Class::Standard, &[1, 2, 3, 4, 5, 6, 7, 8]) };
    let flows = [tasks(0), tasks(1)];
    let tenants = vec![TenantRoom { weight: 3.0, ..tenant() }, tenant()];
    let chosen = choose(&flows, ClaimRoom { tenants, ..room() }, 8, NOW);
    assert_eq!(chosen.start.iter().filter(|start| start.flow == 0).count(), 6);
    assert_eq!(chosen.turns, [[0, 199_998, 0], [0, 200_000, 0]]);
    // It starts from the floor, not from where it was when it last had something to do.
    let mut room = room();
    room.floors[1] = 60_000_000;
    room.tenants[1].turns[1] = 60_000_000;
    let back = choose(&flows, room, 1, NOW);
    assert_eq!((started(&back), back.turns[0][1]), (vec![(0, 0)], 60_000_000 - MAX_LAG_US + 100_000));
}

#[test]
fn what_waited_for_long_competes_above_but_never_among_the_critical() {
    let mut old = flow(Class::Background, &[50]);
    old.tasks[0].enqueued = NOW - 1_000;
    let mut older = flow(Class::Standard, &[60]);
    older.tasks[0].enqueued = NOW - 9_000;
    let flows = [old, older, flow(Class::Background, &[1]), flow(Class::Critical, &[99])];
    let room = ClaimRoom { promote_after_ms: [Some(1); 3], ..room() };
    let chosen = choose(&flows, ClaimRoom { promote_after_ms: [Some(1_000); 3], ..room.clone() }, 9, NOW);
    assert_eq!(started(&chosen), [(3, 0), (0, 0), (1, 0), (2, 0)]);
    assert_eq!(chosen.start[1].charged_in, Class::Standard);
    // It still counts under the caps of its own class.
    let mut capped = crate::limits::Limits::default();
    capped.classes.background.max_running = Some(1);
    let full = ClaimRoom { caps: SlotCaps::of(&capped, 100), running: [0, 0, 1], ..room };
    assert_eq!(started(&choose(&flows, full, 9, NOW)), [(3, 0), (1, 0)]);
}

#[test]
fn a_peer_is_sent_no_more_than_its_rates() {
    let mut flow = flow(Class::Standard, &[1, 2, 3]);
    flow.peer = Some(0);
    flow.tasks.iter_mut().for_each(|task| task.tokens = 600);
    let rate = |per_minute, burst| Some(Rate { bucket: Bucket::new(per_minute, burst), full_ns: 0 });
    let by_requests = PeerRoom { requests: rate(60, 2), ..peer(9) };
    let chosen = choose(&[flow.clone()], ClaimRoom { peers: vec![by_requests], ..room() }, 9, NOW);
    assert_eq!((chosen.start.len(), chosen.again_in_ms), (2, Some(1_000)));
    let by_tokens = PeerRoom { tokens: rate(60_000, 1_000), ..peer(9) };
    let chosen = choose(&[flow.clone()], ClaimRoom { peers: vec![by_tokens], ..room() }, 9, NOW);
    assert_eq!((chosen.start.len(), chosen.again_in_ms), (1, Some(200)));
    // More than it ever holds at once is paid for in full.
    flow.tasks[0].tokens = 5_000;
    let by_tokens = PeerRoom { tokens: rate(60_000, 1_000), ..peer(9) };
    let chosen = choose(&[flow], ClaimRoom { peers: vec![by_tokens], ..room() }, 9, NOW);
    assert_eq!((chosen.start.len(), chosen.start[0].draw.tokens_ns), (1, 5_000_000_000));
}

#[test]
fn one_suspect_at_a_time() {
    let mut suspects = flow(Class::Standard, &[1, 2]);
    suspects.lane = Lane::Suspect;
    let flows = [suspects, flow(Class::Standard, &[3])];
    assert_eq!(started(&choose(&flows, room(), 9, NOW)), [(0, 0), (1, 0)]);
    assert_eq!(started(&choose(&flows, ClaimRoom { suspects: 0, ..room() }, 9, NOW)), [(1, 0)]);
}

#[test]
fn a_worker_takes_no_more_of_a_kind_than_it_runs_at_once() {
    let mut few = flow(Class::Standard, &[1, 2, 3]);
    few.kind = Some(0);
    let flows = [few, flow(Class::Standard, &[4])];
    assert_eq!(started(&choose(&flows, ClaimRoom { kinds: vec![2], ..room() }, 9, NOW)), [(0, 0), (0, 1), (1, 0)]);
    // Nor where its slots are reserved for them.
    let mut reserved = flow(Class::Standard, &[1, 2, 3]);
    (reserved.kind, reserved.lane) = (Some(0), Lane::Admitted);
    let flows = [reserved, flow(Class::Standard, &[4])];
    assert_eq!(started(&choose(&flows, ClaimRoom { kinds: vec![2], ..room() }, 9, NOW)), [(0, 0), (0, 1), (1, 0)]);
}

#[test]
fn what_a_slot_is_reserved_for_goes_first_on_its_own_slot() {
    let mut reserved = flow(Class::Background, &[99]);
    reserved.lane = Lane::Admitted;
    let flows = [flow(Class::Critical, &[1]), reserved];
    let full = ClaimRoom { running: [0, 0, 1_000], ..room() };
    assert_eq!(started(&choose(&flows, full, 2, NOW)), [(1, 0)]);
    assert_eq!(started(&choose(&flows, room(), 1, NOW)), [(1, 0)]);
}

#[test]
fn class_goes_before_rank() {
    let flows = [flow(Class::Background, &[1, 2]), flow(Class::Critical, &[90, 91]), flow(Class::Standard, &[5])];
    assert_eq!(started(&choose(&flows, room(), 4, NOW)), [(1, 0), (1, 1), (2, 0), (0, 0)]);
}

#[test]
fn the_doomed_are_expired_and_take_no_slot() {
    let mut flow = flow(Class::Standard, &[1, 2, 3]);
    flow.tasks[0].deadline = NOW;
    flow.tasks[1].deadline = NOW + 9;
    let chosen = choose(&[flow], room(), 1, NOW);
    assert_eq!(chosen.expire, [(0, 0, Reason::DeadlinePassed), (0, 1, Reason::DeadlineTooShort)]);
    assert_eq!(started(&chosen), [(0, 2)]);
}

#[test]
fn it_stops_where_it_did_not_read_far_enough() {
    let mut short = flow(Class::Standard, &[1]);
    short.queued = 2;
    let flows = [short, flow(Class::Standard, &[5, 6])];
    let chosen = choose(&flows, room(), 3, NOW);
    assert_eq!((started(&chosen), chosen.stopped_short), (vec![(0, 0)], true));
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
        let got: Vec<_> = started(&chosen).into_iter().map(|(f, t)| (flows[f].class, flows[f].tasks[t].rank, flows[f].tasks[t].id)).collect();
        prop_assert_eq!(&got[..], &all[..slots.min(all.len())]);
    }
}
