//! The link emulator's process: an Ethernet switch whose cables are a [`Fabric`].
//!
//! It holds one TAP interface per device, takes what a device sends, and gives it to the receiver
//! when the fabric says so. It ends when its standard input does, so that it never outlives the lab.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::description::Description;
use super::fabric::{Fabric, NOTE_BYTES};

/// The largest bundle that TCP sends, with its headers.
const FRAME_BYTES_MAX: usize = NOTE_BYTES + 14 + 65_536;
/// How many frames of one device are taken before the others have their turn.
const TURN: usize = 16;
/// Beyond this, lateness is other programs' load and not the time that waking takes.
const LEAD_NS_MAX: u64 = 200_000;

/// Relays until standard input ends. Says `ready` on standard output once the interfaces are there.
pub(super) fn run(description: &Description, interfaces: &[String]) -> Result<()> {
    // Only matters where no real-time priority was given, which has no slack.
    nix::sys::prctl::set_timerslack(1)?;
    let taps = interfaces.iter().map(|name| open(name)).collect::<Result<Vec<_>>>()?;
    println!("ready");
    io::stdout().flush()?;
    let mut relay =
        Relay { taps, fabric: Fabric::new(description), began: Instant::now(), lead_ns: 0 };
    relay.serve()?;
    for (from, to, tally) in relay.fabric.tallies().filter(|(_, _, tally)| tally.sent > 0) {
        let [from, to] = [from, to].map(|device| &description.devices[device].name);
        eprintln!(
            "{from} to {to}: {} frames, {} bytes, {} lost, {} dropped by a full queue",
            tally.sent, tally.bytes, tally.lost, tally.dropped
        );
    }
    if let Ok(running) = std::fs::read_to_string("/proc/self/schedstat") {
        let running_ns: f64 = running.split(' ').next().unwrap_or_default().parse()?;
        let seconds = relay.began.elapsed().as_secs_f64();
        eprintln!(
            "the emulator ran for {:.2} s of {seconds:.2} s, woken {} us late",
            running_ns * 1e-9,
            relay.lead_ns / 1000
        );
    }
    Ok(())
}

fn open(name: &str) -> Result<SyncDevice> {
    // With offloads, the kernel neither sums nor cuts what stays in this machine: the note that it
    // puts before a frame goes back to it as it came.
    let tap = DeviceBuilder::new()
        .name(name)
        .layer(Layer::L2)
        .offload(true)
        .enable(false)
        .build_sync()
        .with_context(|| format!("cannot make the interface {name}"))?;
    tap.set_nonblocking(true)?;
    Ok(tap)
}

struct Relay {
    taps: Vec<SyncDevice>,
    fabric: Fabric,
    began: Instant,
    /// How late the kernel wakes this process, learnt from its own timers. Frames are taken as
    /// having come that much earlier, if it slept, and given out that much before their time.
    lead_ns: u64,
}

impl Relay {
    fn serve(&mut self) -> Result<()> {
        let mut buffer = vec![0; FRAME_BYTES_MAX];
        let stdin = io::stdin();
        loop {
            let slept_ns = self.now_ns();
            let asked = self.fabric.deadline().map(|due_ns| {
                let early_ns = due_ns.saturating_sub(self.lead_ns);
                (early_ns, early_ns.saturating_sub(slept_ns))
            });
            let wait =
                asked.map(|(_, wait_ns)| TimeSpec::from_duration(Duration::from_nanos(wait_ns)));
            let mut ready: Vec<PollFd<'_>> =
                self.taps.iter().map(|tap| PollFd::new(tap.as_fd(), PollFlags::POLLIN)).collect();
            ready.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
            let count = match ppoll(&mut ready, wait, None) {
                Err(Errno::EINTR) => continue,
                result => result?,
            };
            let mut ready: Vec<bool> =
                ready.iter().map(|descriptor| descriptor.any().unwrap_or(true)).collect();
            if ready.pop() == Some(true) {
                return Ok(());
            }
            let now_ns = self.now_ns();
            match asked {
                Some((early_ns, wait_ns)) if count == 0 && wait_ns > 0 => {
                    let late_ns = now_ns.saturating_sub(early_ns).min(LEAD_NS_MAX);
                    self.lead_ns = (15 * self.lead_ns + late_ns) / 16;
                }
                _ => {}
            }
            let came_ns = now_ns.saturating_sub(self.lead_ns).max(slept_ns);
            for (from, _) in ready.iter().enumerate().filter(|(_, ready)| **ready) {
                self.take(from, came_ns, &mut buffer)?;
            }
            self.give();
        }
    }

    /// Takes what a device has sent.
    fn take(&mut self, from: usize, now_ns: u64, buffer: &mut [u8]) -> Result<()> {
        for _ in 0..TURN {
            let bytes = match self.taps[from].recv(buffer) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The interface is down, as a test may want it.
                Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) => return Ok(()),
                Err(error) => return Err(error).context("cannot read from an interface"),
            };
            let frame = &buffer[..bytes];
            let Some(address) = frame.get(NOTE_BYTES..NOTE_BYTES + 6) else { continue };
            // The lowest bit of the first byte marks what is for more than one.
            let many = address[0] & 1 == 1;
            let number = usize::from(address[5]);
            for to in (0..self.taps.len()).filter(|to| *to != from && (many || *to == number)) {
                self.fabric.send(from, to, frame.to_vec(), now_ns);
            }
        }
        Ok(())
    }

    /// Gives out what is due.
    fn give(&mut self) {
        while let Some((to, frame)) = self.fabric.poll(self.now_ns() + self.lead_ns) {
            // A device whose interface is down or full loses the frame, as with any other switch.
            let _ = self.taps[to].send(&frame);
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
