//! Who changed what.

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use tidegate_core::pause::{PauseMode, PauseTarget};
use tidegate_core::{PeerName, TenantId};
use tidegate_store::{Actor, AuditEntry, Retention};

use crate::{Cell, kind};

impl Cell {
    /// What was changed, oldest first.
    async fn changes(&self) -> Vec<AuditEntry> {
        let mut entries = self.store.admin_audit(None, 200).await.unwrap().entries;
        entries.reverse();
        entries
    }
}

fn json_of(text: &Option<String>) -> Value {
    text.as_ref().map(|text| serde_json::from_str(text).unwrap()).unwrap_or_default()
}

#[tokio::test]
async fn every_change_is_written_down_with_what_was_and_what_is() {
    let cell = Cell::new().await;
    let session = cell.session(1).await;
    let (acme, hotels) = (TenantId::parse("acme").unwrap(), PeerName::parse("hotels").unwrap());
    let store = cell.store.acting_as(Actor::key(&acme, "k1"));
    store.patch_limits(&json!({"max_queued": 7})).await.unwrap();
    store.patch_tenant(&acme, &json!({"max_queued": 5})).await.unwrap();
    store.patch_tenant(&acme, &json!({"max_queued": 6})).await.unwrap();
    assert!(store.delete_tenant(&acme).await.unwrap());
    store.patch_peer(&hotels, &json!({"max_in_flight": 2})).await.unwrap();
    assert!(store.delete_peer(&hotels).await.unwrap());
    let pause = cell
        .store
        .create_pause(PauseTarget::Kind(kind("echo")), PauseMode::Hold, None, Some("x".into()))
        .await
        .unwrap();
    assert!(cell.store.delete_pause(pause.id).await.unwrap());
    cell.store.drain_worker(session.id().0).await.unwrap().unwrap();
    // What is refused, or changes nothing, is not written down.
    store.patch_limits(&json!({"max_queued": null})).await.unwrap_err();
    assert!(!store.delete_tenant(&acme).await.unwrap() && !store.delete_pause(pause.id).await.unwrap());
    store.drain_worker(session.id().0).await.unwrap().unwrap();

    let changes = cell.changes().await;
    let (pause, worker) = (pause.id.to_string(), session.id().0.to_string());
    let told = |entry: &AuditEntry| (entry.actor.clone(), entry.action.clone(), entry.target.clone());
    let key = |action: &str, target: Option<&str>| ("acme/k1".into(), action.to_owned(), target.map(str::to_owned));
    let local = |action: &str, target: &str| ("local".into(), action.to_owned(), Some(target.to_owned()));
    assert_eq!(
        changes.iter().map(told).collect::<Vec<_>>(),
        [
            key("limits.patch", None),
            key("tenant.patch", Some("acme")),
            key("tenant.patch", Some("acme")),
            key("tenant.delete", Some("acme")),
            key("peer.patch", Some("hotels")),
            key("peer.delete", Some("hotels")),
            local("pause.create", &pause),
            local("pause.delete", &pause),
            local("worker.drain", &worker),
        ]
    );
    let of = |at: usize, name: &str| {
        let entry: &AuditEntry = &changes[at];
        (json_of(&entry.before)[name].clone(), json_of(&entry.after)[name].clone())
    };
    assert_eq!(of(0, "max_queued"), (json!(100_000), json!(7)));
    // Who was not configured had the defaults, and has them again: only what was said differs from them.
    let differing = |at: usize| {
        let (before, after) = (json_of(&changes[at].before), json_of(&changes[at].after));
        let differs = |(key, value): (&String, &Value)| (after[key] != *value).then(|| key.clone());
        before.as_object().unwrap().iter().filter_map(differs).collect::<Vec<_>>()
    };
    for (at, key) in
        [(0, "max_queued"), (1, "max_queued"), (3, "max_queued"), (4, "max_in_flight"), (5, "max_in_flight")]
    {
        assert_eq!(differing(at), [key], "{:?}", changes[at]);
    }
    assert_eq!(of(1, "max_queued"), (Value::Null, json!(5)));
    assert_eq!(of(2, "max_queued"), (json!(5), json!(6)));
    assert_eq!(of(3, "max_queued"), (json!(6), Value::Null));
    assert_eq!(of(5, "max_in_flight"), (json!(2), Value::Null));
    assert_eq!((of(6, "kind"), of(7, "kind")), ((Value::Null, json!("echo")), (json!("echo"), Value::Null)));
    assert_eq!(of(8, "draining"), (json!(false), json!(true)));
    assert!(changes.iter().all(|entry| entry.at_ms > 0));
}

#[tokio::test]
async fn pages_are_newest_first_and_hold_every_change_once() {
    let cell = Cell::new().await;
    for n in 0..5 {
        cell.store.patch_limits(&json!({"max_queued": n})).await.unwrap();
    }
    let (mut seen, mut before) = (Vec::new(), None);
    loop {
        let page = cell.store.admin_audit(before, 2).await.unwrap();
        seen.extend(page.entries.iter().map(|entry| json_of(&entry.after)["max_queued"].clone()));
        let Some(next) = page.next else { break };
        before = Some(next);
    }
    assert_eq!(seen, [4, 3, 2, 1, 0]);
}

#[tokio::test]
async fn what_is_old_or_too_much_goes_and_a_long_document_is_left_out() {
    let cell = Cell::new().await;
    let hotels = PeerName::parse("hotels").unwrap();
    let schema = json!({"result_schema": {"description": "x".repeat(20_000)}});
    cell.store.patch_peer(&hotels, &schema).await.unwrap();
    let kept = cell.changes().await.remove(0);
    let (before, after) = (json_of(&kept.before), json_of(&kept.after));
    assert!(after["result_schema"]["omitted_bytes"].as_i64().is_some_and(|bytes| bytes > 20_000), "{kept:?}");
    assert_eq!((&after["max_result_bytes"], &before["result_schema"]), (&before["max_result_bytes"], &Value::Null));
    cell.store.patch_limits(&json!({"max_queued": 1})).await.unwrap();
    let mut connection = cell.db.connect().await;
    let old = format!(
        "UPDATE tidegate.admin_audit SET at_ms = tidegate.now_ms() - 91 * 86400000::bigint WHERE id = {}",
        kept.id
    );
    sqlx::query(AssertSqlSafe(old)).execute(&mut connection).await.unwrap();
    cell.store.prune(&Retention::default()).await.unwrap();
    let left = cell.changes().await;
    assert_eq!(left.iter().map(|entry| &*entry.action).collect::<Vec<_>>(), ["limits.patch"]);
    // Beyond the most that are kept, the oldest goes with the change that comes.
    let many = format!("ALTER TABLE tidegate.admin_audit ALTER COLUMN id RESTART WITH {}", left[0].id + 20_000);
    sqlx::query(AssertSqlSafe(many)).execute(&mut connection).await.unwrap();
    cell.store.patch_limits(&json!({"max_queued": 2})).await.unwrap();
    let left = cell.changes().await;
    assert_eq!(left.iter().map(|entry| json_of(&entry.after)["max_queued"].clone()).collect::<Vec<_>>(), [2]);
}
