//! The parts that layers are made of. The order of operations is llama.cpp's, so that results
//! are equal to the last bit.

use std::cell::RefCell;

use motley_ggml::{Attention, Builder, Rope, RopeKind, Tensor};
use motley_model::{Activation, HyperParameters, LayerShape, RopeKind as ModelRopeKind};

use crate::cache::Cache;
use crate::graphs::{ExpertInputs, GraphKey, Shared, product};
use crate::rows::Group;
use crate::weights::{LayerWeights, Weight};

/// One layer under construction.
#[derive(Debug)]
pub(super) struct LayerGraph<'e, 'g> {
    pub(super) builder: &'e Builder<'g>,
    pub(super) hyper: &'e HyperParameters,
    pub(super) shape: &'e LayerShape,
    pub(super) weights: &'e LayerWeights,
    pub(super) rope_frequencies: Option<&'e Weight>,
    pub(super) cache: &'e Cache,
    pub(super) layer: usize,
    pub(super) key: &'e GraphKey,
    pub(super) shared: &'e Shared<'g>,
    /// Rows that go on from here, where not all do.
    pub(super) selection: Option<Tensor<'g>>,
    /// Only the cache is wanted from this layer.
    pub(super) without_product: bool,
    /// Layers whose experts come and go, as they are built.
    pub(super) experts: &'e RefCell<Vec<ExpertInputs>>,
}

impl<'g> LayerGraph<'_, 'g> {
    /// Root-mean-square norm times its weight.
    pub(super) fn norm(&self, x: Tensor<'g>, weight: &Weight) -> Tensor<'g> {
        let normed = self.builder.rms_norm(x, self.hyper.rms_norm_epsilon);
        self.builder.mul(normed, self.stored(weight))
    }

    /// As [`norm`](Self::norm), where the model has the weight.
    pub(super) fn optional_norm(&self, x: Tensor<'g>, weight: Option<&Weight>) -> Tensor<'g> {
        weight.map_or(x, |weight| self.norm(x, weight))
    }

    /// Queries `[head, heads, rows]`, keys `[head, kv_heads, rows]` and values `[row, rows]`.
    pub(super) fn query_key_value(&self, x: Tensor<'g>) -> [Tensor<'g>; 3] {
        let weights = self.weights;
        let rows = x.shape()[1];
        let head = self.hyper.key_length;
        let query = self.project(x, &weights.query, weights.query_bias.as_ref());
        let key = self.project(x, &weights.key, weights.key_bias.as_ref());
        let value = self.project(x, &weights.value, weights.value_bias.as_ref());
        [
            self.builder.reshape(query, [head, self.shape.head_count, rows, 1]),
            self.builder.reshape(key, [head, self.shape.head_count_kv, rows, 1]),
            value,
        ]
    }

    /// Rotary position embedding, with Llama 3's factors where the file has them.
    pub(super) fn rope(&self, x: Tensor<'g>) -> Tensor<'g> {
        let rope = &self.hyper.rope;
        let (frequency_base, frequency_scale) = rope.of_layer(self.shape);
        let parameters = Rope {
            kind: match rope.kind {
                ModelRopeKind::Normal => RopeKind::Adjacent,
                ModelRopeKind::Neox => RopeKind::Halves,
            },
            dimensions: rope.dimension_count,
            original_context_tokens: usize::try_from(rope.original_context_length)
                .expect("contexts are limited by the reader"),
            frequency_base,
            frequency_scale,
            extrapolation_factor: rope.extension_factor,
            attention_factor: rope.attention_factor,
            beta_fast: rope.beta_fast,
            beta_slow: rope.beta_slow,
        };
        let positions = self.shared.positions.expect("declared for windows with layers");
        let factors = self.rope_frequencies.map(|weight| self.stored(weight));
        self.builder.rope(x, positions, factors, &parameters)
    }

    /// Writes keys and values to the cache, attends over it and projects the result; nothing
    /// where only the cache is wanted.
    pub(super) fn attend(
        &self,
        query: Tensor<'g>,
        key: Tensor<'g>,
        value: Tensor<'g>,
        scale: f32,
    ) -> Option<Tensor<'g>> {
        let builder = self.builder;
        let cache = self.cache.layer(self.layer);
        let look = match cache.window {
            Some(_) => self.shared.sliding.as_ref(),
            None => self.shared.full.as_ref(),
        }
        .expect("declared for every kind of layer in the window");
        // Together and in this order, as llama.cpp does.
        builder.expand(query);
        builder.expand(value);
        builder.expand(key);
        let keys = builder.stored(&cache.set, cache.keys);
        let values = builder.stored(&cache.set, cache.values);
        let [head, kv_heads, rows, _] = key.shape();
        let key_rows = builder.reshape(key, [head * kv_heads, rows, 1, 1]);
        builder.expand(builder.set_rows(keys, key_rows, look.cells));
        builder.expand(builder.set_rows(values, value, look.cells));
        if self.without_product {
            return None;
        }
        let attended = (self.key.groups.iter().zip(&look.masks))
            .map(|(group, mask)| self.attend_group([query, keys, values], *mask, group, scale))
            .collect::<Vec<_>>();
        let attended = join_rows(builder, attended);
        let weights = self.weights;
        Some(self.project(
            attended,
            &weights.attention_output,
            weights.attention_output_bias.as_ref(),
        ))
    }

    fn attend_group(
        &self,
        [query, keys, values]: [Tensor<'g>; 3],
        mask: Tensor<'g>,
        group: &Group,
        scale: f32,
    ) -> Tensor<'g> {
        let builder = self.builder;
        let cache = self.cache.layer(self.layer);
        let cells = mask.shape()[0];
        let [head, heads, _, _] = query.shape();
        let [_, head_stride, row_stride, _] = query.strides_bytes();
        let queries = builder.view(
            query,
            [head, group.rows_per_slot, heads, group.slots],
            [row_stride, head_stride, row_stride * group.rows_per_slot],
            row_stride * group.first_row,
        );
        let cached = |stored: Tensor<'g>, head: usize| {
            let row_bytes = stored.strides_bytes()[1];
            let head_bytes = stored.element().row_bytes(head).expect("heads are whole blocks");
            let slot_bytes = row_bytes * cache.cells;
            builder.view(
                stored,
                [head, cells, self.shape.head_count_kv, group.slots],
                [row_bytes, head_bytes, slot_bytes],
                slot_bytes * group.first_slot,
            )
        };
        let attended = builder.attention(&Attention {
            queries,
            keys: cached(keys, self.hyper.key_length),
            values: cached(values, self.hyper.value_length),
            mask,
            scale,
            soft_cap: 0.0,
        });
        builder.reshape(attended, [self.hyper.value_length * heads, group.rows(), 1, 1])
    }

    /// The rows that go on after attention.
    pub(super) fn select(&self, x: Tensor<'g>) -> Tensor<'g> {
        self.selection.map_or(x, |selection| self.builder.get_rows(x, selection))
    }

    /// `down(activation(gate(x)) * up(x))`, or a mixture of such networks.
    pub(super) fn feed_forward(&self, x: Tensor<'g>) -> Tensor<'g> {
        let weights = self.weights;
        if let Some(router) = &weights.router {
            return self.mixture(x, router);
        }
        let up = self.project(x, &weights.up, weights.up_bias.as_ref());
        let gate = self.project(x, &weights.gate, weights.gate_bias.as_ref());
        let gated = match self.hyper.activation {
            Activation::Silu => self.builder.swiglu(gate, up),
            Activation::Gelu => self.builder.geglu(gate, up),
        };
        self.project(gated, &weights.down, weights.down_bias.as_ref())
    }

    pub(super) fn project(
        &self,
        x: Tensor<'g>,
        weight: &Weight,
        bias: Option<&Weight>,
    ) -> Tensor<'g> {
        let stored = weight.for_rows(x.shape()[1]);
        let product = product(self.builder, &stored.set, stored.id, x);
        match bias {
            Some(bias) => self.builder.add(product, self.stored(bias)),
            None => product,
        }
    }

    pub(super) fn stored(&self, weight: &Weight) -> Tensor<'g> {
        let stored = weight.plain();
        self.builder.stored(&stored.set, stored.id)
    }
}

/// Joins row blocks in order, neighbours first, so that no row is copied more than log2 times.
fn join_rows<'g>(builder: &Builder<'g>, mut blocks: Vec<Tensor<'g>>) -> Tensor<'g> {
    while blocks.len() > 1 {
        blocks = blocks
            .chunks(2)
            .map(|pair| match pair {
                [a, b] => builder.concat_rows(*a, *b),
                _ => pair[0],
            })
            .collect();
    }
    blocks[0]
}
