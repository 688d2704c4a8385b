//! Time of one layer and of the head on one processor.

use motley_cluster::{
    Combination, Experts, Flops, KvType, LayerIndex, LayerSpec, MeasuredPoint, ModelProfile, Phase,
    ProcessorSpec, Seconds, WeightType,
};

use super::Pass;

pub(super) fn layer_time(
    processor: &ProcessorSpec,
    model: &ModelProfile,
    kv: KvType,
    layer: LayerIndex,
    pass: Pass,
) -> Seconds {
    let layer = model.layer(layer);
    let class = layer.attention.class();
    let table = processor.layer_tables.iter().find(|table| {
        table.model == model.name && table.attention == class && table.phase == pass.phase
    });
    if let Some(table) = table
        && let Some((time, depth)) = interpolate(&table.points, pass.tokens)
    {
        // Deeper or shallower contexts read and compute more or less of keys and values.
        let seen = |depth| f64::from(layer.attention.seen_tokens(depth));
        let deeper = match time_per_seen_token(&table.points, layer, pass.tokens) {
            Some(slope) => slope * (seen(pass.depth_tokens) - seen(depth)),
            None => {
                let read = |depth| {
                    kv_read_time(processor, layer, kv, Pass { depth_tokens: depth, ..pass })
                };
                read(pass.depth_tokens) - read(depth)
            }
        };
        return seconds((time + deeper).max(0.0));
    }
    analytic_layer_time(processor, model, layer, kv, pass)
}

fn analytic_layer_time(
    processor: &ProcessorSpec,
    model: &ModelProfile,
    layer: &LayerSpec,
    kv: KvType,
    pass: Pass,
) -> Seconds {
    let tokens = f64::from(pass.tokens);
    let mut compute = 0.0;
    for (weight, flops) in &layer.matmul_flops {
        compute += flops.value() * tokens / processor.rate(*weight).value();
    }
    let seen = f64::from(layer.attention.seen_tokens(mean_context(pass)));
    let attention = layer.attention_flops_per_context_token.value() * seen * tokens;
    compute += attention / processor.rate(WeightType::F16).value();

    let bandwidth = processor.read_bytes_per_s.value();
    let dense = layer.dense_bytes.as_f64() / (bandwidth * processor.read_efficiency);
    let efficiency = processor.expert_read_efficiency.unwrap_or(processor.read_efficiency);
    let distinct = |experts: Experts| distinct_experts(experts, processor.expert_gamma, tokens);
    let experts = layer.expert_bytes.as_f64() * model.experts.map_or(0.0, distinct);
    let memory =
        dense + experts / (bandwidth * efficiency) + kv_read_time(processor, layer, kv, pass);

    let per_token = processor.token_overhead_s.value() + processor.kv_copy_s.value();
    let fixed = processor.layer_overhead_s.value() + per_token * tokens;
    seconds(fixed + combine(processor.combination, compute, memory))
}

pub(super) fn head_time(processor: &ProcessorSpec, model: &ModelProfile, pass: Pass) -> Seconds {
    let rows = pass.logit_rows();
    let table = processor
        .head_tables
        .iter()
        .find(|table| table.model == model.name && table.phase == pass.phase);
    if let Some((time, _)) = table.and_then(|table| interpolate(&table.points, rows)) {
        return seconds(time);
    }
    let work = |(weight, flops): (&WeightType, &Flops)| {
        flops.value() * f64::from(rows) / processor.rate(*weight).value()
    };
    let compute = model.output_flops.iter().map(work).sum();
    let bandwidth = processor.read_bytes_per_s.value() * processor.read_efficiency;
    let memory = model.output_bytes.as_f64() / bandwidth;
    seconds(processor.layer_overhead_s.value() + combine(processor.combination, compute, memory))
}

/// Distinct experts that `tokens` tokens touch: X·(1 - (1 - x/X)^(n^γ)).
pub(super) fn distinct_experts(experts: Experts, gamma: f64, tokens: f64) -> f64 {
    let count = f64::from(experts.count);
    let missed = 1.0 - f64::from(experts.used) / count;
    count * (1.0 - missed.powf(tokens.powf(gamma)))
}

fn kv_read_time(processor: &ProcessorSpec, layer: &LayerSpec, kv: KvType, pass: Pass) -> f64 {
    let seen = u64::from(layer.attention.seen_tokens(pass.depth_tokens));
    let rows = seen * u64::from(pass.sequences);
    let read = kv.bytes(layer.kv_elements_per_token).times(rows).as_f64();
    read / (processor.read_bytes_per_s.value() * processor.read_efficiency)
}

/// Context a token of the pass sees on average.
fn mean_context(pass: Pass) -> u32 {
    match pass.phase {
        Phase::Decode => pass.depth_tokens + 1,
        Phase::Prefill => pass.depth_tokens + pass.tokens.div_ceil(2),
    }
}

fn combine(combination: Combination, compute: f64, memory: f64) -> f64 {
    match combination {
        Combination::Roofline => compute.max(memory),
        Combination::Sum => compute + memory,
        Combination::FlopsIncludeMemory => compute,
    }
}

/// Seconds that `batch` tokens take for each more token of context that they see: of the batch
/// measured at several depths that is nearest in size, in proportion. `None` if there is none.
fn time_per_seen_token(points: &[MeasuredPoint], layer: &LayerSpec, batch: u32) -> Option<f64> {
    let seen = |point: &MeasuredPoint| f64::from(layer.attention.seen_tokens(point.depth_tokens));
    let slopes = points.chunk_by(|a, b| a.batch_tokens == b.batch_tokens).filter_map(|same| {
        let (first, last) = (same.first()?, same.last()?);
        let more = seen(last) - seen(first);
        let tokens = f64::from(first.batch_tokens);
        (more > 0.0).then(|| (tokens, (last.time_ms - first.time_ms).max(0.0) / 1e3 / more))
    });
    let batch = f64::from(batch);
    let distance = |tokens: f64| (tokens / batch).ln().abs();
    let nearest = slopes.min_by(|a, b| distance(a.0).total_cmp(&distance(b.0)));
    nearest.map(|(tokens, slope)| slope * batch / tokens)
}

/// Time in seconds and depth at `batch`, linear between measured neighbours; `None` outside them.
/// Of a batch measured at several depths the first counts.
fn interpolate(points: &[MeasuredPoint], batch: u32) -> Option<(f64, u32)> {
    let above = points.iter().position(|point| point.batch_tokens >= batch)?;
    let high = points[above];
    if high.batch_tokens == batch {
        return Some((high.time_ms / 1e3, high.depth_tokens));
    }
    let below = points[above.checked_sub(1)?].batch_tokens;
    let low = *points.iter().find(|point| point.batch_tokens == below)?;
    let span = f64::from(high.batch_tokens - low.batch_tokens);
    let part = f64::from(batch - low.batch_tokens) / span;
    let mix = |from: f64, to: f64| from + (to - from) * part;
    let depth = mix(f64::from(low.depth_tokens), f64::from(high.depth_tokens));
    Some((mix(low.time_ms, high.time_ms) / 1e3, depth.round() as u32))
}

fn seconds(value: f64) -> Seconds {
    Seconds::new(value).expect("costs are finite and not negative")
}
