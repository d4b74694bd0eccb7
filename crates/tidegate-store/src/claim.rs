//! Claiming: what a turn starts, once it knows what waits and what may run.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::order::{Chosen, ClaimRoom, Start, choose};
use tidegate_core::{Class, EpochMs, Lane, Status};
use uuid::Uuid;

use crate::changes::{Begin, Changes};
use crate::claim_room::{Limited, MAX_BELOW_FLOOR_US, Open};
use crate::connection::Tx;
use crate::error::StoreError;
use crate::look::Aim;
use crate::released::Released;
use crate::seen::{Beside, Seen, claimed_of, place_of};
use crate::session::Session;
use crate::types::Claimed;

/// What a turn claims.
#[derive(Default)]
pub(crate) struct Claim {
    /// When, where it looked at all.
    pub(crate) now: Option<EpochMs>,
    pub(crate) tasks: Vec<Claimed>,
    /// Whether another turn may find more.
    pub(crate) more: bool,
    pub(crate) again_in: Option<Duration>,
    /// The leases that are taken, by the tasks.
    pub(crate) leases: Vec<Released>,
    /// What is started for each of the guests.
    pub(crate) of_guests: Vec<Vec<Uuid>>,
    starts: Vec<Started>,
}

/// What a start says of the order: told once it is committed.
struct Started {
    class: Class,
    waited_ms: i64,
    charged_in: Class,
    behind_us: i64,
}

impl Claim {
    /// Tells the metrics what was started.
    pub(crate) fn tell(&self) {
        for start in &self.starts {
            metrics::histogram!("tidegate_queue_wait_seconds", "class" => start.class.as_str())
                .record(start.waited_ms.max(0) as f64 / 1e3);
            metrics::histogram!("tidegate_virtual_time_lag_seconds", "class" => start.charged_in.as_str())
                .record(start.behind_us as f64 / 1e6);
        }
    }
}

/// How what is started is divided between a session and its guests, the next to whoever is next in turn and wants more.
struct Shares {
    /// What the session itself still gets, then each guest.
    left: Vec<usize>,
    next: usize,
}

impl Shares {
    /// So many of what is started only the session itself may run.
    fn of(aim: &Aim, for_itself: usize) -> Self {
        let own = aim.own().saturating_sub(for_itself);
        Self { left: std::iter::once(own).chain(aim.guests.iter().map(|guest| guest.want)).collect(), next: 0 }
    }

    /// The guest that gets the next, or nothing for the session itself.
    fn next(&mut self) -> Option<usize> {
        let all = self.left.len();
        let at = (self.next..self.next + all).map(|at| at % all).find(|at| self.left[*at] > 0)?;
        self.left[at] -= 1;
        self.next = at + 1;
        at.checked_sub(1)
    }
}

/// A claim that is being made.
pub(crate) struct Claiming<'a> {
    pub(crate) session: &'a Session,
    pub(crate) aim: &'a Aim,
    pub(crate) limited: &'a Limited,
    pub(crate) open: &'a Open,
}

impl Claiming<'_> {
    /// Chooses what to start of what a look has seen, and ends what is doomed on the way.
    pub(crate) async fn claim(&self, rows: &[PgRow], changes: &mut Changes, tx: &mut Tx) -> Result<Claim, StoreError> {
        let (session, limited) = (self.session, self.limited);
        let first = rows.first().ok_or_else(|| StoreError::Schema("a look returned nothing".into()))?;
        let now: EpochMs = first.try_get(0)?;
        if !first.try_get::<bool, _>(1)? {
            return Err(StoreError::SessionLost);
        }
        if first.try_get::<bool, _>(2)? {
            // Its guests ask again, and somebody else claims for them.
            return Ok(Claim { now: Some(now), more: !self.aim.guests.is_empty(), ..Claim::default() });
        }
        let mut flow_ids = Vec::new();
        for row in rows {
            flow_ids.extend(row.try_get::<Option<i64>, _>(3)?);
        }
        flow_ids.dedup();
        let flows = session.store.directory.describe(tx, flow_ids.into_iter()).await?;
        let (peers, places) = limited.peers(changes.ledger());
        let kinds: HashMap<String, usize> =
            self.aim.of_kinds.iter().enumerate().map(|(n, (kind, _))| (kind.clone(), n)).collect();
        let seen = Seen::read(
            rows,
            &Beside {
                limited,
                ledger: changes.ledger(),
                flows: &flows,
                peers: &places,
                kinds: &kinds,
                session: session.heart.session,
                reserved: self.aim.of_its_own(),
                now,
                runs: &session.store.runs,
                reserve_ms: session.spec.least_left_ms(),
            },
        )?;
        let room = ClaimRoom {
            caps: limited.caps(),
            running: limited.running(changes.ledger()),
            floors: limited.floors,
            promote_after_ms: limited.promote_after_ms(),
            tenants: seen.tenants.clone(),
            peers,
            kinds: self.aim.of_kinds.iter().map(|(_, left)| *left).collect(),
            suspects: i64::from(self.open.suspects && seen.reserved < self.aim.of_its_own()),
        };
        let chosen = choose(&seen.heads, room, self.aim.want, now);
        session.learn(chosen.stopped_short);
        let parked = self.move_lines(&seen, &chosen, changes);
        let mut claim = self.write(&seen, &chosen, now, changes)?;
        let again_in_ms = chosen.again_in_ms.into_iter().chain(self.open.again_in_ms).min();
        let short = chosen.start.len() < self.aim.want;
        claim.again_in = again_in_ms.filter(|_| short).map(Duration::from_millis);
        // The suspects that it did not take may stand before others that it did not see: the next look leaves them out.
        let suspect = short && claim.tasks.iter().any(|task| task.suspect);
        let lines = self.open.more && !chosen.start.is_empty();
        claim.more = chosen.stopped_short || parked || suspect || lines;
        Ok(claim)
    }

    /// Ends the doomed, starts the chosen, and charges their tenants and peers.
    fn write(&self, seen: &Seen, chosen: &Chosen, now: EpochMs, changes: &mut Changes) -> Result<Claim, StoreError> {
        let session = self.session.heart.session;
        for (flow, task, reason) in &chosen.expire {
            let (head, terms, key) = (&seen.heads[*flow], &seen.terms[*flow][*task], &seen.keys[*flow]);
            let place = place_of(head, *task, session);
            let (from, to) = (Status::Queued, Status::Expired);
            changes.end_waiting(place, key, from, to, *reason, terms.holding, None, terms.in_order);
        }
        let started = chosen.start.len();
        let (mut tasks, mut starts) = (Vec::with_capacity(started), Vec::with_capacity(started));
        let mut leases = Vec::with_capacity(started);
        let for_itself = |start: &Start| matches!(seen.heads[start.flow].lane, Lane::Admitted | Lane::Suspect);
        let mut shares = Shares::of(self.aim, chosen.start.iter().filter(|start| for_itself(start)).count());
        let mut of_guests = vec![Vec::new(); self.aim.guests.len()];
        for start in &chosen.start {
            let (head, key) = (&seen.heads[start.flow], &seen.keys[start.flow]);
            let terms = &seen.terms[start.flow][start.task];
            let place = place_of(head, start.task, session);
            let effects = self.session.effects.get(&key.kind).copied().unwrap_or_default();
            let guest = if for_itself(start) { None } else { shares.next() };
            let session = guest.map_or(session, |guest| self.aim.guests[guest].session);
            let begin = Begin { place, session, effects, charged_ms: head.run_ms, charged_in: start.charged_in };
            match guest {
                Some(guest) => of_guests[guest].push(place.id.0),
                None => {
                    leases.push(Released::of_claim(&begin, terms, head.tasks[start.task].enqueued, now));
                    tasks.push(claimed_of(terms, place.id, key, terms.deliveries + 1, now)?);
                }
            }
            changes.start(begin, key, terms.holding, terms.in_order);
            if terms.deliveries == 0 {
                let earned = self.limited.policy.retry_budget(&key.peer).earned();
                changes.served().spend_retry(key, -earned);
            }
            changes.served().draw_peer(&key.peer, start.draw.requests_ns, start.draw.tokens_ns);
            let waited_ms = now - head.tasks[start.task].enqueued;
            let (charged_in, behind_us) = (start.charged_in, start.behind_us);
            starts.push(Started { class: key.class, waited_ms, charged_in, behind_us });
        }
        for ((name, before), after) in seen.names.iter().zip(&seen.tenants).zip(&chosen.turns) {
            for class in Class::ALL {
                let at = class as usize;
                changes.served().turn(class, name, after[at] - before.turns[at]);
            }
        }
        for class in Class::ALL {
            let at = class as usize;
            changes.served().floor(class, chosen.floors[at] - self.limited.floors[at]);
        }
        Ok(Claim { now: Some(now), tasks, leases, of_guests, starts, ..Claim::default() })
    }

    /// Remembers where the lines begin. Where a line has more flows than were read, those that stand too far in front are
    /// put where their tenants are, and those whose tenant has no room are parked: the next look meets others. Returns
    /// whether any were parked.
    fn move_lines(&self, seen: &Seen, chosen: &Chosen, changes: &mut Changes) -> bool {
        let long = |line: usize| line > 0 && seen.lines.get(&line).is_some_and(|(flows, _)| *flows >= self.open.flows);
        let mut parked = false;
        for (at, head) in seen.heads.iter().enumerate().filter(|(_, head)| head.lane != Lane::Admitted) {
            let (line, stands) = seen.stands[at];
            if !long(line) {
                continue;
            }
            let turn = chosen.turns[head.tenant][head.class as usize];
            if chosen.capped.contains(&at) {
                changes.park(head.flow);
                parked = true;
            } else if turn > stands {
                changes.stand(head.flow, turn);
            }
        }
        // What is hidden from the look may stand before what it saw.
        if self.open.paused.is_empty() && self.open.suspects {
            self.session.remember_lines(&self.open.lines, |n| {
                let (_, first) = seen.lines.get(&(n + 1))?;
                let floor = self.limited.floors[self.open.lines[n].class as usize];
                Some((*first).min(floor.saturating_sub(MAX_BELOW_FLOOR_US)))
            });
        }
        parked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::Claimant;

    fn shares(own: usize, guests: &[usize], for_itself: usize) -> Vec<Option<usize>> {
        let aim = Aim {
            want: own + guests.iter().sum::<usize>(),
            guests: guests.iter().map(|want| Claimant { session: Uuid::nil(), want: *want }).collect(),
            reports: 0,
            held: 0,
            of_kinds: Vec::new(),
            full: Vec::new(),
            suspects: true,
        };
        let mut shares = Shares::of(&aim, for_itself);
        (0..aim.want - for_itself).map(|_| shares.next()).collect()
    }

    #[test]
    fn what_starts_is_divided_in_turn_among_those_who_want_more() {
        assert_eq!(shares(2, &[], 0), [None, None]);
        assert_eq!(shares(2, &[3, 0, 1], 0), [None, Some(0), Some(2), None, Some(0), Some(0)]);
        assert_eq!(shares(0, &[1, 1], 0), [Some(0), Some(1)]);
        assert_eq!(shares(3, &[2], 2), [None, Some(0), Some(0)]);
        assert_eq!(shares(1, &[1], 1), [Some(0)]);
    }
}
