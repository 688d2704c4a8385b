//! Parts of a graph's run order that run on their own, for weights that come one after the other.

use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;

use llama_cpp_sys_2 as sys;

use crate::tensors::TensorSet;

/// The parts of one graph, and the memory that they live in.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    pub(crate) parts: Vec<Segment>,
    context: Option<NonNull<sys::ggml_context>>,
}

/// One part.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) graph: NonNull<sys::ggml_cgraph>,
    /// The set that the graph was cut by and this part reads.
    pub(crate) set: Option<Rc<TensorSet>>,
    /// Other sets read here whose memory can be taken away.
    pub(crate) resident: Vec<Rc<TensorSet>>,
}

/// What a part is made of.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) nodes: Vec<NonNull<sys::ggml_tensor>>,
    pub(crate) set: Option<Rc<TensorSet>>,
    pub(crate) resident: Vec<Rc<TensorSet>>,
}

impl Segments {
    /// Makes graphs of parts; the nodes stay those of the graph that was cut.
    pub(crate) fn new(parts: Vec<Part>) -> Self {
        // SAFETY: plain allocation; sizes follow ggml's own accounting, and each graph gets as
        // many nodes as it was made for.
        unsafe {
            let sizes =
                parts.iter().map(|part| sys::ggml_graph_overhead_custom(part.nodes.len(), false));
            let context = sys::ggml_init(sys::ggml_init_params {
                mem_size: sizes.sum::<usize>().max(1),
                mem_buffer: std::ptr::null_mut(),
                no_alloc: true,
            });
            let context = NonNull::new(context).expect("an allocation of metadata");
            let segment = |part: Part| {
                let graph = sys::ggml_new_graph_custom(context.as_ptr(), part.nodes.len(), false);
                for node in &part.nodes {
                    sys::ggml_graph_add_node(graph, node.as_ptr());
                }
                let graph = NonNull::new(graph).expect("the context was sized for it");
                Segment { graph, set: part.set, resident: part.resident }
            };
            Self { parts: parts.into_iter().map(segment).collect(), context: Some(context) }
        }
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        if let Some(context) = self.context {
            // SAFETY: the context is owned, and the graphs of all parts live in it.
            unsafe { sys::ggml_free(context.as_ptr()) }
        }
    }
}

/// Cuts a run order by what each node reads: one range per neighbouring nodes that read the same
/// thing, from the first to the last of them, and one for what lies between.
pub(crate) fn cut<T: Copy + PartialEq>(reads: &[Option<T>]) -> Vec<(Range<usize>, Option<T>)> {
    let mut parts: Vec<(Range<usize>, Option<T>)> = Vec::new();
    for (index, read) in reads.iter().enumerate().filter(|(_, read)| read.is_some()) {
        match parts.last_mut() {
            Some((range, last)) if last == read => range.end = index + 1,
            last => {
                let free = last.map_or(0, |(range, _)| range.end)..index;
                parts.extend((!free.is_empty()).then_some((free, None)));
                parts.push((index..index + 1, *read));
            }
        }
    }
    let rest = parts.last().map_or(0, |(range, _)| range.end)..reads.len();
    parts.extend((!rest.is_empty()).then_some((rest, None)));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reads: &str, expected: &str) {
        let reads: Vec<Option<char>> =
            reads.chars().map(|read| (read != '.').then_some(read)).collect();
        let parts: Vec<String> = cut(&reads)
            .into_iter()
            .map(|(range, read)| format!("{range:?}{}", read.unwrap_or('.')))
            .collect();
        assert_eq!(parts.join(" "), expected);
    }

    #[test]
    fn every_node_lies_in_one_part_and_every_part_reads_one_thing() {
        check("", "");
        check("...", "0..3.");
        check("..a.a.b..", "0..2. 2..5a 5..6. 6..7b 7..9.");
        check("ab", "0..1a 1..2b");
        check("aba", "0..1a 1..2b 2..3a");
    }
}
