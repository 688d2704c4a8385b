//! Measuring the way to another device: round trips of short messages, then rates both ways.

use std::thread;
use std::time::{Duration, Instant};

use motley_ring::limits::{PROBE_BYTES_MAX, PROBE_TIMEOUT};
use motley_ring::{ControlMessage, LinkQuality, Probe, Probed};

use super::wire::{MessageConnection, WireError};

/// Short messages whose round trips are measured.
const ROUND_TRIPS: usize = 9;

/// Before each of them. A token's activations come to a device that has rested, too, and waking it
/// is a part of their way.
const REST: Duration = Duration::from_millis(3);

/// Bytes of the first message that measures a rate; each next one has four times as many.
const FIRST_BYTES: u32 = 1 << 14;

/// A message that is on its way for so long measures the rate well enough, ...
const LONG_ENOUGH: Duration = Duration::from_millis(40);

/// ... unless it was so many times as fast as the one before: over a long way a connection begins
/// with few bytes per round trip and doubles them as answers come, and has not found its rate yet.
const STILL_RISING: f64 = 1.25;

/// Messages of the largest size in each direction at most.
const LARGEST_MAX: u32 = 3;

/// Bytes that a device takes and gives over one such connection at most.
const BYTES_MAX: u64 = 32 << 20;

/// Measures the way to the other end of a fresh connection, within [`PROBE_TIMEOUT`] or a little
/// more.
///
/// # Errors
/// When the connection breaks, or something else comes than answers.
pub(super) fn measure(mut connection: MessageConnection) -> Result<LinkQuality, WireError> {
    let began = Instant::now();
    let mut round_trips = Vec::with_capacity(ROUND_TRIPS);
    for index in 0..=ROUND_TRIPS {
        thread::sleep(REST);
        let time = exchange(&mut connection, 0, 0)?;
        // The first waits for the other end's thread.
        if index > 0 {
            round_trips.push(time);
        }
    }
    round_trips.sort_unstable();
    let round_trip = round_trips[ROUND_TRIPS / 2];
    let out = rate(&mut connection, round_trip, began + PROBE_TIMEOUT / 2, |bytes| (bytes, 0))?;
    let back = rate(&mut connection, round_trip, began + PROBE_TIMEOUT, |bytes| (0, bytes))?;
    connection.closer.close();
    Ok(LinkQuality {
        round_trip_ns: u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX),
        out_bytes_per_s: out,
        in_bytes_per_s: back,
    })
}

/// Bytes per second of ever larger messages, until one is on its way for long and no faster than
/// the one before, or time is up.
fn rate(
    connection: &mut MessageConnection,
    round_trip: Duration,
    until: Instant,
    sizes: impl Fn(u32) -> (u32, u32),
) -> Result<u64, WireError> {
    let (mut bytes, mut largest, mut before) = (FIRST_BYTES, 0, 0.0);
    loop {
        let (there, back) = sizes(bytes);
        let time = exchange(connection, there, back)?;
        let on_its_way = time.saturating_sub(round_trip).max(Duration::from_micros(1));
        largest += u32::from(bytes == PROBE_BYTES_MAX);
        let rate = f64::from(bytes) / on_its_way.as_secs_f64();
        let found = on_its_way >= LONG_ENOUGH && rate < STILL_RISING * before;
        if found || largest == LARGEST_MAX || Instant::now() >= until {
            return Ok(rate as u64);
        }
        before = rate;
        bytes = bytes.saturating_mul(4).min(PROBE_BYTES_MAX);
    }
}

/// Sends so many bytes, and takes the answer with its bytes.
fn exchange(
    connection: &mut MessageConnection,
    bytes: u32,
    answer_bytes: u32,
) -> Result<Duration, WireError> {
    let raw = vec![0; bytes as usize];
    let began = Instant::now();
    connection.sender.send(&ControlMessage::Probe(Probe { bytes, answer_bytes }), &raw)?;
    match connection.receiver.expect(PROBE_TIMEOUT, true)? {
        (ControlMessage::Probed(probed), _) if probed.bytes == answer_bytes => Ok(began.elapsed()),
        (other, _) => Err(WireError::Unexpected { expected: "probed", found: other.name() }),
    }
}

/// Answers probes until the connection ends. The first has been received.
///
/// # Errors
/// When the connection breaks, or something else comes, or more than a measurement needs.
pub(super) fn serve(mut connection: MessageConnection, first: Probe) -> Result<(), WireError> {
    let mut probe = first;
    let mut moved: u64 = 0;
    loop {
        moved += u64::from(probe.bytes) + u64::from(probe.answer_bytes);
        if probe.answer_bytes > PROBE_BYTES_MAX || moved > BYTES_MAX {
            return Err(WireError::Unexpected { expected: "fewer bytes", found: "probe" });
        }
        let raw = vec![0; probe.answer_bytes as usize];
        let bytes = probe.answer_bytes;
        connection.sender.send(&ControlMessage::Probed(Probed { bytes }), &raw)?;
        match connection.receiver.receive(PROBE_TIMEOUT, true) {
            Ok(Some((ControlMessage::Probe(next), _))) => probe = next,
            Ok(Some((other, _))) => {
                return Err(WireError::Unexpected { expected: "probe", found: other.name() });
            }
            // Silent, or gone: it knows what it wanted to know.
            Ok(None) | Err(WireError::Receive(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
