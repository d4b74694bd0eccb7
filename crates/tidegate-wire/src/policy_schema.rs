//! The schemas of core's limits, which know nothing of OpenAPI: drawn from a value in which every limit is set and one
//! in which none is, so that a key which is added to the limits is in the document.

use std::borrow::Cow;

use serde_json::Value;
use tidegate_core::limits::{ClassLimits, Classes, Limits};
use tidegate_core::merge_patch::Patched;
use tidegate_core::peer::{Aimd, PeerLimits};
use tidegate_core::tenant::TenantLimits;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, Schema, SchemaFormat, SchemaType, Type,
};
use utoipa::{PartialSchema, ToSchema};

use crate::policy::{
    LimitsChange, LimitsDocument, PeerChange, PeerDocument, PeerUsage, TenantChange, TenantDocument, TenantUsage,
};

macro_rules! schema {
    ($type:ty, $name:literal, $schema:expr $(, $used:ty)?) => {
        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }

        impl ToSchema for $type {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed($name)
            }

            fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
                $(
                    schemas.push((<$used as ToSchema>::name().into_owned(), <$used as PartialSchema>::schema()));
                )?
                let _ = schemas;
            }
        }
    };
}

schema!(LimitsDocument<'_>, "Limits", limits(false));
schema!(LimitsChange, "LimitsChange", limits(true));
schema!(TenantDocument<'_>, "Tenant", read("Tenant", tenant(false), "TenantUsage"), TenantUsage);
schema!(TenantChange, "TenantChange", tenant(true));
schema!(PeerDocument<'_>, "Peer", read("Peer", peer(false), "PeerUsage"), PeerUsage);
schema!(PeerChange, "PeerChange", peer(true));

/// The limits of the cell; of a change no key is required.
pub(crate) fn limits(change: bool) -> Schema {
    let class = |set: bool| ClassLimits {
        shed_at: set.then_some(0.95),
        promote_after_ms: set.then_some(1),
        max_queued: set.then_some(1),
        max_running: set.then_some(1),
        max_tokens: set.then_some(1),
        max_bytes: set.then_some(1),
        target_wait_ms: set.then_some(1),
        target_admission_ms: set.then_some(1),
        ..ClassLimits::default()
    };
    let with = |set: bool| Limits {
        max_running: set.then_some(1),
        max_in_flight: set.then_some(1),
        max_tokens: set.then_some(1),
        max_usd_micros: set.then_some(1),
        classes: Classes { critical: class(set), standard: class(set), background: class(set) },
        ..Limits::default()
    };
    drawn(&with(true), &with(false), change)
}

fn tenant(change: bool) -> Schema {
    let with = |set: bool| {
        let mut limits = TenantLimits {
            max_priority: Some(89),
            max_queued: set.then_some(1),
            max_running: set.then_some(1),
            max_tokens: set.then_some(1),
            max_bytes: set.then_some(1),
            max_usd_micros: set.then_some(1),
            rate_per_minute: set.then_some(1),
            burst: set.then_some(1),
            tokens_per_minute: set.then_some(1),
            ..TenantLimits::default()
        };
        let classes = &mut limits.classes;
        for class in [&mut classes.critical, &mut classes.standard, &mut classes.background] {
            class.max_queued = set.then_some(1);
            class.max_running = set.then_some(1);
        }
        limits
    };
    drawn(&with(true), &with(false), change)
}

fn peer(change: bool) -> Schema {
    let with = |set: bool| PeerLimits {
        max_in_flight: set.then_some(1),
        max_waiting: set.then_some(1),
        max_wait_ms: set.then_some(1),
        requests_per_minute: set.then_some(1),
        tokens_per_minute: set.then_some(1),
        target_latency_ms: set.then_some(1),
        aimd: set.then_some(Aimd { initial: 1, min: 1, max: 1, backoff: 0.7 }),
        ..PeerLimits::default()
    };
    drawn(&with(true), &with(false), change)
}

/// Limits as they are read: with a name, and beside what is held.
fn read(what: &str, limits: Schema, usage: &str) -> Schema {
    let Schema::Object(mut object) = limits else { return limits };
    let text =
        ObjectBuilder::new().schema_type(Type::String).description(Some(format!("Names the {}", what.to_lowercase())));
    let configured = ObjectBuilder::new()
        .schema_type(Type::Boolean)
        .description(Some("Whether anybody configured it; if not, its limits are the defaults"));
    let mut added: Vec<(String, RefOr<Schema>)> = vec![
        ("name".to_owned(), Schema::Object(text.build()).into()),
        ("configured".to_owned(), Schema::Object(configured.build()).into()),
    ];
    added.append(&mut object.properties.into_iter().collect());
    added.push(("usage".to_owned(), utoipa::openapi::Ref::from_schema_name(usage).into()));
    object.required = added.iter().map(|(name, _)| name.clone()).collect();
    object.properties = added.into_iter().collect();
    Schema::Object(object)
}

fn drawn<T: Patched>(set: &T, unset: &T, change: bool) -> Schema {
    let value = |limits| serde_json::to_value(limits).unwrap_or_default();
    let schema = like(&value(set), &value(unset), change.then_some(T::NEVER_NULL), "");
    let Schema::Object(mut object) = schema else { return schema };
    let description = match change {
        true => "`null` is no limit, or the default where there has to be one. See docs/limits.md.",
        false => "`null` is no limit. See docs/limits.md for what each means and what counts where.",
    };
    object.description = Some(description.to_owned());
    Schema::Object(object)
}

/// What two values at a pointer have in common. Of a change the members that refuse `null` are known.
fn like(set: &Value, unset: &Value, change: Option<&[&str]>, pointer: &str) -> Schema {
    let may_be_reset = |never: &[&str]| !pointer.is_empty() && !never.contains(&pointer);
    let nullable = unset.is_null() || change.is_some_and(may_be_reset);
    let of = |kind: Type| match nullable {
        true => SchemaType::from_iter([kind, Type::Null]),
        false => SchemaType::Type(kind),
    };
    let object = match set {
        Value::Object(members) => {
            let mut object = ObjectBuilder::new().schema_type(of(Type::Object));
            for (name, value) in members {
                let unset = if unset.is_null() { value } else { &unset[name] };
                object = object.property(name, like(value, unset, change, &format!("{pointer}/{name}")));
                if change.is_none() {
                    object = object.required(name);
                }
            }
            if change.is_some() {
                object = object.additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)));
            }
            object
        }
        Value::Array(_) => {
            let text = ObjectBuilder::new().schema_type(Type::String);
            return Schema::Array(ArrayBuilder::new().schema_type(of(Type::Array)).items(text).build());
        }
        Value::Number(number) if number.is_f64() => {
            ObjectBuilder::new().schema_type(of(Type::Number)).minimum(Some(0.0))
        }
        Value::Number(_) => ObjectBuilder::new()
            .schema_type(of(Type::Integer))
            .format(Some(SchemaFormat::KnownFormat(utoipa::openapi::KnownFormat::Int64)))
            .minimum(Some(0)),
        // Whatever it may be.
        _ => ObjectBuilder::new().schema_type(SchemaType::AnyValue),
    };
    Schema::Object(object.build())
}
