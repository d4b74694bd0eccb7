//! What holds for every input: each claim of a random cell is checked by the cell itself.

use proptest::prelude::*;
use tidegate_core::limits::Limits;
use tidegate_core::order::{Chosen, FlowHead, choose, rank};
use tidegate_core::{EpochMs, Priority, TaskId};

use crate::cell::{Arrivals, Cell, Random, Stream};

fn any_arrivals() -> impl Strategy<Value = Arrivals> {
    prop_oneof![
        (10.0..500.0, 1usize..30).prop_map(|(every_ms, most)| Arrivals::Random { every_ms, most }),
        (10i64..500).prop_map(|every_ms| Arrivals::Steady { every_ms }),
        (1usize..10).prop_map(Arrivals::Backlog),
    ]
}

fn any_limits() -> impl Strategy<Value = Limits> {
    (0.0..0.5, 0.3..1.0, 0.1..1.0, 0.0..0.3, proptest::option::of(100u64..5_000)).prop_map(
        |(reserve, critical, background, kept, promote_after_ms)| {
            let mut limits = Limits::default();
            limits.classes.critical.reserve = reserve;
            limits.classes.critical.max_share = critical;
            limits.classes.standard.reserve = kept;
            limits.classes.background.max_share = background;
            limits.classes.background.promote_after_ms = promote_after_ms;
            limits
        },
    )
}

/// Tenants (weight, most running), peers and streams at random.
fn any_cell() -> impl Strategy<Value = Cell> {
    let tenants = proptest::collection::vec((0.1..10.0, proptest::option::of(1i64..4)), 1..6);
    let peers = proptest::collection::vec(0i64..4, 0..3);
    let stream =
        (any::<usize>(), 0i64..=100, proptest::option::of(any::<usize>()), 1i64..400, 0i64..800, any_arrivals());
    let streams = proptest::collection::vec(stream, 1..8);
    (1i64..20, any_limits(), any::<u64>(), tenants, peers, streams).prop_map(
        |(slots, limits, seed, tenants, peers, streams)| {
            let mut cell = Cell::new(slots, limits, seed);
            for (weight, most) in &tenants {
                let tenant = cell.tenant(*weight);
                if let Some(most) = most {
                    cell.cap(tenant, *most);
                }
            }
            for most in &peers {
                cell.peer(*most);
            }
            for (tenant, priority, peer, least_ms, more_ms, arrivals) in streams {
                let run_ms = least_ms..=least_ms + more_ms;
                let peer = peer.filter(|_| !peers.is_empty()).map(|peer| peer % peers.len());
                cell.stream(Stream { peer, ..Stream::new(tenant % tenants.len(), priority, run_ms, arrivals) });
            }
            cell
        },
    )
}

fn ids(chosen: &Chosen, heads: &[FlowHead]) -> Vec<TaskId> {
    chosen.start.iter().map(|start| heads[start.flow].tasks[start.task].id).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Work conserving, reserves, shares, limits and the order in each flow: see `Cell::check` and `Cell::start`.
    #[test]
    fn every_claim_of_a_random_cell_keeps_the_rules(mut cell in any_cell()) {
        cell.run(20_000);
    }

    #[test]
    fn what_is_chosen_depends_on_what_is_seen_and_not_on_how(mut cell in any_cell(), until in 0i64..20_000, want in 0usize..30, seed in any::<u64>()) {
        cell.run(until);
        let (heads, room) = cell.seen(want);
        let chosen = choose(&heads, room.clone(), want, cell.now);
        prop_assert_eq!(&choose(&heads, room.clone(), want, cell.now), &chosen);
        let mut shuffled = heads.clone();
        let mut random = Random(seed);
        for n in (1..shuffled.len()).rev() {
            shuffled.swap(n, random.within(&(0..=n as i64)) as usize);
        }
        let again = choose(&shuffled, room, want, cell.now);
        prop_assert_eq!(ids(&again, &shuffled), ids(&chosen, &heads));
        prop_assert_eq!((&again.turns, again.floors), (&chosen.turns, chosen.floors));
    }

    /// However long they wait: the order of two tasks is settled when the second of them comes.
    #[test]
    fn two_waiting_tasks_of_a_flow_never_change_places(tasks in proptest::collection::vec((0i64..100_000, 0i64..=100), 2..20), step in 1u32..10_000, later in 0i64..10_000_000) {
        let place = |n: usize, (at, priority): (EpochMs, i64)| {
            (rank(at, Priority::new(priority).unwrap(), step), n)
        };
        // Points of priority in thousandths of a step, as each has aged by then.
        let now = 100_000 + later;
        let aged = |(at, priority): (EpochMs, i64)| i128::from(priority) * i128::from(step) + i128::from(now - at);
        for (a, first) in tasks.iter().enumerate() {
            for (b, second) in tasks.iter().enumerate().skip(a + 1) {
                let before = place(a, *first) < place(b, *second);
                prop_assert_eq!(before, aged(*first) >= aged(*second));
            }
        }
    }
}
