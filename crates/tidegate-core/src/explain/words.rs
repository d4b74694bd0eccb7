//! Times as people read them.

/// A span: `12 ms`, `1.5 s`, `3 min 5 s`, `2 h 3 min`, `4 d 1 h`.
pub(super) fn span(ms: i64) -> String {
    let seconds = ms / 1_000;
    match ms {
        ..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{:.1} s", ms as f64 / 1_000.0),
        60_000..3_600_000 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600_000..86_400_000 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}
