//! Activations as they travel: 32-bit floats as they are, or packed by ggml.

use motley_ggml::{ElementType, QuantizeError, dequantize_rows, quantize_rows};
use motley_ring::WireElement;

/// How rows of activations are written on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationFormat {
    pub(crate) element: WireElement,
    /// Values of a row.
    pub(crate) width: usize,
}

impl ActivationFormat {
    /// The bytes of `values`; packed ones are written to `packed`, which is overwritten.
    ///
    /// # Errors
    /// When the values are no whole rows, or rows no whole blocks.
    pub(crate) fn bytes<'v>(
        &self,
        values: &'v [f32],
        packed: &'v mut Vec<u8>,
    ) -> Result<&'v [u8], QuantizeError> {
        let Some(element) = self.packed_element() else { return Ok(bytemuck::cast_slice(values)) };
        packed.clear();
        quantize_rows(element, values, self.width, packed)?;
        Ok(packed)
    }

    /// Reads `byte_count` bytes by `read` and makes values of them.
    ///
    /// # Errors
    /// What `read` says, or bytes that are no whole rows.
    pub(crate) fn read<E: From<QuantizeError>>(
        &self,
        byte_count: usize,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Vec<f32>, E> {
        let Some(element) = self.packed_element() else {
            if !byte_count.is_multiple_of(size_of::<f32>()) {
                let (length, row) = (byte_count, self.width * size_of::<f32>());
                return Err(QuantizeError::PartialRow { length, row }.into());
            }
            let mut values = vec![0.0_f32; byte_count / size_of::<f32>()];
            read(bytemuck::cast_slice_mut(&mut values))?;
            return Ok(values);
        };
        let mut packed = vec![0; byte_count];
        read(&mut packed)?;
        let mut values = Vec::new();
        dequantize_rows(element, &packed, self.width, &mut values)?;
        Ok(values)
    }

    /// The type that values are packed as; nothing where they travel as they are.
    fn packed_element(&self) -> Option<ElementType> {
        match self.element {
            WireElement::F32 => None,
            WireElement::F16 => Some(ElementType::F16),
            WireElement::Q8_0 => Some(ElementType::Q8_0),
        }
    }
}

#[cfg(target_endian = "big")]
compile_error!("activations travel little-endian, as ggml's own kernels have them");

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(element: WireElement) -> (usize, f32) {
        let values: Vec<f32> = (0..128_u16).map(|i| f32::from(i) / 64.0 - 1.0).collect();
        let format = ActivationFormat { element, width: 64 };
        let mut packed = Vec::new();
        let bytes = format.bytes(&values, &mut packed).unwrap().to_vec();
        let back = format
            .read::<QuantizeError>(bytes.len(), |target| {
                target.copy_from_slice(&bytes);
                Ok(())
            })
            .unwrap();
        let errors = values.iter().zip(&back).map(|(a, b)| (a - b).abs());
        (bytes.len(), errors.fold(0.0, f32::max))
    }

    #[test]
    fn values_survive_as_exactly_as_their_format_says() {
        assert_eq!(there_and_back(WireElement::F32), (512, 0.0));
        let (bytes, error) = there_and_back(WireElement::F16);
        assert!(bytes == 256 && error < 0.001, "{bytes} bytes, error {error}");
        let (bytes, error) = there_and_back(WireElement::Q8_0);
        assert!(bytes == 136 && error < 0.01, "{bytes} bytes, error {error}");
    }
}
