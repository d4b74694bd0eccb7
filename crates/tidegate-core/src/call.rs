//! Calls that a running task makes to a further peer: whether one may have a permit now, may wait for it, or is told
//! that the peer is busy.
//!
//! A task that holds a permit is given no other and waits for none, so two tasks never wait for each other's.

use crate::EpochMs;
use crate::order::{Draw, PeerRoom};
use crate::peer::PeerLimits;

/// What is known of a call and its peer, read inside the transaction that locked the cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFacts {
    /// Whether its task holds a permit, that of its own peer included, or waits for another.
    pub holds: bool,
    /// Whether this call waits already.
    pub waits: bool,
    /// What the peer may still be given, before any call that waits.
    pub room: PeerRoom,
    /// Calls that wait for the peer, this one included.
    pub calls: i64,
    /// QUEUED tasks for the peer and calls that wait for it, this one included.
    pub waiting: i64,
}

/// The answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallDecision {
    /// It has its permit, and this is drawn from the rates of the peer.
    Take(Draw),
    /// It waits, or goes on waiting, for so many milliseconds at most, counted from when it was first asked.
    Wait {
        /// The peer's `max_wait_ms`.
        max_ms: u64,
    },
    /// There is no room, and it does not wait.
    Busy {
        /// In how many milliseconds a later try may work, where that is known.
        retry_ms: Option<u64>,
    },
}

/// Decides on a call to a peer with these limits; `None` where nobody configured it. Calls that wait go before those
/// that come later.
pub fn decide_call(limits: Option<&PeerLimits>, facts: &CallFacts, now: EpochMs) -> CallDecision {
    if facts.holds {
        return CallDecision::Busy { retry_ms: None };
    }
    let room = if facts.waits { facts.room.clone() } else { facts.room.clone().behind(facts.calls, now) };
    let retry_ms = match room.draw(now, 0) {
        Ok(draw) => return CallDecision::Take(draw),
        Err(retry_ms) => retry_ms,
    };
    let max_ms = limits.and_then(|limits| limits.max_wait_ms).unwrap_or(0);
    let most = limits.and_then(|limits| limits.max_waiting).map_or(i64::MAX, i64::from);
    if facts.waits || (max_ms > 0 && facts.waiting < most) {
        return CallDecision::Wait { max_ms };
    }
    CallDecision::Busy { retry_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: EpochMs = 1_790_000_000_000;

    fn limits() -> PeerLimits {
        PeerLimits {
            max_in_flight: Some(2),
            max_waiting: Some(3),
            max_wait_ms: Some(500),
            requests_per_minute: Some(60),
            ..PeerLimits::default()
        }
    }

    fn facts(running: i64) -> CallFacts {
        let room = PeerRoom::of(Some(&limits()), running, 0, 0);
        CallFacts { holds: false, waits: false, room, calls: 0, waiting: 0 }
    }

    #[test]
    fn it_is_given_where_there_is_room_and_draws_one_request() {
        let drawn = Draw { requests_ns: 1_000_000_000, tokens_ns: 0 };
        assert_eq!(decide_call(Some(&limits()), &facts(1), NOW), CallDecision::Take(drawn));
        let free = CallFacts { room: PeerRoom::of(None, 9, 0, 0), ..facts(9) };
        assert_eq!(decide_call(None, &free, NOW), CallDecision::Take(Draw::default()));
    }

    #[test]
    fn a_task_that_holds_one_is_never_given_another_and_never_waits() {
        let holds = CallFacts { holds: true, ..facts(0) };
        assert_eq!(decide_call(Some(&limits()), &holds, NOW), CallDecision::Busy { retry_ms: None });
    }

    #[test]
    fn a_full_peer_is_waited_for_within_its_bounds() {
        let (wait, busy) = (CallDecision::Wait { max_ms: 500 }, CallDecision::Busy { retry_ms: None });
        assert_eq!(decide_call(Some(&limits()), &facts(2), NOW), wait);
        let crowded = CallFacts { waiting: 3, ..facts(2) };
        assert_eq!(decide_call(Some(&limits()), &crowded, NOW), busy);
        let inside = CallFacts { waits: true, calls: 1, ..crowded.clone() };
        assert_eq!(decide_call(Some(&limits()), &inside, NOW), wait, "it is among those that wait");
        for max_wait_ms in [None, Some(0)] {
            let impatient = PeerLimits { max_wait_ms, ..limits() };
            assert_eq!(decide_call(Some(&impatient), &facts(2), NOW), busy);
        }
        let unbounded = PeerLimits { max_waiting: None, ..limits() };
        assert_eq!(decide_call(Some(&unbounded), &crowded, NOW), wait);
    }

    #[test]
    fn what_waits_goes_before_what_comes_later() {
        let later = CallFacts { calls: 1, waiting: 1, ..facts(1) };
        assert_eq!(decide_call(Some(&limits()), &later, NOW), CallDecision::Wait { max_ms: 500 });
        let first = CallFacts { waits: true, ..later };
        assert!(matches!(decide_call(Some(&limits()), &first, NOW), CallDecision::Take(_)));
    }

    #[test]
    fn a_used_up_rate_says_when_to_try_again() {
        let full_ns = NOW * 1_000_000 + 700_000_000;
        let used_up = CallFacts { room: PeerRoom::of(Some(&limits()), 0, full_ns, 0), ..facts(0) };
        let impatient = PeerLimits { max_wait_ms: None, ..limits() };
        let told = decide_call(Some(&impatient), &used_up, NOW);
        assert_eq!(told, CallDecision::Busy { retry_ms: Some(700) });
    }
}
