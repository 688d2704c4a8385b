//! From published figures to profiles.
//!
//! Panics here mean that the built-in data is wrong, which the crate's tests exclude.

use std::collections::BTreeMap;

use super::figures::{CatalogueDevice, CatalogueModel, Figure};
use crate::device::{
    Combination, DeviceProfile, DeviceSpec, DiskSpec, GpuKind, GpuSpec, MemorySpec, Os,
    ProcessorSpec,
};
use crate::model::{Experts, ModelProfile};
use crate::quant::{FileType, ModelShape, WeightType, quantised_model};
use crate::units::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};

/// No profile states the host to device rate; this is what PCIe 4.0 x8 reaches (estimated).
const COPY_BYTES_PER_S: f64 = 12e9;

/// Linux counts 80 % of free memory as usable (PLANNER 1.1), where a study gives no figure.
const AVAILABLE_FRACTION: f64 = 0.8;

impl CatalogueDevice {
    /// The device as a profile under this name.
    ///
    /// Effective rates stand for peak rate times efficiency, so efficiencies are 1, per-layer
    /// overheads 0 (they are inside), and times combine as a roofline.
    ///
    /// # Panics
    /// Never for the built-in catalogue.
    #[must_use]
    pub fn profile(&self, name: &str) -> DeviceProfile {
        let os = match self.os.value.as_deref() {
            Some("linux") => Os::Linux,
            Some("macos") => Os::Macos,
            Some("android") => Os::Android,
            other => panic!("unknown operating system {other:?}"),
        };
        let cores = number(&self.compute.cpu_cores) as u32;
        let spec = DeviceSpec {
            name: name.to_owned(),
            hardware: Some(self.id.clone()),
            os,
            unified_memory: self.memory.unified,
            cores,
            threads: cores,
            cpu_quota: None,
            step_overhead_s: Seconds::ZERO,
            memory: self.memory_spec(),
            disk: DiskSpec {
                sequential_bytes_per_s: rate(number(&self.disk.seq_read_gbs) * 1e9),
                random_bytes_per_s: rate(number(&self.disk.rnd_read_gbs) * 1e9),
            },
            cpu: self.cpu(),
            gpus: self.gpu_spec(os).into_iter().collect(),
            power: None,
        };
        DeviceProfile::new(spec).expect("built-in devices are valid")
    }

    fn memory_spec(&self) -> MemorySpec {
        let total = number(&self.memory.ram_gb);
        let stated = self.memory.ram_available_gib.as_ref().map(number);
        let swappable = gib(self.memory.swappable_gib.as_ref().map_or(0.0, number));
        MemorySpec {
            ram_total_bytes: gib(total),
            ram_available_bytes: gib(stated.unwrap_or(total * AVAILABLE_FRACTION)),
            // The studies give what can be swapped out, not the swap space, which is at least that.
            swap_available_bytes: swappable,
            swappable_bytes: swappable,
        }
    }

    fn cpu(&self) -> ProcessorSpec {
        let flops = number(&self.compute.cpu_q4_gflops_effective) * 1e9;
        processor(WeightType::Q4K, flops, number(&self.memory.cpu_bw_gbs_effective) * 1e9)
    }

    fn gpu_spec(&self, os: Os) -> Option<GpuSpec> {
        let usable = number(&self.memory.usable_vram_gb);
        if usable <= 0.0 {
            return None;
        }
        let bandwidth = number(&self.effective.decode_bw_gbs);
        let flops = number(&self.effective.prefill_tflops) * 1e12;
        let mut gpu = processor(WeightType::Q4_0, flops, bandwidth * 1e9);
        if let Some(expert) = &self.effective.moe_gpt_oss_decode_bw_gbs {
            gpu.expert_read_efficiency = Some(number(expert) / bandwidth);
        }
        let fit = self.effective.moe_fit.as_ref().and_then(|figure| figure.value);
        let dense = self.effective.decode_bw_fraction.as_ref().map(number);
        if let (Some(fit), Some(dense)) = (fit, dense) {
            gpu.expert_gamma = fit.gamma;
            gpu.expert_read_efficiency = Some(fit.bw_fraction / dense);
        }
        let nominal = self.memory.vram_gb.value.unwrap_or_else(|| number(&self.memory.ram_gb));
        let unified = self.memory.unified;
        Some(GpuSpec {
            kind: if os == Os::Macos { GpuKind::Metal } else { GpuKind::Cuda },
            total_bytes: gib(nominal),
            usable_bytes: Bytes::from_gb(usable).expect("memory sizes are positive"),
            copy_bytes_per_s: rate(if unified { bandwidth * 1e9 } else { COPY_BYTES_PER_S }),
            processor: gpu,
        })
    }
}

impl CatalogueModel {
    /// The model as a profile, its layers derived by the type rules of its file type.
    ///
    /// # Panics
    /// Never for the built-in catalogue.
    #[must_use]
    pub fn profile(&self) -> ModelProfile {
        let query = u64::from(self.n_head) * u64::from(self.head_dim);
        let kv = u64::from(self.n_head_kv) * u64::from(self.head_dim);
        let inner = self.n_ff.or(self.n_ff_expert).expect("one feed-forward width is given");
        let experts = self.n_expert.zip(self.n_expert_used);
        let experts = experts.map(|(count, used)| Experts { count, used });
        let file_type = match self.quant.as_str() {
            "Q4_0" => FileType::Q4_0,
            "Q4_K_M" => FileType::Q4KMedium,
            "Q4_K_S" => FileType::Q4KSmall,
            quant if quant.starts_with("MXFP4") => FileType::Mxfp4Experts,
            quant => panic!("unknown file type {quant}"),
        };
        let mut shape = ModelShape {
            name: self.id.clone(),
            layers: self.n_layers,
            embedding_width: self.n_embd,
            heads: self.n_head,
            kv_heads: self.n_head_kv,
            head_width: self.head_dim,
            feed_forward_width: inner,
            vocabulary: self.n_vocab,
            experts,
            extra_f32_per_layer: if self.qkv_bias { query + 2 * kv } else { 0 },
            extra_f32_per_expert: 0,
            alternating_window_tokens: self.sliding_window,
        };
        match (file_type, experts) {
            // gpt-oss: biases everywhere, one attention sink per head.
            (FileType::Mxfp4Experts, Some(experts)) => {
                let width = u64::from(self.n_embd);
                let biases = query + 2 * kv + width + u64::from(experts.count);
                shape.extra_f32_per_layer = biases + u64::from(self.n_head);
                shape.extra_f32_per_expert = 2 * u64::from(inner) + width;
            }
            // Qwen3 normalises query and key heads.
            (_, Some(_)) => shape.extra_f32_per_layer = 2 * u64::from(self.head_dim),
            (_, None) => {}
        }
        quantised_model(&shape, file_type).expect("built-in models are valid")
    }
}

fn number(figure: &Figure) -> f64 {
    figure.value.expect("this figure is given for every built-in device")
}

fn gib(value: f64) -> Bytes {
    Bytes::from_gib(value).expect("memory sizes are not negative")
}

fn rate(value: f64) -> BytesPerSecond {
    BytesPerSecond::new(value).expect("rates are positive")
}

fn processor(weight: WeightType, flops: f64, bandwidth: f64) -> ProcessorSpec {
    let flops = FlopsPerSecond::new(flops).expect("rates are positive");
    ProcessorSpec {
        flops_per_s: BTreeMap::from([(weight, flops)]),
        read_bytes_per_s: rate(bandwidth),
        read_efficiency: 1.0,
        expert_read_efficiency: None,
        expert_gamma: 1.0,
        combination: Combination::Roofline,
        kv_copy_s: Seconds::ZERO,
        layer_overhead_s: Seconds::ZERO,
        token_overhead_s: Seconds::ZERO,
        layer_tables: Vec::new(),
        head_tables: Vec::new(),
    }
}
