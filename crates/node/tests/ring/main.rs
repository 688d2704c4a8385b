//! One model on several devices: real processes of the program, joined over loopback.
//!
//! Every process is ended by the test that started it, every wait has a deadline, and what was
//! waited for in vain is shown together with what the devices printed.
#![cfg(unix)]
#![expect(
    clippy::disallowed_methods,
    reason = "tests watch other processes, for which only looking again and again is left"
)]

#[path = "../common/mod.rs"]
mod common;

mod device;
mod http;
mod life;
mod loss;
mod placement;
mod refusals;
mod rig;
#[cfg(target_os = "linux")]
mod secrecy;
mod tokens;
mod weights;
