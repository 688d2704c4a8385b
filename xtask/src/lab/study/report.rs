//! What the study says: a line per cluster, and how many predictions were good.

use std::fmt::Write as _;

use serde::Serialize;

use super::ring::{Measured, Node};

/// A cluster, by its plan and by rules of thumb.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) cluster: String,
    pub(super) model: String,
    pub(super) planned: Measured,
    pub(super) by_rule: Vec<Measured>,
}

/// Predictions of one kind are good within these parts of what was measured.
const GOOD: f64 = 0.10;
const FAIR: f64 = 0.20;
const GOOD_MEMORY: f64 = 0.03;

impl Row {
    /// What a plan that was made promised of times, over what was measured.
    fn tpot_ratio(&self) -> Option<f64> {
        ratio(self.planned.tpot_predicted_ms, self.planned.tpot_ms)
    }

    fn ttft_ratio(&self) -> Option<f64> {
        ratio(self.planned.ttft_predicted_ms, self.planned.ttft_ms)
    }

    /// Planned over resident memory of each device that serves.
    fn memory_ratios(&self) -> Vec<f64> {
        let serving = self.planned.nodes.iter().filter(|node| node.planned_bytes > 0);
        let ratio =
            |node: &Node| ratio(Some(node.planned_bytes as f64), node.peak.resident_bytes as f64);
        serving.filter_map(ratio).collect()
    }

    /// Time per token of the plan over that of the best rule, and the rule.
    fn choice(&self) -> Option<(f64, &Measured)> {
        let best = self.by_rule.iter().min_by(|a, b| a.tpot_ms.total_cmp(&b.tpot_ms))?;
        Some((self.planned.tpot_ms / best.tpot_ms, best))
    }

    /// The row as text.
    pub(super) fn text(&self) -> String {
        let Measured { rounds, tpot_ms, ttft_ms, ready_s, .. } = &self.planned;
        let mut text = format!(
            "{:<12} {} in {rounds} round(s): TPOT {tpot_ms:.1} ms, predicted {} ({}); \
             TTFT {ttft_ms:.0} ms, predicted {} ({}); ready after {ready_s:.0} s{}\n",
            self.cluster,
            layers(&self.planned),
            shown(self.planned.tpot_predicted_ms, 1),
            shown(self.tpot_ratio(), 2),
            shown(self.planned.ttft_predicted_ms, 0),
            shown(self.ttft_ratio(), 2),
            if self.planned.dealt_anew { "; dealt out anew meanwhile" } else { "" },
        );
        for node in &self.planned.nodes {
            let mega = |bytes: u64| bytes / 1_000_000;
            let micros = |time: Option<u64>| shown(time.map(|time| time as f64 / 1e3), 1);
            let peak = node.peak;
            // Writing to a string succeeds.
            let _ = writeln!(
                text,
                "  {:<10} gives {} MB, planned {}, resident {} (own {}, ever {}); of a token {} ms, \
                 predicted {}{}",
                node.name,
                mega(node.budget_bytes),
                mega(node.planned_bytes),
                mega(peak.resident_bytes),
                mega(peak.own_bytes),
                mega(peak.ever_bytes),
                micros(node.token_measured_us),
                micros(node.token_predicted_us),
                node.why.as_ref().map(|why| format!("; {why}")).unwrap_or_default(),
            );
        }
        for other in &self.by_rule {
            let (name, ratio) = (&other.by, tpot_ms / other.tpot_ms);
            let _ = writeln!(
                text,
                "  {name}: {}, TPOT {:.1} ms; the plan takes {ratio:.2} times as long",
                layers(other),
                other.tpot_ms,
            );
        }
        text
    }
}

/// The last lines: how many predictions were how good.
pub(super) fn summary(rows: &[Row]) -> String {
    let tpot: Vec<f64> = rows.iter().filter_map(Row::tpot_ratio).collect();
    let ttft: Vec<f64> = rows.iter().filter_map(Row::ttft_ratio).collect();
    let memory: Vec<f64> = rows.iter().flat_map(Row::memory_ratios).collect();
    let mut text = String::new();
    for (name, ratios) in [("TPOT", &tpot), ("TTFT", &ttft)] {
        let _ = writeln!(
            text,
            "{name} within 10 %: {} of {}; within 20 %: {}",
            within(ratios, GOOD),
            rows.len(),
            within(ratios, FAIR)
        );
    }
    let _ = writeln!(
        text,
        "memory within 3 %: {} of {} devices; within 10 %: {}",
        within(&memory, GOOD_MEMORY),
        memory.len(),
        within(&memory, GOOD)
    );
    let choices: Vec<f64> = rows.iter().filter_map(|row| Some(row.choice()?.0)).collect();
    if let Some(worst) = choices.iter().copied().reduce(f64::max) {
        let _ = writeln!(
            text,
            "plan to best rule of thumb: at most {worst:.2} times its TPOT; not above 1.05 times: \
             {} of {}",
            choices.iter().filter(|ratio| **ratio <= 1.05).count(),
            choices.len()
        );
    }
    text
}

fn layers(measured: &Measured) -> String {
    let counts: Vec<String> =
        measured.nodes.iter().map(|node| node.layer_count().to_string()).collect();
    counts.join(", ")
}

fn ratio(predicted: Option<f64>, measured: f64) -> Option<f64> {
    predicted.filter(|_| measured > 0.0).map(|predicted| predicted / measured)
}

fn within(ratios: &[f64], part: f64) -> usize {
    ratios.iter().filter(|ratio| (**ratio - 1.0).abs() <= part).count()
}

fn shown(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::super::memory::Peak;
    use super::*;

    use expect_test::expect;

    fn measured(by: &str, tpot_ms: f64) -> Measured {
        let node = |name: &str, layers, planned_bytes| Node {
            name: name.to_owned(),
            layers: vec![layers],
            budget_bytes: 640_000_000,
            planned_bytes,
            peak: Peak {
                resident_bytes: 500_000_000,
                own_bytes: 400_000_000,
                ever_bytes: 510_000_000,
            },
            token_predicted_us: Some(60_000),
            token_measured_us: None,
            why: None,
            profile: serde_json::Map::new(),
        };
        Measured {
            by: by.to_owned(),
            nodes: vec![node("left", (0, 16), 510_000_000), node("right", (16, 24), 400_000_000)],
            rounds: 1,
            tpot_predicted_ms: Some(95.0),
            ttft_predicted_ms: Some(5000.0),
            tpot_ms,
            ttft_ms: 4000.0,
            ready_s: 11.6,
            dealt_anew: false,
            told: Default::default(),
        }
    }

    fn row(by_rule: Vec<Measured>) -> Row {
        let (cluster, model) = ("rtt20".to_owned(), "m.gguf".to_owned());
        Row { cluster, model, planned: measured("plan", 100.0), by_rule }
    }

    #[test]
    fn a_row_tells_promises_and_what_became_of_them() {
        expect![[r#"
            rtt20        16, 8 in 1 round(s): TPOT 100.0 ms, predicted 95.0 (0.95); TTFT 4000 ms, predicted 5000 (1.25); ready after 12 s
              left       gives 640 MB, planned 510, resident 500 (own 400, ever 510); of a token - ms, predicted 60.0
              right      gives 640 MB, planned 400, resident 500 (own 400, ever 510); of a token - ms, predicted 60.0
              evenly: 16, 8, TPOT 80.0 ms; the plan takes 1.25 times as long
        "#]]
        .assert_eq(&row(vec![measured("evenly", 80.0)]).text());
    }

    #[test]
    fn the_summary_counts() {
        let rows = [row(vec![measured("a", 80.0), measured("b", 101.0)]), row(Vec::new())];
        expect![[r#"
            TPOT within 10 %: 2 of 2; within 20 %: 2
            TTFT within 10 %: 0 of 2; within 20 %: 0
            memory within 3 %: 2 of 4 devices; within 10 %: 2
            plan to best rule of thumb: at most 1.25 times its TPOT; not above 1.05 times: 0 of 1
        "#]]
        .assert_eq(&summary(&rows));
    }
}
