//! Whether what came is what was announced.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

/// Bytes read at once.
const BUFFER_BYTES: usize = 1 << 20;

/// SHA-256 of a file in hexadecimal. `progress` hears of bytes as they are read.
pub(super) fn sha256_of(path: &Path, mut progress: impl FnMut(u64)) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(HEXLOWER.encode(&hasher.finalize())),
            count => {
                hasher.update(&buffer[..count]);
                progress(count as u64);
            }
        }
    }
}

/// Whether a text is a SHA-256 in lower-case hexadecimal.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
