//! Element types of ggml tensors.

use std::ffi::CStr;
use std::fmt;

use llama_cpp_sys_2 as sys;

/// A tensor element type that this build of ggml knows.
///
/// Quantised types store rows in blocks of [`block_elements`](Self::block_elements) elements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElementType(sys::ggml_type);

impl ElementType {
    /// 32-bit floating point.
    pub const F32: Self = Self(sys::GGML_TYPE_F32);
    /// 16-bit floating point.
    pub const F16: Self = Self(sys::GGML_TYPE_F16);
    /// 4-bit blocks of 32 with a scale and a minimum.
    pub const Q4_1: Self = Self(sys::GGML_TYPE_Q4_1);
    /// 8-bit blocks of 32 with one scale.
    pub const Q8_0: Self = Self(sys::GGML_TYPE_Q8_0);
    /// 32-bit integer.
    pub const I32: Self = Self(sys::GGML_TYPE_I32);
    /// 64-bit integer.
    pub const I64: Self = Self(sys::GGML_TYPE_I64);

    /// The type with ggml's number `id`, or `None` when this build has no such type.
    pub fn from_id(id: u32) -> Option<Self> {
        if id >= sys::GGML_TYPE_COUNT {
            return None;
        }
        let candidate = Self(id);
        let traits = candidate.traits();
        (traits.blck_size > 0 && traits.type_size > 0 && !traits.type_name.is_null())
            .then_some(candidate)
    }

    /// ggml's number of the type, as stored in model files.
    pub fn id(self) -> u32 {
        self.0
    }

    /// ggml's lower-case name, such as `q4_K`.
    pub fn name(self) -> &'static str {
        // SAFETY: type names are static NUL-terminated strings; `from_id` excludes null names.
        unsafe { CStr::from_ptr(self.traits().type_name) }.to_str().unwrap_or("unnamed")
    }

    /// Elements in one block; 1 for types that are not quantised.
    pub fn block_elements(self) -> usize {
        usize::try_from(self.traits().blck_size).expect("block sizes are small and positive")
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        self.traits().type_size
    }

    /// Bytes of a row of `elements`, or `None` when it is no whole number of blocks or overflows.
    pub fn row_bytes(self, elements: usize) -> Option<usize> {
        let block = self.block_elements();
        if !elements.is_multiple_of(block) {
            return None;
        }
        (elements / block).checked_mul(self.block_bytes())
    }

    /// Whether the type packs several elements into a block with shared scales.
    pub fn is_quantized(self) -> bool {
        self.traits().is_quantized
    }

    pub(crate) fn raw(self) -> sys::ggml_type {
        self.0
    }

    pub(crate) fn traits(self) -> &'static sys::ggml_type_traits {
        // SAFETY: the index is below GGML_TYPE_COUNT, so ggml returns an entry of its static table.
        unsafe { &*sys::ggml_get_type_traits(self.0) }
    }
}

impl fmt::Debug for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_types_have_the_sizes_of_the_format() {
        let q4_k = ElementType::from_id(12).unwrap();
        assert_eq!((q4_k.name(), q4_k.block_elements(), q4_k.block_bytes()), ("q4_K", 256, 144));
        assert_eq!(q4_k.row_bytes(512), Some(288));
        assert_eq!(q4_k.row_bytes(100), None);
        assert_eq!(ElementType::F16.row_bytes(3), Some(6));
    }

    #[test]
    fn removed_and_unknown_types_are_refused() {
        for id in [4, 5, 31, 36, sys::GGML_TYPE_COUNT, u32::MAX] {
            assert_eq!(ElementType::from_id(id), None, "type {id}");
        }
    }
}
