//! No broken file makes the reader take memory by what the file claims.
//!
//! The allocator counts for the whole process, so that this is the only test of its binary.

mod support;

use std::alloc::System;

use cap::Cap;
use motley_model::ModelDirectory;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// The largest files are a 65 kB key and a 200 kB token; claims go up to exabytes.
const ALLOWED_BYTES: usize = 1 << 20;

#[test]
fn broken_files_take_less_memory_than_a_mebibyte() {
    for case in support::malformed() {
        let before = ALLOCATOR.total_allocated();
        if let Ok(gguf) = support::parse(&case.bytes) {
            drop(ModelDirectory::from_files(&[gguf]));
        }
        let taken = ALLOCATOR.total_allocated() - before;
        assert!(taken < ALLOWED_BYTES, "{} made the reader take {taken} bytes", case.file);
    }
}
