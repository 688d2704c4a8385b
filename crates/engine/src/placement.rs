//! Where the weights of an engine are kept.

use motley_ggml::{Device, gpus};

use crate::stream::StreamOptions;

/// Where the weights of a layer are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residency {
    /// Mapped: nothing is copied, and the system may drop pages and read them again.
    #[default]
    Mapped,
    /// Read at load into memory of the engine's own, which the system cannot drop; for nodes under
    /// a memory limit, and where the file may change while it serves.
    Ram,
    /// Read from disk each time the layer is used, a piece after the other ahead of its use.
    Stream,
    /// In the memory of this GPU, which computes the layer and keeps its cache; by its place among
    /// [the GPUs](motley_ggml::gpus), or those that the placement names.
    Gpu(usize),
}

/// Where the weights of all layers are kept.
///
/// Where layers differ or are streamed, matrices are laid out as in the file whatever the choice of
/// layouts, so that a layer gives the same bits wherever it is kept. Norms, biases and the head stay
/// in memory then; an embedding of its own is mapped, because each token needs one row of it.
///
/// A layer with an operation that its GPU lacks is kept on the processor instead: as the other
/// layers there where one rule serves all of them, else mapped. The embedding is always the
/// processor's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub(crate) rule: Rule,
    pub(crate) stream: StreamOptions,
    layer_gpus: LayerGpus,
    pub(crate) head_gpu: Option<usize>,
    devices: Option<Vec<Device>>,
}

/// Which layers GPUs keep, whatever the rule says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LayerGpus {
    All(Option<usize>),
    /// One entry per held layer.
    Each(Vec<Option<usize>>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Uniform(Residency),
    PerLayer(Vec<Residency>),
    Within(u64),
}

impl Placement {
    /// Whether an embedding of its own, not tied to the head, stays in its file.
    #[must_use]
    pub fn maps_embedding(&self) -> bool {
        self.rule != Rule::Uniform(Residency::Ram)
    }

    /// One residency per held layer, in the order of the layers.
    pub fn per_layer(residencies: Vec<Residency>) -> Self {
        let gpu = |residency: &Residency| match residency {
            Residency::Gpu(gpu) => Some(*gpu),
            _ => None,
        };
        let gpus = residencies.iter().map(gpu).collect();
        let beside = |residency| match residency {
            Residency::Gpu(_) => Residency::Mapped,
            other => other,
        };
        let rule = Rule::PerLayer(residencies.into_iter().map(beside).collect());
        Self::of(rule).with_gpu_layers(gpus)
    }

    /// The same, but with some layers in GPUs: one entry per held layer.
    #[must_use]
    pub fn with_gpu_layers(self, gpus: Vec<Option<usize>>) -> Self {
        Self { layer_gpus: LayerGpus::Each(gpus), ..self }
    }

    /// The same, but with the head in a GPU.
    #[must_use]
    pub fn with_gpu_head(self, gpu: usize) -> Self {
        Self { head_gpu: Some(gpu), ..self }
    }

    /// The same, with these devices in the place of the GPUs of this machine.
    #[must_use]
    pub fn on_devices(self, devices: Vec<Device>) -> Self {
        Self { devices: Some(devices), ..self }
    }

    /// As many pieces of layers in memory as fit into `bytes` beside cache, working memory and
    /// buffers of the engine; the rest is streamed, spread evenly between them. What is mapped does
    /// not count, because the system takes it back.
    pub fn within(bytes: u64) -> Self {
        Self::of(Rule::Within(bytes))
    }

    /// Whether some layers may be streamed.
    pub fn streams(&self) -> bool {
        match &self.rule {
            Rule::Uniform(residency) => *residency == Residency::Stream,
            Rule::PerLayer(residencies) => residencies.contains(&Residency::Stream),
            Rule::Within(_) => true,
        }
    }

    /// The same with other sizes of reads and buffers.
    #[must_use]
    pub fn streamed_by(self, stream: StreamOptions) -> Self {
        Self { stream, ..self }
    }

    fn of(rule: Rule) -> Self {
        Self {
            rule,
            stream: StreamOptions::default(),
            layer_gpus: LayerGpus::All(None),
            head_gpu: None,
            devices: None,
        }
    }

    /// Whether anything is to be kept in a GPU.
    pub fn uses_gpus(&self) -> bool {
        self.head_gpu.is_some()
            || match &self.layer_gpus {
                LayerGpus::All(gpu) => gpu.is_some(),
                LayerGpus::Each(gpus) => gpus.iter().any(Option::is_some),
            }
    }

    /// The GPU that is to keep the held layer at `index`.
    pub(crate) fn gpu_of_layer(&self, index: usize) -> Option<usize> {
        match &self.layer_gpus {
            LayerGpus::All(gpu) => *gpu,
            LayerGpus::Each(gpus) => gpus[index],
        }
    }

    /// The devices that GPUs are counted in.
    pub(crate) fn devices(&self) -> Vec<Device> {
        self.devices.clone().unwrap_or_else(gpus)
    }

    /// The residency of all weights outside GPUs, where no layer moves and each may have its fastest
    /// layout.
    pub(crate) fn fixed(&self) -> Option<Residency> {
        match self.rule {
            Rule::Uniform(residency) if residency != Residency::Stream => Some(residency),
            _ => None,
        }
    }

    /// How many residencies are given, where there is one per layer.
    pub(crate) fn residencies(&self) -> Option<usize> {
        match (&self.rule, &self.layer_gpus) {
            (_, LayerGpus::Each(gpus)) => Some(gpus.len()),
            (Rule::PerLayer(residencies), _) => Some(residencies.len()),
            _ => None,
        }
    }

    /// The residency of the held layer at `index` as far as it is asked for, where no GPU keeps it.
    pub(crate) fn of_layer(&self, index: usize) -> Residency {
        match &self.rule {
            Rule::Uniform(residency) => *residency,
            Rule::PerLayer(residencies) => residencies[index],
            Rule::Within(_) => Residency::Stream,
        }
    }
}

impl From<Residency> for Placement {
    fn from(residency: Residency) -> Self {
        match residency {
            Residency::Gpu(gpu) => Self {
                layer_gpus: LayerGpus::All(Some(gpu)),
                ..Self::of(Rule::Uniform(Residency::Mapped)).with_gpu_head(gpu)
            },
            other => Self::of(Rule::Uniform(other)),
        }
    }
}
