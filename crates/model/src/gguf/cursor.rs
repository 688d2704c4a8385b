//! A position in bytes that never runs past their end.

use super::value::{Value, ValueType};

/// Bytes not yet read, and where in the file they begin.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    offset: u64,
}

/// Fewer bytes than something takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Short {
    pub(super) offset: u64,
    pub(super) needed: u64,
    pub(super) left: u64,
}

/// Why a value cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Undecodable {
    Short(Short),
    NotUtf8 { offset: u64 },
    NotBool { value: u8, offset: u64 },
    Array { offset: u64 },
}

impl From<Short> for Undecodable {
    fn from(short: Short) -> Self {
        Self::Short(short)
    }
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, offset: 0 }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes from here to the end.
    pub(super) fn left(&self) -> u64 {
        length(self.rest)
    }

    /// The next `count` bytes. A count read from a file may be passed as it is: it is compared
    /// with what is left.
    pub(super) fn take(&mut self, count: u64) -> Result<&'a [u8], Short> {
        let short = Short { offset: self.offset, needed: count, left: self.left() };
        let split = usize::try_from(count).ok().and_then(|count| self.rest.split_at_checked(count));
        let (taken, rest) = split.ok_or(short)?;
        self.offset = self.offset.checked_add(count).ok_or(short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let short = Short {
            offset: self.offset,
            needed: u64::try_from(N).unwrap_or(u64::MAX),
            left: self.left(),
        };
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(short)?;
        self.offset = self.offset.checked_add(short.needed).ok_or(short)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn magic(&mut self) -> Result<[u8; 4], Short> {
        self.array()
    }

    pub(super) fn u32(&mut self) -> Result<u32, Short> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Short> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A length of 64 bits and that many bytes.
    pub(super) fn counted_bytes(&mut self) -> Result<&'a [u8], Short> {
        let length = self.u64()?;
        self.take(length)
    }

    /// One value of a type that is no array.
    pub(super) fn scalar(&mut self, value_type: ValueType) -> Result<Value<'a>, Undecodable> {
        let offset = self.offset;
        Ok(match value_type {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.array()?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array()?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array()?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(self.array()?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.array()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array()?)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(self.array()?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array()?)),
            ValueType::Bool => match self.array()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [value] => return Err(Undecodable::NotBool { value, offset }),
            },
            ValueType::String => {
                let bytes = self.counted_bytes()?;
                let text =
                    std::str::from_utf8(bytes).map_err(|_| Undecodable::NotUtf8 { offset })?;
                Value::String(text)
            }
            ValueType::Array => return Err(Undecodable::Array { offset }),
        })
    }
}

/// The length of a slice as the format counts; no target has a `usize` above 64 bits.
pub(super) fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
