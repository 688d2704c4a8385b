//! The element types of tensors: how many elements share a block and how many bytes it takes.

use std::fmt;
use std::str::FromStr;

/// One element type of ggml, as a tensor in a file may have it.
///
/// Ids and block layouts are those of ggml's type table; types whose support ggml has removed
/// (4, 5, 31 to 33, 36 to 38) have no variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, non_camel_case_types, reason = "the variants are ggml's own type names")]
pub enum TensorType {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ2_XXS,
    IQ2_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ2_S,
    IQ4_XS,
    I8,
    I16,
    I32,
    I64,
    F64,
    IQ1_M,
    BF16,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
}

impl TensorType {
    /// Every type, in the order of their ids.
    pub const ALL: &'static [Self] = &[
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q8_1,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::Q8_K,
        Self::IQ2_XXS,
        Self::IQ2_XS,
        Self::IQ3_XXS,
        Self::IQ1_S,
        Self::IQ4_NL,
        Self::IQ3_S,
        Self::IQ2_S,
        Self::IQ4_XS,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F64,
        Self::IQ1_M,
        Self::BF16,
        Self::TQ1_0,
        Self::TQ2_0,
        Self::MXFP4,
        Self::NVFP4,
        Self::Q1_0,
        Self::Q2_0,
    ];

    /// The type with ggml's number `id`, or nothing where ggml knows none or has removed it.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|candidate| candidate.id() == id)
    }

    /// ggml's number of this type, as written in files.
    pub fn id(self) -> u32 {
        self.row().0
    }

    /// The name in capitals as quantisation tools print it, for example `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Elements that share one block; a row must hold a whole number of blocks.
    pub fn block_elements(self) -> u64 {
        self.row().2
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> u64 {
        self.row().3
    }

    /// Bytes of a row of `elements`, or nothing where they are no whole number of blocks or the
    /// product does not fit.
    pub fn row_bytes(self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block_elements()) {
            return None;
        }
        elements.checked_div(self.block_elements())?.checked_mul(self.block_bytes())
    }

    /// Whether ggml can multiply a weight matrix of this type with activations.
    ///
    /// The integers, `F64` and the two formats that ggml uses only for activations cannot.
    pub fn is_weight(self) -> bool {
        !matches!(
            self,
            Self::I8 | Self::I16 | Self::I32 | Self::I64 | Self::F64 | Self::Q8_1 | Self::Q8_K
        )
    }

    /// Whether elements share a scale, so that converting to the type loses precision by blocks.
    pub fn is_quantised(self) -> bool {
        self.block_elements() > 1
    }

    /// Id, name, elements per block and bytes per block. Block sizes follow from the fields of
    /// ggml's block structures: scales (2 bytes for a half), then packed bits.
    fn row(self) -> (u32, &'static str, u64, u64) {
        match self {
            Self::F32 => (0, "F32", 1, 4),
            Self::F16 => (1, "F16", 1, 2),
            Self::Q4_0 => (2, "Q4_0", 32, 18),
            Self::Q4_1 => (3, "Q4_1", 32, 20),
            Self::Q5_0 => (6, "Q5_0", 32, 22),
            Self::Q5_1 => (7, "Q5_1", 32, 24),
            Self::Q8_0 => (8, "Q8_0", 32, 34),
            Self::Q8_1 => (9, "Q8_1", 32, 36),
            Self::Q2_K => (10, "Q2_K", 256, 84),
            Self::Q3_K => (11, "Q3_K", 256, 110),
            Self::Q4_K => (12, "Q4_K", 256, 144),
            Self::Q5_K => (13, "Q5_K", 256, 176),
            Self::Q6_K => (14, "Q6_K", 256, 210),
            Self::Q8_K => (15, "Q8_K", 256, 292),
            Self::IQ2_XXS => (16, "IQ2_XXS", 256, 66),
            Self::IQ2_XS => (17, "IQ2_XS", 256, 74),
            Self::IQ3_XXS => (18, "IQ3_XXS", 256, 98),
            Self::IQ1_S => (19, "IQ1_S", 256, 50),
            Self::IQ4_NL => (20, "IQ4_NL", 32, 18),
            Self::IQ3_S => (21, "IQ3_S", 256, 110),
            Self::IQ2_S => (22, "IQ2_S", 256, 82),
            Self::IQ4_XS => (23, "IQ4_XS", 256, 136),
            Self::I8 => (24, "I8", 1, 1),
            Self::I16 => (25, "I16", 1, 2),
            Self::I32 => (26, "I32", 1, 4),
            Self::I64 => (27, "I64", 1, 8),
            Self::F64 => (28, "F64", 1, 8),
            Self::IQ1_M => (29, "IQ1_M", 256, 56),
            Self::BF16 => (30, "BF16", 1, 2),
            Self::TQ1_0 => (34, "TQ1_0", 256, 54),
            Self::TQ2_0 => (35, "TQ2_0", 256, 66),
            Self::MXFP4 => (39, "MXFP4", 32, 17),
            Self::NVFP4 => (40, "NVFP4", 64, 36),
            Self::Q1_0 => (41, "Q1_0", 128, 18),
            Self::Q2_0 => (42, "Q2_0", 64, 18),
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A name that is none of ggml's tensor types.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no tensor type is called '{name}' (known are {})", known_names())]
pub struct UnknownTensorType {
    /// The name as given.
    pub name: String,
}

impl FromStr for TensorType {
    type Err = UnknownTensorType;

    /// Reads a name such as `Q4_K`, in capitals or not.
    fn from_str(name: &str) -> Result<Self, UnknownTensorType> {
        Self::ALL
            .iter()
            .copied()
            .find(|candidate| candidate.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownTensorType { name: name.to_owned() })
    }
}

fn known_names() -> String {
    let names: Vec<&str> = TensorType::ALL.iter().map(|known| known.name()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_lead_back_to_their_type() {
        for &known in TensorType::ALL {
            assert_eq!(TensorType::from_id(known.id()), Some(known));
            assert_eq!(known.name().parse(), Ok(known));
            assert_eq!(known.name().to_lowercase().parse(), Ok(known));
        }
        for removed in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
            assert_eq!(TensorType::from_id(removed), None);
        }
        assert!("Q4_K_M".parse::<TensorType>().is_err(), "that is a mix of types, not a type");
    }

    #[test]
    fn a_row_is_a_whole_number_of_blocks() {
        assert_eq!(TensorType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(TensorType::Q4_K.row_bytes(500), None);
        assert_eq!(TensorType::F64.row_bytes(u64::MAX), None);
        assert_eq!(TensorType::F32.row_bytes(0), Some(0));
    }
}
