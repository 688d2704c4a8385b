//! Which device computes which part of a model, and where steps are cut between devices.

use std::collections::BTreeMap;
use std::ops::Range;

use motley_ggml::{BufferKind, Device};

use crate::layer_set::LayerSet;
use crate::placement::Residency;

/// Where a part of the model is computed; its weights and its cache lie in that device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Site {
    Processor,
    /// By its place among the GPUs of the placement.
    Gpu(usize),
}

impl Site {
    /// Where a layer of this residency is computed.
    pub(crate) fn of(residency: Residency) -> Self {
        match residency {
            Residency::Gpu(gpu) => Self::Gpu(gpu),
            Residency::Mapped | Residency::Ram | Residency::Stream => Self::Processor,
        }
    }
}

/// The sites of everything that an engine holds. The embedding is always the processor's: a token
/// needs one row of it.
#[derive(Clone, Debug)]
pub(crate) struct Sites {
    held: LayerSet,
    layers: Vec<Site>,
    head: Site,
    memories: BTreeMap<usize, BufferKind>,
}

/// Neighbouring parts of a step that one device runs as one graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) layers: Range<usize>,
    pub(crate) from_tokens: bool,
    pub(crate) head: bool,
    pub(crate) site: Site,
}

impl Sites {
    /// One site per held layer.
    pub(crate) fn new(
        held: &LayerSet,
        layers: Vec<Site>,
        head: Site,
        memories: BTreeMap<usize, BufferKind>,
    ) -> Self {
        assert_eq!(held.len(), layers.len(), "a site per layer");
        Self { held: held.clone(), layers, head, memories }
    }

    /// Everything on the processor.
    pub(crate) fn processor(held: &LayerSet) -> Self {
        let layers = vec![Site::Processor; held.len()];
        Self::new(held, layers, Site::Processor, BTreeMap::new())
    }

    pub(crate) fn of_layer(&self, layer: usize) -> Site {
        self.layers[self.held.index_of(layer).expect("checked: the layer is held here")]
    }

    pub(crate) fn head(&self) -> Site {
        self.head
    }

    /// The site of a graph that runs these layers, or with none of them embedding or head.
    pub(crate) fn of_window(&self, layers: &Range<usize>, from_tokens: bool) -> Site {
        if !layers.is_empty() {
            return self.of_layer(layers.start);
        }
        if from_tokens { Site::Processor } else { self.head }
    }

    /// GPUs in use.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = usize> {
        self.memories.keys().copied()
    }

    /// The memory that parts at `site` keep their weights and caches in.
    pub(crate) fn memory(&self, site: Site) -> BufferKind {
        match site {
            Site::Processor => Device::cpu().memory(),
            Site::Gpu(gpu) => self.memories[&gpu],
        }
    }

    /// Cuts a window where the device changes.
    pub(crate) fn cut(
        &self,
        layers: Range<usize>,
        from_tokens: bool,
        head: bool,
        parts: &mut Vec<Part>,
    ) {
        parts.clear();
        let Range { start, end } = layers;
        let mut add = |part: Part| match parts.last_mut() {
            Some(last) if last.site == part.site => {
                last.layers.end = part.layers.end;
                last.head |= part.head;
            }
            _ => parts.push(part),
        };
        let part = |layers, site| Part { layers, from_tokens: false, head: false, site };
        if from_tokens {
            add(Part { from_tokens, ..part(start..start, Site::Processor) });
        }
        for layer in layers {
            add(part(layer..layer + 1, self.of_layer(layer)));
        }
        if head {
            add(Part { head, ..part(end..end, self.head) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers 2..6 of a model of six: `p` for the processor, digits for GPUs, the head last.
    fn check(sites: &str, window: (Range<usize>, bool, bool), expected: &str) {
        let mut all: Vec<Site> = sites
            .chars()
            .map(|site| site.to_digit(10).map_or(Site::Processor, |gpu| Site::Gpu(gpu as usize)))
            .collect();
        let head = all.pop().unwrap();
        let held: LayerSet = (6 - all.len()..6).into();
        let sites = Sites::new(&held, all, head, BTreeMap::new());
        let mut parts = Vec::new();
        sites.cut(window.0, window.1, window.2, &mut parts);
        let told: Vec<String> = parts
            .iter()
            .map(|part| {
                let site = match part.site {
                    Site::Processor => "p".to_owned(),
                    Site::Gpu(gpu) => gpu.to_string(),
                };
                let (tokens, head) =
                    (if part.from_tokens { "t" } else { "" }, if part.head { "h" } else { "" });
                assert_eq!(sites.of_window(&part.layers, part.from_tokens), part.site);
                format!("{site}:{tokens}{:?}{head}", part.layers)
            })
            .collect();
        assert_eq!(told.join(" "), expected);
    }

    #[test]
    fn a_window_is_cut_where_the_device_changes() {
        check("ppppppp", (0..6, true, true), "p:t0..6h");
        check("0000000", (0..6, true, true), "p:t0..0 0:0..6h");
        check("pp0011p", (0..6, true, true), "p:t0..2 0:2..4 1:4..6 p:6..6h");
        check("000000p", (0..6, true, false), "p:t0..0 0:0..6");
        check("pp00110", (3..5, false, false), "0:3..4 1:4..5");
        check("pp00110", (6..6, false, true), "0:6..6h");
        check("0p0p0pp", (0..0, true, false), "p:t0..0");
        check("0p0p0pp", (0..6, false, true), "0:0..1 p:1..2 0:2..3 p:3..4 0:4..5 p:5..6h");
    }
}
