//! A plan drawn with characters.

use std::fmt::Write as _;

use motley_cluster::Residency;

use super::drawing::{Drawing, Lane};
use super::figures::time;

/// Columns that the layers never get less than.
const LAYER_COLUMNS_MIN: usize = 16;

/// Columns that the layers never get more than; wider bars say no more.
const LAYER_COLUMNS_MAX: usize = 80;

/// How much a terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// Characters only.
    Plain,
    /// ANSI colours, too.
    Colour,
}

impl Drawing {
    /// Lanes over layers in at most `columns` columns, if names leave room for them.
    #[must_use]
    pub fn terminal(&self, columns: usize, ink: Ink) -> String {
        let lanes = || self.replicas.iter().flat_map(|replica| &replica.lanes);
        let names = lanes().map(|lane| lane.name.chars().count());
        let idle = self.idle.iter().map(|(name, _)| name.chars().count());
        let name_width = names.chain(idle).max().unwrap_or(0);
        let times: Vec<String> = lanes().map(|lane| time(lane.stage)).collect();
        let time_width = times.iter().map(|text| text.chars().count()).max().unwrap_or(0);
        // Name, head mark, bar, time, bottleneck mark.
        let beside = name_width + 3 + 2 + time_width + " < slowest".len();
        let width = columns.saturating_sub(beside).clamp(LAYER_COLUMNS_MIN, LAYER_COLUMNS_MAX);
        let width = width.min((self.layers as usize * 4).max(LAYER_COLUMNS_MIN));

        let mut text = format!("{}\n{}\n", self.title, self.subtitle);
        let mut times = times.iter();
        for replica in &self.replicas {
            let _ = writeln!(text, "\n{}", replica.heading);
            for (lane, shown) in replica.lanes.iter().zip(&mut times) {
                let head = if lane.head { '*' } else { ' ' };
                let mark = if lane.bottleneck { " < slowest" } else { "" };
                let bar = self.bar(lane, width, ink);
                let name = &lane.name;
                let _ =
                    writeln!(text, "{name:<name_width$} {head} {bar}  {shown:>time_width$}{mark}");
            }
            let ruler = format!("{:<1$}{2}", 0, width - digits(self.layers - 1), self.layers - 1);
            let _ = writeln!(text, "{:name_width$}   {ruler}", "");
        }
        for (name, what) in &self.idle {
            let _ = writeln!(text, "{name:<name_width$}   {what}");
        }
        let sample = |kept| painted(&symbol(kept).to_string().repeat(2), kept, ink);
        let _ = writeln!(
            text,
            "\n{} gpu  {} ram  {} stream  * head",
            sample(Residency::Gpu),
            sample(Residency::Ram),
            sample(Residency::Stream)
        );
        text
    }

    /// One character per column, the layer in the middle of it deciding.
    fn bar(&self, lane: &Lane, width: usize, ink: Ink) -> String {
        let mut bar = String::new();
        let mut cells: Vec<Option<Residency>> = Vec::with_capacity(width);
        for column in 0..width {
            let layer = (2 * column + 1) * self.layers as usize / (2 * width);
            let run = lane.runs.iter().find(|run| {
                (run.layers.start() as usize..run.layers.end() as usize).contains(&layer)
            });
            cells.push(run.map(|run| run.weights));
        }
        for same in cells.chunk_by(|a, b| a == b) {
            match same[0] {
                None => bar.push_str(&"·".repeat(same.len())),
                Some(kept) => {
                    let run = symbol(kept).to_string().repeat(same.len());
                    bar.push_str(&painted(&run, kept, ink));
                }
            }
        }
        bar
    }
}

fn digits(number: u32) -> usize {
    number.to_string().len()
}

fn symbol(kept: Residency) -> char {
    match kept {
        Residency::Gpu => '█',
        Residency::Ram => '▒',
        Residency::Stream => '~',
    }
}

fn painted(text: &str, kept: Residency, ink: Ink) -> String {
    let code = match (ink, kept) {
        (Ink::Plain, _) => return text.to_owned(),
        (Ink::Colour, Residency::Gpu) => 34,
        (Ink::Colour, Residency::Ram) => 32,
        (Ink::Colour, Residency::Stream) => 33,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}
