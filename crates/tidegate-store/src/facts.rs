//! Reads what the door, and the keeper when it promotes, decide on.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tidegate_core::admission::{Backlog, Candidate, Facts, Load, Pace, ParentFacts, PeerRates, SessionRoom, Usage};
use tidegate_core::peer::PeerLimits;
use tidegate_core::policy::Policy;
use tidegate_core::submission::Submission;
use tidegate_core::{Class, EpochMs, TaskId};
use uuid::Uuid;

use crate::connection::Tx;
use crate::directory::FlowKey;
use crate::error::StoreError;
use crate::question::{Opening, Question, Value};
use crate::store::StoreInner;

const FACTS: Opening = Opening { name: "tidegate_facts", sql: include_str!("facts.sql") };
const FACTS_NAMED: Opening =
    Opening { name: "tidegate_facts_named", sql: concat!(include_str!("facts.sql"), include_str!("facts_named.sql")) };
const BACKLOG: &str = include_str!("backlog.sql");
const RESERVED: &str = include_str!("reserved.sql");
/// Most reserved slots that one batch looks at: more than a fleet has that claims at all.
const MAX_RESERVED: i32 = 10_000;
/// Most sessions with a free slot that one batch sees: it fills no more.
const MAX_SESSIONS: i64 = 64;
/// Most flows that the door looks at one by one; where there are more, all that waits counts as runnable.
pub(crate) const MAX_BACKLOG: i32 = 256;
/// How far back the pace of service is looked at, in milliseconds.
const PACE_WINDOW_MS: i64 = 60_000;
/// How far its samples are apart.
const PACE_STEP_MS: i64 = 1_000;

/// What a batch names, and so what must be read for it.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) tenants: BTreeSet<String>,
    pub(crate) peers: BTreeSet<String>,
    keys: BTreeSet<(String, String)>,
    tokens: BTreeSet<(String, String)>,
    parents: BTreeSet<(Uuid, String)>,
    /// The flows in which it would wait, where they are known.
    flows: Vec<i64>,
}

impl Wanted {
    /// What the submissions name that would wait in these flows, which have these ids.
    pub(crate) fn of<'a>(flows: &[FlowKey], ids: Vec<i64>, submissions: impl Iterator<Item = &'a Submission>) -> Self {
        let mut wanted = Self {
            flows: ids,
            tenants: flows.iter().map(|flow| flow.tenant.clone()).collect(),
            peers: flows.iter().filter(|flow| !flow.peer.is_empty()).map(|flow| flow.peer.clone()).collect(),
            ..Self::default()
        };
        for submission in submissions {
            let tenant = submission.tenant.as_str();
            if let Some(idempotency) = &submission.idempotency {
                wanted.keys.insert((tenant.to_owned(), idempotency.key.clone()));
            }
            if let Some(token) = &submission.cancellation_token {
                wanted.tokens.insert((tenant.to_owned(), token.clone()));
            }
            if let Some(parent) = submission.parent_id {
                wanted.parents.insert((parent.0, tenant.to_owned()));
            }
        }
        wanted
    }
}

/// What was read, beside the facts.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) facts: Facts,
    /// The revision of the policy that holds now.
    pub(crate) revision: i64,
    /// The idempotency keys that are known: the hash of the body and the task.
    pub(crate) known: HashMap<(String, String), (Vec<u8>, TaskId)>,
    /// Whether something waits in each of the flows that were asked about.
    pub(crate) all_wait: bool,
    due: Vec<(i64, [i64; 3])>,
}

/// Asks for what is wanted.
pub(crate) fn question(wanted: &Wanted) -> Question {
    let unzip = |pairs: &BTreeSet<(String, String)>| {
        let (first, second) = pairs.iter().cloned().unzip();
        [Value::Texts(first), Value::Texts(second)]
    };
    let mut values = vec![
        Value::Texts(wanted.tenants.iter().cloned().collect()),
        Value::Texts(wanted.peers.iter().cloned().collect()),
        Value::Number(MAX_SESSIONS),
        Value::Numbers(wanted.flows.clone()),
    ];
    if wanted.keys.is_empty() && wanted.tokens.is_empty() && wanted.parents.is_empty() {
        return Question::new(&FACTS, values);
    }
    let (parents, parent_tenants) = wanted.parents.iter().cloned().unzip();
    values.extend(unzip(&wanted.keys));
    values.extend(unzip(&wanted.tokens));
    values.extend([Value::Ids(parents), Value::Texts(parent_tenants)]);
    Question::new(&FACTS_NAMED, values)
}

/// Reads the facts inside the transaction that holds the cell's row.
pub(crate) async fn read(
    store: &StoreInner,
    wanted: &Wanted,
    pace: &PaceWindow,
    tx: &mut Tx,
) -> Result<Read, StoreError> {
    let rows = tx.ask(&question(wanted)).await?;
    read_of(store, wanted, pace, &rows, tx).await
}

/// What the rows of the question say, read in this transaction.
pub(crate) async fn read_of(
    store: &StoreInner,
    wanted: &Wanted,
    pace: &PaceWindow,
    rows: &[PgRow],
    tx: &mut Tx,
) -> Result<Read, StoreError> {
    let mut read = parse(wanted, pace, rows)?;
    if !read.due.is_empty() {
        let flows = store.directory.describe(tx, read.due.iter().map(|(flow, _)| *flow)).await?;
        for (flow, [tasks, tokens, usd_micros]) in std::mem::take(&mut read.due) {
            let Some(flow) = flows.get(&flow) else { continue };
            let facts = &mut read.facts;
            let add = |usage: &mut Usage| {
                usage.due += tasks;
                usage.due_tokens += tokens;
                usage.due_usd_micros += usd_micros;
            };
            add(&mut facts.cell);
            add(&mut facts.classes[flow.class as usize]);
            if let Some(tenant) = facts.tenants.get_mut(&flow.tenant) {
                add(&mut tenant.usage);
                add(&mut tenant.classes[flow.class as usize]);
            }
            if let Some(peer) = facts.peers.get_mut(&flow.peer) {
                add(peer);
            }
        }
    }
    Ok(read)
}

/// What the rows of the statement say.
pub(crate) fn parse(wanted: &Wanted, pace: &PaceWindow, rows: &[PgRow]) -> Result<Read, StoreError> {
    let mut read = Read::default();
    for name in &wanted.tenants {
        read.facts.tenants.insert(name.clone(), Default::default());
    }
    for name in &wanted.peers {
        read.facts.peers.insert(name.clone(), Usage::default());
        read.facts.peer_rates.insert(name.clone(), PeerRates::default());
    }
    let mut served = (0, 0);
    for row in rows {
        let numbers = || row.try_get::<Vec<i64>, _>(6);
        let names = || Ok::<_, sqlx::Error>((row.try_get::<String, _>(1)?, row.try_get::<String, _>(2)?));
        let id = || row.try_get::<Uuid, _>(3);
        match row.try_get::<i16, _>(0)? {
            0 => {
                let n = numbers()?;
                (read.facts.now, read.revision, read.facts.live_slots) = (n[0], n[1], n[2]);
                read.all_wait = n[3] == wanted.flows.len() as i64;
                let kinds: Vec<String> = row.try_get(5)?;
                read.facts.live_kinds = Some(kinds.into_iter().collect());
            }
            1 => {
                let n = numbers()?;
                if n[0] == 0 {
                    served = (n[9], n[10]);
                }
                held(&mut read.facts, row.try_get::<&str, _>(1)?, &n);
            }
            2 => {
                let n = numbers()?;
                read.due.push((n[0], [n[1], n[2], n[3]]));
            }
            3 => {
                let body = row.try_get::<Vec<u8>, _>(4)?;
                read.known.insert(names()?, (body, TaskId(id()?)));
            }
            4 => {
                read.facts.cancelled_tokens.insert(names()?);
            }
            5 => {
                let n = numbers()?;
                let parent = ParentFacts {
                    deadline: n[0],
                    depth: u32::try_from(n[1]).unwrap_or(0),
                    fanout: u32::try_from(n[2]).unwrap_or(0),
                    children: n[3],
                    running: n[4] != 0,
                };
                read.facts.parents.insert(TaskId(id()?), parent);
            }
            _ => {
                let kinds: Vec<String> = row.try_get(5)?;
                let free = numbers()?[0];
                read.facts.sessions.push(SessionRoom { id: id()?.as_u128(), kinds: kinds.into(), free });
            }
        }
    }
    read.facts.pace = pace.pace(read.facts.now, served);
    Ok(read)
}

fn held(facts: &mut Facts, key: &str, n: &[i64]) {
    let usage = Usage {
        queued: n[1],
        running: n[2],
        deferred: n[3],
        tokens: n[4],
        usd_micros: n[5],
        bytes: n[6],
        ..Usage::default()
    };
    match n[0] {
        0 => facts.cell = usage,
        1 => {
            if let Some(class) = Class::parse(key) {
                facts.classes[class as usize] = usage;
                facts.shedding[class as usize] = n[11] != 0;
            }
        }
        2 => {
            let tenant = facts.tenants.entry(key.to_owned()).or_default();
            (tenant.usage, tenant.rate_full_ns, tenant.tokens_full_ns) = (usage, n[7], n[8]);
        }
        3 => {
            let peer = facts.peers.entry(key.to_owned()).or_default();
            *peer = Usage { running: usage.running + peer.running, ..usage };
            let rates = facts.peer_rates.entry(key.to_owned()).or_default();
            (rates.requests_full_ns, rates.tokens_full_ns) = (n[7], n[8]);
        }
        // A call that waits goes before a newcomer: its room counts as taken.
        7 => {
            facts.peers.entry(key.to_owned()).or_default().running += usage.queued;
            facts.peer_rates.entry(key.to_owned()).or_default().ahead += usage.queued;
        }
        _ => {
            if let Some((class, tenant)) = key.split_once(':')
                && let Some(class) = Class::parse(class)
            {
                facts.tenants.entry(tenant.to_owned()).or_default().classes[class as usize] = usage;
            }
        }
    }
}

/// Counts among the facts what slots are reserved for of the peers with a rate, where somebody who asks for one could get
/// a slot: those tasks draw from the rate when they start, and before whoever comes now.
pub(crate) async fn read_reserved(policy: &Policy, facts: &mut Facts, tx: &mut Tx) -> Result<(), StoreError> {
    let rated = |peer: &&String| policy.peer(peer).is_some_and(PeerLimits::limits_rate);
    let peers: Vec<String> = facts.peer_rates.keys().filter(rated).cloned().collect();
    if facts.sessions.is_empty() || peers.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(RESERVED).bind(peers).bind(MAX_RESERVED);
    for row in tx.call(|conn| query.fetch_all(conn)).await? {
        let rates = facts.peer_rates.entry(row.try_get(0)?).or_default();
        rates.ahead += row.try_get::<i64, _>(1)?;
        rates.ahead_tokens += row.try_get::<i64, _>(2)?;
    }
    Ok(())
}

/// Reads which flows wait, and with `below` the worst of those that wait in classes below it, at most `candidates` of
/// a flow.
pub(crate) async fn read_backlog(
    store: &StoreInner,
    policy: &Policy,
    facts: &mut Facts,
    below: Option<Class>,
    candidates: usize,
    tx: &mut Tx,
) -> Result<(), StoreError> {
    let class = below.map(Class::code);
    let rows =
        tx.call(|conn| sqlx::query(BACKLOG).bind(MAX_BACKLOG).bind(class).bind(candidates as i32).fetch_all(conn));
    let rows = rows.await?;
    let ids = rows.iter().map(|row| row.try_get::<i64, _>(0)).collect::<Result<Vec<_>, _>>()?;
    let flows = store.directory.describe(tx, ids.iter().copied()).await?;
    let mut backlog = Vec::new();
    for (row, id) in rows.iter().zip(&ids) {
        let Some(flow) = flows.get(id) else { continue };
        let Some(rank) = row.try_get::<Option<i64>, _>(2)? else {
            backlog.push(Backlog {
                class: flow.class,
                tenant: flow.tenant.clone(),
                kind: flow.kind.clone(),
                peer: flow.peer.clone(),
                lane: flow.lane,
                queued: row.try_get(1)?,
            });
            continue;
        };
        facts.candidates[flow.class as usize].push(Candidate {
            id: TaskId(row.try_get(3)?),
            flow: *id,
            rank,
            class: flow.class,
            tenant: flow.tenant.clone(),
            peer: flow.peer.clone(),
            load: Load { tokens: row.try_get(4)?, usd_micros: row.try_get(5)?, bytes: row.try_get(6)? },
        });
    }
    for candidates in &mut facts.candidates {
        candidates.sort_by_key(|candidate| std::cmp::Reverse((candidate.rank, candidate.id)));
    }
    if backlog.len() <= MAX_BACKLOG as usize {
        read_limited(&backlog, policy, facts, tx).await?;
        facts.backlog = Some(backlog);
    }
    Ok(())
}

/// Reads what runs for the tenants and peers of waiting flows that have limits of their own: only then is it known which
/// of the flows may run.
async fn read_limited(backlog: &[Backlog], policy: &Policy, facts: &mut Facts, tx: &mut Tx) -> Result<(), StoreError> {
    let mut wanted = Wanted::default();
    for flow in backlog {
        if !facts.tenants.contains_key(&flow.tenant) && policy.tenant(&flow.tenant).limits_running() {
            wanted.tenants.insert(flow.tenant.clone());
        }
        let limited = policy.peer(&flow.peer).is_some_and(PeerLimits::limits_running);
        if limited && !facts.peers.contains_key(&flow.peer) {
            wanted.peers.insert(flow.peer.clone());
        }
    }
    if !wanted.tenants.is_empty() || !wanted.peers.is_empty() {
        let rows = tx.ask(&question(&wanted)).await?;
        let read = parse(&wanted, &PaceWindow::default(), &rows)?;
        facts.tenants.extend(read.facts.tenants);
        facts.peers.extend(read.facts.peers);
        facts.peer_rates.extend(read.facts.peer_rates);
    }
    Ok(())
}

/// How fast tasks were served in the last minute, from samples of two counters that only grow.
#[derive(Debug, Clone, Default)]
pub(crate) struct PaceWindow {
    samples: Arc<std::sync::Mutex<VecDeque<(EpochMs, i64, i64)>>>,
}

impl PaceWindow {
    /// The pace at `now`, where so many runs ended by now and took so long together.
    pub(crate) fn pace(&self, now: EpochMs, (runs, run_ms): (i64, i64)) -> Pace {
        let mut samples = self.samples.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if samples.back().is_some_and(|last| last.1 > runs || last.0 > now + PACE_WINDOW_MS) {
            // Another database, or a clock that was set back.
            samples.clear();
        }
        if samples.back().is_none_or(|last| now - last.0 >= PACE_STEP_MS) {
            samples.push_back((now, runs, run_ms));
        }
        // The oldest sample is the last one outside the window, so that the window is always covered.
        while samples.get(1).is_some_and(|second| now - second.0 >= PACE_WINDOW_MS) {
            samples.pop_front();
        }
        let Some(first) = samples.front() else { return Pace::default() };
        let ended = (runs - first.1).max(0);
        let mean_run_ms = (run_ms - first.2).max(0) as f64 / ended.max(1) as f64;
        Pace { runs: ended.unsigned_abs(), mean_run_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_that_of_the_last_minute() {
        let window = PaceWindow::default();
        assert_eq!(window.pace(0, (100, 1_000)), Pace { runs: 0, mean_run_ms: 0.0 });
        assert_eq!(window.pace(500, (120, 3_000)), Pace { runs: 20, mean_run_ms: 100.0 });
        for second in 1..=60 {
            window.pace(second * 1_000, (120, 3_000));
        }
        // What ended more than a minute ago is forgotten.
        assert_eq!(window.pace(62_000, (120, 3_000)).runs, 0);
        assert_eq!(window.pace(63_000, (121, 3_500)), Pace { runs: 1, mean_run_ms: 500.0 });
        // Counters that went back are of another database.
        assert_eq!(window.pace(64_000, (1, 1)).runs, 0);
    }
}
