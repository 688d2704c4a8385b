//! Mixtures of tensor types: which type llama.cpp's quantiser gives each matrix of a model.

use std::fmt;
use std::str::FromStr;

use motley_model::TensorType;

/// A mixture of tensor types under llama.cpp's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, non_camel_case_types, reason = "the variants are llama.cpp's own names")]
pub enum FileType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K_S,
    Q4_K_M,
    Q5_K_S,
    Q5_K_M,
    Q6_K,
    /// Experts in MXFP4, the rest in Q8_0.
    MXFP4_MOE,
}

impl FileType {
    /// Every mixture that can be made.
    pub const ALL: &'static [Self] = &[
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K_S,
        Self::Q4_K_M,
        Self::Q5_K_S,
        Self::Q5_K_M,
        Self::Q6_K,
        Self::MXFP4_MOE,
    ];

    /// The name that quantisation tools print.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// llama.cpp's number, as `general.file_type` has it.
    pub fn id(self) -> u32 {
        self.row().1
    }

    /// The type of matrices for which the mixture makes no exception.
    fn base(self) -> TensorType {
        self.row().2
    }

    fn row(self) -> (&'static str, u32, TensorType) {
        match self {
            Self::F32 => ("F32", 0, TensorType::F32),
            Self::F16 => ("F16", 1, TensorType::F16),
            Self::BF16 => ("BF16", 32, TensorType::BF16),
            Self::Q4_0 => ("Q4_0", 2, TensorType::Q4_0),
            Self::Q4_1 => ("Q4_1", 3, TensorType::Q4_1),
            Self::Q5_0 => ("Q5_0", 8, TensorType::Q5_0),
            Self::Q5_1 => ("Q5_1", 9, TensorType::Q5_1),
            Self::Q8_0 => ("Q8_0", 7, TensorType::Q8_0),
            Self::Q4_K_S => ("Q4_K_S", 14, TensorType::Q4_K),
            Self::Q4_K_M => ("Q4_K_M", 15, TensorType::Q4_K),
            Self::Q5_K_S => ("Q5_K_S", 16, TensorType::Q5_K),
            Self::Q5_K_M => ("Q5_K_M", 17, TensorType::Q5_K),
            Self::Q6_K => ("Q6_K", 18, TensorType::Q6_K),
            Self::MXFP4_MOE => ("MXFP4_MOE", 38, TensorType::Q8_0),
        }
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A name that is no mixture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{}' is no type that can be made (known are {})", name.escape_debug(), known_names())]
pub struct UnknownFileType {
    name: String,
}

impl FromStr for FileType {
    type Err = UnknownFileType;

    fn from_str(name: &str) -> Result<Self, UnknownFileType> {
        Self::ALL
            .iter()
            .copied()
            .find(|known| known.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownFileType { name: name.to_owned() })
    }
}

fn known_names() -> String {
    let names: Vec<&str> = FileType::ALL.iter().map(|known| known.name()).collect();
    names.join(", ")
}

/// What a matrix is for, as far as the mixtures care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MatrixRole {
    Embedding,
    Output,
    /// Value matrix of a block.
    Value {
        block: usize,
    },
    /// Down matrix of a block's feed-forward network.
    Down {
        block: usize,
    },
    /// Scores of experts, too few to be worth packing.
    Router,
    /// Gate and up matrices of all experts of a block.
    Expert,
    /// Down matrices of all experts of a block.
    ExpertDown {
        block: usize,
    },
    Other,
}

/// What the mixtures know of a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct MixtureContext {
    pub(super) file_type: FileType,
    pub(super) blocks: usize,
    pub(super) tied_embeddings: bool,
    /// Whether the value matrices are so few that one more bit costs little: llama.cpp's rule for
    /// its size class 70B.
    pub(super) small_values: bool,
}

impl MixtureContext {
    /// The type of a matrix whose rows have `row_elements` elements.
    pub(super) fn tensor_type(&self, role: MatrixRole, row_elements: u64) -> TensorType {
        let base = self.file_type.base();
        if role == MatrixRole::Router {
            return TensorType::F32;
        }
        if !base.is_quantised() {
            return base;
        }
        let wanted = match role {
            MatrixRole::Output => self.output_type(row_elements),
            MatrixRole::Embedding if self.tied_embeddings => self.output_type(row_elements),
            MatrixRole::Value { block } => self.value_type(block),
            MatrixRole::Expert | MatrixRole::ExpertDown { .. }
                if self.file_type == FileType::MXFP4_MOE =>
            {
                TensorType::MXFP4
            }
            MatrixRole::Down { block } | MatrixRole::ExpertDown { block } => self.down_type(block),
            MatrixRole::Embedding | MatrixRole::Router | MatrixRole::Expert | MatrixRole::Other => {
                base
            }
        };
        fitting(wanted, row_elements)
    }

    fn output_type(&self, row_elements: u64) -> TensorType {
        let base = self.file_type.base();
        if base == TensorType::Q8_0 || !row_elements.is_multiple_of(base.block_elements()) {
            TensorType::Q8_0
        } else {
            TensorType::Q6_K
        }
    }

    fn value_type(&self, block: usize) -> TensorType {
        match self.file_type {
            FileType::Q4_K_M | FileType::Q5_K_M if self.more_bits(block) => TensorType::Q6_K,
            FileType::Q4_K_S if block < 4 => TensorType::Q5_K,
            FileType::Q4_K_M | FileType::Q4_K_S if self.small_values => TensorType::Q5_K,
            other => other.base(),
        }
    }

    fn down_type(&self, block: usize) -> TensorType {
        match self.file_type {
            FileType::Q4_K_M | FileType::Q5_K_M if self.more_bits(block) => TensorType::Q6_K,
            FileType::Q4_K_S if block < self.blocks / 8 => TensorType::Q5_K,
            other => other.base(),
        }
    }

    /// The first and the last eighth of the blocks, and every third between.
    fn more_bits(&self, block: usize) -> bool {
        let first_eighth = self.blocks / 8;
        block < first_eighth || block >= 7 * self.blocks / 8 || (block - first_eighth) % 3 == 2
    }
}

/// The type itself, or the nearest one with smaller blocks where rows are no multiple of its own.
fn fitting(wanted: TensorType, row_elements: u64) -> TensorType {
    let fits = |candidate: TensorType| row_elements.is_multiple_of(candidate.block_elements());
    if fits(wanted) {
        return wanted;
    }
    let smaller = match wanted {
        TensorType::Q4_K => TensorType::Q5_0,
        TensorType::Q5_K => TensorType::Q5_1,
        TensorType::Q6_K => TensorType::Q8_0,
        other => other,
    };
    if fits(smaller) { smaller } else { TensorType::F16 }
}
