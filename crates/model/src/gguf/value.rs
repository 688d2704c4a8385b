//! Metadata values, borrowed from the file.

use std::fmt;

use super::cursor::Cursor;

/// The type of a metadata value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are the format's own types")]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// The type with the format's number `id`.
    pub fn from_id(id: u32) -> Option<Self> {
        const ALL: [ValueType; 13] = [
            ValueType::U8,
            ValueType::I8,
            ValueType::U16,
            ValueType::I16,
            ValueType::U32,
            ValueType::I32,
            ValueType::F32,
            ValueType::Bool,
            ValueType::String,
            ValueType::Array,
            ValueType::U64,
            ValueType::I64,
            ValueType::F64,
        ];
        ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The format's number of this type.
    pub fn id(self) -> u32 {
        match self {
            Self::U8 => 0,
            Self::I8 => 1,
            Self::U16 => 2,
            Self::I16 => 3,
            Self::U32 => 4,
            Self::I32 => 5,
            Self::F32 => 6,
            Self::Bool => 7,
            Self::String => 8,
            Self::Array => 9,
            Self::U64 => 10,
            Self::I64 => 11,
            Self::F64 => 12,
        }
    }

    /// Bytes of a value, or nothing for strings and arrays, whose length varies.
    pub fn fixed_bytes(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A metadata value; text and arrays borrow from the file's bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "the variants are the format's own types")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a str),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The type of this value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The text, if this is a string.
    pub fn as_str(&self) -> Option<&'a str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The elements, if this is an array.
    pub fn as_array(&self) -> Option<Array<'a>> {
        match self {
            Self::Array(array) => Some(*array),
            _ => None,
        }
    }

    /// The truth value, if this is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// The number, if this is an integer of any width and fits.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::U8(number) => Some(i64::from(number)),
            Self::I8(number) => Some(i64::from(number)),
            Self::U16(number) => Some(i64::from(number)),
            Self::I16(number) => Some(i64::from(number)),
            Self::U32(number) => Some(i64::from(number)),
            Self::I32(number) => Some(i64::from(number)),
            Self::U64(number) => i64::try_from(number).ok(),
            Self::I64(number) => Some(number),
            _ => None,
        }
    }

    /// The number, if this is an integer of any width and not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U64(number) => Some(number),
            _ => self.as_i64().and_then(|number| u64::try_from(number).ok()),
        }
    }

    /// The number, if this is a floating-point number of either width.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(number) => Some(f64::from(number)),
            Self::F64(number) => Some(number),
            _ => None,
        }
    }
}

/// An array of values of one type, checked when the file was parsed and decoded while iterating.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    pub(super) element_type: ValueType,
    pub(super) count: usize,
    pub(super) bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The type of every element.
    pub fn element_type(&self) -> ValueType {
        self.element_type
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements as they are encoded in the file.
    pub fn encoded(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements, decoded one by one without allocating.
    pub fn iter(&self) -> ArrayIter<'a> {
        ArrayIter {
            element_type: self.element_type,
            left: self.count,
            cursor: Cursor::new(self.bytes),
        }
    }

    /// The texts of an array of strings, or nothing if it is another array.
    pub fn strings(&self) -> Option<impl Iterator<Item = &'a str> + Clone + use<'a>> {
        (self.element_type == ValueType::String)
            .then(|| self.iter().filter_map(|value| value.as_str()))
    }
}

impl<'a> Array<'a> {
    /// The bytes of each text of an array of strings, for those who look at many but not at their
    /// characters; nothing at all for other arrays.
    pub(crate) fn text_bytes(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let count = if self.element_type == ValueType::String { self.count } else { 0 };
        let mut cursor = Cursor::new(self.bytes);
        (0..count).map_while(move |_| cursor.counted_bytes().ok())
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;

    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Array<'_> {
    /// Names type and length only: a vocabulary would fill the screen.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "[{}; {}]", self.element_type, self.count)
    }
}

/// Iterates over the elements of an [`Array`].
#[derive(Debug, Clone)]
pub struct ArrayIter<'a> {
    element_type: ValueType,
    left: usize,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        // Parsing has decoded every element once, so this cannot fail; were it to, the iteration
        // would merely end early.
        self.cursor.scalar(self.element_type).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left))
    }
}
