//! The operations that graphs are made of. Each checks its operands before ggml would abort.

use llama_cpp_sys_2 as sys;

use crate::element::ElementType;
use crate::graph::{Builder, Tensor, as_i64};

/// How rotary position embedding pairs the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// Neighbouring elements (Llama).
    Adjacent,
    /// Element `i` with element `i + n/2` (GPT-NeoX; Qwen, Gemma).
    Halves,
}

/// Parameters of rotary position embedding, as ggml defines them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Pairing of elements.
    pub kind: RopeKind,
    /// Elements of a head that rotate.
    pub dimensions: usize,
    /// Context length of the original training, for YaRN.
    pub original_context_tokens: usize,
    /// Base of the frequencies.
    pub frequency_base: f32,
    /// Factor on positions (1 / linear scaling factor).
    pub frequency_scale: f32,
    /// YaRN mix between interpolation and extrapolation.
    pub extrapolation_factor: f32,
    /// YaRN factor on magnitudes.
    pub attention_factor: f32,
    /// YaRN correction range, fast end.
    pub beta_fast: f32,
    /// YaRN correction range, slow end.
    pub beta_slow: f32,
}

/// Operands of an attention over cached keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'g> {
    /// Queries `[head, rows, heads, slots]`.
    pub queries: Tensor<'g>,
    /// Keys `[head, cells, kv_heads, slots]`.
    pub keys: Tensor<'g>,
    /// Values `[head, cells, kv_heads, slots]`.
    pub values: Tensor<'g>,
    /// 16-bit mask `[cells, rows, 1, slots]`: 0 where a row may look, minus infinity elsewhere.
    pub mask: Tensor<'g>,
    /// Factor on the products of queries and keys.
    pub scale: f32,
    /// Soft cap on the scaled products; 0 for none.
    pub soft_cap: f32,
}

impl<'g> Builder<'g> {
    /// Rows of `table` chosen by the 32-bit indices `rows`; the result is 32-bit floats.
    pub fn get_rows(&self, table: Tensor<'g>, rows: Tensor<'g>) -> Tensor<'g> {
        assert_eq!(rows.element(), ElementType::I32, "row indices");
        let (table_shape, rows_shape) = (table.shape(), rows.shape());
        assert_eq!(table_shape[2], rows_shape[1], "batches of a row lookup");
        assert!(table_shape[3] == rows_shape[2] && rows_shape[3] == 1, "batches of a row lookup");
        self.check_indices(rows, table_shape[1]);
        self.take_one();
        // SAFETY: shapes, types and the limit of the indices were checked.
        self.node(unsafe {
            sys::ggml_get_rows(self.context.as_ptr(), table.raw.as_ptr(), rows.raw.as_ptr())
        })
    }

    /// Root-mean-square normalisation of each row.
    pub fn rms_norm(&self, a: Tensor<'g>, epsilon: f32) -> Tensor<'g> {
        assert_eq!(a.element(), ElementType::F32, "normalised values");
        assert!(epsilon >= 0.0, "epsilon is not negative");
        self.take_one();
        // SAFETY: the operand is of 32-bit floats.
        self.node(unsafe { sys::ggml_rms_norm(self.context.as_ptr(), a.raw.as_ptr(), epsilon) })
    }

    /// Element-wise product; `b` repeats over `a`.
    pub fn mul(&self, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        assert!(repeats(b, a), "{b:?} does not repeat over {a:?}");
        self.take_one();
        // SAFETY: the shapes were checked.
        self.node(unsafe { sys::ggml_mul(self.context.as_ptr(), a.raw.as_ptr(), b.raw.as_ptr()) })
    }

    /// Element-wise sum; `b` repeats over `a`.
    pub fn add(&self, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        assert!(repeats(b, a), "{b:?} does not repeat over {a:?}");
        self.take_one();
        // SAFETY: the shapes were checked.
        self.node(unsafe { sys::ggml_add(self.context.as_ptr(), a.raw.as_ptr(), b.raw.as_ptr()) })
    }

    /// Product with a constant.
    pub fn scale(&self, a: Tensor<'g>, factor: f32) -> Tensor<'g> {
        assert!(a.is_contiguous(), "scaled values are contiguous");
        self.take_one();
        // SAFETY: any contiguous operand is valid.
        self.node(unsafe { sys::ggml_scale(self.context.as_ptr(), a.raw.as_ptr(), factor) })
    }

    /// Hyperbolic tangent of each element.
    pub fn tanh(&self, a: Tensor<'g>) -> Tensor<'g> {
        assert!(a.is_contiguous(), "operands of tanh are contiguous");
        self.take_one();
        // SAFETY: any contiguous operand is valid.
        self.node(unsafe { sys::ggml_tanh(self.context.as_ptr(), a.raw.as_ptr()) })
    }

    /// Matrix product: `weight` `[k, n]` with `a` `[k, m]` gives `[n, m]`.
    pub fn mul_mat(&self, weight: Tensor<'g>, a: Tensor<'g>) -> Tensor<'g> {
        let (w, x) = (weight.shape(), a.shape());
        assert!(
            w[0] == x[0] && x[2].is_multiple_of(w[2]) && x[3].is_multiple_of(w[3]),
            "{weight:?} cannot multiply {a:?}"
        );
        self.take_one();
        // SAFETY: the shapes were checked.
        self.node(unsafe {
            sys::ggml_mul_mat(self.context.as_ptr(), weight.raw.as_ptr(), a.raw.as_ptr())
        })
    }

    /// The same elements in another shape.
    pub fn reshape(&self, a: Tensor<'g>, shape: [usize; 4]) -> Tensor<'g> {
        assert!(a.is_contiguous(), "reshaped values are contiguous");
        assert_eq!(
            a.shape().iter().product::<usize>(),
            shape.iter().product::<usize>(),
            "elements of {a:?} as {shape:?}"
        );
        self.check_stays(a);
        self.take_one();
        let [n0, n1, n2, n3] = shape.map(as_i64);
        // SAFETY: contiguous, with the same number of elements.
        self.node(unsafe {
            sys::ggml_reshape_4d(self.context.as_ptr(), a.raw.as_ptr(), n0, n1, n2, n3)
        })
    }

    /// A window into `a`: `shape` elements from byte `offset`, rows being `strides_bytes` apart
    /// in dimensions 1 to 3.
    pub fn view(
        &self,
        a: Tensor<'g>,
        shape: [usize; 4],
        strides_bytes: [usize; 3],
        offset: usize,
    ) -> Tensor<'g> {
        let row = a.element().row_bytes(shape[0]).expect("views hold whole blocks");
        let reach = (1..4).map(|d| (shape[d] - 1) * strides_bytes[d - 1]).sum::<usize>();
        assert!(offset + reach + row <= a.bytes(), "a view beyond the end of {a:?}");
        self.check_stays(a);
        self.take_one();
        let [n0, n1, n2, n3] = shape.map(as_i64);
        let [s1, s2, s3] = strides_bytes;
        // SAFETY: the window lies inside the tensor.
        self.node(unsafe {
            sys::ggml_view_4d(
                self.context.as_ptr(),
                a.raw.as_ptr(),
                n0,
                n1,
                n2,
                n3,
                s1,
                s2,
                s3,
                offset,
            )
        })
    }

    /// Exchanges dimensions 1 and 2.
    pub fn swap_1_2(&self, a: Tensor<'g>) -> Tensor<'g> {
        self.check_stays(a);
        self.take_one();
        // SAFETY: the axes are a permutation.
        self.node(unsafe { sys::ggml_permute(self.context.as_ptr(), a.raw.as_ptr(), 0, 2, 1, 3) })
    }

    /// Rotary position embedding of `[head, heads, rows]` at 32-bit `positions`, with optional
    /// per-pair divisors of the frequencies (Llama 3 scaling).
    pub fn rope(
        &self,
        a: Tensor<'g>,
        positions: Tensor<'g>,
        factors: Option<Tensor<'g>>,
        rope: &Rope,
    ) -> Tensor<'g> {
        let shape = a.shape();
        assert_eq!(positions.element(), ElementType::I32, "positions");
        assert_eq!(positions.shape(), [shape[2], 1, 1, 1], "one position per row");
        assert!(rope.dimensions <= shape[0] && rope.dimensions.is_multiple_of(2), "rope size");
        if let Some(factors) = factors {
            assert_eq!(factors.element(), ElementType::F32, "frequency factors");
            assert!(factors.shape()[0] >= rope.dimensions / 2, "a factor per pair");
        }
        let mode = match rope.kind {
            RopeKind::Adjacent => 0,
            RopeKind::Halves => 2,
        };
        self.take_one();
        // SAFETY: shapes and types were checked.
        self.node(unsafe {
            sys::ggml_rope_ext(
                self.context.as_ptr(),
                a.raw.as_ptr(),
                positions.raw.as_ptr(),
                factors.map_or(std::ptr::null_mut(), |tensor| tensor.raw.as_ptr()),
                as_i32(rope.dimensions),
                mode,
                as_i32(rope.original_context_tokens),
                rope.frequency_base,
                rope.frequency_scale,
                rope.extrapolation_factor,
                rope.attention_factor,
                rope.beta_fast,
                rope.beta_slow,
            )
        })
    }

    /// Writes the rows of `source` into `target` at the 64-bit indices `rows`; the result stands
    /// for `target` afterwards.
    pub fn set_rows(&self, target: Tensor<'g>, source: Tensor<'g>, rows: Tensor<'g>) -> Tensor<'g> {
        let (t, s) = (target.shape(), source.shape());
        assert_eq!(rows.element(), ElementType::I64, "row indices");
        assert_eq!(source.element(), ElementType::F32, "source of written rows");
        assert_eq!(t[0], s[0], "rows of equal length");
        assert_eq!(rows.shape(), [s[1], 1, 1, 1], "one index per row");
        assert!(t[2] == 1 && t[3] == 1 && s[2] == 1 && s[3] == 1, "matrices");
        self.check_indices(rows, t[1]);
        self.check_stays(target);
        self.take_one();
        // SAFETY: shapes and types were checked.
        self.node(unsafe {
            sys::ggml_set_rows(
                self.context.as_ptr(),
                target.raw.as_ptr(),
                source.raw.as_ptr(),
                rows.raw.as_ptr(),
            )
        })
    }

    /// Attention with a running softmax; the result is `[head, heads, rows, slots]`, accumulated
    /// in 32-bit floats.
    pub fn attention(&self, attention: &Attention<'g>) -> Tensor<'g> {
        let Attention { queries, keys, values, mask, scale, soft_cap } = *attention;
        let (q, k, v, m) = (queries.shape(), keys.shape(), values.shape(), mask.shape());
        assert_eq!(queries.element(), ElementType::F32, "queries");
        assert_eq!(mask.element(), ElementType::F16, "mask");
        assert!(mask.is_contiguous(), "the mask is contiguous");
        assert!(q[0] == k[0] && k[1..] == v[1..], "{queries:?} {keys:?} {values:?}");
        assert!(q[2].is_multiple_of(k[2]) && q[3] == k[3], "heads and slots");
        assert_eq!(m, [k[1], q[1], 1, q[3]], "mask of {queries:?} over {keys:?}");
        self.take_one();
        // SAFETY: shapes and types were checked.
        self.node(unsafe {
            let raw = sys::ggml_flash_attn_ext(
                self.context.as_ptr(),
                queries.raw.as_ptr(),
                keys.raw.as_ptr(),
                values.raw.as_ptr(),
                mask.raw.as_ptr(),
                scale,
                0.0,
                soft_cap,
            );
            sys::ggml_prec_set_acc(raw, sys::GGML_PREC_F32);
            raw
        })
    }

    /// `silu(gate) * up`, element by element.
    pub fn swiglu(&self, gate: Tensor<'g>, up: Tensor<'g>) -> Tensor<'g> {
        self.check_gate(gate, up);
        // SAFETY: equal contiguous shapes of 32-bit floats.
        self.node(unsafe {
            sys::ggml_swiglu_split(self.context.as_ptr(), gate.raw.as_ptr(), up.raw.as_ptr())
        })
    }

    /// `gelu(gate) * up`, element by element.
    pub fn geglu(&self, gate: Tensor<'g>, up: Tensor<'g>) -> Tensor<'g> {
        self.check_gate(gate, up);
        // SAFETY: equal contiguous shapes of 32-bit floats.
        self.node(unsafe {
            sys::ggml_geglu_split(self.context.as_ptr(), gate.raw.as_ptr(), up.raw.as_ptr())
        })
    }

    /// `b` after `a` along dimension 1.
    pub fn concat_rows(&self, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        let (x, y) = (a.shape(), b.shape());
        assert_eq!(a.element(), b.element(), "joined types");
        assert!(x[0] == y[0] && x[2..] == y[2..], "{a:?} and {b:?} cannot be joined");
        self.take_one();
        // SAFETY: shapes and types were checked.
        self.node(unsafe {
            sys::ggml_concat(self.context.as_ptr(), a.raw.as_ptr(), b.raw.as_ptr(), 1)
        })
    }

    fn check_gate(&self, gate: Tensor<'g>, up: Tensor<'g>) {
        assert_eq!(gate.shape(), up.shape(), "gate and up");
        assert!(gate.is_contiguous() && up.is_contiguous(), "gate and up are contiguous");
        assert!(
            gate.element() == ElementType::F32 && up.element() == ElementType::F32,
            "gate and up are 32-bit floats"
        );
        self.take_one();
    }
}

/// Whether `small` repeats over `large` along every dimension.
fn repeats(small: Tensor<'_>, large: Tensor<'_>) -> bool {
    small.shape().into_iter().zip(large.shape()).all(|(s, l)| l.is_multiple_of(s))
}

fn as_i32(value: usize) -> i32 {
    i32::try_from(value).expect("a small number")
}
