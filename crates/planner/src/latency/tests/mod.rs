//! Golden cases and oracles of latency planning.

mod ablation;
mod golden;
mod halda_1;
mod oracle;
mod rests;
mod worth;
