//! What travels between devices tells nothing to whoever listens.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use crate::http::answer;
use crate::rig::{Rig, free_port, model};

/// Packets that the system keeps until they are read: all weights at once, and more.
const KEPT_BYTES: usize = 128 << 20;

/// Writes down everything that goes to or comes from some ports.
struct Eavesdropper {
    heard: Arc<Mutex<Vec<u8>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Eavesdropper {
    /// Nothing where this user may not listen to others' packets.
    #[expect(clippy::print_stderr, reason = "says why nothing is tested")]
    fn start(ports: [u16; 2]) -> Option<Self> {
        let socket =
            packets().inspect_err(|error| eprintln!("skipped: no packets: {error}")).ok()?;
        let (heard, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (all, stopped) = (Arc::clone(&heard), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut packet = vec![0; 1 << 17];
            while !stopped.load(Ordering::Relaxed) {
                match recv(socket.as_raw_fd(), &mut packet, MsgFlags::empty()) {
                    Ok(bytes) => {
                        if let Some(payload) = payload(&packet[..bytes], ports) {
                            all.lock().unwrap().extend(payload);
                        }
                    }
                    Err(Errno::EAGAIN | Errno::EINTR) => {}
                    Err(error) => panic!("cannot listen any more: {error}"),
                }
            }
        });
        Some(Self { heard, stop, thread: Some(thread) })
    }

    fn heard(mut self) -> Vec<u8> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("ended once").join().unwrap();
        std::mem::take(&mut self.heard.lock().unwrap())
    }
}

/// All packets of this machine, without what is before the network's header.
fn packets() -> io::Result<OwnedFd> {
    let (family, all) = (AddressFamily::Packet, SockProtocol::EthAll);
    let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, all)?;
    setsockopt(&socket, sockopt::RcvBufForce, &KEPT_BYTES)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(100))?;
    Ok(socket)
}

/// What a TCP segment over IPv4 carries, if it goes to or comes from one of the ports.
fn payload(packet: &[u8], ports: [u16; 2]) -> Option<&[u8]> {
    const TCP: u8 = 6;
    let is_tcp = packet.first()? >> 4 == 4 && *packet.get(9)? == TCP;
    let segment = packet.get(usize::from(packet[0] & 0xf) * 4..).filter(|_| is_tcp)?;
    let port = |at: usize| Some(u16::from_be_bytes(segment.get(at..at + 2)?.try_into().ok()?));
    let wanted = ports.contains(&port(0)?) || ports.contains(&port(2)?);
    segment.get(usize::from(segment.get(12)? >> 4) * 4..).filter(|_| wanted)
}

fn contains(heard: &[u8], secret: &[u8]) -> bool {
    assert!(secret.len() >= 8, "what is short may be there by chance");
    heard.windows(secret.len()).any(|window| window == secret)
}

/// Pieces of a file that are not all alike, spread over it.
fn pieces(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let places = (1..64).map(|part| bytes.len() / 64 * part);
    let pieces = places.map(|place| bytes[place..place + 32].to_vec());
    pieces.filter(|piece| piece.iter().any(|byte| *byte != piece[0])).collect()
}

fn keys(folder: &Path) -> Vec<Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let keys = files.filter(|path| path.extension().is_some_and(|it| it == "key"));
    keys.map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn prompts_weights_and_keys_are_not_to_be_seen_on_the_way() {
    let Some(model) = model() else { return };
    let mut rig = Rig::head(&model, &["--nodes", "1", "--split", "27,3"]);
    let (head, member) = (rig.cluster_port(), free_port());
    let Some(eavesdropper) = Eavesdropper::start([head, member]) else { return };
    let token = rig.new_token(&[]);
    rig.join_by(&token, &["--port", &member.to_string()]);
    rig.ready();
    let prompt = "A walrus told nobody that the treasure lies below the third lighthouse.";
    let told = answer(&rig.url(), prompt, 16);
    rig.members[0].wait_for("fetched ");
    let heard = eavesdropper.heard();
    // The layers came this way, over TLS, whose records begin so.
    assert!(heard.len() > 8_000_000, "{}", heard.len());
    assert!(contains(&heard, &heard[heard.len() / 2..][..32]), "what is there is found");
    assert_eq!(heard[..2], [0x16, 0x03]);
    assert!(told.len() >= 8, "{told}");
    let spoken = [prompt, &prompt[8..24], &told, &token, "llama.block_count"];
    let secrets = spoken.map(|text| text.as_bytes().to_vec());
    let weights = pieces(Path::new(&model));
    assert!(weights.len() > 32, "{}", weights.len());
    let keys = [keys(&rig.state_of_head()), keys(&rig.state_of(0))].concat();
    assert!(keys.len() >= 2, "{}", keys.len());
    for secret in secrets.iter().chain(&weights).chain(&keys) {
        assert!(!contains(&heard, secret), "{:?} can be read", String::from_utf8_lossy(secret));
    }
}
