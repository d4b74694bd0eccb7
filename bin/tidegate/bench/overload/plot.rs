//! The picture: what is done in time over what is offered.

use std::fmt::Write;

use super::schedule::Runs;

/// One load. Everything in shares of capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) offered: f64,
    pub(super) ours: f64,
    pub(super) plain: f64,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
/// The frame of the axes: left, top, right, bottom.
const FRAME: (f64, f64, f64, f64) = (70.0, 56.0, 570.0, 340.0);
/// The highest share of capacity that is drawn.
const TOP: f64 = 1.1;
const OURS: &str = "#0b7285";
const PLAIN: &str = "#c2410c";
const INK: &str = "#475569";

/// An SVG that needs nothing but a font, readable on light and dark ground.
pub(super) fn svg(points: &[Point], runs: &Runs) -> String {
    let most = points.iter().map(|point| point.offered).fold(1.0, f64::max);
    let (left, top, right, bottom) = FRAME;
    let x = |offered: f64| left + (right - left) * offered / most;
    let y = |share: f64| bottom - (bottom - top) * share.min(TOP) / TOP;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"13\" fill=\"{INK}\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"8\" fill=\"#ffffff\"/>\n"
    );
    let mut line = |text: String| {
        svg.push_str(&text);
        svg.push('\n');
    };
    line(format!(
        "<text x=\"{left}\" y=\"24\" font-size=\"16\" font-weight=\"bold\">Done in time under overload</text>"
    ));
    line(format!("<text x=\"{left}\" y=\"42\">one worker of 20 slots, {}, deadline 2 s</text>", runs.describe()));
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let at = y(share);
        line(format!("<path d=\"M{left} {at:.1}H{right}\" stroke=\"#cbd5e1\" stroke-width=\"1\"/>"));
        let (place, down) = (left - 8.0, at + 4.0);
        line(format!("<text x=\"{place}\" y=\"{down:.1}\" text-anchor=\"end\">{:.0} %</text>", share * 100.0));
    }
    for whole in 0..=most as u32 {
        let (at, down) = (x(whole.into()), bottom + 20.0);
        line(format!("<text x=\"{at:.1}\" y=\"{down}\" text-anchor=\"middle\">{whole}×</text>"));
    }
    let middle = (left + right) / 2.0;
    line(format!(
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">offered load, in multiples of capacity</text>",
        bottom + 44.0
    ));
    line(format!(
        "<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">share of capacity</text>",
        (top + bottom) / 2.0
    ));
    for (name, colour, share) in [
        ("tidegate", OURS, (|point: &Point| point.ours) as fn(&Point) -> f64),
        ("plain queue (FIFO)", PLAIN, |point| point.plain),
    ] {
        line(curve(points, name, colour, &|point| (x(point.offered), y(share(point)))));
    }
    svg.push_str("</svg>\n");
    svg
}

fn curve(points: &[Point], name: &str, colour: &str, place: &dyn Fn(&Point) -> (f64, f64)) -> String {
    let mut path = String::new();
    let mut dots = String::new();
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.offered.total_cmp(&b.offered));
    for (n, point) in sorted.iter().enumerate() {
        let (x, y) = place(point);
        // Writing to a string does not fail.
        let _ = write!(path, "{}{x:.1} {y:.1}", if n == 0 { 'M' } else { 'L' });
        let _ = write!(dots, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>");
    }
    let (x, y) = sorted.last().map_or((0.0, 0.0), place);
    format!(
        "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"3\" stroke-linejoin=\"round\"/>{dots}\
         <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" font-weight=\"bold\">{name}</text>",
        x + 12.0,
        y + 4.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_curves_pass_through_their_points() {
        let points = [Point { offered: 5.0, ours: 0.96, plain: 0.07 }, Point { offered: 0.5, ours: 0.5, plain: 0.5 }];
        let svg = svg(&points, &Runs::ALIKE);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<circle").count(), 4);
        // From the half load to the whole frame's width, in this order however the loads were named.
        assert!(svg.contains("M120.0 210.9L570.0 92.1"), "{svg}");
        assert!(svg.contains("plain queue (FIFO)</text>"));
    }
}
