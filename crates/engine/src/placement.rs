//! Where the weights of an engine are kept.

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
}

/// Where the weights of all layers are kept.
///
/// Where layers differ or are streamed, matrices are laid out as in the file whatever the choice of
/// layouts, so that a layer gives the same bits wherever it is kept. Norms, biases and the head stay
/// in memory then; an embedding of its own is mapped, because each token needs one row of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub(crate) rule: Rule,
    pub(crate) stream: StreamOptions,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Uniform(Residency),
    PerLayer(Vec<Residency>),
    Within(u64),
}

impl Placement {
    /// One residency per held layer, in the order of the layers.
    pub fn per_layer(residencies: Vec<Residency>) -> Self {
        Self::of(Rule::PerLayer(residencies))
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
        Self { rule, stream: StreamOptions::default() }
    }

    /// The residency of all weights, where no layer moves and each may have its fastest layout.
    pub(crate) fn fixed(&self) -> Option<Residency> {
        match self.rule {
            Rule::Uniform(residency) if residency != Residency::Stream => Some(residency),
            _ => None,
        }
    }

    /// How many residencies are given, where there is one per layer.
    pub(crate) fn residencies(&self) -> Option<usize> {
        match &self.rule {
            Rule::PerLayer(residencies) => Some(residencies.len()),
            _ => None,
        }
    }

    /// The residency of the held layer at `index`, as far as it is asked for.
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
        Self::of(Rule::Uniform(residency))
    }
}
