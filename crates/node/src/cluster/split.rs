//! How layers are dealt out without a plan: by memory, evenly, or as the user says.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use motley_ring::{MemberIndex, Route, RouteError};

/// How layers are dealt out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Split {
    /// By a plan, from what devices and the ways between them have measured.
    #[default]
    Auto,
    /// In proportion to the memory that each device has left for layers.
    Memory,
    /// The same number for each device.
    Even,
    /// So many for each device, the head first, then the others by name.
    Counts(Vec<u32>),
}

/// The text is no way to deal out layers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no split: write auto, memory, even, or a number of layers per device such as 10,12,8"
)]
pub(crate) struct SplitTextError(String);

impl FromStr for Split {
    type Err = SplitTextError;

    fn from_str(text: &str) -> Result<Self, SplitTextError> {
        match text {
            "auto" => return Ok(Self::Auto),
            "memory" => return Ok(Self::Memory),
            "even" => return Ok(Self::Even),
            _ => {}
        }
        let counts: Result<Vec<u32>, _> =
            text.split(',').map(|count| count.trim().parse()).collect();
        counts.map(Self::Counts).map_err(|_| SplitTextError(text.to_owned()))
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Memory => f.write_str("memory"),
            Self::Even => f.write_str("even"),
            Self::Counts(counts) => {
                let counts: Vec<String> = counts.iter().map(u32::to_string).collect();
                f.write_str(&counts.join(","))
            }
        }
    }
}

/// What a device has for layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Memory that it gives.
    pub(crate) budget_bytes: u64,
    /// What it needs beside layers: embedding, projection, work, the program.
    pub(crate) fixed_bytes: u64,
}

impl Room {
    fn bytes(&self) -> u64 {
        self.budget_bytes.saturating_sub(self.fixed_bytes)
    }
}

/// Why layers cannot be dealt out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SplitError {
    /// All devices together are too small.
    #[error(
        "the layers need {needed_bytes} bytes, the devices together have {room_bytes} for them"
    )]
    TooLittle {
        /// Bytes of all layers with their keys and values.
        needed_bytes: u64,
        /// Bytes of all devices.
        room_bytes: u64,
    },
    /// The numbers of layers given do not fit the devices or the model.
    #[error("{given} were given for {devices} devices and {layers} layers")]
    Counts {
        /// The split.
        given: String,
        /// Devices there are.
        devices: usize,
        /// Layers there are.
        layers: usize,
    },
    /// No route can be made of it.
    #[error(transparent)]
    Route(#[from] RouteError),
}

/// Number of layers of each device, the head first; by memory where nothing can be planned.
///
/// # Errors
/// When the layers do not fit.
pub(crate) fn counts(
    split: &Split,
    layer_bytes: &[u64],
    rooms: &[Room],
) -> Result<Vec<u32>, SplitError> {
    let layers = layer_bytes.len();
    if let Split::Counts(given) = split {
        let sum: u64 = given.iter().copied().map(u64::from).sum();
        if given.len() != rooms.len() || sum != layers as u64 {
            let (given, devices) = (split.to_string(), rooms.len());
            return Err(SplitError::Counts { given, devices, layers });
        }
        return Ok(given.clone());
    }
    let needed_bytes: u64 = layer_bytes.iter().sum();
    let room_bytes: u64 = rooms.iter().map(Room::bytes).sum();
    let largest = layer_bytes.iter().copied().max().unwrap_or(0).max(1);
    // By the largest layer, so that any choice of layers fits.
    let capacity: Vec<u64> = rooms.iter().map(|room| room.bytes() / largest).collect();
    if capacity.iter().sum::<u64>() < layers as u64 {
        return Err(SplitError::TooLittle { needed_bytes, room_bytes });
    }
    let weights: Vec<u64> = match split {
        Split::Even => vec![1; rooms.len()],
        Split::Auto | Split::Memory | Split::Counts(_) => rooms.iter().map(Room::bytes).collect(),
    };
    Ok(deal(layers as u64, &weights, &capacity))
}

/// Deals `layers` out in proportion to `weights`, to nobody more than it has room for. One after
/// the other goes to whoever is furthest behind its share.
fn deal(layers: u64, weights: &[u64], capacity: &[u64]) -> Vec<u32> {
    let mut counts = vec![0_u32; weights.len()];
    for _ in 0..layers {
        let behind = |member: usize| {
            // A share of 1/weight per layer: who has the least of it is next.
            (f64::from(counts[member]) + 1.0) / (weights[member].max(1) as f64)
        };
        let next = (0..weights.len())
            .filter(|member| u64::from(counts[*member]) < capacity[*member])
            .min_by(|a, b| behind(*a).total_cmp(&behind(*b)));
        let Some(next) = next else { break };
        counts[next] += 1;
    }
    counts
}

/// The route through devices with so many layers each, the head first, in `rounds` rounds.
/// Devices without layers are left out, the head aside; `order` of the result names those that
/// stay, by their place in `counts`.
///
/// # Errors
/// When there are more windows than a route can have.
pub(crate) fn route(counts: &[u32], rounds: u32) -> Result<(Route, Vec<usize>), SplitError> {
    let order: Vec<usize> =
        (0..counts.len()).filter(|member| *member == 0 || counts[*member] > 0).collect();
    let rounds = rounds.max(1);
    let mut windows: Vec<(MemberIndex, Range<u32>)> = Vec::new();
    let mut next = 0;
    for round in 0..rounds {
        for (index, member) in (0_u16..).zip(&order) {
            let count = counts[*member];
            let share = count / rounds + u32::from(round < count % rounds);
            if share > 0 {
                windows.push((MemberIndex(index), next..next + share));
                next += share;
            }
        }
    }
    let members = u16::try_from(order.len()).unwrap_or(u16::MAX);
    Ok((Route::of_windows(members, MemberIndex(0), &windows)?, order))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(budget_bytes: u64, fixed_bytes: u64) -> Room {
        Room { budget_bytes, fixed_bytes }
    }

    #[test]
    fn layers_follow_memory_and_never_exceed_it() {
        let layers = [100; 30];
        let rooms = [room(2500, 500), room(1000, 0), room(1000, 0)];
        assert_eq!(counts(&Split::Memory, &layers, &rooms).unwrap(), [16, 7, 7]);
        let tight = [room(900, 500), room(1300, 0), room(1300, 0)];
        assert_eq!(counts(&Split::Memory, &layers, &tight).unwrap(), [4, 13, 13]);
        assert_eq!(counts(&Split::Even, &layers, &tight).unwrap(), [4, 13, 13]);
        assert_eq!(counts(&Split::Even, &layers, &rooms).unwrap(), [10, 10, 10]);
        let little = [room(900, 500), room(1300, 0)];
        assert_eq!(
            counts(&Split::Memory, &layers, &little),
            Err(SplitError::TooLittle { needed_bytes: 3000, room_bytes: 1700 })
        );
    }

    #[test]
    fn given_numbers_must_cover_the_model() {
        let rooms = [room(0, 0); 2];
        assert_eq!(counts(&Split::Counts(vec![1, 2]), &[9; 3], &rooms).unwrap(), [1, 2]);
        assert!(counts(&Split::Counts(vec![1, 1]), &[9; 3], &rooms).is_err());
        assert!(counts(&Split::Counts(vec![3]), &[9; 3], &rooms).is_err());
        assert_eq!("3,4".parse(), Ok(Split::Counts(vec![3, 4])));
        assert!("3,x".parse::<Split>().is_err());
    }

    #[test]
    fn routes_take_rounds_and_leave_idle_devices_out() {
        let (made, order) = route(&[3, 0, 4], 2).unwrap();
        assert_eq!(order, [0, 2]);
        let stops: Vec<_> =
            made.stops().iter().map(|stop| (stop.member.0, stop.layers.clone())).collect();
        assert_eq!(stops, [(0, 0..2), (1, 2..4), (0, 4..5), (1, 5..7), (0, 7..7)]);
        let (alone, order) = route(&[5, 0], 1).unwrap();
        assert_eq!((alone, order), (Route::solo(5), vec![0]));
        let (no_layers, _) = route(&[0, 5], 1).unwrap();
        assert_eq!(no_layers.stops().len(), 3, "a head without layers embeds and projects");
    }
}
