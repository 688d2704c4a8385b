//! Graphs kept for reuse.

use crate::graphs::WindowGraph;

/// Tensors in all kept graphs together, about 0.4 kB each: enough for a hundred windows of one
/// layer in several batch shapes, or a dozen windows of a whole model.
const TENSORS_MAX: usize = 32 << 10;

/// Built graphs. Where they become too large together, those unused for longest go first.
#[derive(Debug, Default)]
pub(crate) struct KeptGraphs {
    graphs: Vec<Kept>,
    tensors: usize,
    uses: u64,
    built: u64,
}

#[derive(Debug)]
struct Kept {
    window: WindowGraph,
    tensors: usize,
    last_use: u64,
}

impl KeptGraphs {
    /// The graph that `matches` tells, as the most recently used one.
    pub(crate) fn find(&mut self, matches: impl Fn(&WindowGraph) -> bool) -> Option<usize> {
        let found = self.graphs.iter().position(|kept| matches(&kept.window))?;
        self.uses += 1;
        self.graphs[found].last_use = self.uses;
        Some(found)
    }

    /// Keeps a graph sized for so many tensors, and drops others as far as needed.
    pub(crate) fn keep(&mut self, window: WindowGraph, tensors: usize) -> usize {
        while !self.graphs.is_empty() && self.tensors + tensors > TENSORS_MAX {
            let oldest = (0..self.graphs.len())
                .min_by_key(|index| self.graphs[*index].last_use)
                .expect("at least one graph is kept");
            self.tensors -= self.graphs.swap_remove(oldest).tensors;
        }
        self.uses += 1;
        self.built += 1;
        self.tensors += tensors;
        self.graphs.push(Kept { window, tensors, last_use: self.uses });
        self.graphs.len() - 1
    }

    /// Drops all graphs: what they were built from has changed.
    pub(crate) fn clear(&mut self) {
        self.graphs.clear();
        self.tensors = 0;
    }

    /// Every kept graph.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut WindowGraph> {
        self.graphs.iter_mut().map(|kept| &mut kept.window)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> &mut WindowGraph {
        &mut self.graphs[index].window
    }

    /// Graphs built since the start.
    pub(crate) fn built(&self) -> u64 {
        self.built
    }
}
