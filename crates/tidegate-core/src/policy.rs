//! All that operators decide at run time, as one value that a decision is taken over.

use std::collections::BTreeMap;

use crate::EpochMs;
use crate::limits::Limits;
use crate::names::Class;
use crate::pause::{Pause, PauseMode};
use crate::peer::{PeerLimits, RetryBudget};
use crate::quarantine::Hold;
use crate::tenant::TenantLimits;

/// The limits, tenants, peers and pauses that are in effect.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Policy {
    /// Grows with each change, so that two replicas can tell whether they know the same.
    pub revision: i64,
    /// The bounds of the cell and its classes.
    pub limits: Limits,
    /// The tenants that somebody configured, by name.
    pub tenants: BTreeMap<String, TenantLimits>,
    /// The peers that somebody configured, by name.
    pub peers: BTreeMap<String, PeerLimits>,
    /// What is paused. Some of it may be over: ask with the time.
    pub pauses: Vec<Pause>,
    /// Inputs that are held. Some of it may be over: ask with the time.
    pub holds: Vec<Hold>,
}

impl Policy {
    /// The limits of a tenant: none, where nobody configured it.
    pub fn tenant(&self, name: &str) -> &TenantLimits {
        self.tenants.get(name).unwrap_or_else(|| TenantLimits::unconfigured())
    }

    /// The limits of a peer, where somebody configured it.
    pub fn peer(&self, name: &str) -> Option<&PeerLimits> {
        self.peers.get(name)
    }

    /// What retries may cost towards a peer; the usual where nobody configured it, or there is none.
    pub fn retry_budget(&self, peer: &str) -> &RetryBudget {
        self.peers.get(peer).map_or(&RetryBudget::USUAL, |peer| &peer.retry_budget)
    }

    /// Whether some waiting task may be held back although a slot is free for it: by a pause, or because its peer or
    /// its tenant has a limit of its own.
    pub fn can_hold_back(&self) -> bool {
        !self.pauses.is_empty()
            || self.peers.values().any(PeerLimits::limits_running)
            || self.tenants.values().any(TenantLimits::limits_running)
    }

    /// A pause by which no such task starts.
    pub fn held(&self, kind: &str, class: Class, tenant: &str, peer: Option<&str>, now: EpochMs) -> Option<&Pause> {
        self.pauses.iter().find(|pause| pause.in_effect(now) && pause.stops(kind, class, tenant, peer))
    }

    /// A pause by which no such task is let in.
    pub fn refused(&self, kind: &str, class: Class, tenant: &str, peer: Option<&str>, now: EpochMs) -> Option<&Pause> {
        let refuses = |pause: &&Pause| pause.mode == PauseMode::Refuse && pause.in_effect(now);
        self.pauses.iter().filter(refuses).find(|pause| pause.stops(kind, class, tenant, peer))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::pause::PauseTarget;

    const NOW: EpochMs = 1_790_000_000_000;

    fn paused(member: &str, value: &str, mode: PauseMode, until: Option<EpochMs>) -> Policy {
        let target = PauseTarget::of_parts(member, value).unwrap();
        let pause = Pause { id: Uuid::nil(), target, mode, until, reason: None, created: NOW - 1 };
        Policy { pauses: vec![pause], ..Policy::default() }
    }

    #[test]
    fn a_pause_stops_what_it_names_until_it_is_over() {
        for (member, value, stops) in [
            ("kind", "echo", true),
            ("kind", "sleep", false),
            ("class", "standard", true),
            ("class", "critical", false),
            ("tenant", "acme", true),
            ("tenant", "other", false),
            ("peer", "hotels", true),
            ("peer", "flights", false),
        ] {
            for (until, over) in [(None, false), (Some(NOW + 1), false), (Some(NOW), true)] {
                for mode in [PauseMode::Hold, PauseMode::Refuse] {
                    let policy = paused(member, value, mode, until);
                    let held = policy.held("echo", Class::Standard, "acme", Some("hotels"), NOW).is_some();
                    let refused = policy.refused("echo", Class::Standard, "acme", Some("hotels"), NOW).is_some();
                    assert_eq!(held, stops && !over, "{member} {value} {until:?}");
                    assert_eq!(refused, held && mode == PauseMode::Refuse, "{member} {value} {mode:?}");
                }
            }
        }
        assert_eq!(paused("peer", "hotels", PauseMode::Hold, None).held("e", Class::Standard, "t", None, NOW), None);
    }

    #[test]
    fn a_refusing_pause_is_found_behind_a_holding_one() {
        let mut policy = paused("kind", "echo", PauseMode::Hold, None);
        policy.pauses.extend(paused("tenant", "acme", PauseMode::Refuse, None).pauses);
        let refused = policy.refused("echo", Class::Standard, "acme", None, NOW);
        assert_eq!(refused.map(|pause| pause.target.parts()), Some(("tenant", "acme")));
    }

    #[test]
    fn whom_nobody_configured_has_no_limits() {
        let policy = Policy::default();
        assert_eq!(policy.tenant("anyone"), &TenantLimits::default());
        assert_eq!(policy.peer("any"), None);
    }

    #[test]
    fn targets_lead_back_and_nonsense_names_none() {
        for (member, value) in [("kind", "a"), ("class", "critical"), ("tenant", "t"), ("peer", "p")] {
            assert_eq!(
                PauseTarget::of_parts(member, value).map(|target| format!("{:?}", target.parts())),
                Some(format!("{:?}", (member, value)))
            );
        }
        for (member, value) in [("kind", "a b"), ("class", "urgent"), ("tenant", ""), ("worker", "w")] {
            assert_eq!(PauseTarget::of_parts(member, value), None);
        }
    }
}
