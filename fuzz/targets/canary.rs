//! Must fail within seconds: it shows that the fuzzer reaches accepted files and that the property
//! notices a fault. The fault: the reader is told of a byte that the file does not have, as if it
//! did not check where the last tensor ends.

#![no_main]

#[path = "../properties/gguf.rs"]
mod property;

use libfuzzer_sys::fuzz_target;
use motley_model::Gguf;

fuzz_target!(|bytes: &[u8]| {
    let longer = [bytes, &[0]].concat();
    if let Ok(gguf) = Gguf::parse(&longer, longer.len() as u64) {
        property::assert_trustworthy(&gguf, bytes.len() as u64);
    }
});
