//! `GET /v1/pressure`: how full the system is.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use tidegate_core::Class;
use tidegate_core::admission::{Facts, cell_pressure, class_wait_ms, shed_flags};
use tidegate_core::policy::Policy;
use tidegate_store::ClassGauges;
use tidegate_wire::{ClassWaits, Pressure, Problem};

use crate::rejection::Rejection;
use crate::settings::App;
use crate::{answer, decode, gauges};

/// Reads how full the system is. At most a second old.
#[utoipa::path(
    get,
    path = "/v1/pressure",
    operation_id = "getPressure",
    tag = "system",
    responses(
        (status = 200, description = "How full the system is", body = Pressure<'_>),
        (status = 422, description = "A parameter that is not known", body = Problem<'_>, content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["read"])),
    extensions(("x-auth-class" = json!("read")))
)]
pub(crate) async fn pressure(State(app): State<App>, uri: Uri) -> Result<Response, Rejection> {
    decode::no_parameters(&uri)?;
    let gauges = gauges::read(&app).await?;
    let sum = |of: fn(&ClassGauges) -> i64| gauges.classes.iter().map(|(_, counts)| of(counts)).sum();
    let (policy, facts) = app.backend.facts().unwrap_or_else(|| (app.backend.policy(), Arc::default()));
    let waits = Class::ALL.map(|class| class_wait_ms(&policy, &facts, class, facts.now));
    let pressure = Pressure {
        pressure: (cell_pressure(&policy, &facts, facts.now) * 100.0).round() / 100.0,
        queued: sum(|counts| counts.queued),
        running: sum(|counts| counts.running),
        deferred: sum(|counts| counts.deferred),
        limits: Cow::Borrowed(&policy.limits),
        shed_from_priority: shed_below(&policy, &facts),
        estimated_wait_ms: ClassWaits { critical: waits[0], standard: waits[1], background: waits[2] },
    };
    Ok(answer::json(StatusCode::OK, &pressure))
}

/// The priority below which submissions are shed now.
fn shed_below(policy: &Policy, facts: &Facts) -> Option<u8> {
    let flags = shed_flags(policy, facts, facts.now);
    let most_important = Class::ALL.into_iter().find(|class| flags[*class as usize])?;
    let above = Class::ALL.into_iter().rev().find(|class| *class < most_important);
    // Where even critical work is shed, everything is.
    Some(above.map_or(101, |class| policy.limits.classes.get(class).from))
}
