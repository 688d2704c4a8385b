//! What a benchmark says.

use motley_engine::{EngineMemory, Layout, Model};
use serde_json::{Map, Value, json};

use super::measure::{Bound, Measured, Plan, Workload};
use super::subject::Ours;
use crate::terminal;

/// Results, printed as a table or as JSON.
#[derive(Debug)]
pub(super) struct Report {
    model: String,
    threads: usize,
    plan: Plan,
    memory: EngineMemory,
    layouts: Vec<(&'static str, Layout)>,
    measured: Vec<Measured>,
    pub(super) bound: Option<Bound>,
    pub(super) start: Option<Value>,
}

impl Report {
    pub(super) fn new(model: &Model, threads: usize, ours: &Ours, plan: Plan) -> Self {
        Self {
            model: model.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
            threads,
            plan,
            memory: ours.engine.memory(),
            layouts: ours.engine.layouts().collect(),
            measured: Vec::new(),
            bound: None,
            start: None,
        }
    }

    pub(super) fn add(&mut self, measured: Measured) {
        self.measured.push(measured);
    }

    /// Prints the report to standard output.
    ///
    /// # Errors
    /// When nobody reads it.
    pub(super) fn print(&self, as_json: bool) -> anyhow::Result<()> {
        if as_json {
            return terminal::print_json(&self.json());
        }
        terminal::print(&self.table())
    }

    fn json(&self) -> Value {
        let mut root = json!({
            "model": self.model,
            "threads": self.threads,
            "prompt_tokens": self.plan.prompt_tokens,
            "generated_tokens": self.plan.generated_tokens,
            "repetitions": self.plan.repetitions,
            "layouts": self.layouts.iter()
                .map(|(element, layout)| ((*element).to_owned(), json!(describe(*layout))))
                .collect::<Map<String, Value>>(),
            "memory": {
                "weights_mapped_bytes": self.memory.weights_mapped_bytes,
                "weights_allocated_bytes": self.memory.weights_allocated_bytes,
                "cache_bytes": self.memory.cache_bytes,
                "compute_bytes": self.memory.compute_bytes,
                "stream_bytes": self.memory.stream_bytes,
            },
        });
        let mut ratios = Map::new();
        for measured in &self.measured {
            let name = measured.workload.name();
            let rates = |[min, median, max]: [f64; 3]| json!({ "tokens_per_s": median, "min": min, "max": max });
            let mut entry = json!({ "motley": rates(measured.ours.spread()) });
            if let Some(theirs) = &measured.theirs {
                entry["llama.cpp"] = rates(theirs.spread());
            }
            if let Some(ratio) = measured.ratio() {
                ratios.insert(name.to_owned(), json!(ratio));
            }
            if measured.workload == Workload::Decode {
                entry["ms_per_token"] = json!(1e3 / measured.ours.spread()[1]);
                self.add_bound(&mut entry);
            }
            root[name] = entry;
        }
        if !ratios.is_empty() {
            root["ratio"] = Value::Object(ratios);
        }
        if let Some(start) = &self.start {
            root["start"] = start.clone();
        }
        root
    }

    /// What a token of streamed weights has to take at least.
    fn add_bound(&self, entry: &mut Value) {
        let Some(bound) = &self.bound else {
            entry["streamed_bytes_per_token"] = json!(0);
            return;
        };
        entry["streamed_bytes_per_token"] = json!(bound.streamed_bytes_per_token);
        entry["read_bytes_per_token"] = json!(bound.read_bytes_per_token);
        entry["disk_bytes_per_s"] = json!(bound.disk_bytes_per_s);
        entry["compute_ms"] = json!(bound.compute_ms);
        entry["bound_ms"] = json!(bound.bound_ms());
        if let Some(experts) = &bound.experts {
            entry["experts"] = json!({
                "hit_ratio": experts.hit_ratio,
                "chosen_bytes_per_token": experts.chosen_bytes,
                "missed_bytes_per_token": experts.missed_bytes,
                "read_bytes_per_token": experts.read_bytes,
                "in_memory": experts.slots,
                "of": experts.experts,
            });
        }
    }

    fn table(&self) -> String {
        let mut lines = vec![format!("{}, {} threads", self.model, self.threads)];
        for (element, layout) in &self.layouts {
            lines.push(format!("{element} weights: {}", describe(*layout)));
        }
        lines.push(format!(
            "{:<10}{:>16}{:>20}{:>16}{:>8}",
            "", "motley tok/s", "(min-max)", "llama.cpp", "ratio"
        ));
        for measured in &self.measured {
            let [min, median, max] = measured.ours.spread();
            let theirs = measured
                .theirs
                .as_ref()
                .map_or_else(String::new, |theirs| format!("{:.1}", theirs.spread()[1]));
            let ratio = measured.ratio().map_or_else(String::new, |ratio| format!("{ratio:.3}"));
            lines.push(format!(
                "{:<10}{median:>16.1}{:>20}{theirs:>16}{ratio:>8}",
                measured.workload.name(),
                format!("({min:.1}-{max:.1})"),
            ));
        }
        if let Some(bound) = &self.bound {
            lines.push(format!(
                "decode reads {} a token, of a disk that gives {}/s; computing alone takes {:.1} ms: \
                 at least {:.1} ms a token",
                terminal::bytes(bound.streamed_bytes_per_token),
                terminal::bytes(bound.disk_bytes_per_s as u64),
                bound.compute_ms,
                bound.bound_ms(),
            ));
        }
        if let Some(experts) = self.bound.as_ref().and_then(|bound| bound.experts.as_ref()) {
            lines.push(format!(
                "experts: {} of {} in memory, {:.1} % of those chosen were there; the others are {} a \
                 token, and {} were read",
                experts.slots,
                experts.experts,
                100.0 * experts.hit_ratio,
                terminal::bytes(experts.missed_bytes as u64),
                terminal::bytes(experts.read_bytes as u64),
            ));
        }
        if let Some(start) = &self.start {
            lines.push(format!("start and memory: {start}"));
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

fn describe(layout: Layout) -> String {
    match layout {
        Layout::Plain => "as in the file".to_owned(),
        Layout::Packed => "interleaved".to_owned(),
        Layout::PackedWithin { least, most } => {
            let range = match (least, most) {
                (0 | 1, most) => format!("up to {most} rows"),
                (least, usize::MAX) => format!("from {least} rows"),
                (least, most) => format!("for {least} to {most} rows"),
            };
            format!("interleaved {range}, else as in the file")
        }
    }
}
