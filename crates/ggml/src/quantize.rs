//! Conversion between 32-bit floats and the packed row formats.

use std::ffi::c_void;

use llama_cpp_sys_2 as sys;

use crate::element::ElementType;

/// Why rows could not be converted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum QuantizeError {
    /// The row length is zero or no whole number of blocks.
    #[error(
        "rows of {row_elements} elements cannot be stored as {element}, whose blocks have {block_elements}"
    )]
    RowLength {
        /// Target or source type.
        element: ElementType,
        /// Elements in a row as asked for.
        row_elements: usize,
        /// Elements in a block of the type.
        block_elements: usize,
    },
    /// The data is no whole number of rows.
    #[error("{length} values or bytes are no whole number of rows of {row}")]
    PartialRow {
        /// Length given, in values when quantising and in bytes when dequantising.
        length: usize,
        /// Length of one row in the same unit.
        row: usize,
    },
    /// ggml cannot convert to or from this type without further data.
    #[error("type {element} has no conversion here")]
    Unsupported {
        /// The type asked for.
        element: ElementType,
    },
}

/// Packs whole rows of `row_elements` values as `element` and appends the bytes to `packed`.
///
/// # Errors
/// When the row length does not fit the type, `values` is no whole number of rows, or the type
/// needs an importance matrix.
pub fn quantize_rows(
    element: ElementType,
    values: &[f32],
    row_elements: usize,
    packed: &mut Vec<u8>,
) -> Result<(), QuantizeError> {
    let row_bytes = checked_row(element, row_elements)?;
    if !values.len().is_multiple_of(row_elements) {
        return Err(QuantizeError::PartialRow { length: values.len(), row: row_elements });
    }
    // SAFETY: the type is valid.
    if unsafe { sys::ggml_quantize_requires_imatrix(element.raw()) } {
        return Err(QuantizeError::Unsupported { element });
    }
    if !element.is_quantized()
        && element != ElementType::F32
        && element != ElementType::F16
        && element.id() != sys::GGML_TYPE_BF16
    {
        return Err(QuantizeError::Unsupported { element });
    }
    let rows = values.len() / row_elements;
    let start = packed.len();
    packed.resize(start + rows * row_bytes, 0);
    // SAFETY: `values` holds `rows` rows, the destination has `rows * row_bytes` writable bytes,
    // and the type needs no importance matrix.
    let written = unsafe {
        sys::ggml_quantize_chunk(
            element.raw(),
            values.as_ptr(),
            packed[start..].as_mut_ptr().cast::<c_void>(),
            0,
            as_i64(rows),
            as_i64(row_elements),
            std::ptr::null(),
        )
    };
    assert_eq!(written, rows * row_bytes, "ggml wrote another length than the type's row size");
    Ok(())
}

/// Unpacks whole rows of `row_elements` elements from `packed` and appends them to `values`.
///
/// # Errors
/// When the row length does not fit the type, `packed` is no whole number of rows, or the type
/// holds no floats.
pub fn dequantize_rows(
    element: ElementType,
    packed: &[u8],
    row_elements: usize,
    values: &mut Vec<f32>,
) -> Result<(), QuantizeError> {
    let row_bytes = checked_row(element, row_elements)?;
    if !packed.len().is_multiple_of(row_bytes) {
        return Err(QuantizeError::PartialRow { length: packed.len(), row: row_bytes });
    }
    if element == ElementType::F32 {
        let (chunks, _) = packed.as_chunks::<4>();
        values.extend(chunks.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        return Ok(());
    }
    let Some(convert) = element.traits().to_float else {
        return Err(QuantizeError::Unsupported { element });
    };
    let count = packed.len() / row_bytes * row_elements;
    let start = values.len();
    values.resize(start + count, 0.0);
    // ggml reads blocks through aligned pointers of up to four bytes.
    let aligned = aligned_copy(packed);
    // SAFETY: the source holds `count` packed elements and the destination has room for `count`.
    unsafe {
        convert(aligned.as_ptr().cast::<c_void>(), values[start..].as_mut_ptr(), as_i64(count));
    }
    Ok(())
}

fn checked_row(element: ElementType, row_elements: usize) -> Result<usize, QuantizeError> {
    element.row_bytes(row_elements).filter(|_| row_elements > 0).ok_or(QuantizeError::RowLength {
        element,
        row_elements,
        block_elements: element.block_elements(),
    })
}

fn aligned_copy(bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks(8)
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            // The bytes are only moved; no number is read from them.
            #[expect(clippy::host_endian_bytes, reason = "a plain copy into aligned memory")]
            u64::from_ne_bytes(word)
        })
        .collect()
}

fn as_i64(value: usize) -> i64 {
    i64::try_from(value).expect("lengths in memory fit 63 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_packing_within_the_type_s_precision() {
        let values: Vec<f32> = (0..512_i16).map(|i| (f32::from(i) * 0.37).sin()).collect();
        for (id, tolerance) in [(0, 0.0), (1, 1e-3), (8, 0.01), (2, 0.16), (12, 0.1), (14, 0.04)] {
            let element = ElementType::from_id(id).unwrap();
            let (mut packed, mut back) = (Vec::new(), Vec::new());
            quantize_rows(element, &values, 256, &mut packed).unwrap();
            assert_eq!(packed.len(), 2 * element.row_bytes(256).unwrap());
            dequantize_rows(element, &packed, 256, &mut back).unwrap();
            for (value, restored) in values.iter().zip(&back) {
                assert!((value - restored).abs() <= tolerance, "{element}: {value} {restored}");
            }
        }
    }

    #[test]
    fn misfits_are_errors() {
        let q4_k = ElementType::from_id(12).unwrap();
        let mut packed = Vec::new();
        assert!(matches!(
            quantize_rows(q4_k, &[0.0; 100], 100, &mut packed),
            Err(QuantizeError::RowLength { row_elements: 100, block_elements: 256, .. })
        ));
        assert_eq!(
            quantize_rows(ElementType::F32, &[0.0; 3], 2, &mut packed),
            Err(QuantizeError::PartialRow { length: 3, row: 2 })
        );
        let element = ElementType::from_id(16).unwrap();
        assert_eq!(
            quantize_rows(element, &[0.0; 256], 256, &mut packed),
            Err(QuantizeError::Unsupported { element })
        );
        assert!(packed.is_empty());
    }
}
