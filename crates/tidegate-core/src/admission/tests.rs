mod closed;

use proptest::prelude::*;

use super::*;
use crate::id::TaskId;
use crate::names::{Kind, PeerName, Priority, TenantId};
use crate::pause::{Pause, PauseMode};
use crate::peer::PeerLimits;
use crate::submission::{Start, Timing};
use crate::tenant::{TenantClassLimits, TenantClasses, TenantLimits};

const NOW: EpochMs = 1_790_000_000_000;
const CRITICAL: i64 = 95;
const STANDARD: i64 = 50;
const BACKGROUND: i64 = 10;

fn named(n: u8, priority: i64) -> Submission {
    let kind = Kind::parse("echo").unwrap_or_else(|_| unreachable!());
    let mut submission = Submission::new(TaskId::new(NOW, [n; 10], n), TenantId::default_tenant(), kind, "null".into());
    submission.priority = Priority::new(priority).unwrap_or(Priority::DEFAULT);
    submission
}

fn submission(priority: i64) -> Submission {
    named(0, priority)
}

fn policy() -> Policy {
    let mut policy = Policy::default();
    policy.limits.max_queued = 10;
    policy.limits.max_bytes = 1_000;
    policy
}

fn queued(n: i64) -> Facts {
    let held = Usage { queued: n, bytes: 4 * n, ..Usage::default() };
    let mut facts = Facts { now: NOW, cell: held, ..Facts::default() };
    facts.classes[1] = held;
    let mut tenant = TenantFacts { usage: held, ..TenantFacts::default() };
    tenant.classes[1] = held;
    facts.tenants.insert("default".into(), tenant);
    facts
}

fn with_worker(mut facts: Facts, slots: i64) -> Facts {
    facts.live_slots = slots;
    facts.sessions = vec![SessionRoom { id: 7, kinds: ["echo".to_owned()].into(), free: slots }];
    facts
}

fn outcome(policy: &Policy, facts: &Facts, submission: &Submission) -> (Status, Option<Reason>) {
    let decision = decide(policy, facts, submission, NOW, 0).decision;
    (decision.status, decision.reason)
}

fn refused(status: Status, reason: Reason) -> (Status, Option<Reason>) {
    (status, Some(reason))
}

#[test]
fn a_plain_backpressured_agent() {
    let mut policy = policy();
    policy.limits.classes.standard.shed_at = None;
    let standard = submission(STANDARD);

    // Cancelled or late.
    let mut facts = queued(0);
    facts.cancelled_tokens.insert(("default".into(), "trip".into()));
    let cancelled = Submission { cancellation_token: Some("trip".into()), ..standard.clone() };
    assert_eq!(outcome(&policy, &facts, &cancelled), refused(Status::Cancelled, Reason::TokenCancelled));
    let late = Submission { timing: Timing { deadline: Some(NOW), ..Timing::default() }, ..standard.clone() };
    assert_eq!(outcome(&policy, &queued(0), &late), refused(Status::Expired, Reason::DeadlinePassed));
    // No budget left for the tenant.
    policy.tenants.insert("default".into(), TenantLimits { max_queued: Some(3), ..TenantLimits::default() });
    assert_eq!(outcome(&policy, &queued(3), &standard), refused(Status::Rejected, Reason::TenantQueueLimit));
    // A slot is free.
    assert_eq!(outcome(&policy, &with_worker(queued(0), 1), &standard), (Status::Admitted, None));
    policy.tenants.clear();
    // Low priority under pressure.
    let background = submission(BACKGROUND);
    assert_eq!(outcome(&policy, &queued(9), &background), refused(Status::Shed, Reason::LowPriority));
    // Room.
    assert_eq!(outcome(&policy, &queued(9), &standard), (Status::Queued, None));
    // Full.
    assert_eq!(outcome(&policy, &queued(10), &standard), refused(Status::Rejected, Reason::QueueFull));
}

#[test]
fn the_questions_are_asked_in_order() {
    let mut policy = policy();
    let mut facts = queued(10);
    // Everything speaks against it; each line takes one thing away, and the next is told.
    facts.cancelled_tokens.insert(("default".into(), "trip".into()));
    let mut asked = Submission {
        cancellation_token: Some("trip".into()),
        timing: Timing { deadline: Some(NOW - 1), ..Timing::default() },
        parent_id: Some(TaskId::new(NOW, [9; 10], 0)),
        peer: PeerName::parse("hotels").ok(),
        ..submission(STANDARD)
    };
    policy.pauses.push(Pause {
        id: uuid::Uuid::nil(),
        target: PauseTarget::Kind(Kind::parse("echo").unwrap_or_else(|_| unreachable!())),
        mode: PauseMode::Refuse,
        until: Some(NOW + 7_000),
        reason: None,
        created: NOW,
    });
    let limits = TenantLimits { max_queued: Some(1), rate_per_minute: Some(60), ..TenantLimits::default() };
    policy.tenants.insert("default".into(), limits);
    policy.peers.insert("hotels".into(), PeerLimits { max_waiting: Some(0), ..PeerLimits::default() });

    assert_eq!(outcome(&policy, &facts, &asked), refused(Status::Cancelled, Reason::TokenCancelled));
    facts.cancelled_tokens.clear();
    assert_eq!(outcome(&policy, &facts, &asked), refused(Status::Expired, Reason::DeadlinePassed));
    asked.timing = Timing { timeout_ms: Some(100), ..Timing::default() };
    asked.min_useful_ms = 101;
    assert_eq!(outcome(&policy, &facts, &asked), refused(Status::Expired, Reason::DeadlineTooShort));
    asked.min_useful_ms = 0;
    assert_eq!(outcome(&policy, &facts, &asked), refused(Status::Rejected, Reason::ParentNotRunning));
    let parent = ParentFacts { deadline: NOW + 10_000, depth: 0, fanout: 0, children: 0, running: true };
    let id = TaskId::new(NOW, [9; 10], 0);
    facts.parents.insert(id, parent);
    assert_eq!(outcome(&policy, &facts, &asked), refused(Status::Rejected, Reason::DepthExhausted));
    facts.parents.insert(id, ParentFacts { depth: 1, ..parent });
    assert_eq!(outcome(&policy, &facts, &asked), refused(Status::Rejected, Reason::FanoutExhausted));
    facts.parents.insert(id, ParentFacts { depth: 1, fanout: 1, ..parent });
    let decision = decide(&policy, &facts, &asked, NOW, 0).decision;
    assert_eq!((decision.reason, decision.retry_after_ms), (Some(Reason::Paused), Some(7_000)));
    policy.pauses.clear();
    assert_eq!(outcome(&policy, &facts, &asked), refused(Status::Rejected, Reason::TenantQueueLimit));
    policy.tenants.clear();
    assert_eq!(outcome(&policy, &facts, &asked), refused(Status::Rejected, Reason::BulkheadFull));
    asked.peer = None;
    assert_eq!(outcome(&policy, &facts, &asked), refused(Status::Shed, Reason::LowPriority));
    policy.limits.classes.standard.shed_at = None;
    assert_eq!(outcome(&policy, &facts, &asked), refused(Status::Rejected, Reason::QueueFull));
}

#[test]
fn a_child_gets_strictly_less_than_its_parent() {
    let (policy, mut facts) = (policy(), queued(0));
    let id = TaskId::new(NOW, [9; 10], 0);
    let parent = ParentFacts { deadline: NOW + 10_000, depth: 2, fanout: 2, children: 0, running: true };
    facts.parents.insert(id, parent);
    let child = Submission { parent_id: Some(id), depth: 5, ..submission(STANDARD) };
    for _ in 0..2 {
        let verdict = decide(&policy, &facts, &child, NOW, 0);
        assert_eq!((verdict.decision.status, verdict.decision.depth), (Status::Queued, 1));
        assert_eq!(verdict.decision.times.deadline, NOW + 9_700);
        facts.take(&child, &verdict);
    }
    assert_eq!(outcome(&policy, &facts, &child), refused(Status::Rejected, Reason::FanoutExhausted));
}

#[test]
fn a_tenant_is_told_which_limit_and_when_to_come_again() {
    let mut policy = policy();
    let limits = TenantLimits { rate_per_minute: Some(60), burst: Some(2), ..TenantLimits::default() };
    policy.tenants.insert("default".into(), limits);
    let mut facts = queued(0);
    for _ in 0..2 {
        let verdict = decide(&policy, &facts, &submission(STANDARD), NOW, 0);
        assert_eq!(verdict.decision.status, Status::Queued);
        facts.take(&submission(STANDARD), &verdict);
    }
    let before = facts.clone();
    let verdict = decide(&policy, &facts, &submission(STANDARD), NOW, 0);
    facts.take(&submission(STANDARD), &verdict);
    let decision = verdict.decision;
    assert_eq!((decision.reason, decision.retry_after_ms), (Some(Reason::TenantRate), Some(1_000)));
    let quota = decision.quota.unwrap_or_else(|| unreachable!());
    assert_eq!((quota.name, quota.limit, quota.remaining, quota.window_s), ("rate", 60, 0, Some(60)));
    // The refused consume nothing.
    assert_eq!(before.tenants, facts.tenants);
    let later = decide(&policy, &facts, &submission(STANDARD), NOW + 1_000, 0);
    assert_eq!(later.decision.status, Status::Queued);

    // What can never fit names no time to come again.
    let limits = TenantLimits { max_bytes: Some(3), ..TenantLimits::default() };
    policy.tenants.insert("default".into(), limits);
    let decision = decide(&policy, &facts, &submission(STANDARD), NOW, 0).decision;
    assert_eq!((decision.reason, decision.retry_after_ms), (Some(Reason::TenantBytes), None));
    let limits = TenantLimits {
        classes: TenantClasses {
            standard: TenantClassLimits { max_queued: Some(1), max_running: None },
            ..TenantClasses::default()
        },
        ..TenantLimits::default()
    };
    policy.tenants.insert("default".into(), limits);
    assert_eq!(outcome(&policy, &queued(1), &submission(STANDARD)).1, Some(Reason::TenantQueueLimit));
    assert_eq!(outcome(&policy, &queued(1), &submission(CRITICAL)), (Status::Queued, None));
}

#[test]
fn admitted_needs_a_slot_at_every_level_and_nobody_before_it() {
    let mut policy = policy();
    let standard = submission(STANDARD);
    let admitted = |policy: &Policy, facts: &Facts| outcome(policy, facts, &standard).0 == Status::Admitted;
    assert!(admitted(&policy, &with_worker(queued(0), 2)));
    assert!(!admitted(&policy, &queued(0)), "no worker");
    assert!(!admitted(&policy, &with_worker(queued(1), 2)), "somebody waits");
    let mut facts = with_worker(queued(0), 2);
    facts.sessions[0].kinds = ["sleep".to_owned()].into();
    assert!(!admitted(&policy, &facts), "no worker for the kind");
    let mut facts = with_worker(queued(0), 2);
    (facts.cell.running, facts.classes[1].running) = (2, 2);
    assert!(!admitted(&policy, &facts), "the cell's slots are taken");
    policy.tenants.insert("default".into(), TenantLimits { max_running: Some(0), ..TenantLimits::default() });
    assert!(!admitted(&policy, &with_worker(queued(0), 2)), "the tenant's are");
    policy.tenants.clear();
    // A backlog that cannot run is no one before it.
    let mut facts = with_worker(queued(1), 2);
    let flow = |kind: &str| Backlog {
        class: Class::Standard,
        tenant: "default".into(),
        kind: kind.into(),
        peer: String::new(),
        lane: crate::Lane::Fresh,
        queued: 1,
    };
    facts.backlog = Some(vec![flow("sleep")]);
    assert!(admitted(&policy, &facts));
    facts.backlog = Some(vec![flow("echo")]);
    assert!(!admitted(&policy, &facts));
    // A reserved slot is counted.
    let mut facts = with_worker(queued(0), 1);
    let verdict = decide(&policy, &facts, &standard, NOW, 0);
    facts.take(&standard, &verdict);
    assert_eq!((facts.cell.running, facts.sessions[0].free), (1, 0));
    assert!(!admitted(&policy, &facts));
}

#[test]
fn a_class_is_shed_above_its_threshold_and_let_in_again_well_below() {
    let policy = policy();
    let flags = |facts: &Facts| shed_flags(&policy, facts, NOW);
    assert_eq!(flags(&queued(8)), [false, false, false]);
    assert_eq!(flags(&queued(9)), [false, false, true]);
    assert_eq!(flags(&queued(10)), [false, true, true]);
    let mut facts = queued(8);
    facts.shedding = [false, false, true];
    assert_eq!(flags(&facts), [false, false, true]);
    facts.cell.queued = 7;
    facts.classes[1].queued = 7;
    assert_eq!(flags(&facts), [false, false, false]);
}

#[test]
fn the_predicted_wait_refuses_what_cannot_start_in_time() {
    let policy = Policy::default();
    let mut facts = queued(200);
    facts.live_slots = 20;
    let in_a_second =
        Submission { timing: Timing { timeout_ms: Some(900), ..Timing::default() }, ..submission(STANDARD) };
    assert_eq!(outcome(&policy, &facts, &in_a_second).0, Status::Queued, "unknown refuses nobody");
    facts.pace = Pace { runs: 20, mean_run_ms: 100.0 };
    let decision = decide(&policy, &facts, &in_a_second, NOW, 0).decision;
    assert_eq!((decision.status, decision.reason), refused(Status::Expired, Reason::DeadlineTooShort));
    assert_eq!((decision.expected_wait_ms, decision.retry_after_ms), (Some(1_000), None));
    facts.live_slots = 0;
    assert_eq!(outcome(&policy, &facts, &in_a_second).0, Status::Queued, "no worker, no prediction");
}

/// What waits beside free slots is before nobody: work that no live worker runs, and work that waits for its peer's rate.
#[test]
fn what_takes_no_slot_makes_nobody_wait() {
    let in_a_second =
        Submission { timing: Timing { timeout_ms: Some(900), ..Timing::default() }, ..submission(STANDARD) };
    let flow = |kind: &str, peer: &str| Backlog {
        class: Class::Standard,
        tenant: "default".into(),
        kind: kind.into(),
        peer: peer.into(),
        lane: crate::Lane::Fresh,
        queued: 1_000,
    };
    let mut policy = Policy::default();
    let slow = PeerLimits { requests_per_minute: Some(60), ..PeerLimits::default() };
    policy.peers.insert("slow".into(), slow);
    let mut facts = queued(1_000);
    facts.live_slots = 20;
    facts.pace = Pace { runs: 100, mean_run_ms: 100.0 };
    let too_short = refused(Status::Expired, Reason::DeadlineTooShort);
    for (kind, peer, runs, waits) in [
        ("echo", "", &["echo"][..], true),
        ("nobody", "", &["echo"], false),
        ("nobody", "", &["echo", "nobody"], true),
        ("echo", "slow", &["echo"], false),
        ("echo", "other", &["echo"], true),
    ] {
        facts.live_kinds = Some(runs.iter().map(|kind| (*kind).to_owned()).collect());
        facts.backlog = Some(vec![flow(kind, peer)]);
        let outcome = outcome(&policy, &facts, &in_a_second);
        assert_eq!(outcome == too_short, waits, "{kind} {peer} {runs:?}: {outcome:?}");
        assert_eq!(super::cell_pressure(&policy, &facts, NOW) > 0.05, waits, "{kind} {peer} {runs:?}");
    }
    // For the peer's own it is its rate that counts.
    facts.peers.insert("slow".into(), Usage { queued: 1_000, ..Usage::default() });
    facts.backlog = Some(vec![flow("echo", "slow")]);
    let own = Submission { peer: crate::PeerName::parse("slow").ok(), ..in_a_second };
    assert_eq!(decide(&policy, &facts, &own, NOW, 0).decision.expected_wait_ms, Some(1_000_000));
}

#[test]
fn a_saturated_peer_is_slow_for_its_own_alone() {
    let mut policy = Policy::default();
    policy.peers.insert("slow".into(), PeerLimits { max_in_flight: Some(1), ..PeerLimits::default() });
    let mut facts = queued(1_000);
    facts.live_slots = 20;
    facts.pace = Pace { runs: 100, mean_run_ms: 100.0 };
    facts.peers.insert("slow".into(), Usage { queued: 1_000, running: 1, ..Usage::default() });
    facts.backlog = Some(vec![Backlog {
        class: Class::Standard,
        tenant: "default".into(),
        kind: "echo".into(),
        peer: "slow".into(),
        lane: crate::Lane::Fresh,
        queued: 1_000,
    }]);
    let other = submission(STANDARD);
    let same = Submission { peer: PeerName::parse("slow").ok(), ..submission(STANDARD) };
    let wait = |submission| decide(&policy, &facts, submission, NOW, 0).decision.expected_wait_ms;
    assert_eq!((wait(&other), wait(&same)), (Some(0), Some(100_000)));
    assert_eq!(outcome(&policy, &facts, &same).0, Status::Shed);
    assert_eq!(outcome(&policy, &facts, &other).0, Status::Queued);
}

#[test]
fn no_slot_is_reserved_for_what_its_peers_rate_keeps_from_starting() {
    let limits = |requests, tokens| PeerLimits {
        requests_per_minute: requests,
        tokens_per_minute: tokens,
        ..PeerLimits::default()
    };
    let now_ns = NOW * 1_000_000;
    let hour_ns = 3_600_000_000_000;
    let none = PeerRates::default();
    // One request in a second: the bucket holds one. 6000 tokens in a minute: it holds ten.
    for (limits, tokens, rates, status) in [
        (limits(Some(60), None), 0, none, Status::Admitted),
        (limits(Some(60), None), 0, PeerRates { requests_full_ns: now_ns + 1, ..none }, Status::Admitted),
        (limits(Some(60), None), 0, PeerRates { requests_full_ns: now_ns + 900_000_000, ..none }, Status::Queued),
        (limits(Some(60), None), 0, PeerRates { ahead: 1, ..none }, Status::Queued),
        (limits(Some(1_200), None), 0, PeerRates { ahead: 1, ..none }, Status::Admitted),
        (limits(Some(1_200), None), 0, PeerRates { ahead: 2, ..none }, Status::Queued),
        (limits(None, Some(6_000)), 10, none, Status::Admitted),
        (limits(None, Some(6_000)), 1_000, none, Status::Admitted),
        (limits(None, Some(6_000)), 10, PeerRates { tokens_full_ns: now_ns + hour_ns, ..none }, Status::Queued),
        (limits(None, Some(6_000)), 10, PeerRates { ahead_tokens: 10, ..none }, Status::Queued),
        (limits(None, Some(6_000)), 4, PeerRates { ahead_tokens: 5, ..none }, Status::Admitted),
        (limits(None, None), 10, PeerRates { tokens_full_ns: i64::MAX, ahead: 9, ..none }, Status::Admitted),
    ] {
        let mut policy = policy();
        policy.peers.insert("slow".into(), limits.clone());
        let mut facts = with_worker(queued(0), 5);
        facts.peers.insert("slow".into(), Usage::default());
        facts.peer_rates.insert("slow".into(), rates);
        let mut asks = Submission { peer: PeerName::parse("slow").ok(), ..submission(STANDARD) };
        asks.cost.tokens = tokens;
        assert_eq!(outcome(&policy, &facts, &asks).0, status, "{limits:?} {tokens} {rates:?}");
        assert_eq!(outcome(&policy, &facts, &submission(STANDARD)).0, Status::Admitted, "whoever uses no such peer");
    }
}

#[test]
fn a_batch_reserves_no_more_slots_than_the_peers_rate_has_room_for() {
    let mut policy = policy();
    policy.peers.insert("slow".into(), PeerLimits { requests_per_minute: Some(1_200), ..PeerLimits::default() });
    let mut facts = with_worker(queued(0), 5);
    facts.peer_rates.insert("slow".into(), PeerRates::default());
    let mut statuses = Vec::new();
    for n in 0..3 {
        let asks = Submission { peer: PeerName::parse("slow").ok(), ..named(n, STANDARD) };
        let verdict = decide(&policy, &facts, &asks, NOW, 0);
        facts.take(&asks, &verdict);
        statuses.push(verdict.decision.status);
    }
    assert_eq!(statuses, [Status::Admitted, Status::Admitted, Status::Queued]);
}

#[test]
fn what_waits_for_its_peers_rate_goes_before_nobody_else() {
    let mut policy = policy();
    policy.peers.insert("slow".into(), PeerLimits { requests_per_minute: Some(60), ..PeerLimits::default() });
    let mut facts = with_worker(queued(1), 5);
    facts.backlog = Some(vec![Backlog {
        class: Class::Standard,
        tenant: "default".into(),
        kind: "echo".into(),
        peer: "slow".into(),
        lane: crate::Lane::Fresh,
        queued: 1,
    }]);
    for (full_ns, status) in [(NOW * 1_000_000, Status::Queued), ((NOW + 900) * 1_000_000, Status::Admitted)] {
        facts.peer_rates.insert("slow".into(), PeerRates { requests_full_ns: full_ns, ..PeerRates::default() });
        assert_eq!(outcome(&policy, &facts, &submission(STANDARD)).0, status);
    }
}

#[test]
fn a_full_queue_is_waited_for_or_deferred_to_where_the_caller_agreed() {
    let mut policy = policy();
    policy.limits.classes.standard.shed_at = None;
    policy.limits.max_deferred = 1;
    let facts = queued(10);
    let wait = Submission { on_full: OnFull::Wait { max_wait_ms: 500 }, ..submission(STANDARD) };
    assert_eq!(decide(&policy, &facts, &wait, NOW, 100).wait_until, Some(NOW + 400));
    let hurried = Submission { timing: Timing { timeout_ms: Some(400), ..Timing::default() }, ..wait.clone() };
    assert_eq!(decide(&policy, &facts, &hurried, NOW, 0).wait_until, Some(NOW + 100));
    assert_eq!(decide(&policy, &queued(9), &wait, NOW, 0).wait_until, None);
    let defer = Submission { on_full: OnFull::Defer, ..submission(STANDARD) };
    let mut facts = queued(10);
    let verdict = decide(&policy, &facts, &defer, NOW, 0);
    assert_eq!((verdict.decision.status, verdict.decision.reason), (Status::Deferred, Some(Reason::Overload)));
    facts.take(&defer, &verdict);
    assert_eq!((facts.cell.deferred, facts.cell.due), (1, 1));
    assert_eq!(outcome(&policy, &facts, &defer), refused(Status::Rejected, Reason::DeferredFull));
    let later = Submission { timing: Timing { start: Start::After(10), ..Timing::default() }, ..defer };
    assert_eq!(outcome(&policy, &queued(10), &later), (Status::Deferred, Some(Reason::Scheduled)));
}

#[test]
fn accepted_work_goes_before_newcomers() {
    let mut policy = policy();
    policy.limits.classes.standard.shed_at = None;
    let mut facts = queued(9);
    facts.at_levels(Class::Standard, "default", "", |usage| usage.due = 1);
    assert_eq!(outcome(&policy, &facts, &submission(STANDARD)).1, Some(Reason::QueueFull));
    let load = Load { bytes: 4, ..Load::default() };
    let ask = Ask::inside(Class::Standard, "default", "echo", "", load);
    assert_eq!(promote(&policy, &facts, &ask), Some(vec![]));
    facts.cell.queued = 10;
    assert_eq!(promote(&policy, &facts, &ask), None);
}

fn candidate(n: u8, class: Class) -> Candidate {
    Candidate {
        id: TaskId::new(NOW, [n; 10], n),
        flow: 1,
        rank: i64::from(n),
        class,
        tenant: "default".into(),
        peer: String::new(),
        load: Load { bytes: 4, ..Load::default() },
    }
}

#[test]
fn a_critical_newcomer_takes_the_place_of_the_worst_of_the_lowest_class() {
    let policy = policy();
    let mut facts = queued(10);
    facts.candidates[1] = vec![candidate(9, Class::Standard)];
    facts.candidates[2] = vec![candidate(5, Class::Background), candidate(4, Class::Background)];
    let critical = submission(CRITICAL);
    let verdict = decide(&policy, &facts, &critical, NOW, 0);
    assert_eq!(verdict.decision.status, Status::Queued);
    assert_eq!(verdict.displaced, [candidate(5, Class::Background)]);
    facts.take(&critical, &verdict);
    assert_eq!((facts.cell.queued, facts.candidates[2].len()), (10, 1));
    // Bytes may need several, but not more than eight.
    let mut policy = policy;
    policy.limits.max_bytes = 40;
    let large = Submission { payload: "1".repeat(12), ..critical };
    let facts = Facts { cell: Usage { queued: 10, bytes: 40, ..Usage::default() }, ..facts };
    let many = (0..20).map(|n| candidate(n, Class::Background)).collect::<Vec<_>>();
    let facts = Facts { candidates: [vec![], vec![], many], ..facts };
    assert_eq!(decide(&policy, &facts, &large, NOW, 0).displaced.len(), 3);
    let larger = Submission { payload: "1".repeat(36), ..large };
    let verdict = decide(&policy, &facts, &larger, NOW, 0);
    assert_eq!((verdict.decision.reason, verdict.displaced.len()), (Some(Reason::ByteBudget), 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn no_bound_is_ever_exceeded_and_refusals_change_nothing(
        arrivals in proptest::collection::vec((0i64..=100, 0usize..40, any::<bool>(), 0u64..50, 0u8..3, 0u8..3), 0..80),
        max_queued in 1u32..20, max_deferred in 0u32..10, max_bytes in 0u64..600, slots in 0i64..6,
        in_flight in proptest::option::of(0u32..15), tokens in proptest::option::of(0u64..300),
        tenant_queued in proptest::option::of(0u32..8), class_queued in proptest::option::of(0u32..8), peer_waiting in proptest::option::of(0u32..5),
    ) {
        let mut policy = Policy::default();
        let limits = &mut policy.limits;
        (limits.max_queued, limits.max_deferred, limits.max_bytes) = (max_queued, max_deferred, max_bytes);
        (limits.max_in_flight, limits.max_tokens) = (in_flight, tokens);
        limits.classes.standard.max_queued = class_queued;
        policy.tenants.insert("t0".into(), TenantLimits { max_queued: tenant_queued, max_running: Some(2), ..TenantLimits::default() });
        policy.peers.insert("p0".into(), PeerLimits { max_waiting: peer_waiting, max_in_flight: Some(1), ..PeerLimits::default() });
        let mut facts = with_worker(Facts { now: NOW, ..Facts::default() }, slots);
        for name in ["t0", "t1", "t2"] {
            facts.tenants.insert(name.into(), TenantFacts::default());
        }
        facts.peers.insert("p0".into(), Usage::default());
        for (n, (priority, size, delayed, tokens, tenant, peer)) in arrivals.into_iter().enumerate() {
            let mut asked = named(n as u8, priority);
            asked.timing.start = if delayed { Start::After(5) } else { Start::Now };
            asked.payload = "1".repeat(size);
            asked.cost.tokens = tokens;
            asked.tenant = TenantId::parse(&format!("t{tenant}")).unwrap_or_else(|_| unreachable!());
            asked.peer = (peer == 0).then(|| PeerName::parse("p0").unwrap_or_else(|_| unreachable!()));
            facts.shedding = shed_flags(&policy, &facts, NOW);
            let before = facts.clone();
            let verdict = decide(&policy, &facts, &asked, NOW, 0);
            prop_assert_eq!(&verdict, &decide(&policy, &before, &asked, NOW, 0));
            facts.take(&asked, &verdict);
            let decision = verdict.decision;
            if decision.reason == Some(Reason::QueueFull) {
                let lower = Class::ALL.into_iter().filter(|class| *class > decision.class);
                prop_assert!(lower.into_iter().all(|class| before.candidates[class as usize].is_empty()) || in_flight == Some(0) || verdict.displaced.is_empty() && before.cell.running >= i64::from(in_flight.unwrap_or(u32::MAX)));
            }
            if decision.status.is_final() {
                prop_assert_eq!(&before.tenants, &facts.tenants);
                prop_assert_eq!((before.cell, before.classes, before.peers), (facts.cell, facts.classes, facts.peers.clone()));
            }
            if decision.status == Status::Queued {
                let worst = candidate_of(&asked, decision.class, decision.rank);
                facts.candidates[decision.class as usize].push(worst);
                facts.candidates[decision.class as usize].sort_by_key(|candidate| std::cmp::Reverse(candidate.rank));
            }
            let within = |used: i64, limit: Option<u64>| limit.is_none_or(|limit| used <= limit as i64);
            prop_assert!(facts.cell.queued <= i64::from(max_queued) && facts.cell.deferred <= i64::from(max_deferred));
            prop_assert!(facts.cell.bytes <= max_bytes as i64 && within(facts.cell.tokens, policy.limits.max_tokens));
            prop_assert!(within(facts.cell.in_flight(), in_flight.map(u64::from)));
            prop_assert!(facts.cell.running <= slots && facts.sessions.iter().all(|session| session.free >= 0));
            prop_assert!(within(facts.classes[1].queued, class_queued.map(u64::from)));
            prop_assert!(within(facts.tenants["t0"].usage.queued, tenant_queued.map(u64::from)) && facts.tenants["t0"].usage.running <= 2);
            prop_assert!(within(facts.peers["p0"].queued, peer_waiting.map(u64::from)) && facts.peers["p0"].running <= 1);
            prop_assert!(facts.classes.iter().all(|class| class.queued >= 0 && class.bytes >= 0));
        }
    }
}

fn candidate_of(asked: &Submission, class: Class, rank: i64) -> Candidate {
    Candidate {
        id: asked.id,
        flow: 1,
        rank,
        class,
        tenant: asked.tenant.as_str().to_owned(),
        peer: asked.peer.as_ref().map_or(String::new(), |peer| peer.as_str().to_owned()),
        load: Load {
            tokens: asked.cost.tokens as i64,
            usd_micros: asked.cost.usd_micros as i64,
            bytes: asked.payload.len() as i64,
        },
    }
}
