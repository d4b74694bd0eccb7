//! A bar on standard error that shows how far a measurement is; nothing where that is no terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often the bar is drawn at most: drawing takes time from what is measured.
const REDRAW: Duration = Duration::from_millis(500);

/// The progress of a run.
#[derive(Clone)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// Nothing to show yet.
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new(0);
        // The template is ours; were it wrong, the bar would look otherwise.
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} {bar:30} {msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Begins something that takes so many steps.
    pub(super) fn begin(&self, what: impl Into<String>, steps: u64) {
        self.0.reset();
        self.0.set_length(steps);
        self.0.set_message(what.into());
        self.0.enable_steady_tick(REDRAW);
    }

    /// One more step is done.
    pub(super) fn step(&self) {
        self.0.inc(1);
    }

    /// Takes the bar away, so that lines can be printed.
    pub(super) fn end(&self) {
        self.0.disable_steady_tick();
        self.0.finish_and_clear();
    }
}
