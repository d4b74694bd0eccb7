//! What operators decide at run time: seeded by the file, changed key by key, seen by every process.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_core::limits::Limits;
use tidegate_core::pause::{PauseMode, PauseTarget};
use tidegate_core::peer::PeerLimits;
use tidegate_core::submission::Timing;
use tidegate_core::tenant::TenantLimits;
use tidegate_core::{Class, PeerName, TenantId};
use tidegate_store::{Held, MAX_PAUSES, PolicyError, Store, StoreOptions};
use tidegate_testkit::{TestDb, poll_until};

use crate::{Cell, kind, tenant};

fn acme() -> TenantId {
    TenantId::parse("acme").unwrap()
}

fn hotels() -> PeerName {
    PeerName::parse("hotels").unwrap()
}

async fn open() -> (TestDb, Store) {
    let db = TestDb::migrated().await;
    let store = Store::open(StoreOptions::new(db.url())).unwrap();
    (db, store)
}

async fn scalar(db: &TestDb, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(&mut db.connect().await).await.unwrap()
}

async fn execute(db: &TestDb, sql: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut db.connect().await).await.unwrap();
}

/// What a file says: limits, and the tenant `acme` or none.
async fn start(store: &Store, limits: Limits, acme_limits: Option<TenantLimits>) -> Result<(), PolicyError> {
    let tenants: BTreeMap<_, _> = acme_limits.into_iter().map(|limits| (acme(), limits)).collect();
    store.seed_policy(&limits, &tenants, &BTreeMap::new()).await
}

fn pointer<T: std::fmt::Debug>(refused: Result<T, PolicyError>) -> String {
    match refused {
        Err(PolicyError::Bad(bad)) => bad.pointer,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_changed_file_replaces_the_file_before_and_an_operators_changes_win_key_by_key() {
    let (_db, store) = open().await;
    let file = |max_queued, max_deferred| Limits { max_queued, max_deferred, ..Limits::default() };
    start(&store, file(10, 20), None).await.unwrap();
    assert_eq!(store.limits().await.unwrap(), file(10, 20));
    store.patch_limits(&json!({"max_queued": 5})).await.unwrap();
    assert_eq!(store.limits().await.unwrap(), file(5, 20));
    let revision = store.read_policy().await.unwrap().revision;
    start(&store, file(10, 20), None).await.unwrap();
    assert_eq!(store.read_policy().await.unwrap().revision, revision, "the same file changes nothing");
    start(&store, file(11, 21), None).await.unwrap();
    assert_eq!(store.limits().await.unwrap(), file(5, 21));
    assert_eq!(store.policy().limits, file(5, 21));
}

#[tokio::test]
async fn a_patch_changes_only_what_it_names_and_null_is_stored_as_no_limit() {
    let (_db, store) = open().await;
    start(&store, Limits { max_running: Some(9), ..Limits::default() }, None).await.unwrap();
    let change = json!({"max_running": null, "classes": {"critical": {"max_queued": 3}}});
    let limits = store.patch_limits(&change).await.unwrap();
    assert_eq!(
        (limits.max_running, limits.classes.critical.max_queued, limits.classes.critical.from),
        (None, Some(3), 90)
    );
    let limits = store.patch_limits(&json!({"max_tokens": 7})).await.unwrap();
    assert_eq!((limits.max_running, limits.max_tokens), (None, Some(7)), "the null was kept");
    assert_eq!(store.limits().await.unwrap(), limits);
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_its_pointer_and_nothing_is_stored() {
    let (_db, store) = open().await;
    store.patch_limits(&json!({"max_queued": 5})).await.unwrap();
    let before = store.read_policy().await.unwrap();
    for (change, at) in [
        (json!({"max_queued": null}), "/max_queued"),
        (json!({"max_deferred": null}), "/max_deferred"),
        (json!({"max_bytes": null}), "/max_bytes"),
        (json!({"classes": {"standard": []}}), "/classes/standard"),
        (json!({"max_running": 3, "max_queud": 1}), "/max_queud"),
        (json!({"classes": {"urgent": {}}}), "/classes/urgent"),
        (json!({"classes": {"critical": {"reserve": 1.5}}}), "/classes/critical/reserve"),
        (json!({"classes": {"standard": {"from": 91}}}), "/classes/standard/from"),
        (json!({"max_timeout_ms": 10}), "/default_timeout_ms"),
        (json!({"max_queued": -1}), "/max_queued"),
        (json!(7), ""),
    ] {
        assert_eq!(pointer(store.patch_limits(&change).await), at, "{change}");
    }
    assert_eq!(pointer(store.patch_tenant(&acme(), &json!({"weight": 0})).await), "/weight");
    assert_eq!(pointer(store.patch_peer(&hotels(), &json!({"breaker": {"probes": 0}})).await), "/breaker/probes");
    assert_eq!(store.read_policy().await.unwrap(), before);
    assert_eq!(store.tenant(&acme()).await.unwrap(), None);
}

#[tokio::test]
async fn a_file_that_contradicts_an_operators_change_is_refused_whole() {
    let (_db, store) = open().await;
    store.patch_limits(&json!({"default_timeout_ms": 50_000})).await.unwrap();
    let file = Limits { max_timeout_ms: 40_000, default_timeout_ms: 30_000, ..Limits::default() };
    assert_eq!(pointer(start(&store, file, Some(TenantLimits::default())).await), "/limits/default_timeout_ms");
    let policy = store.read_policy().await.unwrap();
    assert_eq!((policy.limits.max_timeout_ms, policy.tenants.len()), (86_400_000, 0));
}

#[tokio::test]
async fn a_tenant_that_was_deleted_stays_deleted_until_the_file_says_something_else() {
    let (_db, store) = open().await;
    let file = |max_queued| Some(TenantLimits { max_queued: Some(max_queued), ..TenantLimits::default() });
    start(&store, Limits::default(), file(7)).await.unwrap();
    assert_eq!(store.tenant(&acme()).await.unwrap().map(|acme| acme.limits.max_queued), Some(Some(7)));
    assert!(store.delete_tenant(&acme()).await.unwrap());
    assert!(!store.delete_tenant(&acme()).await.unwrap());
    assert_eq!(store.tenant(&acme()).await.unwrap(), None);
    assert_eq!(store.policy().tenant("acme"), &TenantLimits::default());
    start(&store, Limits::default(), file(7)).await.unwrap();
    assert_eq!(store.tenant(&acme()).await.unwrap(), None, "the same file does not bring it back");
    let patched = store.patch_tenant(&acme(), &json!({"max_running": 2})).await.unwrap();
    assert_eq!((patched.max_queued, patched.max_running), (None, Some(2)), "a new start");
    start(&store, Limits::default(), file(8)).await.unwrap();
    let acme_now = store.tenant(&acme()).await.unwrap().unwrap();
    assert_eq!((acme_now.limits.max_queued, acme_now.limits.max_running), (Some(8), Some(2)));
    start(&store, Limits::default(), None).await.unwrap();
    let acme_now = store.tenant(&acme()).await.unwrap().unwrap();
    assert_eq!((acme_now.limits.max_queued, acme_now.limits.max_running), (None, Some(2)), "gone from the file");
    assert!(store.delete_tenant(&acme()).await.unwrap());
    assert!(store.read_policy().await.unwrap().tenants.is_empty());
}

#[tokio::test]
async fn changes_from_two_stores_at_once_are_all_kept() {
    let (db, store) = open().await;
    let other = Store::open(StoreOptions::new(db.url())).unwrap();
    let keys = ["max_queued", "max_running", "max_tokens", "max_bytes", "max_usd_micros", "rate_per_minute", "burst"];
    let mut changes = tokio::task::JoinSet::new();
    for (n, key) in keys.into_iter().enumerate() {
        let store = if n % 2 == 0 { store.clone() } else { other.clone() };
        changes.spawn(async move { store.patch_tenant(&acme(), &json!({key: n + 1})).await.unwrap() });
    }
    changes.join_all().await;
    let stored = serde_json::to_value(store.tenant(&acme()).await.unwrap().unwrap().limits).unwrap();
    for (n, key) in keys.into_iter().enumerate() {
        assert_eq!(stored[key], n + 1, "{key}");
    }
    let revisions = (store.read_policy().await.unwrap().revision, other.read_policy().await.unwrap().revision);
    assert_eq!(revisions, (1 + keys.len() as i64, 1 + keys.len() as i64), "one for each change");
}

#[tokio::test]
async fn a_change_is_seen_by_another_process_within_a_second() {
    let (db, store) = open().await;
    let other = Store::open(StoreOptions::new(db.url())).unwrap();
    poll_until(Duration::from_secs(5), "the first look", async || (other.policy().revision > 0).then_some(())).await;
    store.patch_limits(&json!({"max_queued": 77})).await.unwrap();
    assert_eq!(store.policy().limits.max_queued, 77, "at once where it was made");
    poll_until(Duration::from_secs(1), "the change", async || (other.policy().limits.max_queued == 77).then_some(()))
        .await;
    let pause = store.create_pause(PauseTarget::Tenant(acme()), PauseMode::Hold, None, None).await.unwrap();
    let held = |store: &Store| store.policy().held("echo", Class::Standard, "acme", None, pause.created).is_some();
    poll_until(Duration::from_secs(1), "the pause", async || held(&other).then_some(())).await;
    store.delete_pause(pause.id).await.unwrap();
    poll_until(Duration::from_secs(1), "its end", async || (!held(&other)).then_some(())).await;
}

#[tokio::test]
async fn what_tenants_and_peers_hold_is_told_beside_their_limits() {
    let cell = Cell::new().await;
    for n in 0..3 {
        let mut submission = cell.submission();
        submission.tenant = acme();
        submission.peer = Some(hotels());
        submission.cost.tokens = 10;
        if n == 2 {
            submission.timing = Timing { start: tidegate_core::submission::Start::After(60_000), ..Timing::default() };
        }
        cell.add(submission).await;
    }
    let session = cell.session(1).await;
    cell.claim(&session).await;
    let held = Held { queued: 1, running: 1, deferred: 1, tokens: 20, usd_micros: 0, bytes: 21 };
    let acme_now = cell.store.tenant(&acme()).await.unwrap().unwrap();
    assert_eq!((acme_now.configured, acme_now.held, acme_now.limits), (false, held, TenantLimits::default()));
    let peer = cell.store.peer(&hotels()).await.unwrap().unwrap();
    assert_eq!((peer.configured, peer.held, peer.limits), (false, held, PeerLimits::default()));
    assert_eq!(cell.store.tenant(&tenant()).await.unwrap(), None, "neither configured nor in use");
}

#[tokio::test]
async fn tenants_and_peers_are_listed_by_name_page_by_page() {
    let cell = Cell::new().await;
    cell.add(cell.submission()).await;
    for name in ["b", "d", "a", "c"] {
        let change = json!({"max_queued": 1});
        cell.store.patch_tenant(&TenantId::parse(name).unwrap(), &change).await.unwrap();
        cell.store.patch_peer(&PeerName::parse(name).unwrap(), &json!({"max_waiting": 1})).await.unwrap();
    }
    let mut names = Vec::new();
    let mut after = None;
    loop {
        let page = cell.store.tenants(after.as_deref(), 2).await.unwrap();
        assert!(page.items.len() <= 2);
        names.extend(page.items.iter().map(|tenant| (tenant.name.clone(), tenant.configured)));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let expected = [("a", true), ("b", true), ("c", true), ("d", true), ("default", false)];
    assert_eq!(names, expected.map(|(name, configured)| (name.to_owned(), configured)));
    let peers = cell.store.peers(None, 200).await.unwrap();
    assert_eq!(peers.items.iter().map(|peer| peer.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    assert_eq!(peers.next, None);
    assert!(cell.store.delete_peer(&PeerName::parse("b").unwrap()).await.unwrap());
    assert_eq!(cell.store.peers(Some("a"), 200).await.unwrap().items.len(), 2);
}

#[tokio::test]
async fn a_pause_runs_out_by_the_databases_clock_and_its_row_goes_with_the_next_change() {
    let (db, store) = open().await;
    let now = scalar(&db, "SELECT tidegate.now_ms()").await;
    let echo = PauseTarget::Kind(kind("echo"));
    assert_eq!(pointer(store.create_pause(echo.clone(), PauseMode::Hold, Some(now), None).await), "/until");
    assert_eq!(
        pointer(store.create_pause(echo.clone(), PauseMode::Hold, None, Some("x".repeat(1_001))).await),
        "/reason"
    );
    assert_eq!(store.list_pauses().await.unwrap(), []);
    let lasting = store
        .create_pause(PauseTarget::Class(Class::Background), PauseMode::Refuse, None, Some("quiet night".into()))
        .await
        .unwrap();
    let brief = store.create_pause(echo, PauseMode::Hold, Some(now + 60_000), None).await.unwrap();
    assert_eq!(store.list_pauses().await.unwrap(), [lasting.clone(), brief.clone()]);
    assert_eq!(store.read_policy().await.unwrap().pauses, [lasting.clone(), brief]);
    execute(&db, "UPDATE tidegate.pause SET until_ms = 1 WHERE until_ms IS NOT NULL").await;
    assert_eq!(store.list_pauses().await.unwrap(), std::slice::from_ref(&lasting));
    assert_eq!(store.read_policy().await.unwrap().pauses, std::slice::from_ref(&lasting));
    assert!(store.delete_pause(lasting.id).await.unwrap());
    assert!(!store.delete_pause(lasting.id).await.unwrap());
    assert_eq!(scalar(&db, "SELECT count(*) FROM tidegate.pause").await, 0);
}

#[tokio::test]
async fn there_are_only_so_many_pauses() {
    let (db, store) = open().await;
    execute(
        &db,
        &format!(
            "INSERT INTO tidegate.pause (id, target, value, mode, created_ms) \
            SELECT gen_random_uuid(), 'kind', 'k' || n, 'hold', 1 FROM generate_series(1, {MAX_PAUSES}) n"
        ),
    )
    .await;
    assert_eq!(pointer(store.create_pause(PauseTarget::Tenant(acme()), PauseMode::Hold, None, None).await), "");
    assert_eq!(store.read_policy().await.unwrap().pauses.len(), MAX_PAUSES);
}

#[tokio::test]
async fn what_another_version_stored_does_not_stop_this_one() {
    let (db, store) = open().await;
    store.patch_tenant(&acme(), &json!({"max_queued": 3})).await.unwrap();
    let stored: Value = json!({"max_queued": 4, "of_tomorrow": {"a": 1}});
    execute(&db, &format!("UPDATE tidegate.policy SET patch = '{stored}'")).await;
    execute(&db, "INSERT INTO tidegate.policy (scope, name, patch, changed_ms) VALUES (3, 'hotels', '{\"max_waiting\": \"many\"}', 1)")
        .await;
    let policy = store.read_policy().await.unwrap();
    assert_eq!(policy.tenant("acme").max_queued, Some(4));
    assert_eq!(policy.peer("hotels"), Some(&PeerLimits::default()));
    store.patch_tenant(&acme(), &json!({"max_running": 1})).await.unwrap();
    let kept =
        "SELECT count(*) FROM tidegate.policy WHERE patch->'of_tomorrow'->'a' = '1' AND patch->'max_running' = '1'";
    assert_eq!(scalar(&db, kept).await, 1);
}
