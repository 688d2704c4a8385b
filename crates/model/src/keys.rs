//! The keys of one architecture in a file's metadata, read with their limits.

use std::fmt::Display;

use crate::directory::DirectoryError;
use crate::gguf::{Gguf, MetadataError, Value};
use crate::hyper::Architecture;
use crate::limits;

/// Reads `ARCHITECTURE.SUFFIX` keys.
pub(crate) struct Keys<'g> {
    pub(crate) gguf: &'g Gguf<'g>,
    pub(crate) architecture: Architecture,
}

impl<'g> Keys<'g> {
    /// The whole key.
    pub(crate) fn name(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    pub(crate) fn string(&self, suffix: &str) -> Result<Option<&'g str>, DirectoryError> {
        Ok(self.gguf.string(&self.name(suffix))?)
    }

    /// A number from 1 to `max`.
    pub(crate) fn count(&self, suffix: &str, max: u64) -> Result<Option<u64>, DirectoryError> {
        self.ranged(suffix, 1, max)
    }

    /// A number from 0 to `max`.
    pub(crate) fn count_or_zero(
        &self,
        suffix: &str,
        max: u64,
    ) -> Result<Option<u64>, DirectoryError> {
        self.ranged(suffix, 0, max)
    }

    fn ranged(&self, suffix: &str, min: u64, max: u64) -> Result<Option<u64>, DirectoryError> {
        let key = self.name(suffix);
        let Some(value) = self.gguf.unsigned(&key)? else { return Ok(None) };
        in_range(&key, value, min, max).map(Some)
    }

    /// One number per layer from 1 to `max`, written as an array or once for all.
    pub(crate) fn counts(
        &self,
        suffix: &str,
        block_count: u64,
        max: u64,
    ) -> Result<Option<Vec<u64>>, DirectoryError> {
        let key = self.name(suffix);
        let Some(Value::Array(array)) = self.gguf.value(&key) else {
            let count = self.count(suffix, max)?;
            return Ok(count.map(|count| vec![count; block_count as usize]));
        };
        self.check_length(suffix, array.len(), block_count)?;
        let number = |value: Value<'_>| {
            let number = value.as_u64().ok_or_else(|| crate::gguf::unsigned_error(&key, &value))?;
            in_range(&key, number, 1, max)
        };
        array.iter().map(number).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// A number that is neither infinite nor none.
    pub(crate) fn float(&self, suffix: &str) -> Result<Option<f32>, DirectoryError> {
        let key = self.name(suffix);
        let Some(value) = self.gguf.float(&key)? else { return Ok(None) };
        let narrow = value as f32;
        if narrow.is_finite() {
            Ok(Some(narrow))
        } else {
            Err(DirectoryError::NotFinite { key, value })
        }
    }

    /// A finite number above zero.
    pub(crate) fn positive(&self, suffix: &str) -> Result<Option<f32>, DirectoryError> {
        let value = self.float(suffix)?;
        match value {
            Some(value) if value <= 0.0 => Err(self.unsupported(suffix, value)),
            _ => Ok(value),
        }
    }

    pub(crate) fn required<T>(&self, suffix: &str, value: Option<T>) -> Result<T, DirectoryError> {
        Ok(value.ok_or_else(|| MetadataError::Missing { key: self.name(suffix) })?)
    }

    pub(crate) fn check_length(
        &self,
        suffix: &str,
        actual: usize,
        expected: u64,
    ) -> Result<(), DirectoryError> {
        if actual as u64 == expected {
            return Ok(());
        }
        Err(DirectoryError::ArrayLength { key: self.name(suffix), expected, actual })
    }

    /// The graphs of the supported architectures take one length for keys and values.
    pub(crate) fn check_head_lengths(
        &self,
        key_length: u64,
        value_length: u64,
    ) -> Result<(), DirectoryError> {
        in_range(&self.name("attention.key_length"), key_length, 1, limits::HEAD_LENGTH_MAX)?;
        if key_length != value_length {
            return Err(self.unsupported("attention.value_length", value_length));
        }
        for (suffix, full) in
            [("attention.key_length_swa", key_length), ("attention.value_length_swa", value_length)]
        {
            if let Some(sliding) = self.gguf.unsigned(&self.name(suffix))?
                && sliding != full
            {
                return Err(self.unsupported(suffix, sliding));
            }
        }
        Ok(())
    }

    pub(crate) fn unsupported(&self, suffix: &str, value: impl Display) -> DirectoryError {
        let (key, value) = (self.name(suffix), value.to_string());
        DirectoryError::Unsupported { architecture: self.architecture, key, value }
    }

    /// Refuses what changes a model's graph in a way that no field here represents: experts
    /// in groups or shared by all tokens, layers that predict several tokens, attention to later
    /// tokens, embedding models.
    pub(crate) fn refuse_unsupported(&self) -> Result<(), DirectoryError> {
        for suffix in [
            "expert_group_count",
            "expert_shared_count",
            "expert_shared_feed_forward_length",
            "nextn_predict_layers",
            "pooling_type",
            "attention.shared_kv_layers",
            "rope.dimension_count_swa",
            "dense_2_feat_out",
            "dense_3_feat_out",
        ] {
            match self.gguf.value(&self.name(suffix)) {
                None => {}
                Some(value) if value.as_u64() == Some(0) => {}
                Some(value) => return Err(self.unsupported(suffix, describe(&value))),
            }
        }
        if self.gguf.boolean(&self.name("attention.causal"))? == Some(false) {
            return Err(self.unsupported("attention.causal", false));
        }
        if let Some(embedding_out) = self.gguf.unsigned(&self.name("embedding_length_out"))?
            && Some(embedding_out) != self.gguf.unsigned(&self.name("embedding_length"))?
        {
            return Err(self.unsupported("embedding_length_out", embedding_out));
        }
        Ok(())
    }
}

fn in_range(key: &str, value: u64, min: u64, max: u64) -> Result<u64, DirectoryError> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(DirectoryError::OutOfRange { key: key.to_owned(), value, min, max })
    }
}

fn describe(value: &Value<'_>) -> String {
    match (value.as_i64(), value.as_str()) {
        (Some(number), _) => number.to_string(),
        (_, Some(text)) => text.to_owned(),
        _ => format!("a {}", value.value_type()),
    }
}
