//! An explanation in words and a table.

use std::fmt::Write as _;

use motley_cluster::{Bytes, DeviceId, Role};

use super::changes::{Change, ChangeEffect};
use super::facts::{Basis, Explanation, NextLayerPlace, ReplicaFacts, UnusedDevice, UsedDevice};
use super::figures::{bytes, counted, layers, percent, three_digits, time};
use super::table::Table;
use crate::problem::{LimitKind, Objective, Problem, Quality};

/// Changes listed at most.
const CHANGES_SHOWN_MAX: usize = 6;

/// Improvements below this are called none: they are within what profiles know.
const GAIN_MIN: f64 = 0.005;

impl Explanation {
    /// The whole explanation as text.
    #[must_use]
    pub fn text(&self, problem: &Problem) -> String {
        let mut text = String::new();
        self.summary(&mut text, problem);
        self.disk_line(&mut text);
        text.push('\n');
        text.push_str(&self.table());
        text.push_str("\nWhy each device has what it has\n");
        for used in &self.used {
            let _ = writeln!(text, "  {}", self.share(used));
        }
        if !self.unused.is_empty() {
            text.push_str("\nDevices without work\n");
            for unused in &self.unused {
                let _ = writeln!(text, "  {}", without_work(unused));
            }
        }
        text.push_str("\nSlots\n");
        for replica in &self.replicas {
            let _ = writeln!(text, "  {}", slots(replica, self.replicas.len(), self.objective));
        }
        text.push_str("\nWhat one change would bring\n");
        self.change_lines(&mut text, problem);
        text
    }

    /// Why each device has what it has, and others nothing: a sentence each, the summary first.
    #[must_use]
    pub fn reasons(&self, problem: &Problem) -> Vec<String> {
        let mut text = String::new();
        self.summary(&mut text, problem);
        self.disk_line(&mut text);
        let summary = text.lines().map(str::to_owned);
        summary
            .chain(self.used.iter().map(|used| self.share(used)))
            .chain(self.unused.iter().map(without_work))
            .collect()
    }

    /// Why a device has no work, if it has none.
    #[must_use]
    pub fn why_unused(&self, device: DeviceId) -> Option<String> {
        self.unused.iter().find(|unused| unused.device == device).map(without_work)
    }

    fn summary(&self, text: &mut String, problem: &Problem) {
        let quality = match self.quality {
            Quality::Optimal => "nothing is better under the cost model".to_owned(),
            Quality::Heuristic => "a heuristic's answer, not known to be the best".to_owned(),
            Quality::WithinBound { gap } => {
                format!("at most {} % worse than the best", three_digits(gap * 100.0))
            }
        };
        let _ = writeln!(
            text,
            "{} by {}: {}; {quality}.",
            problem.model.name,
            self.method.name(),
            objective_words(self.objective, self.objective_value)
        );
        let _ = match &self.single {
            Some(single) if self.used.len() == 1 && self.used[0].device == single.device => {
                writeln!(text, "One device serves best: {}.", single.name)
            }
            Some(single) => match single.objective_value {
                Some(value) => writeln!(
                    text,
                    "The best single device, {}, would reach {} at {} per token.",
                    single.name,
                    objective_words(self.objective, value),
                    time(single.tpot)
                ),
                None => writeln!(
                    text,
                    "The best single device, {}, would take {} per token; this plan takes {}{}.",
                    single.name,
                    time(single.tpot),
                    time(self.tpot),
                    ratio(single.tpot.value(), self.tpot.value())
                ),
            },
            None => writeln!(text, "No single device can serve alone."),
        };
    }

    /// Where the time of a token goes, if disks delay it.
    fn disk_line(&self, text: &mut String) {
        let streams =
            |id| self.used.iter().any(|used| used.replica == id && used.stream_layers > 0);
        for replica in self.replicas.iter().filter(|replica| streams(replica.replica)) {
            let waiting = replica.tpot.saturating_sub(replica.pass);
            if replica.slots == 1 && waiting > replica.tpot.times(0.01) {
                let _ = writeln!(
                    text,
                    "Of a token's {}, devices and links work {}; the rest waits for disks.",
                    time(replica.tpot),
                    time(replica.pass)
                );
            }
        }
    }

    fn table(&self) -> String {
        let mut table = Table::new(&[
            "device",
            "replica",
            "layers",
            "gpu",
            "ram",
            "stream",
            "stage",
            "gpu memory",
            "ram used",
            "next layer",
        ]);
        for used in &self.used {
            let memory = |taken: Option<(Bytes, Bytes)>| match taken {
                Some((taken, budget)) if budget > Bytes::ZERO => {
                    format!("{} / {}", bytes(taken), bytes(budget))
                }
                _ => "-".to_owned(),
            };
            let next = match used.next_layer {
                None => "no room".to_owned(),
                Some(next) => format!("+{} {}", time(next.time), place_word(next.place)),
            };
            table.row(vec![
                format!("{}{}", used.name, if used.head { " *" } else { "" }),
                used.replica.to_string(),
                layers(&used.windows),
                used.gpu_layers.to_string(),
                used.ram_layers.to_string(),
                used.stream_layers.to_string(),
                format!("{}{}", time(used.stage), if used.bottleneck { " <" } else { "" }),
                memory(used.memory.map(|claim| (claim.gpu_bytes, claim.gpu_budget_bytes))),
                memory(used.memory.map(|claim| (claim.ram_bytes, claim.ram_budget_bytes))),
                next,
            ]);
        }
        format!("{}* head, < slowest of its replica\n", table.render())
    }

    /// One sentence on a share: what it holds at which price, and why not one layer more.
    fn share(&self, used: &UsedDevice) -> String {
        let mut parts = Vec::new();
        let total = used.gpu_layers + used.ram_layers + used.stream_layers;
        let some = |count: u32| if count == total { "all".to_owned() } else { count.to_string() };
        if used.gpu_layers > 0 {
            let each = used.gpu_layer.map_or_else(String::new, |t| format!(" at {} each", time(t)));
            parts.push(format!("{} on the GPU{each}", some(used.gpu_layers)));
        }
        if used.ram_layers > 0 {
            let each = time(used.cpu_layer);
            parts.push(format!("{} in RAM at {each} each", some(used.ram_layers)));
        }
        if used.stream_layers > 0 {
            parts.push(format!("{} read from disk for every token", some(used.stream_layers)));
        }
        if parts.is_empty() {
            parts.push("it only embeds, projects and samples".to_owned());
        }
        let (holds, why) = (counted(total, "layer"), self.why_no_more(used));
        format!("{}: {holds}, {}; {why}.", used.name, parts.join(", "))
    }

    fn why_no_more(&self, used: &UsedDevice) -> String {
        let peers = self.used.iter().filter(|other| other.replica == used.replica);
        let cheapest = peers
            .filter_map(|other| Some((other, other.next_layer?.time)))
            .min_by_key(|(_, time)| *time);
        let alone = self.used.iter().filter(|other| other.replica == used.replica).count() == 1;
        if alone {
            return "it holds the whole model".to_owned();
        }
        let Some(next) = used.next_layer else {
            return "its memory has no room for one more".to_owned();
        };
        let price = match next.place {
            NextLayerPlace::Gpu => format!("one more on its GPU would add {}", time(next.time)),
            NextLayerPlace::Ram if used.gpu_layer.is_some() => {
                format!("its GPU is full, one more in RAM would add {}", time(next.time))
            }
            NextLayerPlace::Ram => format!("one more in RAM would add {}", time(next.time)),
            NextLayerPlace::Stream => {
                format!("its memory is full, one more from disk would take {}", time(next.time))
            }
        };
        match cheapest {
            Some((other, cheaper)) if other.device != used.device && cheaper < next.time => {
                format!("{price}, on {} {}", other.name, time(cheaper))
            }
            _ => format!("{price}, nowhere less"),
        }
    }

    fn change_lines(&self, text: &mut String, problem: &Problem) {
        let helpful = self.changes.iter().filter(|effect| effect.gain >= GAIN_MIN);
        let helpful: Vec<&ChangeEffect> = helpful.take(CHANGES_SHOWN_MAX).collect();
        if helpful.is_empty() {
            text.push_str("  none of the changes tried would help\n");
        }
        for effect in &helpful {
            let both_zero = effect.now == 0.0 && effect.then == 0.0;
            let figures = if both_zero {
                format!("{} per token", time(effect.tpot_then))
            } else {
                objective_words(self.objective, effect.then)
            };
            let more_is_better =
                matches!(self.objective, Objective::Goodput | Objective::Throughput);
            let sign = if more_is_better && !both_zero { 1.0 } else { -1.0 };
            let words = change_words(problem, &effect.change);
            let _ = writeln!(text, "  {words}: {figures} ({})", percent(sign * effect.gain));
        }
        let useless = self.changes.iter().filter(|effect| effect.gain < GAIN_MIN);
        let useless: Vec<String> =
            useless.map(|effect| change_words(problem, &effect.change)).collect();
        if !useless.is_empty() && !helpful.is_empty() {
            let _ = writeln!(text, "  no gain from: {}", useless.join("; "));
        }
        if self.changes_skipped > 0 {
            let skipped = counted(self.changes_skipped as u32, "change");
            let _ = writeln!(text, "  {skipped} not tried: the budget was used up");
        }
    }
}

fn ratio(single: f64, plan: f64) -> String {
    if plan <= 0.0 || single <= plan {
        return String::new();
    }
    format!(", {} times as fast", three_digits(single / plan))
}

/// The objective's value with its unit.
pub(super) fn objective_words(objective: Objective, value: f64) -> String {
    let seconds = |what: &str| match motley_cluster::Seconds::new(value) {
        Ok(shown) => format!("{} {what}", time(shown)),
        Err(_) => format!("{value} s {what}"),
    };
    match objective {
        Objective::Latency => seconds("per token"),
        Objective::Waiting => seconds("waiting"),
        Objective::FinishingTime => seconds("to finish a request"),
        Objective::Goodput => format!("{} requests/s within the limits", three_digits(value)),
        Objective::Throughput => format!("{} tok/s", three_digits(value)),
    }
}

fn place_word(place: NextLayerPlace) -> &'static str {
    match place {
        NextLayerPlace::Gpu => "gpu",
        NextLayerPlace::Ram => "ram",
        NextLayerPlace::Stream => "disk",
    }
}

fn without_work(unused: &UnusedDevice) -> String {
    let name = &unused.name;
    let mut sentence = if unused.excluded {
        format!("{name}: excluded by request")
    } else if unused.relay {
        format!("{name}: only forwards for others")
    } else {
        format!("{name}: not used")
    };
    let gain = time(unused.gain);
    let _ = match (unused.basis, unused.hop_cost) {
        (_, None) => write!(sentence, "; no member of the plan reaches it"),
        (Basis::CostModel, Some(hop)) if unused.layers == 0 => {
            write!(
                sentence,
                "; it computes no layer faster than its holder, a hop costs {}",
                time(hop)
            )
        }
        (Basis::CostModel, Some(hop)) => write!(
            sentence,
            "; taking {} over would save {gain} per pass, its hop would cost {}",
            counted(unused.layers, "layer"),
            time(hop)
        ),
        (Basis::Searched, Some(hop)) => {
            write!(sentence, "; its work would save {gain} per token, its hop cost {}", time(hop))
        }
    };
    if let Some(tpot) = unused.tpot_with {
        let _ = write!(sentence, "; the best plan with it takes {} per token", time(tpot));
    }
    sentence.push('.');
    sentence
}

fn slots(replica: &ReplicaFacts, count: usize, objective: Objective) -> String {
    let role = match replica.role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Mixed => "prefill and decode",
    };
    let mut sentence = if count > 1 {
        format!("Replica {} ({role}): {}", replica.replica, counted(replica.slots, "slot"))
    } else {
        counted(replica.slots, "slot")
    };
    if replica.groups > 1 {
        let _ = write!(sentence, " in {} groups that circulate at once", replica.groups);
    }
    let room = replica.tightest.as_ref().map(|room| {
        let (needed, free) = (bytes(room.needed), bytes(room.free));
        format!("one more needs {needed} on {}, which has {free} left", room.name)
    });
    match (replica.limited_by, room) {
        (Some(LimitKind::Floor), _) => {
            let _ = write!(sentence, "; one more would fall below the speed floor");
        }
        (Some(LimitKind::Memory), Some(room)) => {
            let _ = write!(sentence, "; memory limits them: {room}");
        }
        (Some(LimitKind::Memory), None) => sentence.push_str("; memory limits them"),
        (Some(LimitKind::Arrival), _) => sentence.push_str("; more would find no more requests"),
        (Some(LimitKind::Option), _) => sentence.push_str("; the planner's limit on slots"),
        (None, Some(room)) => {
            let _ = write!(sentence, "; {room}");
        }
        (None, None) => {}
    }
    sentence.push('.');
    if let Some(value) = replica.other_role {
        let value = objective_words(objective, value);
        let _ = write!(sentence, " In its best other role the plan would reach {value}.");
    }
    sentence
}

/// A change as an instruction.
pub(super) fn change_words(problem: &Problem, change: &Change) -> String {
    let name = |device: DeviceId| &problem.cluster.device(device).name;
    match change {
        Change::AddRam { device, bytes: more } => {
            let kind =
                if problem.cluster.device(*device).unified_memory { "memory" } else { "RAM" };
            format!("{:.0} GiB more {kind} in {}", more.as_gib(), name(*device))
        }
        Change::Wire { device } => format!("a wire to {} instead of Wi-Fi", name(*device)),
        Change::WireAll => "wires to all devices instead of Wi-Fi".to_owned(),
        Change::QuantiseKv => "8-bit keys and values".to_owned(),
        Change::HalveContext { context_tokens } => {
            format!("half the context ({context_tokens} tokens)")
        }
        Change::SmallerWeights { file_bytes } => {
            format!("weights one quantisation step smaller ({})", bytes(*file_bytes))
        }
    }
}
