//! What links do to frames: rate, delay, jitter and loss, in virtual time.
//!
//! Pure: [`Fabric::send`] takes a frame, [`Fabric::poll`] gives those whose time has come, and
//! [`Fabric::deadline`] says when to ask again. Every frame passes two queues, that of its sender
//! and that of its receiver, as on a switch; a pair with a cable of its own has its own queues.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::description::{Description, Wire};

/// The kernel's note on a frame and the headers of Ethernet, IPv4 and TCP, which are carried for
/// free, so that a bandwidth is what an application gets of it.
const HEADERS_BYTES: usize = NOTE_BYTES + 14 + 20 + 32;
/// What the kernel notes before each frame: its checksum and how it is to be cut
/// (`struct virtio_net_hdr`).
pub(super) const NOTE_BYTES: usize = 10;
/// What a frame of the wire carries of a TCP stream.
const SEGMENT_BYTES: usize = 1448;
/// How long a frame may wait in a queue before it is dropped, beside the round trip that TCP needs
/// to keep a long link full.
const QUEUE_NS: u64 = 20_000_000;
/// What fits into a queue even if the rate is low: some of the 64 KiB pieces that TCP sends.
const QUEUE_BYTES: f64 = 262_144.0;

/// All links of a lab.
pub(super) struct Fabric {
    devices: usize,
    /// By sender times devices plus receiver.
    paths: Vec<Path>,
    queues: Vec<Queue>,
    events: BinaryHeap<Reverse<Event>>,
    random: Random,
    order: u64,
}

/// What happened to the frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) bytes: u64,
    /// Drawn as lost.
    pub(super) lost: u64,
    /// Found a full queue.
    pub(super) dropped: u64,
}

struct Path {
    wires: Vec<Wire>,
    from_queue: usize,
    to_queue: usize,
    /// When the newest frame arrives, which later ones must not overtake.
    last_ns: u64,
    tally: Tally,
}

#[derive(Clone)]
struct Queue {
    free_ns: u64,
    ns_per_byte: f64,
    wait_ns_max: u64,
}

struct Event {
    due_ns: u64,
    order: u64,
    path: usize,
    /// Whether the receiver's queue is still to be passed.
    arriving: bool,
    frame: Vec<u8>,
}

impl Fabric {
    pub(super) fn new(description: &Description) -> Self {
        let devices = description.devices.len();
        let mut queues: Vec<Queue> = Vec::new();
        // Queue 2d is where device d sends, 2d + 1 where it receives.
        for device in &description.devices {
            queues.extend([Queue::new(&device.port), Queue::new(&device.port)]);
        }
        let mut paths = Vec::new();
        for from in 0..devices {
            for to in 0..devices {
                let own = description
                    .links
                    .iter()
                    .find(|(one, other, _)| (*one, *other) == (from.min(to), from.max(to)));
                let (wires, from_queue, to_queue) = if let Some((_, _, wire)) = own {
                    queues.extend([Queue::new(wire), Queue::new(wire)]);
                    (vec![*wire], queues.len() - 2, queues.len() - 1)
                } else {
                    let ports = [from, to].map(|device| description.devices[device].port);
                    (ports.to_vec(), 2 * from, 2 * to + 1)
                };
                paths.push(Path {
                    wires,
                    from_queue,
                    to_queue,
                    last_ns: 0,
                    tally: Tally::default(),
                });
            }
        }
        let random = Random(description.seed);
        Self { devices, paths, queues, events: BinaryHeap::new(), random, order: 0 }
    }

    /// Takes a frame that `from` sends to `to` at `now_ns`.
    pub(super) fn send(&mut self, from: usize, to: usize, frame: Vec<u8>, now_ns: u64) {
        let index = from * self.devices + to;
        let path = &mut self.paths[index];
        path.tally.sent += 1;
        path.tally.bytes += frame.len() as u64;
        let kept = 1.0 - self.random.fraction();
        let bytes = frame.len().saturating_sub(HEADERS_BYTES);
        // The kernel hands over several frames as one, which is lost if one of them is.
        let frames = bytes.div_ceil(SEGMENT_BYTES).max(1) as i32;
        let survives: f64 = path.wires.iter().map(|wire| 1.0 - wire.loss_percent / 100.0).product();
        let survives = survives.powi(frames);
        let receiving_ns = self.queues[path.to_queue].duration_ns(bytes);
        let queue = &mut self.queues[path.from_queue];
        let start_ns = queue.free_ns.max(now_ns);
        if start_ns - now_ns > queue.wait_ns_max {
            path.tally.dropped += 1;
            return;
        }
        let sending_ns = queue.duration_ns(bytes);
        queue.free_ns = start_ns + sending_ns;
        // A lost frame has used the sender's time nevertheless.
        if kept > survives {
            path.tally.lost += 1;
            return;
        }
        let mut due_ns = start_ns + sending_ns.max(receiving_ns);
        for wire in &path.wires {
            let offset_ms = wire.jitter_ms * (2.0 * self.random.fraction() - 1.0);
            due_ns += nanoseconds(wire.delay_ms + offset_ms);
        }
        if !path.wires.iter().any(|wire| wire.reorder) {
            due_ns = due_ns.max(path.last_ns);
            path.last_ns = due_ns;
        }
        self.push(due_ns, index, true, frame);
    }

    /// The next frame that reaches its receiver by `now_ns`, with the receiver's number.
    pub(super) fn poll(&mut self, now_ns: u64) -> Option<(usize, Vec<u8>)> {
        while self.deadline()? <= now_ns {
            let Reverse(event) = self.events.pop()?;
            let path = &mut self.paths[event.path];
            if !event.arriving {
                return Some((event.path % self.devices, event.frame));
            }
            // `due_ns` is when its last byte arrives if nothing else is being received; the queue
            // is booked in the order of arrival, which is the order of these events.
            let queue = &mut self.queues[path.to_queue];
            let bytes = event.frame.len().saturating_sub(HEADERS_BYTES);
            let finish_ns = event.due_ns.max(queue.free_ns + queue.duration_ns(bytes));
            if finish_ns - event.due_ns > queue.wait_ns_max {
                path.tally.dropped += 1;
                continue;
            }
            queue.free_ns = finish_ns;
            if finish_ns <= now_ns {
                return Some((event.path % self.devices, event.frame));
            }
            self.push(finish_ns, event.path, false, event.frame);
        }
        None
    }

    /// When `poll` may next have something to give.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.events.peek().map(|Reverse(event)| event.due_ns)
    }

    /// What has happened so far, by sender and receiver.
    pub(super) fn tallies(&self) -> impl Iterator<Item = (usize, usize, Tally)> {
        let devices = self.devices;
        self.paths
            .iter()
            .enumerate()
            .map(move |(index, path)| (index / devices, index % devices, path.tally))
    }

    fn push(&mut self, due_ns: u64, path: usize, arriving: bool, frame: Vec<u8>) {
        self.order += 1;
        self.events.push(Reverse(Event { due_ns, order: self.order, path, arriving, frame }));
    }
}

impl Queue {
    fn new(wire: &Wire) -> Self {
        // A megabit per second is a bit per microsecond.
        let ns_per_byte = wire.bandwidth_mbit.map_or(0.0, |rate| 8000.0 / rate);
        let wait_ns_max = QUEUE_NS + 2 * nanoseconds(wire.delay_ms);
        let wait_ns_max = wait_ns_max.max(whole(QUEUE_BYTES * ns_per_byte));
        Self { free_ns: 0, ns_per_byte, wait_ns_max }
    }

    fn duration_ns(&self, bytes: usize) -> u64 {
        whole(bytes as f64 * self.ns_per_byte)
    }
}

fn nanoseconds(milliseconds: f64) -> u64 {
    whole(milliseconds * 1e6)
}

fn whole(number: f64) -> u64 {
    number.round() as u64
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due_ns, self.order).cmp(&(other.due_ns, other.order))
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014): one addition and a mixing function per draw.
struct Random(u64);

impl Random {
    /// At least 0 and below 1.
    fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::description::parse;
    use super::*;

    use proptest::prelude::*;

    const FRAME_BYTES: usize = 1500;

    fn fabric(wire: &str, devices: &[&str]) -> Fabric {
        let devices: String =
            devices.iter().map(|name| format!("[[device]]\nname = \"{name}\"\n")).collect();
        Fabric::new(&parse(&format!("[switch]\n{wire}\n{devices}")).expect("the text is right"))
    }

    /// Every frame with the time it reaches its receiver; a frame is known by its first two bytes.
    fn drain(fabric: &mut Fabric) -> Vec<(u64, usize, u16)> {
        let mut seen = Vec::new();
        while let Some(now_ns) = fabric.deadline() {
            while let Some((to, frame)) = fabric.poll(now_ns) {
                seen.push((now_ns, to, u16::from_le_bytes([frame[0], frame[1]])));
            }
        }
        seen
    }

    fn frame(number: u16) -> Vec<u8> {
        let mut frame = vec![0; FRAME_BYTES];
        frame[..2].copy_from_slice(&number.to_le_bytes());
        frame
    }

    proptest! {
        #[test]
        fn delay_rate_and_order_are_kept(
            rate_mbit in 1.0_f64..1000.0,
            delay_ms in 0.0_f64..50.0,
            jitter_part in 0.0_f64..1.0,
            frames in 1_u16..40,
            seed in 0_u64..1000,
        ) {
            let jitter_ms = delay_ms * jitter_part;
            let wire = format!(
                "bandwidth_mbit = {rate_mbit}\ndelay_ms = {delay_ms}\njitter_ms = {jitter_ms}"
            );
            let mut fabric = fabric(&wire, &["a", "b"]);
            fabric.random = Random(seed);
            for number in 0..frames {
                fabric.send(0, 1, frame(number), 0);
            }
            let seen = drain(&mut fabric);
            let numbers: Vec<u16> = seen.iter().map(|(_, _, number)| *number).collect();
            prop_assert_eq!(numbers, (0..frames).collect::<Vec<_>>());
            let each_ns = (FRAME_BYTES - HEADERS_BYTES) as f64 * 8000.0 / rate_mbit;
            for (now_ns, to, number) in seen {
                prop_assert_eq!(to, 1);
                // Rounding may take half a nanosecond from each of a few sums per frame.
                let sent_ns = each_ns * f64::from(number + 1);
                let slack_ns = f64::from(frames) * 2.0;
                prop_assert!(now_ns as f64 >= sent_ns + (delay_ms - jitter_ms) * 2e6 - slack_ns);
                // The receiver's queue can bunch frames that jitter pushed together, never more.
                let latest_ns = each_ns * f64::from(frames) + (delay_ms + jitter_ms) * 2e6;
                prop_assert!(now_ns as f64 <= latest_ns + each_ns * f64::from(number) + slack_ns);
            }
        }

        #[test]
        fn a_receiver_gets_no_more_than_its_rate(senders in 2_usize..5, frames in 1_u16..20) {
            let mut fabric = fabric("bandwidth_mbit = 100", &["a", "b", "c", "d", "e"]);
            for number in 0..frames {
                for from in 1..=senders {
                    fabric.send(from, 0, frame(number), 0);
                }
            }
            let seen = drain(&mut fabric);
            let each_ns = (FRAME_BYTES - HEADERS_BYTES) as u64 * 80;
            prop_assert_eq!(seen.len(), senders * usize::from(frames));
            for (index, (now_ns, _, _)) in seen.iter().enumerate() {
                prop_assert_eq!(*now_ns, each_ns * (index as u64 + 1));
            }
        }
    }

    #[test]
    fn a_lone_frame_meets_sum_of_delays_once_its_size_passed_the_slower_port() {
        let description = parse(
            "[[device]]\nname = \"a\"\nport = { bandwidth_mbit = 1000, delay_ms = 1.0 }\n\
             [[device]]\nname = \"b\"\nport = { bandwidth_mbit = 10, delay_ms = 2.0 }\n\
             [[device]]\nname = \"c\"\n\
             [[link]]\nbetween = [\"a\", \"c\"]\ndelay_ms = 0.25\n",
        )
        .expect("the text is right");
        let mut fabric = Fabric::new(&description);
        fabric.send(0, 1, frame(1), 5);
        fabric.send(0, 2, frame(2), 5);
        let size_ns = (FRAME_BYTES - HEADERS_BYTES) as u64 * 800;
        assert_eq!(drain(&mut fabric), [(250_005, 2, 2), (3_000_005 + size_ns, 1, 1)]);
    }

    #[test]
    fn a_full_queue_drops_and_an_idle_receiver_does_not_wait_for_it() {
        let mut fabric = fabric("bandwidth_mbit = 10", &["a", "b", "c"]);
        for _ in 0..1000 {
            fabric.send(0, 1, frame(0), 0);
        }
        // What waits at its sender does not occupy the receiver.
        fabric.send(2, 1, frame(7), 0);
        let seen = drain(&mut fabric);
        let each_ns = (FRAME_BYTES - HEADERS_BYTES) as u64 * 800;
        assert_eq!(
            seen.iter().find(|(_, _, number)| *number == 7).map(|(at, ..)| *at),
            Some(2 * each_ns)
        );
        let (_, _, tally) = fabric.tallies().nth(1).expect("the path is there");
        assert_eq!(tally.sent, 1000);
        assert_eq!(tally.dropped as usize, 1001 - seen.len());
        assert!(tally.dropped > 500, "{tally:?}");
    }

    #[test]
    fn loss_and_jitter_repeat_with_the_seed() {
        let run = |seed| {
            let mut fabric = fabric(
                "delay_ms = 5\njitter_ms = 4\nloss_percent = 2\nreorder = true",
                &["a", "b"],
            );
            fabric.random = Random(seed);
            for number in 0..20_000 {
                fabric.send(0, 1, frame(number), u64::from(number) * 100_000);
            }
            drain(&mut fabric)
        };
        let seen = run(3);
        assert_eq!(seen, run(3));
        assert_ne!(seen, run(4));
        // Two wires of 2 percent each lose 3.96 percent: 792 of 20,000, give or take 28 (one sigma).
        let lost = 20_000 - seen.len();
        assert!((680..=905).contains(&lost), "{lost} lost");
        assert!(!seen.is_sorted_by_key(|(_, _, number)| *number), "nothing was reordered");
    }
}
