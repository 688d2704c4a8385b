//! What travels between devices tells nothing to whoever listens.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::printed;
use crate::http::answer;
use crate::rig::{Rig, model};

/// A way to a device on which everything is written down. Its threads end with the connections.
struct Tap {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    fn before(device: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (device, all) = (device.to_owned(), Arc::clone(&heard));
        thread::spawn(move || {
            for caller in listener.incoming() {
                let (Ok(caller), Ok(device)) = (caller, TcpStream::connect(&device)) else {
                    return;
                };
                let ends = [(&caller, &device), (&device, &caller)];
                for (from, to) in ends {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let all = Arc::clone(&all);
                    thread::spawn(move || pass_on(from, to, &all));
                }
            }
        });
        Self { address, heard }
    }

    fn heard(&self) -> Vec<u8> {
        self.heard.lock().unwrap().clone()
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, heard: &Mutex<Vec<u8>>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        heard.lock().unwrap().extend(&bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
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
    let tap = Tap::before(&rig.cluster_address());
    let (at, state) = (tap.address.to_string(), rig.state_of_head());
    let words = ["token", "new", "--address", &at, "--state", state.to_str().unwrap()];
    let token = printed(&words).trim().to_owned();
    rig.join_by(&token, &[]);
    rig.ready();
    let prompt = "A walrus told nobody that the treasure lies below the third lighthouse.";
    let told = answer(&rig.url(), prompt, 16);
    rig.members[0].wait_for("fetched ");
    let heard = tap.heard();
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
