//! How far predicted times of each device were wrong, for the next prediction.

use std::collections::BTreeMap;

use motley_cluster::{DeviceSpec, FlopsPerSecond, ProcessorSpec, Seconds};
use motley_ring::NodeId;

/// Nothing is believed to be wrong by more than this, either way: a busy minute is no profile.
const FACTOR_MAX: f64 = 4.0;

/// Weight of the newest measurement.
const NEWEST: f64 = 0.3;

/// Measured over predicted times of each device, smoothed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Corrections(BTreeMap<NodeId, f64>);

impl Corrections {
    /// The factor to multiply a device's times by.
    pub(crate) fn factor(&self, node: NodeId) -> f64 {
        self.0.get(&node).copied().unwrap_or(1.0)
    }

    /// Takes a measurement of a device whose time was predicted with the factor `used`.
    pub(crate) fn learn(&mut self, node: NodeId, used: f64, predicted_s: f64, measured_s: f64) {
        let possible = |time: f64| time.is_finite() && time > 0.0;
        if !possible(predicted_s) || !possible(measured_s) {
            return;
        }
        let found = (used * measured_s / predicted_s).clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
        let before = self.factor(node);
        self.0.insert(node, before + NEWEST * (found - before));
    }

    /// In a form that is kept: by the ids of devices, in hexadecimal.
    pub(crate) fn to_kept(&self) -> BTreeMap<String, f64> {
        let text = |node: &NodeId| data_encoding::HEXLOWER.encode(&node.0);
        self.0.iter().map(|(node, factor)| (text(node), *factor)).collect()
    }

    /// What was kept; what cannot be believed is left out.
    pub(crate) fn from_kept(kept: &BTreeMap<String, f64>) -> Self {
        let node = |text: &String| {
            let bytes = data_encoding::HEXLOWER.decode(text.as_bytes()).ok()?;
            Some(NodeId(bytes.try_into().ok()?))
        };
        let possible = |factor: &f64| (1.0 / FACTOR_MAX..=FACTOR_MAX).contains(factor);
        let kept = kept.iter().filter(|(_, factor)| possible(factor));
        Self(kept.filter_map(|(text, factor)| Some((node(text)?, *factor))).collect())
    }
}

/// Makes a device so many times as slow.
pub(super) fn slow_down(spec: &mut DeviceSpec, factor: f64) {
    spec.step_overhead_s = spec.step_overhead_s.times(factor);
    slow_processor(&mut spec.cpu, factor);
    spec.gpus.iter_mut().for_each(|gpu| slow_processor(&mut gpu.processor, factor));
}

fn slow_processor(processor: &mut ProcessorSpec, factor: f64) {
    let slower = |time: Seconds| time.times(factor);
    for rate in processor.flops_per_s.values_mut() {
        *rate = FlopsPerSecond::new(rate.value() / factor).unwrap_or(*rate);
    }
    let read = motley_cluster::BytesPerSecond::new(processor.read_bytes_per_s.value() / factor);
    processor.read_bytes_per_s = read.unwrap_or(processor.read_bytes_per_s);
    processor.kv_copy_s = slower(processor.kv_copy_s);
    processor.layer_overhead_s = slower(processor.layer_overhead_s);
    processor.token_overhead_s = slower(processor.token_overhead_s);
    let layers = processor.layer_tables.iter_mut().flat_map(|table| &mut table.points);
    let heads = processor.head_tables.iter_mut().flat_map(|table| &mut table.points);
    for point in layers.chain(heads) {
        point.time_ms *= factor;
    }
}
