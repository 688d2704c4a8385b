//! Quantities and ids as types, so that GiB, GB, seconds and milliseconds cannot be mixed.
//!
//! Inside the project a quantity is always in its base unit; conversion happens where a figure enters.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul};

use serde::{Deserialize, Serialize};

/// A number that cannot be the quantity it was offered as.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{value} {unit} is not allowed: it must be finite and {bound}")]
pub struct UnitError {
    /// The number offered.
    pub value: f64,
    /// Name of the unit.
    pub unit: &'static str,
    /// The bound it violates, in words.
    pub bound: &'static str,
}

macro_rules! real_unit {
    ($(#[$doc:meta])* $name:ident, $unit:literal, $bound:literal, $accept:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl $name {
            /// Accepts a finite number in the unit's range.
            ///
            /// # Errors
            /// The number is not finite or out of range.
            pub fn new(value: f64) -> Result<Self, UnitError> {
                let accept: fn(f64) -> bool = $accept;
                if value.is_finite() && accept(value) {
                    // Adding zero turns -0.0 into 0.0, so that equal values have equal bits.
                    return Ok(Self(value + 0.0));
                }
                Err(UnitError { value, unit: $unit, bound: $bound })
            }

            /// The number in the base unit.
            #[must_use]
            pub const fn value(self) -> f64 {
                self.0
            }
        }

        impl Eq for $name {}

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.0.total_cmp(&other.0)
            }
        }

        impl TryFrom<f64> for $name {
            type Error = UnitError;
            fn try_from(value: f64) -> Result<Self, UnitError> {
                Self::new(value)
            }
        }

        impl From<$name> for f64 {
            fn from(quantity: $name) -> Self {
                quantity.0
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} {}", self.0, $unit)
            }
        }
    };
}

macro_rules! amount_unit {
    ($(#[$doc:meta])* $name:ident, $unit:literal) => {
        real_unit!($(#[$doc])* $name, $unit, "at least 0", |value| value >= 0.0);

        impl $name {
            /// Nothing of it.
            pub const ZERO: Self = Self(0.0);

            /// What is left after taking `other` away, never less than nothing.
            #[must_use]
            pub fn saturating_sub(self, other: Self) -> Self {
                Self((self.0 - other.0).max(0.0))
            }

            /// `count` times this amount.
            ///
            /// # Panics
            /// `count` is negative or not finite, which is a bug of the caller.
            #[must_use]
            pub fn times(self, count: f64) -> Self {
                assert!(count.is_finite() && count >= 0.0, "amounts scale by counts, not by {count}");
                Self(self.0 * count)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::ZERO
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }
    };
}

amount_unit!(
    /// A duration, in seconds.
    Seconds, "s"
);
amount_unit!(
    /// Work, in floating-point operations.
    Flops, "FLOP"
);
amount_unit!(
    /// Energy.
    Joules, "J"
);
real_unit!(
    /// Power.
    Watts, "W", "at least 0", |value| value >= 0.0
);
real_unit!(
    /// A transfer or read rate; always above zero, so that dividing by it gives a time.
    BytesPerSecond, "B/s", "above 0", |value| value > 0.0
);
real_unit!(
    /// A compute rate; always above zero.
    FlopsPerSecond, "FLOP/s", "above 0", |value| value > 0.0
);
real_unit!(
    /// A token rate; zero where nothing is served.
    TokensPerSecond, "tok/s", "at least 0", |value| value >= 0.0
);

impl Seconds {
    /// From milliseconds.
    ///
    /// # Errors
    /// As [`Seconds::new`].
    pub fn from_ms(value_ms: f64) -> Result<Self, UnitError> {
        Self::new(value_ms / 1e3)
    }

    /// In milliseconds.
    #[must_use]
    pub fn as_ms(self) -> f64 {
        self.0 * 1e3
    }
}

/// A number of bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// This many bytes.
    #[must_use]
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// Rounds a real number of bytes to the nearest whole one.
    ///
    /// # Errors
    /// The number is negative, not finite or above 2^63.
    pub fn from_real(value: f64) -> Result<Self, UnitError> {
        if value.is_finite() && (0.0..=9.2e18).contains(&value) {
            return Ok(Self(value.round() as u64));
        }
        Err(UnitError { value, unit: "B", bound: "between 0 and 2^63" })
    }

    /// From powers of two: 1 GiB is 2^30 bytes.
    ///
    /// # Errors
    /// As [`Bytes::from_real`].
    pub fn from_gib(value: f64) -> Result<Self, UnitError> {
        Self::from_real(value * f64::from(1u32 << 30))
    }

    /// From powers of ten: 1 GB is 1e9 bytes.
    ///
    /// # Errors
    /// As [`Bytes::from_real`].
    pub fn from_gb(value: f64) -> Result<Self, UnitError> {
        Self::from_real(value * 1e9)
    }

    /// The count.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.0
    }

    /// The count as a real number, for cost formulas.
    #[must_use]
    pub const fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// In units of 2^30 bytes.
    #[must_use]
    pub fn as_gib(self) -> f64 {
        self.as_f64() / f64::from(1u32 << 30)
    }

    /// What is left after taking `other` away, never less than nothing.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `count` times as many, at most 2^64 - 1.
    #[must_use]
    pub const fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0)
    }
}

impl Div<BytesPerSecond> for Bytes {
    type Output = Seconds;
    fn div(self, rate: BytesPerSecond) -> Seconds {
        Seconds(self.as_f64() / rate.0)
    }
}

impl Div<FlopsPerSecond> for Flops {
    type Output = Seconds;
    fn div(self, rate: FlopsPerSecond) -> Seconds {
        Seconds(self.0 / rate.0)
    }
}

impl Mul<Seconds> for Watts {
    type Output = Joules;
    fn mul(self, time: Seconds) -> Joules {
        Joules(self.0 * time.0)
    }
}

macro_rules! index_type {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name($inner);

        impl $name {
            /// The element at this position.
            #[must_use]
            pub const fn new(index: $inner) -> Self {
                Self(index)
            }

            /// The position, for indexing.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

index_type!(
    /// Position of a device in its cluster's list.
    DeviceId, u16
);
index_type!(
    /// Position of a layer in the model, from 0.
    LayerIndex, u32
);
index_type!(
    /// Position of a replica in its plan.
    ReplicaId, u16
);
