//! Graphs of layer windows: what they read, and one file per architecture for the layer itself.

mod experts;
mod gemma3;
mod llama;
mod parts;
mod qwen2;
mod qwen3;
mod qwen3moe;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use motley_ggml::{Builder, ElementType, Graph, Input, Output, Tensor, TensorId, TensorSet};
use motley_model::{Architecture, HyperParameters};

use crate::cache::Cache;
use crate::graphs::parts::LayerGraph;
use crate::rows::Group;
use crate::stream::Needs;
use crate::weights::Weights;

/// What a graph gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    /// Hidden states after the window.
    Hidden,
    /// Logits, but of the last `states` rows of the selection the normed hidden states.
    Logits {
        /// Rows whose states are wanted.
        states: usize,
    },
}

/// Everything that decides the shape of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GraphKey {
    pub(crate) layers: Range<usize>,
    /// Whether rows come as tokens; else as hidden states.
    pub(crate) from_tokens: bool,
    pub(crate) product: Product,
    /// Rows in the product, or all of them.
    pub(crate) selected: Option<usize>,
    pub(crate) rows: usize,
    pub(crate) groups: Vec<Group>,
}

/// What graphs are built from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sources<'e> {
    pub(crate) hyper: &'e HyperParameters,
    pub(crate) weights: &'e Weights,
    pub(crate) cache: &'e Cache,
}

/// Inputs of one kind of layer: unlimited or sliding.
#[derive(Clone, Debug)]
pub(crate) struct LookInputs {
    /// Cell that each row is written to.
    pub(crate) cells: Input,
    /// One mask per group.
    pub(crate) masks: Vec<Input>,
}

/// Handles to write and read a built graph.
#[derive(Debug)]
pub(crate) struct WindowGraph {
    pub(crate) key: GraphKey,
    pub(crate) graph: Graph,
    pub(crate) rows: Input,
    pub(crate) positions: Option<Input>,
    pub(crate) full: Option<LookInputs>,
    pub(crate) sliding: Option<LookInputs>,
    pub(crate) selection: Option<Input>,
    /// Hidden states or logits; nothing when no row of them is wanted.
    pub(crate) product: Option<Output>,
    /// Normed hidden states, where they are wanted beside logits.
    pub(crate) states: Option<Output>,
    /// Layers whose experts come and go.
    pub(crate) experts: Vec<ExpertInputs>,
    /// For each segment what it needs, where weights come and go.
    pub(crate) needs: Vec<Needs>,
}

/// Where a layer tells which experts it needs, and is told where they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertInputs {
    pub(crate) layer: usize,
    /// All experts of each row, the chosen ones first; readable before the layer's experts run.
    pub(crate) order: Output,
    /// The slot of each chosen expert of each row.
    pub(crate) slots: Input,
}

/// The tensors behind [`LookInputs`].
#[derive(Clone, Debug)]
struct Look<'g> {
    cells: Tensor<'g>,
    masks: Vec<Tensor<'g>>,
}

/// Tensors that all layers of a window share.
#[derive(Debug)]
struct Shared<'g> {
    positions: Option<Tensor<'g>>,
    full: Option<Look<'g>>,
    sliding: Option<Look<'g>>,
}

/// Builds the graph for `key`.
pub(crate) fn build(key: GraphKey, sources: Sources<'_>) -> WindowGraph {
    let (graph, handles) = Graph::build(tensors_max(&key, sources.hyper), |builder| {
        let mut handles = Handles::default();
        let shared = declare_shared(builder, &key, sources, &mut handles);
        let selection = key.selected.filter(|count| *count > 0).map(|count| {
            let (tensor, input) = builder.indices(ElementType::I32, count, key.rows);
            handles.selection = Some(input);
            tensor
        });
        let (mut hidden, rows) = begin(builder, &key, sources);
        handles.rows = Some(rows);
        let last_layer = sources.hyper.block_count - 1;
        if key.layers.is_empty()
            && let Some(selection) = selection
        {
            hidden = builder.get_rows(hidden, selection);
        }
        let mut wanted = true;
        let experts = RefCell::default();
        for layer in key.layers.clone() {
            let last = layer == last_layer;
            let graph = LayerGraph {
                builder,
                hyper: sources.hyper,
                shape: &sources.hyper.layers[layer],
                weights: sources.weights.layer(layer),
                rope_frequencies: sources.weights.rope_frequencies(layer),
                cache: sources.cache,
                layer,
                key: &key,
                shared: &shared,
                selection: selection.filter(|_| last),
                without_product: last && key.selected == Some(0),
                experts: &experts,
            };
            match layer_of(sources.hyper.architecture, &graph, hidden) {
                Some(next) => hidden = next,
                None => wanted = false,
            }
        }
        handles.experts = experts.into_inner();
        if wanted && key.selected != Some(0) {
            match key.product {
                Product::Hidden => handles.product = Some(builder.output(hidden)),
                Product::Logits { states } => head(builder, sources, hidden, states, &mut handles),
            }
        }
        handles
    });
    WindowGraph {
        key,
        graph,
        rows: handles.rows.expect("declared above"),
        positions: handles.positions,
        full: handles.full,
        sliding: handles.sliding,
        selection: handles.selection,
        product: handles.product,
        states: handles.states,
        experts: handles.experts,
        needs: Vec::new(),
    }
}

#[derive(Debug, Default)]
struct Handles {
    rows: Option<Input>,
    positions: Option<Input>,
    full: Option<LookInputs>,
    sliding: Option<LookInputs>,
    selection: Option<Input>,
    product: Option<Output>,
    states: Option<Output>,
    experts: Vec<ExpertInputs>,
}

fn layer_of<'g>(
    architecture: Architecture,
    graph: &LayerGraph<'_, 'g>,
    hidden: Tensor<'g>,
) -> Option<Tensor<'g>> {
    match architecture {
        Architecture::Llama => llama::layer(graph, hidden),
        Architecture::Qwen2 => qwen2::layer(graph, hidden),
        Architecture::Qwen3 => qwen3::layer(graph, hidden),
        Architecture::Qwen3Moe => qwen3moe::layer(graph, hidden),
        Architecture::Gemma3 => gemma3::layer(graph, hidden),
    }
}

/// Declares positions, cells and masks as far as the window's layers need them.
fn declare_shared<'g>(
    builder: &Builder<'g>,
    key: &GraphKey,
    sources: Sources<'_>,
    handles: &mut Handles,
) -> Shared<'g> {
    let windows = || key.layers.clone().map(|layer| sources.cache.layer(layer).window.is_some());
    let positions = (!key.layers.is_empty()).then(|| {
        let (tensor, input) = builder.input(ElementType::I32, [key.rows, 1, 1, 1]);
        handles.positions = Some(input);
        tensor
    });
    let look = |sliding: bool, handle: &mut Option<LookInputs>| {
        let layer = key
            .layers
            .clone()
            .find(|layer| sources.cache.layer(*layer).window.is_some() == sliding)?;
        let cells_total = sources.cache.layer(layer).cells * sources.cache.shape().slots;
        let (cells, cells_input) = builder.indices(ElementType::I64, key.rows, cells_total);
        let (masks, mask_inputs) = key
            .groups
            .iter()
            .map(|group| {
                let cells = if sliding { group.window_cells } else { group.cells };
                let shape = [cells, group.rows_per_slot, 1, group.slots];
                builder.input(ElementType::F16, shape)
            })
            .unzip();
        *handle = Some(LookInputs { cells: cells_input, masks: mask_inputs });
        Some(Look { cells, masks })
    };
    let full =
        if windows().any(|sliding| !sliding) { look(false, &mut handles.full) } else { None };
    let sliding =
        if windows().any(|sliding| sliding) { look(true, &mut handles.sliding) } else { None };
    Shared { positions, full, sliding }
}

/// The hidden states that enter the first layer.
fn begin<'g>(builder: &Builder<'g>, key: &GraphKey, sources: Sources<'_>) -> (Tensor<'g>, Input) {
    if !key.from_tokens {
        let width = sources.hyper.embedding_length;
        return builder.input(ElementType::F32, [width, key.rows, 1, 1]);
    }
    let table = sources.weights.embedding.as_ref().expect("checked: the embedding is held").plain();
    let (tokens, input) =
        builder.indices(ElementType::I32, key.rows, sources.hyper.vocabulary_size);
    let embedded = builder.get_rows(builder.stored(&table.set, table.id), tokens);
    let embedded = match sources.hyper.embedding_scale {
        Some(scale) => builder.scale(embedded, scale),
        None => embedded,
    };
    (embedded, input)
}

/// The head: logits of the first rows, and of the last `states` rows the normed hidden states.
fn head<'g>(
    builder: &Builder<'g>,
    sources: Sources<'_>,
    hidden: Tensor<'g>,
    states: usize,
    handles: &mut Handles,
) {
    let norm = sources.weights.head.as_ref().expect("checked: the head is held").norm.plain();
    let normed = builder.mul(
        builder.rms_norm(hidden, sources.hyper.rms_norm_epsilon),
        builder.stored(&norm.set, norm.id),
    );
    if states == 0 {
        handles.product = Some(builder.output(logits(builder, sources, normed)));
        return;
    }
    let [width, rows, ..] = normed.shape();
    let part = |rows: usize, first: usize| {
        let [_, row, plane, volume] = normed.strides_bytes();
        builder.view(normed, [width, rows, 1, 1], [row, plane, volume], first * row)
    };
    let first = rows - states;
    if first > 0 {
        handles.product = Some(builder.output(logits(builder, sources, part(first, 0))));
    }
    handles.states = Some(builder.output(part(states, first)));
}

/// Logits of normed hidden states.
fn logits<'g>(builder: &Builder<'g>, sources: Sources<'_>, normed: Tensor<'g>) -> Tensor<'g> {
    let head = sources.weights.head.as_ref().expect("checked: the head is held");
    let output = head.output.for_rows(normed.shape()[1]);
    let mut logits = product(builder, &output.set, output.id, normed);
    if let Some(bias) = &head.output_bias {
        let bias = bias.plain();
        logits = builder.add(logits, builder.stored(&bias.set, bias.id));
    }
    if let Some(cap) = sources.hyper.final_logit_softcapping {
        logits = builder.scale(builder.tanh(builder.scale(logits, 1.0 / cap)), cap);
    }
    logits
}

/// The product of stored weights with rows, by what is fastest on their device; the way makes no
/// difference to any bit of it.
pub(crate) fn product<'g>(
    builder: &Builder<'g>,
    set: &Rc<TensorSet>,
    id: TensorId,
    x: Tensor<'g>,
) -> Tensor<'g> {
    let weight = builder.stored(set, id);
    let packed = if set.is_of_processor() { builder.mul_mat_packed(weight, x) } else { None };
    packed.unwrap_or_else(|| builder.mul_mat(weight, x))
}

/// An upper bound on the tensors that a window makes.
pub(crate) fn tensors_max(key: &GraphKey, hyper: &HyperParameters) -> usize {
    const PER_LAYER: usize = 52;
    const PER_MIXTURE: usize = 20;
    const PER_USED_EXPERT: usize = 2;
    const PER_LAYER_AND_GROUP: usize = 6;
    const PER_GROUP: usize = 2;
    const ELSEWHERE: usize = 32;
    let experts = hyper.experts.map_or(0, |of| PER_MIXTURE + PER_USED_EXPERT * of.used);
    key.layers.len() * (PER_LAYER + experts + PER_LAYER_AND_GROUP * key.groups.len())
        + PER_GROUP * key.groups.len()
        + ELSEWHERE
}
