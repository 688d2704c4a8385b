//! Set-up, demo and checks.

fn main() {}
