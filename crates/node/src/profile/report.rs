//! A profile as people read it.

use std::fmt::Write as _;

use motley_cluster::{
    AttentionClass, DeviceProfile, GpuSpec, HeadTable, LayerTable, MeasuredPoint, Phase,
    ProcessorSpec,
};

use super::Measured;
use crate::terminal::{Table, bytes};

pub(super) fn text(measured: &Measured) -> String {
    let device = &measured.device;
    let mut text = format!("{} ({})\n", device.name, device.hardware_name());
    text.push_str(&facts(device).render());
    text.push('\n');
    text.push_str(&rates(&device.cpu).render());
    for gpu in &device.gpus {
        text.push('\n');
        text.push_str(&gpu_facts(gpu).render());
        text.push('\n');
        text.push_str(&rates(&gpu.processor).render());
    }
    if !device.cpu.layer_tables.is_empty() {
        text.push('\n');
        text.push_str(&layers(&device.cpu).render());
    }
    for note in &measured.notes {
        let _ = writeln!(text, "note: {note}");
    }
    if measured.kept {
        text.push_str("kept from an earlier run, memory apart; --refresh measures anew\n");
    }
    text
}

fn facts(device: &DeviceProfile) -> Table {
    let per_s = |rate: f64| format!("{}/s", bytes(rate as u64));
    let us = |seconds: f64| format!("{:.1} us", seconds * 1e6);
    let (memory, disk, cpu) = (&device.memory, &device.disk, &device.cpu);
    let mut table = Table::new(["what", "how much"]);
    for (what, figure) in [
        ("memory", bytes(memory.ram_total_bytes.count())),
        ("  for plans", bytes(memory.ram_available_bytes.count())),
        ("  swap", bytes(memory.swap_available_bytes.count())),
        ("  read", per_s(cpu.read_bytes_per_s.value())),
        ("  of it with weights", format!("{:.0} %", cpu.read_efficiency * 100.0)),
        ("disk in a row", per_s(disk.sequential_bytes_per_s.value())),
        ("  at random", per_s(disk.random_bytes_per_s.value())),
        ("threads", format!("{} on {} cores", device.threads, device.cores)),
        ("a pass at least", us(device.step_overhead_s.value())),
        ("a cached row", us(cpu.kv_copy_s.value())),
    ] {
        table.row([what.to_owned(), figure]);
    }
    table
}

fn gpu_facts(gpu: &GpuSpec) -> Table {
    let per_s = |rate: f64| format!("{}/s", bytes(rate as u64));
    let mut table = Table::new(["GPU", "how much"]);
    for (what, figure) in [
        ("memory", bytes(gpu.total_bytes.count())),
        ("  for plans", bytes(gpu.usable_bytes.count())),
        ("  read", per_s(gpu.processor.read_bytes_per_s.value())),
        ("  copied to", per_s(gpu.copy_bytes_per_s.value())),
        ("a cached row", format!("{:.1} us", gpu.processor.kv_copy_s.value() * 1e6)),
    ] {
        table.row([what.to_owned(), figure]);
    }
    table
}

fn rates(cpu: &ProcessorSpec) -> Table {
    let mut table = Table::new(["weights", "GFLOP/s"]);
    for (weight, rate) in &cpu.flops_per_s {
        table.row([weight.label().to_owned(), format!("{:.1}", rate.value() / 1e9)]);
    }
    table
}

/// Every measured pass, with layers of both kinds and the head side by side.
fn layers(cpu: &ProcessorSpec) -> Table {
    let mut table =
        Table::new(["model", "pass", "tokens", "after", "layer ms", "sliding ms", "head ms"]);
    let mut models: Vec<&str> = cpu.head_tables.iter().map(|table| table.model.as_str()).collect();
    models.dedup();
    for model in models {
        for phase in [Phase::Decode, Phase::Prefill] {
            let of = |attention: AttentionClass| {
                let found = cpu.layer_tables.iter().find(|table: &&LayerTable| {
                    table.model == model && table.attention == attention && table.phase == phase
                });
                found.map_or(&[][..], |table| &table.points)
            };
            let head = cpu
                .head_tables
                .iter()
                .find(|table: &&HeadTable| table.model == model && table.phase == phase);
            let (full, sliding) = (of(AttentionClass::Full), of(AttentionClass::Sliding));
            for point in if full.is_empty() { sliding } else { full } {
                let same = |points: &[MeasuredPoint]| {
                    let is = |p: &&MeasuredPoint| {
                        (p.batch_tokens, p.depth_tokens) == (point.batch_tokens, point.depth_tokens)
                    };
                    points.iter().find(is).map(|p| format!("{:.3}", p.time_ms)).unwrap_or_default()
                };
                let head = match phase {
                    Phase::Decode => head.map_or(&[][..], |table| &table.points),
                    // Rows of logits are no tokens of the prompt.
                    Phase::Prefill => &[],
                };
                table.row([
                    model.to_owned(),
                    if phase == Phase::Decode { "decode" } else { "prefill" }.to_owned(),
                    point.batch_tokens.to_string(),
                    point.depth_tokens.to_string(),
                    same(full),
                    same(sliding),
                    same(head),
                ]);
            }
        }
    }
    table
}
