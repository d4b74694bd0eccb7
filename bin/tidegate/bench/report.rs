//! What was measured, for people and for programs.

use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::exit::Failure;
use crate::terminal::Output;

/// All of one run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Where it was measured, by name.
    pub(super) machine: Vec<(String, String)>,
    /// What was measured, in order.
    pub(super) sections: Vec<Section>,
}

/// One measurement.
#[derive(Debug, Serialize)]
pub(super) struct Section {
    /// What and how much of it.
    pub(super) title: String,
    /// Its figures.
    pub(super) figures: Vec<Figure>,
    /// What else there is to know about them.
    pub(super) notes: Vec<String>,
}

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Figure {
    /// What was measured.
    pub(super) what: String,
    /// How much.
    pub(super) value: f64,
    /// Of what.
    pub(super) unit: &'static str,
    /// What it is held against, measured in the same run and unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) baseline: Option<Baseline>,
    /// The share of the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<f64>,
    /// What it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) goal: Option<Goal>,
    /// Whether it is what it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) met: Option<bool>,
}

/// What a figure is held against.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Baseline {
    /// What was measured.
    pub(super) what: String,
    /// How much.
    pub(super) value: f64,
}

/// What the ratio, or the value where there is none, should be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Goal {
    /// Not less than the first; the second is aimed at.
    AtLeast(f64, Option<f64>),
    /// Not more.
    AtMost(f64),
}

impl Figure {
    /// A value that stands alone.
    pub(super) fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { what: what.into(), value, unit, baseline: None, ratio: None, goal: None, met: None }
    }

    /// Holds it against a baseline. The ratio is given, since that of medians is not the median of ratios.
    pub(super) fn beside(mut self, what: impl Into<String>, value: f64, ratio: f64) -> Self {
        self.baseline = Some(Baseline { what: what.into(), value });
        self.ratio = Some(ratio);
        self
    }

    /// Says what it should be.
    pub(super) fn goal(mut self, goal: Goal) -> Self {
        let judged = self.ratio.unwrap_or(self.value);
        self.met = Some(match goal {
            Goal::AtLeast(floor, _) => judged >= floor,
            Goal::AtMost(most) => judged <= most,
        });
        self.goal = Some(goal);
        self
    }

    fn cells(&self) -> [String; 5] {
        let beside = self.baseline.as_ref().map(|baseline| format!("{}: {}", baseline.what, number(baseline.value)));
        let goal = match self.goal {
            Some(Goal::AtLeast(floor, Some(aim))) => format!("at least {floor}, better {aim}"),
            Some(Goal::AtLeast(floor, None)) => format!("at least {floor}"),
            Some(Goal::AtMost(most)) => format!("at most {most}"),
            None => String::new(),
        };
        let verdict = match self.met {
            Some(true) => "  ok",
            Some(false) => "  MISSED",
            None => "",
        };
        [
            format!("  {}", self.what),
            format!("{} {}", number(self.value), self.unit),
            beside.unwrap_or_default(),
            self.ratio.map(|ratio| format!("{ratio:.3}")).unwrap_or_default(),
            format!("{goal}{verdict}"),
        ]
    }
}

impl Report {
    /// Prints the machine, for people.
    pub(super) fn show_machine(&self, output: &mut Output) -> Result<(), Failure> {
        if output.wants_json() {
            return Ok(());
        }
        for (name, value) in &self.machine {
            output.line(&format!("{name:<12}{value}"))?;
        }
        Ok(())
    }

    /// Adds a section, and prints it for people at once: a long run shows what it has.
    pub(super) fn add(&mut self, section: Section, output: &mut Output) -> Result<(), Failure> {
        if !output.wants_json() {
            for line in section.lines() {
                output.line(&line)?;
            }
        }
        self.sections.push(section);
        Ok(())
    }

    /// Prints all of it, for programs.
    pub(super) fn finish(&self, output: &mut Output) -> Result<(), Failure> {
        if !output.wants_json() {
            return Ok(());
        }
        let json = serde_json::to_string(self).map_err(|error| Failure::other("cannot write the report", error))?;
        output.json_line(&json)
    }
}

impl Section {
    fn lines(&self) -> Vec<String> {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        for figure in &self.figures {
            table.add_row(figure.cells());
        }
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if index == 1 || index == 3 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut lines = vec![String::new(), self.title.clone()];
        lines.extend(table.lines().map(|line| line.trim_end().to_owned()));
        lines.extend(self.notes.iter().map(|note| format!("  ({note})")));
        lines
    }
}

/// The middle of what was measured, or 0 where nothing was.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Part of a whole, 0 where there is no whole.
pub(super) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A histogram of times in microseconds, up to a minute (anything longer counts as that), kept to three digits.
pub(super) fn histogram() -> Result<Histogram<u64>, Failure> {
    const MINUTE: u64 = 60_000_000;
    Histogram::new_with_bounds(1, MINUTE, 3).map_err(|error| Failure::other("cannot make a histogram", error))
}

/// How many a second.
pub(super) fn per_second(count: usize, took: Duration) -> f64 {
    ratio(count as f64, took.as_secs_f64())
}

/// Numbers as people read them: 12,345 and 12.3 and 1.23.
fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => grouped(value.round() as i64),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A whole number with a comma between each three digits.
pub(super) fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if value < 0 {
        text.push('-');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_take_what_there_is() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(ratio(1.0, 0.0), 0.0);
        assert_eq!(ratio(1.0, 4.0), 0.25);
    }

    #[test]
    fn a_histogram_holds_what_takes_long_and_what_takes_longer() {
        let mut histogram = histogram().unwrap();
        histogram.saturating_record(12_345);
        histogram.saturating_record(u64::MAX);
        assert!((12_300..12_400).contains(&histogram.value_at_percentile(50.0)));
        assert!(histogram.value_at_percentile(100.0) >= 60_000_000);
    }

    #[test]
    fn numbers_read_well() {
        for (value, text) in
            [(1_234_567.8, "1,234,568"), (123.4, "123"), (12.34, "12.3"), (0.5, "0.50"), (-1_000.0, "-1,000")]
        {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_goal_judges_the_ratio_where_there_is_one() {
        let figure = Figure::new("x", 30.0, "a second").beside("y", 100.0, 0.3);
        assert_eq!(figure.clone().goal(Goal::AtLeast(0.25, Some(0.4))).met, Some(true));
        assert_eq!(figure.goal(Goal::AtLeast(0.35, None)).met, Some(false));
        assert_eq!(Figure::new("x", 5.1, "ms").goal(Goal::AtMost(5.0)).met, Some(false));
    }

    #[test]
    fn a_section_reads_as_a_table_and_as_json() {
        let figure = Figure::new("admission", 41_000.0, "tasks/s").beside("raw", 100_000.0, 0.41);
        let figure = figure.goal(Goal::AtLeast(0.25, Some(0.4)));
        let section = Section { title: "store".into(), figures: vec![figure], notes: vec!["a note".into()] };
        let lines = section.lines();
        assert_eq!(lines[1], "store");
        assert_eq!(lines[2], "  admission  41,000 tasks/s  raw: 100,000  0.410  at least 0.25, better 0.4  ok");
        assert_eq!(lines[3], "  (a note)");
        let json = serde_json::to_value(&section).unwrap();
        assert_eq!(json["figures"][0]["ratio"], 0.41);
        assert_eq!(json["figures"][0]["goal"]["at_least"][0], 0.25);
        assert_eq!(json["figures"][0]["met"], true);
    }
}
