//! What goes over an open connection: order, limits, ends, and nothing readable on the wire (T-24).

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::*;

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn parts_arrive_as_one_message_of_any_length() {
    let Pair { caller, mut answerer, _listener } = pair();
    let (_keep, mut sender) = caller.split();
    for length in [0, 1, 16_384, 16_385, 65_536, 65_537, 1 << 20] {
        let payload = pattern(length, 7);
        let expected = payload.clone();
        let thread = thread::spawn(move || {
            sender.send(&[b"head", b"", &[9; 3], &payload], PATIENCE).unwrap();
            sender
        });
        let mut received = vec![0; 4 + 3 + length];
        let (receiver, _) = answerer.halves();
        // In pieces that fit no boundary of the sender's.
        for piece in received.chunks_mut(10_007) {
            receiver.receive(piece, PATIENCE).unwrap();
        }
        assert_eq!(&received[..7], b"head\x09\x09\x09");
        assert!(received[7..] == expected, "{length} bytes");
        sender = thread.join().unwrap();
    }
}

#[test]
fn both_directions_flow_at_once() {
    const MESSAGES: usize = 64;
    const BYTES: usize = 200_000;
    let Pair { caller, answerer, _listener } = pair();
    let mut threads = Vec::new();
    for (connection, seed) in [(caller, 1_u8), (answerer, 2)] {
        let (mut receiver, mut sender) = connection.split();
        threads.push(thread::spawn(move || {
            for _ in 0..MESSAGES {
                sender.send(&[&pattern(BYTES, seed)], PATIENCE).unwrap();
            }
        }));
        threads.push(thread::spawn(move || {
            let expected = pattern(BYTES, 3 - seed);
            let mut message = vec![0; BYTES];
            for _ in 0..MESSAGES {
                receiver.receive(&mut message, PATIENCE).unwrap();
                assert!(message == expected);
            }
        }));
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn receiving_goes_on_while_the_other_side_takes_nothing() {
    let Pair { caller, answerer, _listener } = pair();
    let (mut receiver, mut sender) = caller.split();
    // More than all buffers between the two hold.
    let blocked = thread::spawn(move || {
        sender.send(&[&vec![0; 64 << 20]], Duration::from_secs(2)).unwrap_err()
    });
    let (_never_read, mut theirs) = answerer.split();
    for number in 0..100_u8 {
        theirs.send(&[&[number]], PATIENCE).unwrap();
        let mut received = [0];
        receiver.receive(&mut received, PATIENCE).unwrap();
        assert_eq!(received, [number]);
    }
    assert!(matches!(blocked.join().unwrap(), SendError::Stalled));
}

#[test]
fn silence_a_stalled_message_an_end_and_a_cut_are_told_apart() {
    let short = Duration::from_millis(20);
    let Pair { mut caller, answerer, _listener } = pair();
    let (receiver, _) = caller.halves();
    let mut buffer = [0; 4];
    assert!(matches!(receiver.receive(&mut buffer, short), Err(ReceiveError::Idle)));
    let (_keep, mut sender) = answerer.split();
    sender.send(&[b"whole"], PATIENCE).unwrap();
    receiver.receive(&mut buffer, PATIENCE).unwrap();
    assert_eq!(&buffer, b"whol");
    assert!(matches!(receiver.receive(&mut buffer, short), Err(ReceiveError::Stalled)));

    let Pair { mut caller, answerer, _listener } = pair();
    let (_keep, mut sender) = answerer.split();
    sender.send(&[b"last"], PATIENCE).unwrap();
    sender.finish(PATIENCE).unwrap();
    let (receiver, _) = caller.halves();
    receiver.receive(&mut buffer, PATIENCE).unwrap();
    assert!(matches!(receiver.receive(&mut buffer, PATIENCE), Err(ReceiveError::Closed)));

    let Pair { mut caller, answerer, _listener } = pair();
    answerer.closer().close();
    let (receiver, _) = caller.halves();
    assert!(matches!(receiver.receive(&mut buffer, PATIENCE), Err(ReceiveError::Broken(_))));
}

#[test]
fn a_connection_can_be_closed_from_another_thread() {
    let Pair { mut caller, answerer, _listener } = pair();
    let closer = caller.closer();
    let waiting = thread::spawn(move || {
        let (receiver, _) = caller.halves();
        receiver.receive(&mut [0; 4], PATIENCE).unwrap_err()
    });
    closer.close();
    assert!(!matches!(waiting.join().unwrap(), ReceiveError::Idle));
    drop(answerer);
}

#[test]
fn nothing_on_the_wire_can_be_read_and_nothing_changed_is_taken() {
    const MARKER: &[u8] = b"the quick brown fox tells a secret to the lazy dog";
    let first = Device::first();
    let second = Device::joined(&first, "second", NOW);
    let (listener, arrivals) = listen(&first.endpoint(Standing::Member, NOW));
    let wire = Wire::to(listener.address());
    let endpoint = second.endpoint(Standing::Member, NOW);
    let address = TokenAddress::Socket(wire.address);
    let caller = connect(&address, Some(first.node()), &endpoint, PATIENCE).unwrap();
    let Ok(Arrival::Member(mut answerer, _)) = arrivals.recv_timeout(PATIENCE) else {
        panic!("a member arrives")
    };
    let (_keep, mut sender) = caller.split();
    let mut received = vec![0; MARKER.len()];
    for _ in 0..100 {
        sender.send(&[MARKER], PATIENCE).unwrap();
        answerer.halves().0.receive(&mut received, PATIENCE).unwrap();
        assert_eq!(received, MARKER);
    }
    {
        let seen = wire.seen.lock().unwrap();
        assert!(seen.len() > 100 * MARKER.len(), "the wire was watched");
        let has = |text: &[u8]| seen.windows(text.len()).any(|window| window == text);
        assert!(!has(MARKER) && !has(&MARKER[..12]), "what was sent stands on the wire");
        // Neither side's name or key stands there: certificates are encrypted too.
        assert!(!has(b"motley cluster authority"));
        assert!(!has(first.node().short().as_bytes()));
        assert!(has(b"motley/1"), "the search finds what does stand there");
    }
    wire.flip.store(true, std::sync::atomic::Ordering::SeqCst);
    sender.send(&[MARKER], PATIENCE).unwrap();
    let error = answerer.halves().0.receive(&mut received, PATIENCE).unwrap_err();
    assert!(matches!(error, ReceiveError::Tls(_)), "{error}");
}

/// A cable between two sides that records what passes, and can change it.
struct Wire {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
    flip: Arc<std::sync::atomic::AtomicBool>,
}

impl Wire {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind(loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let flip = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (record, change) = (Arc::clone(&seen), Arc::clone(&flip));
        thread::spawn(move || {
            let (near, _) = listener.accept().unwrap();
            let far = TcpStream::connect(target).unwrap();
            for (mut from, mut to) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far.try_clone().unwrap(), near.try_clone().unwrap()),
            ] {
                let (record, change) = (Arc::clone(&record), Arc::clone(&change));
                thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        record.lock().unwrap().extend(&buffer[..count]);
                        if change.load(std::sync::atomic::Ordering::SeqCst) {
                            buffer[count - 1] ^= 1;
                        }
                        if to.write_all(&buffer[..count]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, seen, flip }
    }
}
