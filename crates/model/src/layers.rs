//! The tensors of a model by their role, each with the shape its role demands.

use std::collections::BTreeMap;

use crate::TensorType;
use crate::directory::DirectoryError;
use crate::gguf::Gguf;
use crate::hyper::{Architecture, Experts, HyperParameters, LayerShape};

/// One tensor of a model: what it is and where its data lies.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Its name in the file.
    pub name: String,
    /// Elements per dimension, the contiguous one first; unused dimensions are 1.
    pub shape: [u64; 4],
    /// How many dimensions the file names, 1 to 4.
    pub dimensions: usize,
    /// The type of its elements.
    pub tensor_type: TensorType,
    /// Which of the model's files holds it, from zero.
    pub file_index: usize,
    /// Where its data begins, from the start of that file.
    pub offset: u64,
    /// Bytes of its data.
    pub bytes: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// The tensors of one layer. Matrices have the input's length first: `shape[0]` is the length of
/// the vectors they take, `shape[1]` that of the vectors they give.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerTensors {
    /// Norm before attention, `[embedding]`.
    pub attention_norm: TensorInfo,
    /// Query matrix, `[embedding, heads * key_length]`.
    pub query: TensorInfo,
    /// Query bias, `[heads * key_length]`.
    pub query_bias: Option<TensorInfo>,
    /// Key matrix, `[embedding, kv_heads * key_length]`.
    pub key: TensorInfo,
    /// Key bias, `[kv_heads * key_length]`.
    pub key_bias: Option<TensorInfo>,
    /// Value matrix, `[embedding, kv_heads * value_length]`.
    pub value: TensorInfo,
    /// Value bias, `[kv_heads * value_length]`.
    pub value_bias: Option<TensorInfo>,
    /// Norm of each head's query, `[key_length]`.
    pub query_norm: Option<TensorInfo>,
    /// Norm of each head's key, `[key_length]`.
    pub key_norm: Option<TensorInfo>,
    /// Matrix after attention, `[heads * value_length, embedding]`.
    pub attention_output: TensorInfo,
    /// Bias after attention, `[embedding]`.
    pub attention_output_bias: Option<TensorInfo>,
    /// Norm of attention's result, `[embedding]`.
    pub attention_post_norm: Option<TensorInfo>,
    /// Norm before the feed-forward network, `[embedding]`.
    pub feed_forward_norm: TensorInfo,
    /// Scores of the experts, `[embedding, experts]`, where there are experts. The feed-forward
    /// matrices have a third dimension then, one entry per expert.
    pub router: Option<TensorInfo>,
    /// Gate matrix, `[embedding, feed_forward]`.
    pub gate: TensorInfo,
    /// Gate bias, `[feed_forward]`.
    pub gate_bias: Option<TensorInfo>,
    /// Up matrix, `[embedding, feed_forward]`.
    pub up: TensorInfo,
    /// Up bias, `[feed_forward]`.
    pub up_bias: Option<TensorInfo>,
    /// Down matrix, `[feed_forward, embedding]`.
    pub down: TensorInfo,
    /// Down bias, `[embedding]`.
    pub down_bias: Option<TensorInfo>,
    /// Norm of the feed-forward network's result, `[embedding]`.
    pub feed_forward_post_norm: Option<TensorInfo>,
}

impl LayerTensors {
    /// All tensors of the layer, in the order in which they are used.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        let optional = Option::as_ref;
        [
            Some(&self.attention_norm),
            Some(&self.query),
            optional(&self.query_bias),
            Some(&self.key),
            optional(&self.key_bias),
            Some(&self.value),
            optional(&self.value_bias),
            optional(&self.query_norm),
            optional(&self.key_norm),
            Some(&self.attention_output),
            optional(&self.attention_output_bias),
            optional(&self.attention_post_norm),
            Some(&self.feed_forward_norm),
            optional(&self.router),
            Some(&self.gate),
            optional(&self.gate_bias),
            Some(&self.up),
            optional(&self.up_bias),
            Some(&self.down),
            optional(&self.down_bias),
            optional(&self.feed_forward_post_norm),
        ]
        .into_iter()
        .flatten()
    }

    /// The seven large matrices; those of all experts, where there are experts. A router is small
    /// and none of them.
    pub fn matrices(&self) -> [&TensorInfo; 7] {
        [
            &self.query,
            &self.key,
            &self.value,
            &self.attention_output,
            &self.gate,
            &self.up,
            &self.down,
        ]
    }

    /// Bytes of all tensors of the layer, without padding between them.
    pub fn bytes(&self) -> u64 {
        self.tensors().map(|tensor| tensor.bytes).sum()
    }

    /// The feed-forward matrices of all experts, where there are experts.
    pub fn experts(&self) -> Option<[&TensorInfo; 3]> {
        self.router.as_ref().map(|_| [&self.gate, &self.up, &self.down])
    }

    /// Bytes of one expert; zero without experts.
    pub fn expert_bytes(&self) -> u64 {
        let of_one = |tensor: &TensorInfo| tensor.bytes / tensor.shape[2];
        self.experts().map_or(0, |tensors| tensors.into_iter().map(of_one).sum())
    }

    /// Bytes that every token needs: all without experts.
    pub fn dense_bytes(&self) -> u64 {
        let experts = self.experts().into_iter().flatten();
        self.bytes() - experts.map(|tensor| tensor.bytes).sum::<u64>()
    }

    /// What one token is multiplied with: every matrix, and how many of its elements, where each
    /// token uses so many experts.
    pub fn products(&self, experts_used: usize) -> impl Iterator<Item = (&TensorInfo, u64)> {
        self.router.iter().chain(self.matrices()).map(move |matrix| {
            let [columns, rows, experts, _] = matrix.shape;
            let used = if experts > 1 { experts.min(experts_used as u64) } else { 1 };
            (matrix, columns * rows * used)
        })
    }

    pub(crate) fn take(
        table: &mut TensorTable,
        hyper: &HyperParameters,
        layer: usize,
        shape: &LayerShape,
    ) -> Result<Self, DirectoryError> {
        let embedding = hyper.embedding_length as u64;
        let head = hyper.key_length as u64;
        let query_rows = shape.head_count as u64 * head;
        let attention_rows = shape.head_count as u64 * hyper.value_length as u64;
        let (key_rows, value_rows) =
            (hyper.key_row_elements(shape), hyper.value_row_elements(shape));
        let feed_forward = shape.feed_forward_length as u64;

        let name = |part: &str| format!("blk.{layer}.{part}");
        let llama = hyper.architecture == Architecture::Llama;
        let dense_llama = llama && hyper.experts.is_none();
        let mut required = |part: &str, dimensions: &[u64]| table.take(&name(part), dimensions);
        let attention_norm = required("attn_norm.weight", &[embedding])?;
        let query = required("attn_q.weight", &[embedding, query_rows])?;
        let key = required("attn_k.weight", &[embedding, key_rows])?;
        let value = required("attn_v.weight", &[embedding, value_rows])?;
        let attention_output = required("attn_output.weight", &[attention_rows, embedding])?;
        let feed_forward_norm = required("ffn_norm.weight", &[embedding])?;
        let mut network = |part: &str, [columns, rows]: [u64; 2]| match hyper.experts {
            None => required(&format!("ffn_{part}.weight"), &[columns, rows]),
            Some(experts) => {
                required(&format!("ffn_{part}_exps.weight"), &[columns, rows, experts.count as u64])
            }
        };
        let gate = network("gate", [embedding, feed_forward])?;
        let up = network("up", [embedding, feed_forward])?;
        let down = network("down", [feed_forward, embedding])?;
        let scores =
            |experts: Experts| required("ffn_gate_inp.weight", &[embedding, experts.count as u64]);
        let router = hyper.experts.map(scores).transpose()?;

        let mut required_if = |condition: bool, part: &str, dimensions: &[u64]| {
            condition.then(|| table.take(&name(part), dimensions)).transpose()
        };
        let query_norm = required_if(hyper.query_key_norm, "attn_q_norm.weight", &[head])?;
        let key_norm = required_if(hyper.query_key_norm, "attn_k_norm.weight", &[head])?;
        let attention_post_norm =
            required_if(hyper.post_norm, "post_attention_norm.weight", &[embedding])?;
        let feed_forward_post_norm =
            required_if(hyper.post_norm, "post_ffw_norm.weight", &[embedding])?;

        let mut allowed_if = |condition: bool, part: &str, dimensions: &[u64]| match condition {
            true => table.take_optional(&name(part), dimensions),
            false => Ok(None),
        };
        Ok(Self {
            attention_norm,
            query,
            query_bias: allowed_if(true, "attn_q.bias", &[query_rows])?,
            key,
            key_bias: allowed_if(true, "attn_k.bias", &[key_rows])?,
            value,
            value_bias: allowed_if(true, "attn_v.bias", &[value_rows])?,
            query_norm,
            key_norm,
            attention_output,
            attention_output_bias: allowed_if(llama, "attn_output.bias", &[embedding])?,
            attention_post_norm,
            feed_forward_norm,
            router,
            gate,
            gate_bias: allowed_if(dense_llama, "ffn_gate.bias", &[feed_forward])?,
            up,
            up_bias: allowed_if(dense_llama, "ffn_up.bias", &[feed_forward])?,
            down,
            down_bias: allowed_if(dense_llama, "ffn_down.bias", &[embedding])?,
            feed_forward_post_norm,
        })
    }
}

/// The tensors of all files of a model that no role has taken yet.
pub(crate) struct TensorTable {
    tensors: BTreeMap<String, TensorInfo>,
}

impl TensorTable {
    pub(crate) fn new(files: &[Gguf<'_>]) -> Result<Self, DirectoryError> {
        let mut tensors: BTreeMap<String, TensorInfo> = BTreeMap::new();
        for (file_index, file) in files.iter().enumerate() {
            for entry in file.tensors() {
                let tensor = TensorInfo {
                    name: entry.name.to_owned(),
                    shape: entry.shape,
                    dimensions: entry.dimensions,
                    tensor_type: entry.tensor_type,
                    file_index,
                    offset: entry.offset,
                    bytes: entry.bytes,
                };
                if let Some(first) = tensors.insert(entry.name.to_owned(), tensor) {
                    return Err(DirectoryError::DuplicateTensor {
                        name: first.name,
                        first_file: first.file_index,
                        second_file: file_index,
                    });
                }
            }
        }
        Ok(Self { tensors })
    }

    pub(crate) fn len(&self) -> usize {
        self.tensors.len()
    }

    /// The tensor `name`, which must have exactly these dimensions and a type that the engine can
    /// use: vectors are added and multiplied as `F32`, matrices have any type of weights.
    pub(crate) fn take(
        &mut self,
        name: &str,
        dimensions: &[u64],
    ) -> Result<TensorInfo, DirectoryError> {
        let missing =
            || DirectoryError::TensorMissing { name: name.to_owned(), shape: dimensions.to_vec() };
        self.take_optional(name, dimensions)?.ok_or_else(missing)
    }

    pub(crate) fn take_optional(
        &mut self,
        name: &str,
        dimensions: &[u64],
    ) -> Result<Option<TensorInfo>, DirectoryError> {
        let Some(tensor) = self.tensors.remove(name) else { return Ok(None) };
        let mut expected = [1; 4];
        expected.iter_mut().zip(dimensions).for_each(|(slot, &dimension)| *slot = dimension);
        if tensor.shape != expected {
            return Err(DirectoryError::TensorShape {
                name: tensor.name,
                expected: dimensions.to_vec(),
                actual: tensor.shape[..tensor.dimensions].to_vec(),
            });
        }
        let usable = match dimensions {
            [_] => tensor.tensor_type == TensorType::F32,
            _ => tensor.tensor_type.is_weight(),
        };
        if !usable {
            let (name, tensor_type) = (tensor.name, tensor.tensor_type);
            return Err(DirectoryError::TensorType { name, tensor_type });
        }
        Ok(Some(tensor))
    }

    /// What no role has taken means that the graph would lack a part.
    pub(crate) fn finish(self, architecture: Architecture) -> Result<(), DirectoryError> {
        let count = self.tensors.len();
        match self.tensors.into_keys().next() {
            None => Ok(()),
            Some(name) => Err(DirectoryError::TensorUnexpected { name, count, architecture }),
        }
    }
}
