//! How layers beyond memory flow through a buffer that is read into without pause.

/// What is to stream on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamDemand {
    /// CPU layers of the device.
    pub layers: u32,
    /// Layers that its RAM holds, the buffer's among them.
    pub capacity: u32,
    /// Layers that the buffer holds at least.
    pub buffer_min: u32,
    /// Passes around the ring per token.
    pub rounds: u32,
    /// Layers that the disk delivers while the device computes its own, per token.
    pub read_within: u32,
}

/// A device's layers between RAM and disk, per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Layers that stay.
    pub pinned: u32,
    /// Layers that the buffer holds.
    pub buffer: u32,
    /// Layers that are read.
    pub streamed: u32,
    /// Of them those that the buffer cannot take before a window begins, so that they are read
    /// within the device's own windows.
    pub within: u32,
}

impl Stream {
    /// The smallest buffer with which no window has to wait for the disk, as far as there is room.
    ///
    /// While others compute, the stream fills the buffer, once per round; while the device computes
    /// its own layers, pinned and streamed ones taking turns, it fills what they give back. With E
    /// layers more than RAM holds, a buffer of c leaves N = E + c to read, N - k·c of them within k
    /// windows, where R are free: c = (E - R)/(k - 1), the excess-only rule of PLANNER 3.9 for many
    /// rounds. One window gains nothing from a larger buffer.
    #[must_use]
    pub fn of(demand: &StreamDemand) -> Self {
        let excess = demand.layers.saturating_sub(demand.capacity);
        if excess == 0 {
            return Self { pinned: demand.layers, buffer: 0, streamed: 0, within: 0 };
        }
        let ahead = excess.saturating_sub(demand.read_within);
        let wanted = match demand.rounds {
            0 | 1 => 0,
            rounds => ahead.div_ceil(rounds - 1),
        };
        let buffer = wanted.max(demand.buffer_min).min(demand.capacity);
        let pinned = demand.capacity - buffer;
        let streamed = demand.layers - pinned;
        let within = streamed.saturating_sub(demand.rounds.saturating_mul(buffer));
        Self { pinned, buffer, streamed, within }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rounds: u32, read_within: u32, expected: [u32; 4]) {
        let demand = StreamDemand { layers: 30, capacity: 20, buffer_min: 2, rounds, read_within };
        let found = Stream::of(&demand);
        assert_eq!([found.pinned, found.buffer, found.streamed, found.within], expected);
    }

    #[test]
    fn more_rounds_need_less_buffer() {
        check(1, 0, [18, 2, 12, 10]);
        check(2, 0, [10, 10, 20, 0]);
        check(3, 0, [15, 5, 15, 0]);
        check(6, 0, [18, 2, 12, 0]);
        check(u32::MAX, 0, [18, 2, 12, 0]);
    }

    #[test]
    fn what_is_read_while_the_device_computes_needs_no_buffer() {
        check(2, 6, [16, 4, 14, 6]);
        check(3, 6, [18, 2, 12, 6]);
        check(1, 30, [18, 2, 12, 10]);
    }

    #[test]
    fn little_room_leaves_no_layer_pinned() {
        let demand =
            StreamDemand { layers: 30, capacity: 3, buffer_min: 2, rounds: 4, read_within: 0 };
        let expected = Stream { pinned: 0, buffer: 3, streamed: 30, within: 18 };
        assert_eq!(Stream::of(&demand), expected);
        let all = StreamDemand { capacity: 30, ..demand };
        assert_eq!(Stream::of(&all), Stream { pinned: 30, buffer: 0, streamed: 0, within: 0 });
    }
}
