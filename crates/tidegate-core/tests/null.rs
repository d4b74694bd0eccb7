//! What `null` means in a change, for every member of the documents that operators change.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeSet;
use std::fmt::Debug;

use serde_json::{Value, json};
use tidegate_core::limits::Limits;
use tidegate_core::merge_patch::{Patched, amend};
use tidegate_core::peer::PeerLimits;
use tidegate_core::tenant::TenantLimits;

/// What a `null` does.
#[derive(Debug, Clone, Copy)]
enum Null {
    /// There is no limit from then on.
    NoLimit,
    /// The member has its default.
    Default,
    /// It is refused.
    Refused,
}

use Null::{Default as Usual, NoLimit, Refused};

/// Every member of a document, objects too, by its pointer.
fn members(value: &Value, above: &str, into: &mut BTreeSet<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let pointer = format!("{above}/{name}");
        if name != "result_schema" {
            members(value, &pointer, into);
        }
        into.insert(pointer);
    }
}

/// A patch of one member.
fn patch(pointer: &str, value: &Value) -> Value {
    pointer.rsplit('/').filter(|name| !name.is_empty()).fold(value.clone(), |inner, name| json!({name: inner}))
}

/// Holds `null` against a table, over a file that says something else of every member, and after it a change of
/// something else.
fn hold<T: Patched + Debug>(file: Value, other: Value, table: &[(&str, Null)]) {
    let usual = serde_json::to_value(T::default()).unwrap();
    let mut known = BTreeSet::new();
    members(&file, "", &mut known);
    let mut in_code = BTreeSet::new();
    members(&usual, "", &mut in_code);
    assert!(in_code.is_subset(&known), "the file leaves out {:?}", in_code.difference(&known));
    let listed: BTreeSet<_> = table.iter().map(|(pointer, _)| (*pointer).to_owned()).collect();
    assert_eq!(listed, known);
    for (pointer, null) in table {
        let amended = amend::<T>(&file, &json!({}), &patch(pointer, &Value::Null));
        let expected = match null {
            Refused => {
                assert_eq!(amended.map_err(|bad| bad.pointer).err().as_deref(), Some(*pointer));
                continue;
            }
            NoLimit => Value::Null,
            Usual => usual.pointer(pointer).cloned().unwrap_or_default(),
        };
        let (changes, object) = amended.unwrap_or_else(|bad| panic!("{pointer}: {bad}"));
        let (_, later) = amend::<T>(&file, &changes, &other).unwrap_or_else(|bad| panic!("{pointer}: {bad}"));
        for object in [&object, &later] {
            let read = serde_json::to_value(object).unwrap();
            let expected = match *pointer {
                "/aimd/backoff" => json!(0.7),
                "/max_priority" => json!(100),
                _ => expected.clone(),
            };
            assert_eq!(read.pointer(pointer), Some(&expected), "{pointer}");
        }
    }
}

fn class(from: u8) -> Value {
    json!({"from": from, "reserve": 0.25, "max_share": 0.75, "shed_at": 0.5, "promote_after_ms": 7, "max_queued": 7,
        "max_running": 7, "max_tokens": 7, "max_bytes": 7, "target_wait_ms": 7, "target_admission_ms": 7})
}

#[test]
fn of_the_limits_three_are_refused_and_nothing_loses_a_bound_that_it_must_have() {
    let file = json!({"max_queued": 7, "max_running": 7, "max_in_flight": 7, "max_deferred": 7, "max_tokens": 7,
        "max_bytes": 7, "max_usd_micros": 7, "max_waiting_callers": 7, "ageing_step_ms": 7, "max_expected_wait_ms": 7,
        "default_timeout_ms": 250_000, "max_timeout_ms": 350_000,
        "classes": {"critical": class(91), "standard": class(41), "background": class(0)}});
    let mut table = vec![
        ("/max_queued".to_owned(), Refused),
        ("/max_deferred".to_owned(), Refused),
        ("/max_bytes".to_owned(), Refused),
        ("/max_running".to_owned(), NoLimit),
        ("/max_in_flight".to_owned(), NoLimit),
        ("/max_tokens".to_owned(), NoLimit),
        ("/max_usd_micros".to_owned(), NoLimit),
        ("/max_waiting_callers".to_owned(), Usual),
        ("/ageing_step_ms".to_owned(), Usual),
        ("/max_expected_wait_ms".to_owned(), Usual),
        ("/default_timeout_ms".to_owned(), Usual),
        ("/max_timeout_ms".to_owned(), Usual),
        ("/classes".to_owned(), Usual),
    ];
    for name in ["critical", "standard", "background"] {
        let class = format!("/classes/{name}");
        table.extend(["/from", "/reserve", "/max_share"].map(|member| (format!("{class}{member}"), Usual)));
        let limits = ["shed_at", "promote_after_ms", "max_queued", "max_running", "max_tokens", "max_bytes"];
        let limits = limits.into_iter().chain(["target_wait_ms", "target_admission_ms"]);
        table.extend(limits.map(|member| (format!("{class}/{member}"), NoLimit)));
        table.push((class, Usual));
    }
    let table: Vec<_> = table.iter().map(|(pointer, null)| (pointer.as_str(), *null)).collect();
    hold::<Limits>(file, json!({"max_queued": 9, "classes": {"critical": {"reserve": 0.1}}}), &table);
}

#[test]
fn of_a_tenant_every_limit_can_go_and_the_rest_has_its_default() {
    let class = json!({"max_queued": 7, "max_running": 7});
    let file = json!({"weight": 7.0, "max_priority": 7, "trusted_labels": ["a"], "max_queued": 7, "max_running": 7,
        "max_tokens": 7, "max_bytes": 7, "max_usd_micros": 7, "rate_per_minute": 7, "burst": 7, "tokens_per_minute": 7,
        "classes": {"critical": class, "standard": class, "background": class}});
    let table = [
        ("/weight", Usual),
        ("/max_priority", NoLimit),
        ("/trusted_labels", Usual),
        ("/max_queued", NoLimit),
        ("/max_running", NoLimit),
        ("/max_tokens", NoLimit),
        ("/max_bytes", NoLimit),
        ("/max_usd_micros", NoLimit),
        ("/rate_per_minute", NoLimit),
        ("/burst", NoLimit),
        ("/tokens_per_minute", NoLimit),
        ("/classes", Usual),
        ("/classes/critical", Usual),
        ("/classes/critical/max_queued", NoLimit),
        ("/classes/critical/max_running", NoLimit),
        ("/classes/standard", Usual),
        ("/classes/standard/max_queued", NoLimit),
        ("/classes/standard/max_running", NoLimit),
        ("/classes/background", Usual),
        ("/classes/background/max_queued", NoLimit),
        ("/classes/background/max_running", NoLimit),
    ];
    hold::<TenantLimits>(file, json!({"max_usd_micros": null, "classes": {"standard": {}}}), &table);
}

#[test]
fn of_a_peer_every_limit_can_go_and_the_rest_has_its_default_where_there_is_one() {
    let file = json!({"max_in_flight": 7, "max_waiting": 7, "max_wait_ms": 7, "requests_per_minute": 7,
        "tokens_per_minute": 7, "target_latency_ms": 7, "aimd": {"initial": 7, "min": 7, "max": 7, "backoff": 0.5},
        "retry_budget": {"ratio": 0.5, "cap": 7},
        "breaker": {"failures": 7, "window_ms": 7, "open_ms": 7, "probes": 7}, "max_result_bytes": 7,
        "result_schema": {"const": null}});
    let table = [
        ("/max_in_flight", NoLimit),
        ("/max_waiting", NoLimit),
        ("/max_wait_ms", NoLimit),
        ("/requests_per_minute", NoLimit),
        ("/tokens_per_minute", NoLimit),
        ("/target_latency_ms", NoLimit),
        ("/aimd", NoLimit),
        // These have no default: whoever wants the limit says them.
        ("/aimd/initial", Refused),
        ("/aimd/min", Refused),
        ("/aimd/max", Refused),
        ("/aimd/backoff", Usual),
        ("/retry_budget", Usual),
        ("/retry_budget/ratio", Usual),
        ("/retry_budget/cap", Usual),
        ("/breaker", Usual),
        ("/breaker/failures", Usual),
        ("/breaker/window_ms", Usual),
        ("/breaker/open_ms", Usual),
        ("/breaker/probes", Usual),
        ("/max_result_bytes", Usual),
        ("/result_schema", NoLimit),
    ];
    hold::<PeerLimits>(file, json!({"max_waiting": null, "breaker": {}, "retry_budget": {}}), &table);
}

#[test]
fn a_null_that_stands_for_no_member_is_refused() {
    let refused = |change| amend::<TenantLimits>(&json!({}), &json!({}), &change).map_err(|bad| bad.pointer).err();
    assert_eq!(refused(json!({"trusted_labels": [null]})).as_deref(), Some("/trusted_labels/0"));
    assert_eq!(refused(json!({"weigth": null})).as_deref(), Some("/weigth"));
    assert_eq!(refused(json!({"classes": {"urgent": null}})).as_deref(), Some("/classes/urgent"));
}

#[test]
fn a_null_inside_of_a_schema_is_part_of_it() {
    let change = json!({"result_schema": {"enum": [null, 1], "default": null}});
    let (changes, peer) = amend::<PeerLimits>(&json!({}), &json!({}), &change).unwrap();
    assert_eq!((&changes, peer.result_schema.as_ref()), (&change, Some(&change["result_schema"])));
}
