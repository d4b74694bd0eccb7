//! A task as people read it.

use tidegate_client::{Answer, Task, Timestamp};

use crate::exit::Failure;
use crate::terminal::{Output, safe, safe_json};

/// The width of the names.
const NAME_WIDTH: usize = 14;

/// Prints a task: the server's JSON, or a field a line with those left out that say nothing.
pub(super) fn show(task: &Answer<Task>, output: &mut Output) -> Result<(), Failure> {
    if output.wants_json() {
        return output.json_line(&task.json);
    }
    for (name, value) in fields(task) {
        output.line(&format!("{name:<NAME_WIDTH$}{value}"))?;
    }
    Ok(())
}

/// The fields worth showing; every value is harmless.
fn fields(task: &Task) -> Vec<(&'static str, String)> {
    let text = |value: &Option<std::borrow::Cow<'_, str>>| value.as_deref().map(|text| safe(text).into_owned());
    let json = |value: &Option<std::borrow::Cow<'_, serde_json::value::RawValue>>| {
        value.as_deref().map(|json| safe_json(json.get()).into_owned())
    };
    let time = |value: Option<Timestamp>| value.map(|at| at.to_string());
    let all = [
        ("id", Some(task.id.to_string())),
        ("kind", Some(safe(&task.kind).into_owned())),
        ("tenant", Some(safe(&task.tenant).into_owned()).filter(|tenant| tenant != "default")),
        ("status", Some(status(task))),
        ("detail", text(&task.detail)),
        ("note", text(&task.note)),
        ("priority", Some(format!("{} ({})", task.priority, task.class))),
        ("attempt", (task.attempt > 0).then(|| format!("{} of {}", task.attempt, task.max_attempts))),
        ("position", task.queue_position.map(|position| position.to_string())),
        ("starts in", task.estimated_start_ms.map(duration)),
        ("enqueued", Some(task.enqueued_at.to_string())),
        ("not before", time(task.not_before)),
        ("started", time(task.started_at)),
        ("finished", time(task.finished_at)),
        ("deadline", Some(deadline(task))),
        ("waited", task.queue_wait_ms.map(duration)),
        ("ran", task.run_ms.map(duration)),
        ("cancel asked", task.cancel.and_then(|cancel| time(cancel.requested_at))),
        ("worker", text(&task.worker)),
        ("peer", text(&task.peer)),
        ("labels", json(&task.labels)),
        ("workflow", text(&task.workflow_id)),
        ("parent", task.parent_id.map(|id| id.to_string())),
        ("token", text(&task.cancellation_token)),
        ("key", text(&task.idempotency_key)),
        ("progress", json(&task.progress)),
        ("payload", json(&task.payload)),
        ("result", json(&task.result)),
        ("error", task.error.as_ref().map(|error| format!("{}: {}", safe(&error.kind), safe(&error.message)))),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The status with its reason.
pub(super) fn status(task: &Task) -> String {
    match task.reason {
        Some(reason) => format!("{} ({reason})", task.status),
        None => task.status.to_string(),
    }
}

fn deadline(task: &Task) -> String {
    match task.remaining_ms {
        Some(left) => format!("{} (in {})", task.deadline, duration(left)),
        None => task.deadline.to_string(),
    }
}

/// Milliseconds as people read them: `12 ms`, `1.5 s`, `3 min 5 s`, `2 h 3 min`, `4 d 1 h`.
pub(super) fn duration(ms: i64) -> String {
    let seconds = ms / 1_000;
    match ms {
        ..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{:.1} s", ms as f64 / 1_000.0),
        60_000..3_600_000 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600_000..86_400_000 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_500, "1.5 s"),
            (185_000, "3 min 5 s"),
            (7_380_000, "2 h 3 min"),
            (349_200_000, "4 d 1 h"),
        ] {
            assert_eq!(duration(ms), text);
        }
    }
}
