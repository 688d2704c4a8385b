//! The binary `motley`.

fn main() {}
