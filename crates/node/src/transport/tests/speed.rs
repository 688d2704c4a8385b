//! How long a message takes there and back; run with
//! `cargo test -p motley --release -- --ignored --nocapture round_trips`.

#![expect(clippy::print_stdout, reason = "it is run for what it prints")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use super::*;

const SIZES: [usize; 3] = [8 << 10, 20_480, 64 << 10];
const WARM_UP: usize = 500;
const ROUNDS: usize = 4000;

fn report(name: &str, size: usize, mut trip: impl FnMut()) {
    (0..WARM_UP).for_each(|_| trip());
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            trip();
            began.elapsed()
        })
        .collect();
    times.sort();
    let us = |part: usize| times[ROUNDS * part / 100].as_secs_f64() * 1e6;
    println!("{name:<28} {size:>6} B  p50 {:>6.1} us  p99 {:>6.1} us", us(50), us(99));
}

#[test]
#[ignore = "a measurement; it shows numbers and checks none"]
fn round_trips() {
    for size in SIZES {
        plain(size);
        library(size);
        ours(size);
    }
}

fn plain(size: usize) {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut buffer = vec![0; size];
        while stream.read_exact(&mut buffer).is_ok() && stream.write_all(&buffer).is_ok() {}
    });
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut buffer = vec![0; size];
    report("plain TCP", size, || {
        stream.write_all(&buffer).unwrap();
        stream.read_exact(&mut buffer).unwrap();
    });
}

/// The library's own stream, as RELIABILITY's table measured it.
fn library(size: usize) {
    let first = Device::first();
    let second = Device::joined(&first, "second", NOW);
    let server = first.endpoint(Standing::Member, NOW);
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let config = server.member_server();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let tls = rustls::ServerConnection::new(config).unwrap();
        let mut stream = rustls::StreamOwned::new(tls, stream);
        let mut buffer = vec![0; size];
        while stream.read_exact(&mut buffer).is_ok() && stream.write_all(&buffer).is_ok() {}
    });
    let config = second.endpoint(Standing::Member, NOW).client(None).unwrap();
    let name = "member.motley.invalid".try_into().unwrap();
    let tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut stream = rustls::StreamOwned::new(tls, stream);
    let mut buffer = vec![0; size];
    report("rustls, its own stream", size, || {
        stream.write_all(&buffer).unwrap();
        stream.read_exact(&mut buffer).unwrap();
    });
}

fn ours(size: usize) {
    let Pair { mut caller, mut answerer, _listener } = pair();
    thread::spawn(move || {
        let mut buffer = vec![0; size];
        let (receiver, sender) = answerer.halves();
        while receiver.receive(&mut buffer, PATIENCE).is_ok()
            && sender.send(&[&buffer[..64], &buffer[64..]], PATIENCE).is_ok()
        {}
    });
    let mut buffer = vec![0; size];
    let (receiver, sender) = caller.halves();
    report("this transport", size, || {
        sender.send(&[&buffer[..64], &buffer[64..]], PATIENCE).unwrap();
        receiver.receive(&mut buffer, PATIENCE).unwrap();
    });
}
