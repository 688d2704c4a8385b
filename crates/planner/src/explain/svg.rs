//! A plan drawn as SVG: one column wide enough for a phone, dark on light, no script, no font file.

use std::fmt::Write as _;

use motley_cluster::{Bytes, Residency};

use super::drawing::{Drawing, DrawnReplica, Lane, LaneRun};
use super::figures::{bytes, time};

/// User units; at 360 pixels text of 13 units is still 10 pixels high.
const WIDTH: f64 = 460.0;
const MARGIN: f64 = 16.0;
const BAR_WIDTH: f64 = WIDTH - 2.0 * MARGIN;
const BAR_HEIGHT: f64 = 22.0;
const LANE_HEIGHT: f64 = 76.0;

const INK: &str = "#1b2733";
const QUIET: &str = "#5b6875";
const TRACK: &str = "#e9edf1";
const ALARM: &str = "#b3261e";

const STYLE: &str = "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,\
'DejaVu Sans',sans-serif;font-size:13px}.t{font-size:16px;font-weight:600}\
.n{font-weight:600}.s{font-size:12px}";

/// Fill and text colour of a residency. Luminance falls from stream to GPU, so that print without
/// colour still tells them apart; streamed layers are hatched on top.
fn colours(kept: Residency) -> (&'static str, &'static str) {
    match kept {
        Residency::Gpu => ("#1f5fa8", "#ffffff"),
        Residency::Ram => ("#5aa786", "#10241b"),
        Residency::Stream => ("url(#hatch)", "#4a3206"),
    }
}

impl Drawing {
    /// The drawing as a standalone SVG document.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut body = String::new();
        let mut y = MARGIN + 14.0;
        for line in wrapped(&self.title, 50) {
            text(&mut body, (MARGIN, y), "t", INK, &line);
            y += 20.0;
        }
        for line in wrapped(&self.subtitle, 62) {
            text(&mut body, (MARGIN, y), "", QUIET, &line);
            y += 17.0;
        }
        y += 6.0;
        self.legend(&mut body, y);
        y += 26.0;
        for replica in &self.replicas {
            y = self.replica(&mut body, replica, y);
        }
        for (name, what) in &self.idle {
            text(&mut body, (MARGIN, y + 12.0), "n", QUIET, name);
            end_text(&mut body, y + 12.0, QUIET, what);
            let top = y + 20.0;
            let _ = writeln!(
                body,
                "<rect x=\"{MARGIN}\" y=\"{top}\" width=\"{BAR_WIDTH}\" height=\"8\" rx=\"3\" \
                 fill=\"none\" stroke=\"#9aa5b0\" stroke-dasharray=\"4 3\"/>"
            );
            y += 42.0;
        }
        let height = y + MARGIN - 6.0;
        let title = escaped(&format!("{}. {}", self.title, self.subtitle));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" style=\"max-width:100%;height:auto\" \
             role=\"img\" aria-label=\"{title}\">\n<style>{STYLE}</style>\n{HATCH}\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
        )
    }

    fn legend(&self, body: &mut String, y: f64) {
        let mut x = MARGIN;
        for (kept, label, advance) in [
            (Residency::Gpu, "GPU", 62.0),
            (Residency::Ram, "RAM", 62.0),
            (Residency::Stream, "read from disk", 126.0),
        ] {
            let (fill, _) = colours(kept);
            let _ = writeln!(
                body,
                "<rect x=\"{x}\" y=\"{y}\" width=\"16\" height=\"12\" rx=\"2\" fill=\"{fill}\"/>"
            );
            text(body, (x + 21.0, y + 11.0), "s", QUIET, label);
            x += advance;
        }
        let _ = writeln!(
            body,
            "<rect x=\"{x}\" y=\"{}\" width=\"16\" height=\"5\" rx=\"2\" fill=\"{QUIET}\"/>",
            y + 3.5
        );
        text(body, (x + 21.0, y + 11.0), "s", QUIET, "busy within a pass");
    }

    /// Draws one replica from `y` on and returns where the next begins.
    fn replica(&self, body: &mut String, replica: &DrawnReplica, y: f64) -> f64 {
        text(body, (MARGIN, y + 14.0), "n", INK, &replica.heading);
        let mut y = y + 26.0;
        let mut begun = 0.0;
        for lane in &replica.lanes {
            self.lane(body, lane, y);
            busy(body, replica, lane, (begun, y + 19.0 + BAR_HEIGHT + 5.0));
            begun += lane.stage.value() + lane.hop.value();
            y += LANE_HEIGHT;
        }
        self.ruler(body, y - 6.0);
        y + 24.0
    }

    fn lane(&self, body: &mut String, lane: &Lane, y: f64) {
        let mut name = lane.name.clone();
        if lane.hardware != lane.name {
            name.push_str(&format!(" · {}", lane.hardware));
        }
        if lane.head {
            name.push_str(" · head");
        }
        text(body, (MARGIN, y + 12.0), "n", INK, &shortened(&name, 40));
        let stage = time(lane.stage);
        if lane.bottleneck {
            end_text(body, y + 12.0, ALARM, &format!("slowest: {stage}"));
        } else {
            end_text(body, y + 12.0, INK, &stage);
        }
        let top = y + 19.0;
        rect(body, (MARGIN, top, BAR_WIDTH, BAR_HEIGHT), TRACK);
        for run in &lane.runs {
            self.run(body, run, top);
        }
        if lane.bottleneck {
            let _ = writeln!(
                body,
                "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"none\" \
                 stroke=\"{ALARM}\" stroke-width=\"2\"/>",
                MARGIN - 2.0,
                top - 2.0,
                BAR_WIDTH + 4.0,
                BAR_HEIGHT + 4.0
            );
        }
        text(body, (MARGIN, top + BAR_HEIGHT + 22.0), "s", QUIET, &memory(lane));
    }

    /// A run of layers, with their number where it has room.
    fn run(&self, body: &mut String, run: &LaneRun, top: f64) {
        let start = self.layer_x(run.layers.start());
        let width = self.layer_x(run.layers.end()) - start;
        let (fill, ink) = colours(run.weights);
        rect(body, (start, top, width, BAR_HEIGHT), fill);
        let label = run.layers.len().to_string();
        if width >= 8.0 * label.len() as f64 + 6.0 {
            let _ = writeln!(
                body,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{ink}\">{label}</text>",
                start + width / 2.0,
                top + 15.5
            );
        }
    }

    fn ruler(&self, body: &mut String, y: f64) {
        let step = [1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 64, 100, 128, 200, 256, 512];
        let step = step.into_iter().find(|step| self.layers.div_ceil(*step) <= 8).unwrap_or(1024);
        let _ = write!(body, "<path stroke=\"#9aa5b0\" d=\"M{MARGIN} {y}H{}", WIDTH - MARGIN);
        let ticks = (0..=self.layers).step_by(step as usize);
        for layer in ticks.clone() {
            let _ = write!(body, "M{:.1} {y}v4", self.layer_x(layer));
        }
        body.push_str("\"/>\n");
        for layer in ticks {
            let _ = writeln!(
                body,
                "<text class=\"s\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" \
                 fill=\"{QUIET}\">{layer}</text>",
                self.layer_x(layer),
                y + 16.0
            );
        }
    }

    fn layer_x(&self, layer: u32) -> f64 {
        MARGIN + BAR_WIDTH * f64::from(layer) / f64::from(self.layers.max(1))
    }
}

/// When a device works within one pass: a piece per round, which are taken to be alike.
fn busy(body: &mut String, replica: &DrawnReplica, lane: &Lane, (begun, y): (f64, f64)) {
    let fill = if lane.bottleneck { ALARM } else { QUIET };
    let rounds = f64::from(replica.rounds.max(1));
    let scale = BAR_WIDTH / replica.pass.value().max(f64::MIN_POSITIVE);
    rect(body, (MARGIN, y, BAR_WIDTH, 4.0), TRACK);
    let width = (lane.stage.value() * scale / rounds).max(1.0);
    for round in 0..replica.rounds.max(1) {
        let start = f64::from(round) * BAR_WIDTH / rounds + begun * scale / rounds;
        rect(body, (MARGIN + start.min(BAR_WIDTH - width), y, width, 4.0), fill);
    }
}

const HATCH: &str = "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" \
patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" \
fill=\"#f6d79a\"/><rect width=\"2\" height=\"6\" fill=\"#d99a2b\"/></pattern></defs>";

fn memory(lane: &Lane) -> String {
    let mut parts = Vec::new();
    for (name, (taken, budget)) in [("GPU", lane.gpu), ("RAM", lane.ram)] {
        if budget > Bytes::ZERO {
            parts.push(format!("{name} {} of {}", bytes(taken), bytes(budget)));
        }
    }
    parts.join(" · ")
}

fn rect(body: &mut String, place: (f64, f64, f64, f64), fill: &str) {
    let (x, y, width, height) = place;
    let _ = writeln!(
        body,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
         fill=\"{fill}\"/>"
    );
}

fn text(body: &mut String, at: (f64, f64), class: &str, fill: &str, content: &str) {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let (x, y) = at;
    let content = escaped(content);
    let _ = writeln!(body, "<text{class} x=\"{x}\" y=\"{y}\" fill=\"{fill}\">{content}</text>");
}

/// Text that ends at the right margin.
fn end_text(body: &mut String, y: f64, fill: &str, content: &str) {
    let (x, content) = (WIDTH - MARGIN, escaped(content));
    let _ = writeln!(
        body,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\" fill=\"{fill}\">{content}</text>"
    );
}

/// Names come from files.
fn escaped(content: &str) -> String {
    let mut safe = String::with_capacity(content.len());
    for character in content.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            other if other.is_control() => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}

fn shortened(content: &str, characters: usize) -> String {
    if content.chars().count() <= characters {
        return content.to_owned();
    }
    content.chars().take(characters - 1).chain(['…']).collect()
}

/// Lines of at most so many characters, broken at spaces; longer words are cut.
fn wrapped(content: &str, characters: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in content.split(' ') {
        let word = shortened(word, characters);
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > characters {
            lines.push(word);
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(&word);
        }
    }
    lines
}
