//! Whatever the GGUF reader accepts can be trusted.

#![no_main]

#[path = "../properties/gguf.rs"]
mod property;

use libfuzzer_sys::fuzz_target;
use motley_model::Gguf;

fuzz_target!(|bytes: &[u8]| {
    let file_bytes = bytes.len() as u64;
    if let Ok(gguf) = Gguf::parse(bytes, file_bytes) {
        property::assert_trustworthy(&gguf, file_bytes);
    }
});
