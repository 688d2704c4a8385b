//! Golden cases and oracles of latency planning.

mod golden;
mod halda_1;
