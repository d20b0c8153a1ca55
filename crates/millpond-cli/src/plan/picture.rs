//! A picture of a plan: time across, address up.

use std::fs;
use std::io;
use std::path::Path;

use millpond_plan::Plan;
use svg::Document;
use svg::node::element::{Group, Line, Rectangle, Text, Title};

use super::input::Input;
use crate::size::ByteSize;

/// The area of the plan, in pixels, and the margins around it.
const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 640.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 50.0;
const RIGHT: f64 = 30.0;

/// Rectangles smaller than a part of a pixel that nobody sees make the picture large.
const MOST_RECTANGLES: usize = 20_000;

pub(crate) fn draw(path: &Path, name: &str, input: &Input, plan: &Plan) -> io::Result<()> {
    fs::write(path, picture(name, input, plan).to_string())
}

/// Maps times and addresses to pixels.
struct Scale {
    begin: i64,
    span: f64,
    bytes: f64,
}

impl Scale {
    fn x(&self, time: i64) -> f64 {
        LEFT + WIDTH * (time.abs_diff(self.begin) as f64) / self.span
    }

    fn y(&self, address: u64) -> f64 {
        TOP + HEIGHT * (1.0 - address as f64 / self.bytes)
    }
}

fn picture(name: &str, input: &Input, plan: &Plan) -> Document {
    let buffers = &input.problem.buffers;
    let begin = buffers.iter().map(|b| b.lower).min().unwrap_or(0);
    let end = buffers.iter().map(|b| b.upper).max().unwrap_or(1);
    let scale = Scale {
        begin,
        span: (end.abs_diff(begin).max(1)) as f64,
        bytes: plan.peak.max(1) as f64,
    };
    let state = match plan.is_optimal() {
        true => "proven optimal".to_owned(),
        false => format!("{:.2} % above the lower bound", plan.gap() * 100.0),
    };
    let title = format!(
        "{name}: {} buffers in {}, {state}",
        buffers.len(),
        ByteSize(plan.peak)
    );
    let mut document = Document::new()
        .set(
            "viewBox",
            (0.0, 0.0, LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM),
        )
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(plain(0.0, 0.0, LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM).set("fill", "white"))
        .add(label(LEFT, 28.0, &title).set("font-size", 16))
        .add(plain(LEFT, TOP, WIDTH, HEIGHT).set("fill", "#f2f2f2"));
    document = axes(document, &scale, plan, end);
    // The largest on the picture are drawn, in the order of the buffers.
    let area =
        |i: usize| buffers[i].upper.abs_diff(buffers[i].lower) as f64 * buffers[i].size as f64;
    let mut shown: Vec<usize> = (0..buffers.len()).filter(|&i| area(i) > 0.0).collect();
    if shown.len() > MOST_RECTANGLES {
        shown.sort_by(|&a, &b| area(b).total_cmp(&area(a)).then(a.cmp(&b)));
        shown.truncate(MOST_RECTANGLES);
        shown.sort_unstable();
    }
    let mut rectangles = Group::new().set("stroke", "white").set("stroke-width", 0.5);
    for i in shown {
        let (buffer, offset) = (&buffers[i], plan.placements[i].offset);
        let (left, right) = (scale.x(buffer.lower), scale.x(buffer.upper));
        let (top, bottom) = (scale.y(offset + buffer.size), scale.y(offset));
        let about = format!(
            "{}: {} bytes at {offset}, live {}..{}",
            input.names[i], buffer.size, buffer.lower, buffer.upper
        );
        let mut rectangle = plain(left, top, right - left, bottom - top).set("fill", colour(i));
        if buffer.inside.is_some() {
            rectangle = rectangle.set("stroke-dasharray", "3 2");
        }
        let mut group = Group::new().add(rectangle.add(Title::new(about)));
        // A name where it has room.
        let room = ((right - left) / 7.0) as usize;
        if bottom - top >= 13.0 && room >= 3 {
            let short: String = input.names[i].chars().take(room).collect();
            let text = label(left + 3.0, (top + bottom) / 2.0 + 4.0, &short);
            group = group.add(text.set("font-size", 11).set("stroke", "none"));
        }
        rectangles = rectangles.add(group);
    }
    document.add(rectangles)
}

fn axes(mut document: Document, scale: &Scale, plan: &Plan, end: i64) -> Document {
    const STEPS: u32 = 4;
    for step in 0..=STEPS {
        let share = f64::from(step) / f64::from(STEPS);
        let address = (plan.peak as f64 * share) as u64;
        let y = scale.y(address);
        document = document.add(line(LEFT - 5.0, y, LEFT, y)).add(
            label(LEFT - 8.0, y + 4.0, &ByteSize(address).to_string()).set("text-anchor", "end"),
        );
        let time = scale
            .begin
            .saturating_add((end.abs_diff(scale.begin) as f64 * share) as i64);
        let x = scale.x(time);
        document = document
            .add(line(x, TOP + HEIGHT, x, TOP + HEIGHT + 5.0))
            .add(label(x, TOP + HEIGHT + 20.0, &time.to_string()).set("text-anchor", "middle"));
    }
    document
        .add(label(LEFT + WIDTH / 2.0, TOP + HEIGHT + 40.0, "time").set("text-anchor", "middle"))
        .add(label(8.0, TOP - 10.0, "address"))
}

fn plain(x: f64, y: f64, width: f64, height: f64) -> Rectangle {
    let round = |n: f64| (n * 100.0).round() / 100.0;
    Rectangle::new()
        .set("x", round(x))
        .set("y", round(y))
        .set("width", round(width))
        .set("height", round(height))
}

fn line(x1: f64, y1: f64, x2: f64, y2: f64) -> Line {
    Line::new()
        .set("x1", x1)
        .set("y1", y1)
        .set("x2", x2)
        .set("y2", y2)
        .set("stroke", "black")
}

fn label(x: f64, y: f64, text: &str) -> Text {
    Text::new(text.to_owned()).set("x", x).set("y", y)
}

/// Neighbours in the file get colours far apart.
fn colour(index: usize) -> String {
    let hue = (index as u64).wrapping_mul(137) % 360;
    let light = 62 + (index % 3) * 7;
    format!("hsl({hue},55%,{light}%)")
}
