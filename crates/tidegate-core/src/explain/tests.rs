use proptest::prelude::*;

use super::*;
use crate::admission::{Ask, TenantFacts, Usage, promote};
use crate::limits::Limits;
use crate::pause::{PauseMode, PauseTarget};
use crate::peer::PeerLimits;
use crate::slots::SlotCaps;
use crate::tenant::{TenantClassLimits, TenantLimits};

const NOW: EpochMs = 1_790_000_000_000;

fn task(status: Status) -> Subject<'static> {
    Subject {
        status,
        reason: None,
        detail: None,
        kind: "echo",
        class: Class::Standard,
        tenant: "acme",
        peer: "hotels",
        load: Load { tokens: 10, usd_micros: 3, bytes: 7 },
        since: NOW - 3_200,
        eligible: None,
        worker: None,
        reserved_until: None,
        attempt: 0,
        max_attempts: 3,
        cancel_requested: false,
        suspect: false,
        position: (status == Status::Queued).then_some(7),
    }
}

/// Twenty slots, of which five are free, and everything else without a limit.
fn facts() -> Facts {
    let held =
        Usage { queued: 9, running: 15, deferred: 2, tokens: 100, usd_micros: 30, bytes: 70, ..Usage::default() };
    let mut facts = Facts { now: NOW, live_slots: 20, cell: held, ..Facts::default() };
    facts.classes[1] = held;
    let mut tenant = TenantFacts { usage: Usage { running: 4, queued: 6, ..held }, ..TenantFacts::default() };
    tenant.classes[1] = Usage { running: 2, queued: 5, ..held };
    facts.tenants.insert("acme".into(), tenant);
    facts.peers.insert("hotels".into(), Usage { running: 8, queued: 3, ..Usage::default() });
    facts
}

fn around() -> Surroundings {
    Surroundings { sessions: 2, slots: 8, taken: 3, ..Surroundings::default() }
}

fn kinds(explanation: &Explanation) -> Vec<&'static str> {
    explanation.blockers.iter().map(|blocker| blocker.kind.as_str()).collect()
}

fn pause(target: PauseTarget, until: Option<EpochMs>, reason: Option<&str>) -> Pause {
    let (id, reason) = (Uuid::from_u128(7), reason.map(str::to_owned));
    Pause { id, target, mode: PauseMode::Hold, until, reason, created: NOW - 1 }
}

fn peer_pause() -> Pause {
    let target = PauseTarget::of_parts("peer", "hotels").unwrap_or(PauseTarget::Class(Class::Critical));
    pause(target, None, None)
}

type Change = fn(&mut Policy, &mut Facts, &mut Surroundings);

/// What a QUEUED task waits for besides its turn, with the limit's name, what it is, and what is in use.
#[test]
fn every_limit_that_keeps_a_task_from_starting_is_told_with_its_name_and_numbers() {
    type Row = (Change, &'static str, Option<&'static str>, (Option<i64>, Option<i64>));
    let none = (None, None);
    let of = |in_use, limit| (Some(in_use), Some(limit));
    let table: [Row; 14] = [
        (|_, _, around| around.sessions = 0, "no_worker", None, none),
        (
            |policy, _, _| {
                drop(
                    policy
                        .peers
                        .insert("hotels".into(), PeerLimits { max_in_flight: Some(8), ..PeerLimits::default() }),
                )
            },
            "peer_limit",
            Some("peers.hotels.max_in_flight"),
            of(8, 8),
        ),
        (
            |policy, _, around| {
                policy
                    .peers
                    .insert("hotels".into(), PeerLimits { requests_per_minute: Some(60), ..PeerLimits::default() });
                around.requests_full_ns = (NOW + 60_000) * 1_000_000;
            },
            "peer_rate",
            Some("peers.hotels.requests_per_minute"),
            (None, Some(60)),
        ),
        (
            |policy, _, around| {
                policy
                    .peers
                    .insert("hotels".into(), PeerLimits { tokens_per_minute: Some(60), ..PeerLimits::default() });
                around.tokens_full_ns = (NOW + 52_000) * 1_000_000;
            },
            "peer_rate",
            Some("peers.hotels.tokens_per_minute"),
            (None, Some(60)),
        ),
        (
            |policy, _, _| {
                drop(
                    policy
                        .tenants
                        .insert("acme".into(), TenantLimits { max_running: Some(4), ..TenantLimits::default() }),
                )
            },
            "tenant_limit",
            Some("tenants.acme.max_running"),
            of(4, 4),
        ),
        (
            |policy, _, _| {
                let mut tenant = TenantLimits::default();
                tenant.classes.standard = TenantClassLimits { max_running: Some(1), ..TenantClassLimits::default() };
                policy.tenants.insert("acme".into(), tenant);
            },
            "tenant_class_limit",
            Some("tenants.acme.classes.standard.max_running"),
            of(2, 1),
        ),
        (
            |policy, _, _| policy.limits.classes.standard.max_running = Some(15),
            "class_limit",
            Some("limits.classes.standard.max_running"),
            of(15, 15),
        ),
        (
            |policy, _, _| policy.limits.classes.standard.max_share = 0.5,
            "class_share",
            Some("limits.classes.standard.max_share"),
            of(15, 10),
        ),
        (
            |policy, _, _| policy.limits.classes.critical.reserve = 0.25,
            "class_reserve",
            Some("limits.classes.critical.reserve"),
            of(15, 20),
        ),
        (|_, facts, _| facts.live_slots = 15, "no_slots", None, of(15, 15)),
        (|policy, _, _| policy.limits.max_running = Some(15), "no_slots", Some("limits.max_running"), of(15, 15)),
        (|_, _, around| around.taken = 8, "no_slots", None, of(8, 8)),
        (|policy, _, _| policy.pauses.push(peer_pause()), "pause", Some("peer hotels"), none),
        (|_, _, around| around.breaker_until = Some(NOW + 12_000), "peer_breaker", Some("peers.hotels.breaker"), none),
    ];
    let free = explain(&Policy::default(), &facts(), &around(), &task(Status::Queued));
    assert_eq!(kinds(&free), ["queue_position"]);
    for (change, kind, name, numbers) in table {
        let (mut policy, mut facts, mut around) = (Policy::default(), facts(), around());
        change(&mut policy, &mut facts, &mut around);
        let explained = explain(&policy, &facts, &around, &task(Status::Queued));
        assert_eq!(kinds(&explained), [kind, "queue_position"], "{name:?}");
        let told = &explained.blockers[0];
        assert_eq!((told.name.as_deref(), (told.in_use, told.limit)), (name, numbers), "{kind}");
        assert!(explained.summary.contains(&told.detail), "{}", explained.summary);
    }
}

/// A limit of nothing is told as the limit that it is, and nobody guesses when it is lifted.
#[test]
fn a_limit_of_nothing_is_told_by_its_name() {
    let none = |change: Change, name: &str, detail: &str| {
        let (mut policy, mut facts, mut around) = (Policy::default(), facts(), around());
        let idle = Usage { running: 0, ..facts.cell };
        (facts.cell, facts.classes[1]) = (idle, idle);
        facts.peers.insert("hotels".into(), Usage::default());
        facts.tenants.clear();
        around.taken = 0;
        change(&mut policy, &mut facts, &mut around);
        let explained = explain(&policy, &facts, &around, &task(Status::Queued));
        let told = explained.blockers.iter().find(|blocker| blocker.name.as_deref() == Some(name));
        assert_eq!(told.map(|told| (&*told.detail, told.limit)), Some((detail, Some(0))), "{explained:?}");
        assert!(explained.summary.contains(detail) && !explained.moves_with_the_queue(), "{explained:?}");
        assert!(!explained.summary.contains("live worker"), "{explained:?}");
    };
    let all = "limits.max_running is 0, so nothing may start";
    none(|policy, _, _| policy.limits.max_running = Some(0), "limits.max_running", all);
    none(
        |policy, _, _| policy.limits.classes.standard.max_running = Some(0),
        "limits.classes.standard.max_running",
        "0 of at most 0 standard tasks run",
    );
    none(
        |policy, _, _| {
            let tenant = TenantLimits { max_running: Some(0), ..TenantLimits::default() };
            policy.tenants.insert("acme".into(), tenant);
        },
        "tenants.acme.max_running",
        "tenant acme runs 0 of at most 0",
    );
    none(
        |policy, _, _| {
            let peer = PeerLimits { max_in_flight: Some(0), ..PeerLimits::default() };
            policy.peers.insert("hotels".into(), peer);
        },
        "peers.hotels.max_in_flight",
        "peer hotels has 0 of at most 0 in flight",
    );
}

#[test]
fn a_task_without_a_peer_is_held_by_none() {
    let mut policy = Policy { pauses: vec![peer_pause()], ..Policy::default() };
    policy.peers.insert("hotels".into(), PeerLimits { max_in_flight: Some(0), ..PeerLimits::default() });
    let alone = Subject { peer: "", ..task(Status::Queued) };
    assert_eq!(kinds(&explain(&policy, &facts(), &around(), &alone)), ["queue_position"]);
}

#[test]
fn all_that_holds_it_is_listed_and_the_sentence_stays_short() {
    let mut policy = Policy::default();
    let target = PauseTarget::Class(Class::Standard);
    policy.pauses = vec![pause(target, Some(NOW + 90_000), Some("their maintenance")), peer_pause()];
    policy.tenants.insert("acme".into(), TenantLimits { max_running: Some(4), ..TenantLimits::default() });
    let around = Surroundings { held_until: Some(NOW + 5_000), ..around() };
    let explained = explain(&policy, &facts(), &around, &task(Status::Queued));
    assert_eq!(kinds(&explained), ["quarantine", "pause", "pause", "tenant_limit", "queue_position"]);
    assert_eq!(
        (explained.blockers[1].until, explained.blockers[1].pause),
        (Some(NOW + 90_000), Some(Uuid::from_u128(7)))
    );
    let expected = "Queued for 3.2 s: its input is in quarantine for another 5.0 s; class standard is paused for another 1 min 30 s (their \
        maintenance); peer hotels is paused; and 2 more.";
    assert_eq!(explained.summary, expected);
    assert_eq!((explained.since, explained.waiting_ms), (NOW - 3_200, Some(3_200)));
    assert!(!explained.moves_with_the_queue());
}

#[test]
fn a_suspect_and_the_moment_at_which_a_peer_has_room_are_told() {
    let mut policy = Policy::default();
    let limits = PeerLimits { requests_per_minute: Some(60), tokens_per_minute: Some(6_000), ..PeerLimits::default() };
    policy.peers.insert("hotels".into(), limits);
    // Spread over the minute: one request in a second, ten tokens in a tenth of one.
    let around =
        Surroundings { requests_full_ns: (NOW + 700) * 1_000_000, tokens_full_ns: (NOW + 100) * 1_000_000, ..around() };
    let suspect = Subject { suspect: true, ..task(Status::Queued) };
    let explained = explain(&policy, &facts(), &around, &suspect);
    assert_eq!(kinds(&explained), ["peer_rate", "peer_rate", "suspect", "queue_position"]);
    let until: Vec<_> = explained.blockers.iter().filter_map(|blocker| blocker.until).collect();
    assert_eq!(until, [NOW + 700, NOW + 100]);
    let said = "peer hotels has had its share of 60 requests a minute; there is room in 700 ms";
    assert_eq!(explained.blockers[0].detail, said);
}

#[test]
fn the_place_in_the_queue_is_told() {
    for (position, said) in [
        (Some(1), "it is next in the queue"),
        (Some(7), "it is number 7 in the queue"),
        (None, "more than 1000 wait before it"),
    ] {
        let explained = explain(&Policy::default(), &facts(), &around(), &Subject { position, ..task(Status::Queued) });
        assert_eq!(explained.summary, format!("Queued for 3.2 s: {said}."));
        assert_eq!(explained.blockers[0].in_use, position.map(i64::from));
        assert!(explained.moves_with_the_queue());
    }
}

#[test]
fn where_nobody_works_it_says_so() {
    let facts = Facts { live_slots: 0, now: NOW, ..Facts::default() };
    let explained = explain(&Policy::default(), &facts, &Surroundings::default(), &task(Status::Queued));
    assert_eq!(kinds(&explained), ["no_worker", "no_slots", "queue_position"]);
    assert!(explained.summary.contains("no live worker runs the kind echo; no live worker has a slot"));
}

#[test]
fn a_deferred_task_waits_for_its_time_and_then_for_room() {
    let later = Subject { reason: Some(Reason::RetryBackoff), eligible: Some(NOW + 12_300), ..task(Status::Deferred) };
    let mut policy = Policy::default();
    // Whether there is room is asked when its time has come.
    policy.limits.max_queued = 9;
    let explained = explain(&policy, &facts(), &around(), &later);
    assert_eq!(kinds(&explained), ["deferred_until"]);
    assert_eq!((explained.eligible, explained.blockers[0].until), (Some(NOW + 12_300), Some(NOW + 12_300)));
    assert_eq!(explained.summary, "Deferred for 3.2 s: it may start in 12.3 s (retry_backoff).");
    let due = Subject { eligible: Some(NOW), ..later };
    let explained = explain(&policy, &facts(), &around(), &due);
    assert_eq!(kinds(&explained), ["queue_full"]);
    let told = &explained.blockers[0];
    assert_eq!((told.name.as_deref(), told.in_use, told.limit), (Some("limits.max_queued"), Some(9), Some(9)));
    assert_eq!(kinds(&explain(&Policy::default(), &facts(), &around(), &due)), ["promotion"]);
    policy.pauses.push(peer_pause());
    assert_eq!(kinds(&explain(&policy, &facts(), &around(), &later)), ["deferred_until", "pause"]);
}

#[test]
fn every_bound_of_the_queue_is_told_by_its_name() {
    type Row = (fn(&mut Policy), &'static str, &'static str);
    fn tenant(policy: &mut Policy) -> &mut TenantLimits {
        policy.tenants.entry("acme".into()).or_default()
    }
    let table: [Row; 11] = [
        (|policy| tenant(policy).max_queued = Some(6), "tenant_queue_limit", "tenants.acme.max_queued"),
        (
            |policy| tenant(policy).classes.standard.max_queued = Some(5),
            "tenant_queue_limit",
            "tenants.acme.classes.standard.max_queued",
        ),
        (|policy| tenant(policy).max_tokens = Some(109), "tenant_tokens", "tenants.acme.max_tokens"),
        (|policy| tenant(policy).max_usd_micros = Some(32), "tenant_cost", "tenants.acme.max_usd_micros"),
        (
            |policy| policy.peers.entry("hotels".into()).or_default().max_waiting = Some(3),
            "bulkhead_full",
            "peers.hotels.max_waiting",
        ),
        (
            |policy| policy.limits.classes.standard.max_queued = Some(9),
            "class_queue_limit",
            "limits.classes.standard.max_queued",
        ),
        (
            |policy| policy.limits.classes.standard.max_tokens = Some(109),
            "token_budget",
            "limits.classes.standard.max_tokens",
        ),
        (|policy| policy.limits.max_in_flight = Some(24), "queue_full", "limits.max_in_flight"),
        (|policy| policy.limits.max_tokens = Some(109), "token_budget", "limits.max_tokens"),
        (|policy| policy.limits.max_usd_micros = Some(32), "cost_budget", "limits.max_usd_micros"),
        // Its own bytes are held already.
        (|policy| policy.limits.max_bytes = 69, "byte_budget", "limits.max_bytes"),
    ];
    let due = Subject { eligible: Some(NOW - 1), reason: Some(Reason::Overload), ..task(Status::Deferred) };
    for (change, kind, name) in table {
        let mut policy = Policy::default();
        change(&mut policy);
        let explained = explain(&policy, &facts(), &around(), &due);
        assert_eq!(kinds(&explained), [kind], "{name}");
        assert_eq!(explained.blockers[0].name.as_deref(), Some(name));
    }
}

#[test]
fn a_reserved_slot_is_told_with_its_worker() {
    let reserved = Subject { worker: Some("w1"), reserved_until: Some(NOW + 400), ..task(Status::Admitted) };
    let explained = explain(&Policy::default(), &facts(), &around(), &reserved);
    assert_eq!((kinds(&explained), explained.blockers[0].until), (vec!["reserved_slot"], Some(NOW + 400)));
    assert_eq!(explained.summary, "Admitted for 3.2 s: a slot of worker w1 is reserved for it.");
}

#[test]
fn what_does_not_wait_says_what_it_does() {
    let running = Subject { worker: Some("w1"), attempt: 2, ..task(Status::Running) };
    let stopping = Subject { cancel_requested: true, ..running };
    let failed =
        Subject { reason: Some(Reason::AttemptsExhausted), detail: Some("the tool said no"), ..task(Status::Failed) };
    for (subject, summary) in [
        (running, "Running on w1 for 3.2 s, attempt 2 of 3."),
        (stopping, "Running on w1 for 3.2 s, attempt 2 of 3; it was asked to stop."),
        (task(Status::Completed), "Ended COMPLETED 3.2 s ago."),
        (failed, "Ended FAILED 3.2 s ago: attempts_exhausted (the tool said no)."),
    ] {
        let explained = explain(&Policy::default(), &facts(), &around(), &subject);
        assert_eq!(explained.summary, summary);
        assert_eq!((explained.blockers.len(), explained.waiting_ms, explained.eligible), (0, None, None));
    }
}

#[test]
fn names_lead_back_and_times_read_well() {
    for kind in BlockerKind::ALL {
        assert_eq!(BlockerKind::parse(kind.as_str()), Some(*kind));
    }
    for (ms, text) in
        [(0, "0 ms"), (1_500, "1.5 s"), (185_000, "3 min 5 s"), (7_380_000, "2 h 3 min"), (349_200_000, "4 d 1 h")]
    {
        assert_eq!(words::span(ms), text);
    }
}

fn small() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![Just(None), (0u32..12).prop_map(Some)]
}

fn usage() -> impl Strategy<Value = Usage> {
    (0i64..12, 0i64..12, 0i64..12, 0i64..12, 0i64..12).prop_map(|(queued, running, tokens, usd_micros, bytes)| Usage {
        queued,
        running,
        tokens,
        usd_micros,
        bytes,
        ..Usage::default()
    })
}

proptest! {
    /// What is told of the queue and what a promotion does must never drift apart.
    #[test]
    fn a_due_task_has_blockers_exactly_where_its_promotion_finds_no_room(
        bounds in proptest::array::uniform12(small()),
        held in proptest::array::uniform5(usage()),
        load in (0i64..5, 0i64..5),
    ) {
        let mut policy = Policy::default();
        let wide = |bound: Option<u32>| bound.map(u64::from);
        let limits: &mut Limits = &mut policy.limits;
        limits.max_queued = bounds[0].unwrap_or(100);
        (limits.max_in_flight, limits.max_tokens, limits.max_usd_micros) = (bounds[1], wide(bounds[2]), wide(bounds[3]));
        limits.max_bytes = wide(bounds[4]).unwrap_or(100);
        let class = &mut limits.classes.standard;
        (class.max_queued, class.max_tokens, class.max_bytes) = (bounds[5], wide(bounds[6]), wide(bounds[7]));
        let mut tenant = TenantLimits { max_queued: bounds[8], max_tokens: wide(bounds[9]), ..TenantLimits::default() };
        tenant.classes.standard.max_queued = bounds[10];
        policy.tenants.insert("acme".into(), tenant);
        policy.peers.insert("hotels".into(), PeerLimits { max_waiting: bounds[11], ..PeerLimits::default() });
        let mut facts = Facts { now: NOW, cell: held[0], ..Facts::default() };
        facts.classes[1] = held[1];
        let mut tenant = TenantFacts { usage: held[2], ..TenantFacts::default() };
        tenant.classes[1] = held[3];
        facts.tenants.insert("acme".into(), tenant);
        facts.peers.insert("hotels".into(), held[4]);
        let load = Load { tokens: load.0, usd_micros: load.1, bytes: 3 };
        let due = Subject { eligible: Some(NOW), load, ..task(Status::Deferred) };
        let explained = explain(&policy, &facts, &Surroundings::default(), &due);
        let ask = Ask::inside(Class::Standard, "acme", "echo", "hotels", load);
        prop_assert_eq!(kinds(&explained) == ["promotion"], promote(&policy, &facts, &ask).is_some());
    }

    #[test]
    fn slots_are_told_exactly_where_the_class_has_no_room(
        slots in 0i64..12,
        running in proptest::array::uniform3(0i64..8),
        at in 0usize..3,
        most in small(),
        share in 0.0f64..=1.0,
        reserve in 0.0f64..=1.0,
    ) {
        let mut policy = Policy::default();
        policy.limits.classes.critical.reserve = reserve;
        for class in [&mut policy.limits.classes.standard, &mut policy.limits.classes.background] {
            (class.max_running, class.max_share) = (most, share);
        }
        let mut facts = Facts { now: NOW, live_slots: slots, ..Facts::default() };
        facts.classes.iter_mut().zip(running).for_each(|(class, running)| class.running = running);
        let class = Class::ALL[at];
        let mut told = Vec::new();
        start::slots(&policy, &facts, &Subject { class, ..task(Status::Queued) }, &mut told);
        let room = SlotCaps::of(&policy.limits, slots).room(&running, class);
        prop_assert_eq!(told.is_empty(), room > 0, "{:?}", told);
    }
}
