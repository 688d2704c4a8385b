//! The measuring peers that `--check` starts on the devices.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

const PORT: u16 = 7707;
const PINGS: usize = 60;
const PING_BYTES: usize = 64;
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// A new stream finds its speed in this time, which is not counted.
const WARM: Duration = Duration::from_millis(700);
const STREAM: Duration = Duration::from_millis(2200);
const BURN: Duration = Duration::from_secs(2);

/// What one device measured of its way to another.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct LinkMeasure {
    pub(super) rtt_us_least: f64,
    pub(super) rtt_us_median: f64,
    pub(super) bandwidth_mbit: f64,
}

/// What a device got of the processor.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct CpuMeasure {
    pub(super) cpu_share: f64,
}

/// Answers pings and takes streams at `address` until it is stopped.
pub(super) fn echo(address: &str) -> Result<()> {
    let socket = UdpSocket::bind((address, PORT)).context("cannot listen for pings")?;
    let listener = TcpListener::bind((address, PORT)).context("cannot listen for streams")?;
    thread::spawn(move || -> io::Result<()> {
        let mut buffer = [0; 2048];
        loop {
            let (bytes, from) = socket.recv_from(&mut buffer)?;
            socket.send_to(&buffer[..bytes], from)?;
        }
    });
    for stream in listener.incoming() {
        // One that measures and is stopped meanwhile is no reason to stop too.
        let _ = take(stream?);
    }
    Ok(())
}

/// Reads a stream to its end and answers how fast it came once it was warm, in megabits.
fn take(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 18];
    let began = Instant::now();
    let mut counted = 0;
    let mut first = None;
    let mut last = began;
    loop {
        let bytes = stream.read(&mut buffer)?;
        if bytes == 0 {
            break;
        }
        last = Instant::now();
        // What arrives at the first look was sent before it.
        if first.is_some() {
            counted += bytes;
        } else if last - began > WARM {
            first = Some(last);
        }
    }
    let seconds = first.map_or(0.0, |first| (last - first).as_secs_f64());
    let rate = if seconds > 0.0 { counted as f64 * 8e-6 / seconds } else { 0.0 };
    stream.write_all(format!("{rate}").as_bytes())
}

/// Measures the way to the peer at `address`.
pub(super) fn link(address: &str) -> Result<LinkMeasure> {
    let address = socket_address(address)?;
    let times = pings(address)?;
    let mut stream = connect(address)?;
    let data = vec![0x5a; 1 << 16];
    let began = Instant::now();
    while began.elapsed() < STREAM {
        stream.write_all(&data)?;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(LinkMeasure {
        rtt_us_least: times[0],
        rtt_us_median: times[times.len() / 2],
        bandwidth_mbit: text.parse().context("the peer's answer is no number")?,
    })
}

/// The least round trip to the peer at `address`, in microseconds.
pub(super) fn least_rtt_us(address: &str) -> Result<f64> {
    Ok(pings(socket_address(address)?)?[0])
}

fn socket_address(address: &str) -> Result<SocketAddr> {
    Ok(SocketAddr::new(address.parse().context("not an address")?, PORT))
}

/// The peer may have just been started.
fn connect(address: SocketAddr) -> Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect_timeout(&address, ANSWER_LIMIT) {
            Err(_) if began.elapsed() < ANSWER_LIMIT => thread::sleep(Duration::from_millis(20)),
            result => return result.context("cannot reach the peer"),
        }
    }
}

/// Round trips in microseconds, one made after the other, sorted; a lost one is not counted.
fn pings(address: SocketAddr) -> Result<Vec<f64>> {
    drop(connect(address)?);
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut times = Vec::new();
    let mut answer = [0; PING_BYTES];
    for number in 0..PINGS {
        let question = [number as u8; PING_BYTES];
        let began = Instant::now();
        socket.send(&question)?;
        let answered = loop {
            match socket.recv(&mut answer) {
                Ok(_) if answer == question => break true,
                // An answer to an earlier question, given up as lost.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
                Err(error) => return Err(error).context("no answer to a ping"),
            }
        };
        if answered {
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
    }
    if times.is_empty() {
        bail!("no ping was answered");
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// Keeps `threads` threads busy and tells how much time they got of the processor.
pub(super) fn burn(threads: usize) -> Result<CpuMeasure> {
    let began = Instant::now();
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            thread::spawn(move || -> Result<u64> {
                let before = running_ns()?;
                while began.elapsed() < BURN {
                    std::hint::spin_loop();
                }
                Ok(running_ns()? - before)
            })
        })
        .collect();
    let mut total_ns = 0;
    for worker in workers {
        total_ns += worker.join().map_err(|_| anyhow::anyhow!("a busy thread panicked"))??;
    }
    Ok(CpuMeasure { cpu_share: total_ns as f64 * 1e-9 / began.elapsed().as_secs_f64() })
}

/// How long this thread has run, by the scheduler's own count.
fn running_ns() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")
        .context("the kernel counts no running times")?;
    let word = text.split(' ').next().unwrap_or_default();
    word.parse().context("schedstat begins with no number")
}
