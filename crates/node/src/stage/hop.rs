//! What a hop is made of; run with
//! `cargo test -p motley --release -- --ignored --nocapture parts_of_a_hop`.

#![expect(clippy::print_stdout, reason = "it is run for what it prints")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver as Inbox, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use motley_ring::{
    Assignment, AssignmentSpec, Batch, ClusterId, Epoch, FrameHeader, HEADER_BYTES, MemberIndex,
    MicroBatchId, Outgoing, Route, Run, SlotIndex, Wanted, WireElement,
};

use super::edges::next_arrival;
use super::*;
use crate::transport::{Connection, test_pair};

const PATIENCE: Duration = Duration::from_secs(20);
const WARM_UP: usize = 500;
const ROUNDS: usize = 4000;

#[test]
#[ignore = "a measurement; it shows numbers and checks none"]
fn parts_of_a_hop() {
    // Half of what goes there and back, except where nothing does.
    for width in [576, 2048, 8192] {
        let place = |from, to| EdgePlace {
            assignment: Arc::new(assignment(width)),
            from: MemberIndex(from),
            to: MemberIndex(to),
        };
        println!("{width} values, {} B", width * 4);
        serialise(&place(0, 1));
        encrypted(width as usize * 4);
        threads();
        frames(&place(0, 1), &place(1, 0));
    }
}

/// Two members with a layer each, the second of which is at stop 1.
fn assignment(width: u32) -> Assignment {
    let windows = [(MemberIndex(0), 0..1), (MemberIndex(1), 1..2)];
    Assignment::new(AssignmentSpec {
        cluster: ClusterId(1),
        epoch: Epoch(1),
        route: Route::of_windows(2, MemberIndex(0), &windows).unwrap(),
        slots: 1,
        context_tokens: 64,
        batch_rows_max: 1,
        groups: 1,
        width,
        wire_element: WireElement::F32,
        kv_type: KvType::F16,
    })
    .unwrap()
}

fn token(place: &EdgePlace) -> Outgoing<Payload> {
    let wanted = Wanted::Last;
    let run = Run { slot: SlotIndex(0), first_position: 7, rows: 1, wanted, fresh: false };
    Outgoing {
        to: place.to,
        // The head is at the last stop again.
        stop: if place.to == MemberIndex(0) { 2 } else { 1 },
        micro_batch: MicroBatchId(1),
        batch: Batch::new(vec![run]),
        payload: Payload::Values(vec![0.5; place.assignment.spec().width as usize]),
    }
}

fn report(name: &str, ways: u32, mut trip: impl FnMut()) {
    (0..WARM_UP).for_each(|_| trip());
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            trip();
            began.elapsed() / ways
        })
        .collect();
    times.sort();
    let us = |part: usize| times[ROUNDS * part / 100].as_secs_f64() * 1e6;
    println!("  {name:<36} p50 {:>6.1} us  p90 {:>6.1} us", us(50), us(90));
}

/// A frame's header and checksums, written and read.
fn serialise(place: &EdgePlace) {
    let shape = place.assignment.frame_shape();
    let next = token(place);
    let mut prefix = Vec::new();
    report("header and checksums", 1, || {
        let bytes: &[u8] = bytemuck::cast_slice(next.payload.values());
        let header = FrameHeader::new(&shape, next.micro_batch, next.stop, &next.batch, bytes);
        prefix.clear();
        header.encode_prefix(&next.batch, &mut prefix);
        let (fixed, table) = prefix.split_first_chunk::<HEADER_BYTES>().unwrap();
        let header = FrameHeader::decode(fixed, &shape).unwrap();
        header.decode_runs(table).unwrap();
        header.check_payload(bytes).unwrap();
    });
}

/// The same bytes by the transport alone, between two threads that read and write themselves.
fn encrypted(bytes: usize) {
    let (mut caller, mut answerer, _listener) = test_pair();
    thread::spawn(move || {
        let mut buffer = vec![0; bytes];
        let (receiver, sender) = answerer.halves();
        while receiver.receive(&mut buffer, PATIENCE).is_ok()
            && sender.send(&[&buffer], PATIENCE).is_ok()
        {}
    });
    let mut buffer = vec![0; bytes];
    let (receiver, sender) = caller.halves();
    report("encrypted, over loopback", 2, || {
        sender.send(&[&buffer], PATIENCE).unwrap();
        receiver.receive(&mut buffer, PATIENCE).unwrap();
    });
}

/// From one engine's thread to another, as a reading thread hands a frame over.
fn threads() {
    let (there, away) = sync_channel::<()>(1);
    let (back, home) = sync_channel::<()>(1);
    thread::spawn(
        move || while receive_soon(&away, PATIENCE, || {}).is_ok() && back.send(()).is_ok() {},
    );
    report("thread to thread", 2, || {
        there.send(()).unwrap();
        receive_soon(&home, PATIENCE, || {}).unwrap();
    });
}

/// Frames as a ring sends them: written by the engine's thread, read by another, handed over.
fn frames(there: &EdgePlace, back: &EdgePlace) {
    let (caller, answerer, _listener) = test_pair();
    let (home, away, _returns) = test_pair();
    let (to_member, at_member) = (open(caller, there), read(answerer, there));
    let (to_head, at_head) = (open(away, back), read(home, back));
    let answer = back.clone();
    thread::spawn(move || {
        while let Ok(Some(_)) = next_arrival(&at_member, || {}) {
            to_head.send(token(&answer));
        }
    });
    report("all of a hop but computing", 2, || {
        to_member.send(token(there));
        next_arrival(&at_head, || {}).unwrap().unwrap();
    });
}

fn open(connection: Connection, place: &EdgePlace) -> Way {
    Way::open(connection, place.clone(), |_| ()).unwrap()
}

fn read(connection: Connection, place: &EdgePlace) -> Inbox<Arrival> {
    let (frames, arrivals): (SyncSender<Arrival>, _) = sync_channel(4);
    let (mut receiver, _) = connection.split();
    let place = place.clone();
    thread::spawn(move || {
        let _ = read_edge(&mut receiver, &place, |arrival| frames.send(arrival).is_ok());
    });
    arrivals
}
