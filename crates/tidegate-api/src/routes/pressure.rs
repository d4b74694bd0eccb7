//! `GET /v1/pressure`: how full the system is.

use std::borrow::Cow;

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use tidegate_core::admission::Room;
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
        (status = 503, description = "The database cannot be reached", body = Problem<'_>, content_type = "application/problem+json")
    ),
    security((), ("key" = ["read"])),
    extensions(("x-auth-class" = json!("read")))
)]
pub(crate) async fn pressure(State(app): State<App>, uri: Uri) -> Result<Response, Rejection> {
    decode::no_parameters(&uri)?;
    let gauges = gauges::read(&app).await?;
    let sum = |of: fn(&ClassGauges) -> i64| gauges.classes.iter().map(|(_, counts)| of(counts)).sum();
    let room = Room {
        queued: sum(|counts| counts.queued),
        running: sum(|counts| counts.running),
        deferred: sum(|counts| counts.deferred),
        bytes: gauges.bytes,
        ..Room::default()
    };
    let policy = app.backend.policy();
    let pressure = Pressure {
        pressure: (room.pressure(&policy.limits) * 100.0).round() / 100.0,
        queued: room.queued,
        running: room.running,
        deferred: room.deferred,
        limits: Cow::Borrowed(&policy.limits),
        shed_from_priority: None,
        estimated_wait_ms: ClassWaits::default(),
    };
    Ok(answer::json(StatusCode::OK, &pressure))
}
