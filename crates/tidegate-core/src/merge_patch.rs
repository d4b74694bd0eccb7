//! Changes to a policy, as JSON documents laid over one another.
//!
//! A patch has the shape of a JSON merge patch (RFC 7396), with one difference: where a member can say "no limit", that
//! is what a `null` stores. Elsewhere it takes away what was said, as RFC 7396 has it, so that the member has its
//! default; a few members are too important for either and refuse it. What is in effect is the defaults, under the
//! values of the configuration file, under the operator's changes, which win key by key.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::strict;

/// Members that are values of their own though they are objects: they are replaced, never merged.
const WHOLE: [&str; 1] = ["result_schema"];

/// A value of a policy that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pointer} {problem}")]
pub struct BadValue {
    /// Which, as a JSON pointer (RFC 6901) into the object; empty is the object itself.
    pub pointer: String,
    /// What is wrong with it.
    pub problem: String,
}

impl BadValue {
    /// What is wrong with the value at a pointer.
    pub fn new(pointer: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), problem: problem.into() }
    }

    /// Whether it is a member that the object does not have.
    pub fn is_unknown(&self) -> bool {
        self.problem == UNKNOWN
    }

    /// The pointer as a dotted key, as in the configuration.
    pub fn key(&self) -> String {
        self.pointer.trim_start_matches('/').replace('/', ".")
    }
}

/// An object that operators may change key by key.
pub trait Patched: Serialize + DeserializeOwned + Default {
    /// Pointers to members that refuse a `null`: they can neither be without a limit nor be left to a default.
    const NEVER_NULL: &[&str] = &[];

    /// Refuses values that contradict themselves or one another.
    fn check(&self) -> Result<(), BadValue>;
}

/// Lays a patch over a document. Objects are merged member by member; everything else, `null` too, replaces what was
/// there.
pub fn merge(document: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        patch.clone_into(document);
        return;
    };
    if !document.is_object() {
        *document = Value::Object(Map::new());
    }
    let Value::Object(members) = document else { return };
    for (name, change) in changes {
        if change.is_object() && !WHOLE.contains(&name.as_str()) {
            merge(members.entry(name.clone()).or_insert(Value::Null), change);
        } else {
            members.insert(name.clone(), change.clone());
        }
    }
}

/// The object that these documents, each over the one before, make of the defaults. Refuses what the object does not
/// know and what contradicts itself.
pub fn compose<T: Patched>(documents: &[&Value]) -> Result<T, BadValue> {
    compose_but(documents, |_| false).map(|composed| composed.object)
}

/// The same for documents that were stored: by a newer version perhaps, whose keys this one does not know. They are
/// left out and returned, since nobody could act on them.
pub fn compose_stored<T: Patched>(documents: &[&Value]) -> Result<(T, Vec<String>), BadValue> {
    compose_but(documents, |_| true).map(|composed| (composed.object, composed.unknown))
}

/// Adds a change to those that were stored before: the changes to store now, and the object that comes of them over
/// the values of the file. What the change itself does not know is refused.
pub fn amend<T: Patched>(file: &Value, stored: &Value, change: &Value) -> Result<(Value, T), BadValue> {
    if !change.is_object() {
        return Err(BadValue::new("", "must be an object"));
    }
    let mut changes = stored.clone();
    merge(&mut changes, change);
    let composed = compose_but(&[file, &changes], |pointer| change.pointer(pointer).is_none())?;
    // What was taken away is stored as the default that it has now: nothing that is said later brings the file's value
    // back, not even a change beside it.
    let whole = serde_json::to_value(&composed.object).unwrap_or_default();
    for pointer in &composed.reset {
        let member = changes.pointer_mut(pointer).filter(|member| member.is_null());
        if let (Some(member), Some(usual)) = (member, whole.pointer(pointer)) {
            usual.clone_into(member);
        }
    }
    Ok((changes, composed.object))
}

/// An object, and what was not taken as it stood in the documents.
struct Composed<T> {
    object: T,
    /// Members that it does not know and that were left out.
    unknown: Vec<String>,
    /// Members that have their default because they were `null`.
    reset: Vec<String>,
}

fn compose_but<T: Patched>(
    documents: &[&Value],
    may_be_unknown: impl Fn(&str) -> bool,
) -> Result<Composed<T>, BadValue> {
    let mut layered = layered::<T>(documents);
    let (mut unknown, mut nulls) = (Vec::new(), Vec::new());
    loop {
        match parse::<T>(&layered) {
            Ok(object) => {
                object.check()?;
                return Ok(Composed { object, unknown, reset: nulls });
            }
            Err(bad) if bad.is_unknown() && may_be_unknown(&bad.pointer) && remove(&mut layered, &bad.pointer) => {
                unknown.push(bad.pointer);
            }
            // Each turn takes a null away, and none comes back: a default is never refused.
            Err(bad) if !bad.is_unknown() && reset::<T>(&mut layered, &bad.pointer) => nulls.push(bad.pointer),
            Err(bad) => return Err(bad),
        }
    }
}

/// Gives a member that is `null`, and cannot be, its default. Tells whether it did.
fn reset<T: Patched>(document: &mut Value, pointer: &str) -> bool {
    if pointer.is_empty() || T::NEVER_NULL.contains(&pointer) {
        return false;
    }
    let Some(member) = document.pointer_mut(pointer).filter(|member| member.is_null()) else { return false };
    let usual = serde_json::to_value(T::default()).unwrap_or_default();
    match usual.pointer(pointer) {
        Some(usual) if !usual.is_null() => {
            usual.clone_into(member);
            true
        }
        // Inside of what is not there by default: its own type knows.
        _ => remove(document, pointer),
    }
}

/// What of an object differs from the defaults, as a document that gives it back when laid over them.
pub fn difference<T: Patched>(object: &T) -> Value {
    let whole = serde_json::to_value(object).unwrap_or_default();
    let usual = serde_json::to_value(T::default()).unwrap_or_default();
    differing(&whole, &usual).unwrap_or_else(|| Value::Object(Map::new()))
}

const UNKNOWN: &str = "is not a member of this object";

fn layered<T: Patched>(documents: &[&Value]) -> Value {
    let mut layered = serde_json::to_value(T::default()).unwrap_or_default();
    for document in documents {
        merge(&mut layered, document);
    }
    layered
}

fn parse<T: DeserializeOwned>(document: &Value) -> Result<T, BadValue> {
    strict::deserialize(document).map_err(|error| {
        let problem = error.inner().to_string();
        let pointer = pointer(error.path());
        match strict::missing(&problem) {
            Some(name) => BadValue::new(format!("{pointer}/{name}"), "is missing"),
            None if problem.starts_with("unknown field") => BadValue::new(pointer, UNKNOWN),
            None => BadValue::new(pointer, strict::in_words(&problem)),
        }
    })
}

fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let step = |segment: &Segment| match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { variant } => format!("/{variant}"),
        Segment::Unknown => String::new(),
    };
    path.iter().map(step).collect()
}

fn remove(document: &mut Value, pointer: &str) -> bool {
    let Some((above, name)) = pointer.rsplit_once('/') else { return false };
    let name = name.replace("~1", "/").replace("~0", "~");
    let object = document.pointer_mut(above).and_then(Value::as_object_mut);
    object.is_some_and(|object| object.shift_remove(&name).is_some())
}

fn differing(value: &Value, usual: &Value) -> Option<Value> {
    match (value, usual) {
        (value, usual) if value == usual => None,
        (Value::Object(members), Value::Object(usual)) => {
            let differing = members.iter().filter_map(|(name, value)| {
                Some((name.clone(), differing(value, usual.get(name).unwrap_or(&Value::Null))?))
            });
            Some(Value::Object(differing.collect()))
        }
        (value, _) => Some(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::limits::Limits;
    use crate::peer::PeerLimits;
    use crate::tenant::TenantLimits;

    fn refused<T: Patched + std::fmt::Debug>(patch: Value) -> (String, String) {
        let bad = compose::<T>(&[&patch]).unwrap_err();
        (bad.pointer, bad.problem)
    }

    #[test]
    fn objects_merge_and_everything_else_replaces() {
        for (document, patch, merged) in [
            (json!({"a": 1}), json!({"b": 2}), json!({"a": 1, "b": 2})),
            (json!({"a": 1}), json!({"a": null}), json!({"a": null})),
            (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": null}}), json!({"a": {"b": null, "c": 2}})),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (json!({"a": null}), json!({"a": {"b": 1}}), json!({"a": {"b": 1}})),
            (json!({"a": 1}), json!({"a": {}}), json!({"a": {}})),
            (
                json!({"result_schema": {"a": 1}}),
                json!({"result_schema": {"b": 2}}),
                json!({"result_schema": {"b": 2}}),
            ),
        ] {
            let mut document = document;
            merge(&mut document, &patch);
            assert_eq!(document, merged);
        }
    }

    #[test]
    fn a_later_document_wins_key_by_key_and_the_rest_is_the_default() {
        let file = json!({"max_queued": 10, "classes": {"critical": {"reserve": 0.2, "max_queued": 5}}});
        let patch = json!({"max_running": 3, "classes": {"critical": {"max_queued": null}}});
        let limits: Limits = compose(&[&file, &patch]).unwrap();
        assert_eq!((limits.max_queued, limits.max_running, limits.max_deferred), (10, Some(3), 100_000));
        let critical = &limits.classes.critical;
        assert_eq!((critical.from, critical.reserve, critical.max_queued), (90, 0.2, None));
    }

    #[test]
    fn what_has_no_meaning_is_refused_where_it_stands() {
        let refused_limits = |patch| refused::<Limits>(patch).0;
        for key in ["max_queued", "max_deferred", "max_bytes"] {
            assert_eq!(refused_limits(json!({key: null})), format!("/{key}"));
        }
        assert_eq!(refused_limits(json!({"classes": {"standard": {"fro/m": 1}}})), "/classes/standard/fro~1m");
        assert_eq!(refused_limits(json!({"classes": {"urgent": {}}})), "/classes/urgent");
        assert_eq!(
            refused::<Limits>(json!({"max_queued": -1})),
            ("/max_queued".into(), "must be a whole number from 0 to 4294967295, not -1".into())
        );
        assert_eq!(
            refused::<Limits>(json!({"max_queued": "7"})),
            ("/max_queued".into(), "must be a whole number from 0 to 4294967295, not the string \"7\"".into())
        );
        assert_eq!(refused::<Limits>(json!({"max_queud": 1})), ("/max_queud".into(), UNKNOWN.into()));
        assert_eq!(refused::<TenantLimits>(json!({"trusted_labels": ["a", 1]})).0, "/trusted_labels/1");
        assert_eq!(refused::<TenantLimits>(json!({"classes": {"urgent": {}}})).0, "/classes/urgent");
        assert_eq!(refused::<PeerLimits>(json!({"breaker": {"failures": 0}})).0, "/breaker/failures");
        assert_eq!(refused::<PeerLimits>(json!({"aimd": {"initial": 1}})), ("/aimd/min".into(), "is missing".into()));
    }

    #[test]
    fn an_array_is_no_object_wherever_one_belongs() {
        fn refused_at<T: Patched + std::fmt::Debug>(patches: &[(Value, &str)]) {
            for (patch, pointer) in patches {
                let refused = refused::<T>(patch.clone());
                assert_eq!(refused, ((*pointer).to_owned(), "must be an object, not an array".to_owned()), "{patch}");
            }
        }
        refused_at::<Limits>(&[
            (json!([]), ""),
            (json!([1, null]), ""),
            (json!({"classes": []}), "/classes"),
            (json!({"classes": [{}, {}, {}]}), "/classes"),
            (json!({"classes": {"critical": []}}), "/classes/critical"),
            (json!({"classes": {"background": [0]}}), "/classes/background"),
        ]);
        refused_at::<TenantLimits>(&[
            (json!([]), ""),
            (json!({"classes": []}), "/classes"),
            (json!({"classes": {"background": [1, 2]}}), "/classes/background"),
        ]);
        refused_at::<PeerLimits>(&[
            (json!([]), ""),
            (json!({"retry_budget": []}), "/retry_budget"),
            (json!({"retry_budget": [0.5, 3]}), "/retry_budget"),
            (json!({"breaker": []}), "/breaker"),
            (json!({"aimd": []}), "/aimd"),
            (json!({"aimd": [4, 1, 8]}), "/aimd"),
        ]);
        assert!(compose::<PeerLimits>(&[&json!({"result_schema": []})]).is_err());
    }

    #[test]
    fn stored_keys_of_another_version_are_left_out_and_named() {
        let stored = json!({"max_queued": 5, "of_tomorrow": 1, "classes": {"critical": {"x": 2, "max_queued": 7}}});
        let (limits, unknown) = compose_stored::<Limits>(&[&stored]).unwrap();
        assert_eq!((limits.max_queued, limits.classes.critical.max_queued), (5, Some(7)));
        assert_eq!(unknown, ["/classes/critical/x", "/of_tomorrow"]);
        assert!(compose_stored::<Limits>(&[&json!({"max_queued": "x"})]).is_err());
    }

    #[test]
    fn a_change_adds_to_those_before_and_is_held_against_all_of_them() {
        let file = json!({"default_timeout_ms": 1_000, "max_timeout_ms": 2_000});
        let stored = json!({"max_running": 3, "of_tomorrow": 1});
        let (changes, limits) =
            amend::<Limits>(&file, &stored, &json!({"max_queued": 7, "max_running": null})).unwrap();
        assert_eq!(changes, json!({"max_running": null, "of_tomorrow": 1, "max_queued": 7}));
        assert_eq!((limits.max_queued, limits.max_running, limits.max_timeout_ms), (7, None, 2_000));
        let refused = |change| amend::<Limits>(&file, &stored, &change).unwrap_err().pointer;
        assert_eq!(refused(json!({"of_today": 1})), "/of_today");
        assert_eq!(refused(json!({"max_timeout_ms": 999})), "/default_timeout_ms");
        assert_eq!(refused(json!([])), "");
        assert_eq!(refused(json!(null)), "");
    }

    #[test]
    fn the_difference_gives_the_object_back() {
        assert_eq!(difference(&Limits::default()), json!({}));
        let mut limits = Limits { max_running: Some(3), ..Limits::default() };
        limits.classes.background.promote_after_ms = None;
        let difference = difference(&limits);
        assert_eq!(difference, json!({"max_running": 3, "classes": {"background": {"promote_after_ms": null}}}));
        assert_eq!(compose(&[&difference]), Ok(limits));
    }
}
