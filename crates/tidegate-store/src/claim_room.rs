//! What a claim may still start at every level, and which lines of flows it need not look at.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::order::{PeerRoom, Rate, TenantRoom};
use tidegate_core::pause::PauseTarget;
use tidegate_core::policy::Policy;
use tidegate_core::slots::SlotCaps;
use tidegate_core::{Class, EpochMs};
use uuid::Uuid;

use crate::connection::Tx;
use crate::error::StoreError;
use crate::ledger::{Ledger, class_of};
use crate::question::{Opening, Question, Value};
use crate::store::StoreInner;

const ROOM: Opening = Opening { name: "tidegate_room", sql: include_str!("claim_room.sql") };
/// Most lines that one claim asks about: those without room cost it no more than that.
const MAX_LINES: i64 = 2_048;
/// Most lines with room that one claim visits; where there are more, the next goes on behind them.
const MAX_VISITED: usize = 256;
/// Most flows that one claim visits, over all lines.
const MAX_FLOWS: usize = 512;
/// Flows of each line that a claim visits beyond what it wants, for those that have no room.
const SPARE_FLOWS: usize = 16;

/// How far below the floor of its class a flow may stand that comes to have something waiting, in microseconds of
/// virtual time, as `ledger_wake.sql` says.
pub(crate) const MAX_BELOW_FLOOR_US: i64 = 1_000_000;

/// Flows of one class, kind and peer: they have room or not as one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    pub(crate) class: Class,
    pub(crate) kind: String,
    /// Empty where there is no peer.
    pub(crate) peer: String,
}

/// A peer for which something waits.
struct PeerUse {
    name: String,
    running: i64,
    rate_full_ns: i64,
    tokens_full_ns: i64,
    /// Calls of running tasks that wait for it.
    calls: i64,
}

/// The room as it was when the turn began.
pub(crate) struct Limited {
    pub(crate) policy: Arc<Policy>,
    pub(crate) floors: [i64; 3],
    now: EpochMs,
    slots: i64,
    running: [i64; 3],
    lines: Vec<Line>,
    peers: Vec<PeerUse>,
    /// The flows in which slots of this session are reserved.
    reserved: Vec<i64>,
}

/// Where a look goes.
#[derive(Debug, Default)]
pub(crate) struct Open {
    /// The lines that may have room.
    pub(crate) lines: Vec<Line>,
    /// Whether there are more lines than that.
    pub(crate) more: bool,
    /// How many flows of each line it reads.
    pub(crate) flows: usize,
    /// The flows in which slots of this session are reserved.
    pub(crate) reserved: Vec<i64>,
    /// Tenants that are paused.
    pub(crate) paused: Vec<String>,
    /// Whether this worker may take a task that was lost twice.
    pub(crate) suspects: bool,
    /// In how many milliseconds a peer that is passed over may be given something.
    pub(crate) again_in_ms: Option<u64>,
}

impl Limited {
    /// Asks for it, for a session that knows to hold so many tasks. To be asked inside a transaction that holds the cell's
    /// row, or beside one.
    pub(crate) fn question(kinds: &[String], session: Uuid, held: usize) -> Question {
        let held = Value::Number(i64::try_from(held).unwrap_or(i64::MAX));
        Question::new(&ROOM, [Value::Texts(kinds.to_vec()), Value::Number(MAX_LINES), Value::Id(session), held])
    }

    /// What the answer says.
    pub(crate) async fn of(store: &StoreInner, answer: &[PgRow], tx: &mut Tx) -> Result<Self, StoreError> {
        let row = answer.first().ok_or_else(|| StoreError::Schema("no room was read".into()))?;
        let policy = store.policy_at(row.try_get("revision")?, tx).await?;
        let of_class = |name: &str| -> Result<[i64; 3], StoreError> {
            let all: Vec<i64> = row.try_get(name)?;
            Ok([0, 1, 2].map(|n| all.get(n).copied().unwrap_or(0)))
        };
        let (classes, kinds, peers): (Vec<i16>, Vec<String>, Vec<String>) =
            (row.try_get("line_class")?, row.try_get("line_kind")?, row.try_get("line_peer")?);
        let mut lines = Vec::with_capacity(classes.len());
        for ((class, kind), peer) in classes.into_iter().zip(kinds).zip(peers) {
            lines.push(Line { class: class_of(class)?, kind, peer });
        }
        let (names, running): (Vec<String>, Vec<i64>) = (row.try_get("peers")?, row.try_get("peer_running")?);
        let (rates, tokens): (Vec<i64>, Vec<i64>) = (row.try_get("peer_rate")?, row.try_get("peer_tokens")?);
        let calls: Vec<i64> = row.try_get("peer_calls")?;
        let at = |all: &[i64], n: usize| all.get(n).copied().unwrap_or(0);
        let peers = names.into_iter().enumerate().map(|(n, name)| PeerUse {
            name,
            running: at(&running, n),
            rate_full_ns: at(&rates, n),
            tokens_full_ns: at(&tokens, n),
            calls: at(&calls, n),
        });
        Ok(Self {
            policy,
            floors: of_class("floors")?,
            now: row.try_get("now_ms")?,
            slots: row.try_get("slots")?,
            running: of_class("running")?,
            lines,
            peers: peers.collect(),
            reserved: row.try_get("reserved")?,
        })
    }

    /// Where a look for `want` tasks goes, where so many of this turn's reports may still give room back. The kinds in
    /// `full` have no room in this worker, and suspects only with `suspects`. `from` says which lines come first where there
    /// are more than a look visits.
    pub(crate) fn open(&self, want: usize, reports: usize, full: &[String], suspects: bool, from: usize) -> Open {
        let back = i64::try_from(reports).unwrap_or(i64::MAX);
        let running = self.running.map(|running| (running - back).max(0));
        let caps = SlotCaps::of(&self.policy.limits, self.slots);
        let mut open = Open { suspects, reserved: self.reserved.clone(), ..Open::default() };
        let mut closed: HashMap<&str, bool> = HashMap::new();
        for peer in &self.peers {
            let ready = self.peer(peer, back, 0).map_or(Some(0), |room| room.ready_in_ms(self.now));
            closed.insert(&peer.name, ready != Some(0));
            let waits = self.lines.iter().any(|line| line.peer == peer.name);
            if let (Some(ms), true) = (ready.filter(|ms| *ms > 0), waits) {
                open.again_in_ms = Some(open.again_in_ms.map_or(ms, |known| known.min(ms)));
            }
        }
        let pauses: Vec<_> = self.policy.pauses.iter().filter(|pause| pause.in_effect(self.now)).collect();
        let is_open = |line: &&Line| {
            let paused = pauses.iter().any(|pause| match &pause.target {
                PauseTarget::Kind(kind) => kind.as_str() == line.kind,
                PauseTarget::Class(class) => *class == line.class,
                PauseTarget::Peer(peer) => peer.as_str() == line.peer,
                PauseTarget::Tenant(_) => false,
            });
            !paused
                && caps.room(&running, line.class) > 0
                && !full.contains(&line.kind)
                && !closed.get(line.peer.as_str()).copied().unwrap_or(false)
        };
        let all: Vec<Line> = self.lines.iter().filter(is_open).cloned().collect();
        open.more = all.len() > MAX_VISITED;
        open.lines = visited(all, from);
        open.flows = (MAX_FLOWS / open.lines.len().max(1)).clamp(4, want.saturating_add(SPARE_FLOWS).min(MAX_FLOWS));
        open.paused = pauses
            .iter()
            .filter_map(|pause| match &pause.target {
                PauseTarget::Tenant(tenant) => Some(tenant.as_str().to_owned()),
                _ => None,
            })
            .collect();
        open
    }

    /// What a peer may still be given, once the calls that wait for it have theirs; nothing where it has no limits. So many
    /// of its tasks and calls may end with this turn, and so many more calls wait.
    fn peer(&self, peer: &PeerUse, back: i64, calls: i64) -> Option<PeerRoom> {
        let limits = self.policy.peer(&peer.name)?;
        if !limits.limits_running() {
            return None;
        }
        let running = (peer.running - back).max(0);
        let room = PeerRoom::of(Some(limits), running, peer.rate_full_ns, peer.tokens_full_ns);
        Some(room.behind(peer.calls + calls, self.now))
    }

    /// How the cell's slots are divided.
    pub(crate) fn caps(&self) -> SlotCaps {
        SlotCaps::of(&self.policy.limits, self.slots)
    }

    /// Tasks that are ADMITTED or RUNNING by class, after what the turn has settled.
    pub(crate) fn running(&self, ledger: &Ledger) -> [i64; 3] {
        Class::ALL.map(|class| self.running[class as usize] + ledger.running(1, class.as_str()))
    }

    /// What the peers that have limits may still be given, after what the turn has settled, and their places.
    pub(crate) fn peers(&self, ledger: &Ledger) -> (Vec<PeerRoom>, HashMap<&str, usize>) {
        let (mut rooms, mut places) = (Vec::new(), HashMap::new());
        for peer in &self.peers {
            if let Some(mut room) = self.peer(peer, -ledger.running(3, &peer.name), ledger.calls(&peer.name)) {
                let (rate_ns, tokens_ns) = ledger.drawn(&peer.name);
                let drawn = |rate: &mut Option<Rate>, ns: i64| {
                    if let Some(rate) = rate {
                        rate.full_ns = rate.full_ns.saturating_add(ns);
                    }
                };
                drawn(&mut room.requests, rate_ns);
                drawn(&mut room.tokens, tokens_ns);
                places.insert(peer.name.as_str(), rooms.len());
                rooms.push(room);
            }
        }
        (rooms, places)
    }

    /// What a tenant may still start, where so much of it runs, in all and of one class, and it stands at these virtual
    /// times; after what the turn has settled.
    pub(crate) fn tenant(&self, name: &str, running: i64, ledger: &Ledger) -> TenantRoom {
        let limits = self.policy.tenant(name);
        TenantRoom {
            left: left(limits.max_running, running + ledger.running(2, name)),
            left_of_class: [i64::MAX; 3],
            weight: limits.weight,
            turns: Class::ALL.map(|class| ledger.turned(class, name)),
        }
    }

    /// The same for one class of it.
    pub(crate) fn left_of_class(&self, name: &str, class: Class, running: i64, ledger: &Ledger) -> i64 {
        let most = self.policy.tenant(name).class(class).max_running;
        left(most, running + ledger.running_of_class(class, name))
    }

    /// The wait after which a task competes in the class above, by class.
    pub(crate) fn promote_after_ms(&self) -> [Option<u64>; 3] {
        Class::ALL.map(|class| self.policy.limits.classes.get(class).promote_after_ms)
    }
}

/// The lines that a claim visits, of those with room, which are in the order of their classes: all of the classes that
/// fit, and of the first that does not as many as fit, from another one on each time.
fn visited(mut lines: Vec<Line>, from: usize) -> Vec<Line> {
    for class in Class::ALL {
        let start = lines.iter().position(|line| line.class == class).unwrap_or(lines.len());
        let of_class = lines[start..].iter().take_while(|line| line.class == class).count();
        if start + of_class > MAX_VISITED {
            lines[start..start + of_class].rotate_left(from % of_class);
            break;
        }
    }
    lines.truncate(MAX_VISITED);
    lines
}

fn left(most: Option<u32>, running: i64) -> i64 {
    most.map_or(i64::MAX, |most| i64::from(most) - running)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(counts: [usize; 3]) -> Vec<Line> {
        let of = |class: Class| {
            (0..counts[class as usize]).map(move |n| Line { class, kind: "k".into(), peer: format!("{n:04}") })
        };
        Class::ALL.into_iter().flat_map(of).collect()
    }

    #[test]
    fn every_line_is_visited_in_the_end_and_the_classes_above_always() {
        let all = lines([10, 600, 10]);
        let (mut seen, mut from) = (std::collections::HashSet::new(), 0);
        for _ in 0..3 {
            let now = visited(all.clone(), from);
            assert_eq!(now.len(), MAX_VISITED);
            assert_eq!(now.iter().filter(|line| line.class == Class::Critical).count(), 10);
            seen.extend(now.into_iter().filter(|line| line.class == Class::Standard).map(|line| line.peer));
            from += MAX_VISITED - 10;
        }
        assert_eq!(seen.len(), 600);
        assert_eq!(visited(lines([3, 3, 3]), 7), lines([3, 3, 3]));
        assert_eq!(visited(lines([0, 0, 0]), 7), []);
    }
}
