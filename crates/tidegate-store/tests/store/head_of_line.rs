//! What may not run costs the others nothing: a saturated peer and capped tenants with very much waiting for them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection, Row};
use tidegate_core::limits::Limits;
use tidegate_core::peer::PeerLimits;
use tidegate_core::settlement::Ending;
use tidegate_core::submission::Submission;
use tidegate_core::tenant::TenantLimits;
use tidegate_core::{PeerName, TaskId, TenantId};
use tidegate_store::{Admitter, AdmitterOptions, Canceller, Session, Store, StoreOptions};
use tidegate_testkit::{TestDb, short_or_long};

use crate::door::open_limits;
use crate::plans::PINNED;
use crate::{Cell, report};

const SLOW: &str = "slow";
const QUICK: &str = "quick";
/// Tasks for the peer that is not full.
const OTHERS: usize = 20;
/// Submissions that are at the door at once.
const AT_ONCE: usize = 500;
/// Tasks of one turn.
const TURN: usize = 500;
/// A lease outlives the longest of these tests.
const LEASE: Duration = Duration::from_secs(3_600);
/// Flows that a claim of one reads of each line.
const READ: usize = 17;
/// Pages that a look may touch beyond those where nothing is blocked: the roots of what is no longer empty.
const MORE_PAGES: i64 = 16;

fn blocked() -> usize {
    short_or_long(5_000, 100_000)
}

fn tenants() -> usize {
    short_or_long(500, 5_000)
}

fn name(n: usize) -> TenantId {
    TenantId::parse(&format!("t{n}")).unwrap()
}

fn limits() -> Limits {
    Limits { max_queued: 1_000_000, default_timeout_ms: 3_600_000, ..open_limits() }
}

impl Cell {
    /// A cell with a peer that takes one task at a time, and these tenants.
    async fn with_slow_peer(tenants: BTreeMap<TenantId, TenantLimits>) -> Self {
        let db = TestDb::migrated().await;
        let store = Store::open(StoreOptions::new(db.url())).unwrap();
        let slow = PeerLimits { max_in_flight: Some(1), ..PeerLimits::default() };
        let peers = BTreeMap::from([(PeerName::parse(SLOW).unwrap(), slow)]);
        store.seed_policy(&limits(), &tenants, &peers).await.unwrap();
        let admitter = Admitter::start(&store, AdmitterOptions::default()).unwrap();
        let canceller = Canceller::start(&store).unwrap();
        Self { store, admitter, canceller, db }
    }

    fn task_of(&self, tenant: TenantId, peer: Option<&str>) -> Submission {
        Submission { tenant, peer: peer.map(|peer| PeerName::parse(peer).unwrap()), ..self.submission() }
    }

    async fn add_many(&self, submissions: Vec<Submission>) -> BTreeSet<TaskId> {
        let mut ids = BTreeSet::new();
        let mut left = submissions.into_iter();
        loop {
            let some: Vec<_> = left.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                return ids;
            }
            ids.extend(join_all(some.into_iter().map(|submission| self.add(submission))).await);
        }
    }

    /// Tasks of one tenant for the peer that has room.
    async fn add_others(&self) -> BTreeSet<TaskId> {
        let other = || self.task_of(TenantId::parse("other").unwrap(), Some(QUICK));
        self.add_many((0..OTHERS).map(|_| other()).collect()).await
    }

    async fn long_session(&self, slots: usize) -> Session {
        self.session_with(slots as u32, LEASE).await
    }
}

/// Claims until so many are there, in turns of at most this size; more turns than that are a failure.
async fn claim_all(session: &Session, count: usize, at_most: usize) -> Vec<tidegate_store::Claimed> {
    let mut claimed = Vec::new();
    for _ in 0..at_most {
        if claimed.len() == count {
            break;
        }
        claimed.extend(session.turn(&[], TURN.min(count - claimed.len())).await.unwrap().claimed);
    }
    assert_eq!(claimed.len(), count, "after {at_most} turns");
    claimed
}

/// Runs whatever is left, and returns it.
async fn drain(session: &Session, count: usize) -> BTreeSet<TaskId> {
    let mut done = BTreeSet::new();
    let mut reports = Vec::new();
    // Twice as many turns as are needed, and some.
    for _ in 0..2 * count.div_ceil(TURN) + 20 {
        let turn = session.turn(&reports, TURN).await.unwrap();
        reports = turn.claimed.iter().map(|task| report(task, Ending::Completed)).collect();
        for task in turn.claimed {
            assert!(done.insert(task.id), "{} twice", task.id);
        }
        if done.len() >= count && reports.is_empty() {
            break;
        }
    }
    done
}

/// Each claim of one gets one of these, in its first turn.
async fn assert_others_run(session: &Session, others: &BTreeSet<TaskId>) -> Vec<tidegate_store::Claimed> {
    let mut claimed = Vec::new();
    for n in 0..others.len() {
        let turn = session.turn(&[], 1).await.unwrap();
        assert_eq!(turn.claimed.len(), 1, "claim {n} got nothing");
        claimed.extend(turn.claimed);
    }
    assert_eq!(claimed.iter().map(|task| task.id).collect::<BTreeSet<_>>(), *others);
    claimed
}

/// Prepares a statement, to be planned as ours are.
pub(crate) async fn prepare(conn: &mut PgConnection, sql: &str) {
    let prepare = format!("{PINNED}; DEALLOCATE ALL; PREPARE statement AS {sql}");
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *conn).await.unwrap();
}

/// Pages that it touches, as `EXPLAIN` counts them; the second time, when dead entries are known as such.
pub(crate) async fn pages_of_prepared(conn: &mut PgConnection, arguments: &str) -> i64 {
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE statement({arguments})");
    let mut plan = Value::Null;
    for _ in 0..2 {
        plan = sqlx::raw_sql(AssertSqlSafe(explain.clone())).fetch_one(&mut *conn).await.unwrap().get(0);
    }
    let pages = |key: &str| plan[0]["Plan"][key].as_i64().unwrap();
    pages("Shared Hit Blocks") + pages("Shared Read Blocks")
}

async fn pages_of(conn: &mut PgConnection, sql: &str, arguments: &str) -> i64 {
    prepare(conn, sql).await;
    pages_of_prepared(conn, arguments).await
}

/// Pages that a claim of one touches to see what may run, where these lines of standard work have room.
async fn pages(cell: &Cell, open: &[&str]) -> [i64; 2] {
    let mut conn = cell.db.connect().await;
    let room =
        pages_of(&mut conn, include_str!("../../src/claim_room.sql"), "ARRAY['echo'], 256, gen_random_uuid(), 0").await;
    let column = |value: &dyn Fn(&str) -> String| open.iter().map(|peer| value(peer)).collect::<Vec<_>>().join(", ");
    let arguments = format!(
        "gen_random_uuid(), ARRAY['echo'], 1, 125, {READ}, ARRAY[{}]::smallint[], ARRAY[{}], ARRAY[{}], ARRAY[{}]::bigint[], ARRAY[]::text[], true, ARRAY[]::bigint[]",
        column(&|_| "1".to_owned()),
        column(&|_| "'echo'".to_owned()),
        column(&|peer| format!("'{peer}'")),
        column(&|_| i64::MIN.to_string()),
    );
    [room, pages_of(&mut conn, include_str!("../../src/look.sql"), &arguments).await]
}

fn assert_as_few(before: [i64; 2], after: [i64; 2]) {
    for (before, after) in before.into_iter().zip(after) {
        assert!(after <= before * 3 / 2 + MORE_PAGES, "{after} pages, and {before} where nothing is blocked");
    }
}

/// Many wait for a full peer, of so many tenants.
async fn behind_a_full_peer(tenants: usize) {
    let cell = Cell::with_slow_peer(BTreeMap::new()).await;
    cell.add(cell.task_of(name(0), Some(SLOW))).await;
    let holder = cell.long_session(1).await;
    let first = cell.claim(&holder).await;
    let others = cell.add_others().await;
    let before = pages(&cell, &[QUICK]).await;
    let waiting: Vec<_> = (0..blocked()).map(|n| cell.task_of(name(n % tenants), Some(SLOW))).collect();
    let waiting = cell.add_many(waiting).await;
    let session = cell.long_session(TURN).await;
    assert_as_few(before, pages(&cell, &[QUICK]).await);
    let running = assert_others_run(&session, &others).await;
    assert_eq!(session.turn(&[], TURN).await.unwrap().claimed, []);
    // Nothing is lost: once the peer has room all of it runs.
    cell.store.patch_peer(&PeerName::parse(SLOW).unwrap(), &json!({"max_in_flight": null})).await.unwrap();
    cell.settle(&holder, &first, Ending::Completed).await;
    let reports: Vec<_> = running.iter().map(|task| report(task, Ending::Completed)).collect();
    session.turn(&reports, 0).await.unwrap();
    assert_eq!(drain(&session, waiting.len()).await, waiting);
    cell.assert_sound().await;
}

#[tokio::test]
async fn one_flow_behind_a_full_peer_is_no_matter_to_others() {
    behind_a_full_peer(1).await;
}

#[tokio::test]
async fn many_tenants_behind_a_full_peer_are_no_matter_to_others() {
    behind_a_full_peer(tenants()).await;
}

#[tokio::test]
async fn many_capped_tenants_are_no_matter_to_others() {
    let one = TenantLimits { max_running: Some(1), ..TenantLimits::default() };
    let cell = Cell::with_slow_peer((0..tenants()).map(|n| (name(n), one.clone())).collect()).await;
    let of_each = || (0..tenants()).map(|n| cell.task_of(name(n), None)).collect::<Vec<_>>();
    cell.add_many(of_each()).await;
    let holder = cell.long_session(tenants()).await;
    let running = claim_all(&holder, tenants(), 2 * tenants().div_ceil(TURN) + 20).await;
    let others = cell.add_others().await;
    let before = pages(&cell, &["", QUICK]).await;
    let waiting = cell.add_many([of_each(), of_each()].concat()).await;
    let session = cell.long_session(TURN).await;
    let mut taken = assert_others_run(&session, &others).await;
    // One that may run stands in the line of all those that may not: each look leaves some of them out from then on.
    let behind = cell.add(cell.task_of(TenantId::parse("behind").unwrap(), None)).await;
    let mut turns = 0;
    while taken.last().is_some_and(|task| task.id != behind) {
        taken.extend(session.turn(&[], 1).await.unwrap().claimed);
        turns += 1;
        assert!(turns <= tenants() / READ + 2, "not met after {turns} turns");
    }
    assert_as_few(before, pages(&cell, &["", QUICK]).await);
    cell.add(cell.task_of(TenantId::parse("behind").unwrap(), None)).await;
    taken.extend(claim_all(&session, 1, 1).await);
    // Nothing is lost: as each tenant's task ends, its next may run.
    let reports: Vec<_> = taken.iter().map(|task| report(task, Ending::Completed)).collect();
    session.turn(&reports, 0).await.unwrap();
    for some in running.chunks(TURN) {
        let reports: Vec<_> = some.iter().map(|task| report(task, Ending::Completed)).collect();
        holder.turn(&reports, 0).await.unwrap();
    }
    let done = drain(&session, waiting.len()).await;
    assert_eq!(done.len(), waiting.len());
    assert_eq!(done, waiting);
    cell.assert_sound().await;
}

/// Each worker takes one task at a time that was lost twice: the others of them must not hide what else waits.
#[tokio::test]
async fn many_suspects_are_no_matter_to_others() {
    const SUSPECTS: usize = 60;
    const WANT: usize = 5;
    let cell = Cell::with_slow_peer(BTreeMap::new()).await;
    let suspects = cell.add_many((0..SUSPECTS).map(|n| cell.task_of(name(n), None)).collect()).await;
    // As if the worker of each had been lost twice.
    let lost = "UPDATE tidegate.active_flow SET lane = 3; UPDATE tidegate.flow SET lane = 3";
    sqlx::raw_sql(lost).execute(&mut cell.db.connect().await).await.unwrap();
    let store = Store::open(StoreOptions::new(cell.db.url())).unwrap();
    let admitter = Admitter::start(&store, AdmitterOptions::default()).unwrap();
    let cell = Cell { store, admitter, ..cell };
    let behind = cell.add_many((0..WANT).map(|_| cell.task_of(name(SUSPECTS), None)).collect()).await;
    let session = cell.long_session(WANT).await;
    let first = session.turn(&[], WANT).await.unwrap();
    assert!(first.more && first.claimed.len() == 1 && first.claimed[0].suspect);
    let second = session.turn(&[], WANT - 1).await.unwrap();
    assert_eq!(second.claimed.len(), WANT - 1);
    assert!(second.claimed.iter().all(|task| behind.contains(&task.id)));
    // Nothing is lost: one after the other they run all the same.
    let running = [first.claimed, second.claimed].concat();
    let mut done: BTreeSet<_> = running.iter().map(|task| task.id).collect();
    let mut reports: Vec<_> = running.iter().map(|task| report(task, Ending::Completed)).collect();
    for _ in 0..=SUSPECTS {
        let turn = session.turn(&reports, WANT).await.unwrap();
        assert!(turn.claimed.iter().filter(|task| task.suspect).count() <= 1);
        done.extend(turn.claimed.iter().map(|task| task.id));
        reports = turn.claimed.iter().map(|task| report(task, Ending::Completed)).collect();
    }
    assert_eq!(done, &suspects | &behind);
    cell.assert_sound().await;
}

#[tokio::test]
async fn of_six_hundred_tenants_each_has_its_turn() {
    const TENANTS: usize = 600;
    const OF_EACH: usize = 3;
    const WANT: usize = 16;
    let cell = Cell::with_slow_peer(BTreeMap::new()).await;
    let tasks = (0..TENANTS * OF_EACH).map(|n| cell.task_of(name(n % TENANTS), None)).collect();
    let mut waiting = cell.add_many(tasks).await;
    let late = cell.add(cell.task_of(TenantId::parse("late").unwrap(), Some(QUICK))).await;
    waiting.insert(late);
    let session = cell.long_session(2_000).await;
    let (mut claimed, mut served) = (Vec::new(), HashMap::<TenantId, usize>::new());
    while claimed.len() < 2 * TENANTS {
        let turn = session.turn(&[], WANT).await.unwrap();
        assert_eq!(turn.claimed.len(), WANT, "a claim got less than it wants");
        for task in &turn.claimed {
            *served.entry(task.tenant.clone()).or_default() += 1;
        }
        claimed.extend(turn.claimed);
        if claimed.len() >= TENANTS + WANT {
            assert!(claimed.iter().any(|task| task.id == late), "the other peer's had no turn");
        }
    }
    let (least, most) = (served.values().min(), served.values().max());
    assert!(served.len() == TENANTS + 1 && most <= Some(&3), "{least:?} to {most:?} of {} tenants", served.len());
    claimed.extend(claim_all(&session, waiting.len() - claimed.len(), 60).await);
    assert_eq!(claimed.iter().map(|task| task.id).collect::<BTreeSet<_>>(), waiting);
    for some in claimed.chunks(TURN) {
        let reports: Vec<_> = some.iter().map(|task| report(task, Ending::Completed)).collect();
        session.turn(&reports, 0).await.unwrap();
    }
    cell.assert_sound().await;
}
