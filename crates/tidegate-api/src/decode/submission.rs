//! A submission, member by member.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tidegate_core::budget::DEFAULT_DEPTH;
use tidegate_core::limits::Limits;
use tidegate_core::submission::{Cost, Idempotency, OnFull, Start, Submission, Timing};
use tidegate_core::{Class, EpochMs, Kind, PeerName, Priority, TaskId, TenantId};
use tidegate_wire::Timestamp;

use crate::decode::headers::SubmitHeaders;
use crate::decode::members::{Members, duplicate, missing, pointer_to, unknown};
use crate::decode::value::{Bad, check_text, count, integer, string, text};
use crate::rejection::Rejection;
use crate::settings::Shared;

/// The longest workflow id or cancellation token, in characters.
pub(crate) const MAX_NAME: usize = 255;
/// Most labels of a task.
pub(crate) const MAX_LABELS: usize = 16;
/// The longest name of a label, in characters.
pub(crate) const MAX_LABEL_NAME: usize = 64;
/// The longest value of a label, in characters.
pub(crate) const MAX_LABEL_VALUE: usize = 256;
/// Most attempts that a task may ask for.
const MAX_ATTEMPTS: u64 = 100;
/// The longest attempt, in milliseconds: no operator can allow a task more than 30 days.
const MAX_ATTEMPT_TIMEOUT_MS: u64 = 30 * 86_400_000;
/// Most tokens or millionths of a dollar of one task: the sum over every task that a queue can hold fits an `i64`.
const MAX_COST: u64 = 1_000_000_000_000;

/// How long a caller waits at the door that agreed to wait and said no more.
const DEFAULT_WAIT_MS: u64 = 500;
/// The longest that it may agree to: as long as `Prefer: wait`.
const MAX_WAIT_MS: u64 = 60_000;

/// A submission whose every value has been checked. It borrows from the body.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) kind: Kind,
    pub(crate) payload: &'a RawValue,
    pub(crate) priority: Priority,
    /// Why it is not the one that was asked for.
    pub(crate) priority_notes: Vec<String>,
    pub(crate) timing: Timing,
    pub(crate) min_useful_ms: u64,
    pub(crate) peer: Option<PeerName>,
    pub(crate) max_attempts: u16,
    pub(crate) attempt_timeout_ms: Option<u64>,
    pub(crate) cost: Cost,
    pub(crate) cancellation_token: Option<Cow<'a, str>>,
    pub(crate) workflow_id: Option<Cow<'a, str>>,
    pub(crate) parent_id: Option<TaskId>,
    /// Labels as a JSON object of strings.
    pub(crate) labels: Option<String>,
    pub(crate) on_full: OnFull,
    depth: u32,
    fanout: u32,
}

macro_rules! members {
    ($($name:ident)*) => {
        /// The members of a submission as they are written.
        #[derive(Default)]
        struct Raw<'a> {
            $($name: Option<&'a RawValue>,)*
        }

        impl<'a> Raw<'a> {
            fn slot(&mut self, name: &str) -> Option<&mut Option<&'a RawValue>> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
        }

        /// The names of the members.
        #[cfg(test)]
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

members! {
    kind payload priority timeout_ms deadline min_useful_ms delay_ms not_before cost peer max_attempts
    attempt_timeout_ms cancellation_token workflow_id parent_id on_full max_wait_ms labels webhook
}

impl<'a> Raw<'a> {
    /// Sorts the members of the object at `base`: each known, none twice.
    fn collect(text: &'a str, base: &str) -> Result<Self, Rejection> {
        let mut all = Self::default();
        for (name, value) in Members::of(text, base)?.iter() {
            let slot = all.slot(name).ok_or_else(|| unknown(base, name))?;
            if slot.replace(value).is_some() {
                return Err(duplicate(base, name));
            }
        }
        Ok(all)
    }
}

/// Decodes the submission at `base`. The payload may still be too large: see [`payload_too_large`].
pub(crate) fn draft<'a>(
    app: &Shared,
    limits: &Limits,
    headers: &SubmitHeaders,
    document: &'a str,
    base: &str,
) -> Result<Draft<'a>, Rejection> {
    let raw = Raw::collect(document, base)?;
    let at = |name: &'static str| move |bad: Bad| bad.at(pointer_to(base, name));
    let kind = raw.kind.ok_or_else(|| missing(base, "kind"))?;
    let kind = string(kind).and_then(|kind| Kind::parse(&kind).map_err(named)).map_err(at("kind"))?;
    let policy = app.policy(&kind);

    let priority = given(raw.priority, |raw| priority(limits, raw)).map_err(at("priority"))?;
    let peer = given(raw.peer, |raw| PeerName::parse(&string(raw)?).map_err(named)).map_err(at("peer"))?;
    let min_useful_ms =
        given(raw.min_useful_ms, |raw| count(raw, 0..=limits.max_timeout_ms)).map_err(at("min_useful_ms"))?;
    let max_attempts = given(raw.max_attempts, |raw| count(raw, 1..=MAX_ATTEMPTS)).map_err(at("max_attempts"))?;
    let attempt_timeout_ms = given(raw.attempt_timeout_ms, |raw| count(raw, 1..=MAX_ATTEMPT_TIMEOUT_MS))
        .map_err(at("attempt_timeout_ms"))?;

    Ok(Draft {
        payload: raw.payload.unwrap_or(RawValue::NULL),
        priority: priority.unwrap_or(Priority::DEFAULT),
        priority_notes: Vec::new(),
        timing: timing(app, limits, headers, &raw, base)?,
        min_useful_ms: min_useful_ms.unwrap_or(policy.min_useful_ms),
        peer: peer.or_else(|| policy.peer.clone()),
        max_attempts: max_attempts.map_or(policy.max_attempts, |most| most as u16),
        attempt_timeout_ms: attempt_timeout_ms.or(policy.attempt_timeout_ms),
        cost: cost(raw.cost, base)?,
        cancellation_token: given(raw.cancellation_token, |raw| text(raw, 1..=MAX_NAME))
            .map_err(at("cancellation_token"))?,
        workflow_id: given(raw.workflow_id, |raw| text(raw, 1..=MAX_NAME)).map_err(at("workflow_id"))?,
        parent_id: given(raw.parent_id, task_id).map_err(at("parent_id"))?,
        labels: labels(raw.labels, base)?,
        on_full: on_full(&raw, base)?,
        depth: headers.depth.unwrap_or(DEFAULT_DEPTH),
        fanout: headers.fanout.map_or(policy.fanout, |fanout| fanout.min(policy.fanout)),
        kind,
    })
}

/// The value of an optional member; `null` is as good as absent.
fn given<'a, T>(
    raw: Option<&'a RawValue>,
    decode: impl FnOnce(&'a RawValue) -> Result<T, Bad>,
) -> Result<Option<T>, Bad> {
    raw.filter(|raw| raw.get() != "null").map(decode).transpose()
}

fn named(bad: impl std::fmt::Display) -> Bad {
    Bad::value(bad.to_string())
}

fn priority(limits: &Limits, raw: &RawValue) -> Result<Priority, Bad> {
    let bad = || Bad::value("must be an integer from 0 to 100, or critical, standard or background");
    match string(raw) {
        Ok(name) => Class::parse(&name).map(|class| limits.priority_of(class)).ok_or_else(bad),
        Err(_) => integer(raw, 0..=100).and_then(|number| Priority::new(number).map_err(named)).map_err(|_| bad()),
    }
}

fn task_id(raw: &RawValue) -> Result<TaskId, Bad> {
    string(raw)?.parse().map_err(|_| Bad::value("must be the id of a task"))
}

fn instant(raw: &RawValue) -> Result<EpochMs, Bad> {
    Timestamp::parse(&string(raw)?).map(Timestamp::as_ms).map_err(named)
}

/// When it may start and must have ended. Body and headers combine: of several ends the smallest wins.
fn timing(
    app: &Shared,
    limits: &Limits,
    headers: &SubmitHeaders,
    raw: &Raw<'_>,
    base: &str,
) -> Result<Timing, Rejection> {
    let at = |name: &'static str| move |bad: Bad| bad.at(pointer_to(base, name));
    let max_delay_ms = app.settings.max_delay_ms;
    let timeout_ms = given(raw.timeout_ms, |raw| count(raw, 1..=limits.max_timeout_ms)).map_err(at("timeout_ms"))?;
    let deadline = given(raw.deadline, instant).map_err(at("deadline"))?;
    let delay_ms = given(raw.delay_ms, |raw| count(raw, 0..=max_delay_ms)).map_err(at("delay_ms"))?;
    let not_before = given(raw.not_before, |raw| {
        let at = instant(raw)?;
        let latest = chrono::Utc::now().timestamp_millis().saturating_add_unsigned(max_delay_ms);
        if at > latest { Err(Bad::value(format!("must be at most {max_delay_ms} ms away"))) } else { Ok(at) }
    })
    .map_err(at("not_before"))?;
    let start = match (delay_ms, not_before) {
        (Some(_), Some(_)) => return Err(at("not_before")(Bad::value("must not be there beside delay_ms"))),
        (None | Some(0), None) => Start::Now,
        (Some(delay_ms), None) => Start::After(delay_ms),
        (None, Some(at)) => Start::At(at),
    };
    let deadline = match (deadline, headers.deadline) {
        (Some(body), Some(header)) => Some(body.min(header)),
        (body, header) => body.or(header),
    };
    Ok(Timing { start, timeout_ms, deadline, remaining_ms: headers.remaining_ms })
}

fn cost(raw: Option<&RawValue>, base: &str) -> Result<Cost, Rejection> {
    let mut cost = Cost::default();
    let here = || pointer_to(base, "cost");
    let Some(members) = given(raw, Members::parse).map_err(|bad| bad.at(here()))? else { return Ok(cost) };
    let mut seen = [false; 2];
    for (name, value) in members.iter() {
        let (slot, seen) = match name {
            "tokens" => (&mut cost.tokens, &mut seen[0]),
            "usd_micros" => (&mut cost.usd_micros, &mut seen[1]),
            _ => return Err(unknown(&here(), name)),
        };
        if std::mem::replace(seen, true) {
            return Err(duplicate(&here(), name));
        }
        let amount = given(Some(value), |raw| count(raw, 0..=MAX_COST));
        *slot = amount.map_err(|bad| bad.at(pointer_to(&here(), name)))?.unwrap_or(0);
    }
    Ok(cost)
}

fn labels(raw: Option<&RawValue>, base: &str) -> Result<Option<String>, Rejection> {
    let here = || pointer_to(base, "labels");
    let Some(members) = given(raw, Members::parse).map_err(|bad| bad.at(here()))? else { return Ok(None) };
    if members.len() > MAX_LABELS {
        return Err(Bad::value(format!("must hold at most {MAX_LABELS} labels")).at(here()));
    }
    let mut labels = serde_json::Map::with_capacity(members.len());
    for (name, value) in members.iter() {
        let bad = |bad: Bad| bad.at(pointer_to(&here(), name));
        check_text(name, 1..=MAX_LABEL_NAME).map_err(bad)?;
        let value = text(value, 0..=MAX_LABEL_VALUE).map_err(bad)?;
        if labels.insert(name.to_owned(), value.into_owned().into()).is_some() {
            return Err(duplicate(&here(), name));
        }
    }
    Ok((!labels.is_empty()).then(|| serde_json::Value::Object(labels).to_string()))
}

/// What the caller agrees to where there is no room; and refuses what is not served yet.
fn on_full(raw: &Raw<'_>, base: &str) -> Result<OnFull, Rejection> {
    let at = |name: &'static str| move |bad: Bad| bad.at(pointer_to(base, name));
    given(raw.webhook, |_| Err::<(), _>(Bad::not_served_yet("is not served yet"))).map_err(at("webhook"))?;
    let max_wait_ms = given(raw.max_wait_ms, |raw| count(raw, 0..=MAX_WAIT_MS)).map_err(at("max_wait_ms"))?;
    let wanted = given(raw.on_full, |raw| match &*string(raw)? {
        "reject" => Ok(OnFull::Reject),
        "wait" => Ok(OnFull::Wait { max_wait_ms: max_wait_ms.unwrap_or(DEFAULT_WAIT_MS) }),
        "defer" => Ok(OnFull::Defer),
        _ => Err(Bad::value("must be reject, wait or defer")),
    })
    .map_err(at("on_full"))?
    .unwrap_or_default();
    if max_wait_ms.is_some() && wanted == OnFull::Reject {
        return Err(at("max_wait_ms")(Bad::value("means nothing with on_full: reject, which is the default")));
    }
    Ok(wanted)
}

/// Whether the payload is larger than allowed.
pub(crate) fn payload_too_large(app: &Shared, draft: &Draft<'_>) -> bool {
    draft.payload.get().len() > app.settings.max_payload_bytes
}

impl Draft<'_> {
    /// The submission as the door sees it.
    pub(crate) fn submission(
        &self,
        id: TaskId,
        tenant: &TenantId,
        headers: &SubmitHeaders,
        body_sha256: Option<[u8; 32]>,
    ) -> Submission {
        let key = headers.idempotency_key.as_ref();
        Submission {
            id,
            tenant: tenant.clone(),
            kind: self.kind.clone(),
            payload: self.payload.get().to_owned(),
            priority: self.priority,
            timing: self.timing,
            min_useful_ms: self.min_useful_ms,
            peer: self.peer.clone(),
            max_attempts: self.max_attempts,
            attempt_timeout_ms: self.attempt_timeout_ms,
            cost: self.cost,
            cancellation_token: self.cancellation_token.as_deref().map(str::to_owned),
            workflow_id: self.workflow_id.as_deref().map(str::to_owned),
            parent_id: self.parent_id,
            labels: self.labels.clone(),
            on_full: self.on_full,
            priority_notes: self.priority_notes.clone(),
            traceparent: headers.traceparent.clone(),
            depth: self.depth,
            fanout: self.fanout,
            idempotency: key.zip(body_sha256).map(|(key, body_sha256)| Idempotency { key: key.clone(), body_sha256 }),
        }
    }
}
