//! `--check`: what a lab gives, beside what its file asks for.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

use super::description::{Description, Wire};
use super::peer::{CpuMeasure, LinkMeasure};
use super::session::Lab;
use super::{command, myself};
use crate::process;

const MEASURE_LIMIT: Duration = Duration::from_secs(90);

/// What a file asks of a pair of devices.
#[derive(Debug, PartialEq)]
struct Asked {
    rtt_ms: f64,
    bandwidth_mbit: Option<f64>,
}

/// Measures every pair of devices, then every device alone, and prints both as tables.
pub(super) fn run(lab: &mut Lab, description: &Description) -> Result<()> {
    lab.start_echoes()?;
    println!(
        "{:16} {:16} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "from", "to", "RTT asked", "least", "median ms", "Mbit/s", "got"
    );
    let devices = &description.devices;
    for from in 0..devices.len() {
        for to in from + 1..devices.len() {
            lab.interrupted()?;
            let asked = asked(description, from, to);
            let address = &lab.plan().places[to].address;
            let got: LinkMeasure = measure(lab.outside_limits(from), &["link", address])
                .with_context(|| format!("{} to {}", devices[from].name, devices[to].name))?;
            println!(
                "{:16} {:16} {:>10.3} {:>10.3} {:>10.3} {:>10} {:>10.1}",
                devices[from].name,
                devices[to].name,
                asked.rtt_ms,
                got.rtt_us_least / 1e3,
                got.rtt_us_median / 1e3,
                asked.bandwidth_mbit.map_or_else(|| "any".to_owned(), |rate| format!("{rate:.1}")),
                got.bandwidth_mbit
            );
        }
    }
    println!("\n{:16} {:>10} {:>10}", "device", "cores", "got");
    for (index, device) in devices.iter().enumerate() {
        lab.interrupted()?;
        let Some(share) = device.cpu_share else { continue };
        let threads = (share.ceil() as u64).to_string();
        let enter = lab.plan().places[index].enter.clone();
        let got: CpuMeasure =
            measure(enter, &["cpu", &threads]).with_context(|| device.name.clone())?;
        println!("{:16} {share:>10.2} {:>10.3}", device.name, got.cpu_share);
    }
    Ok(())
}

/// Runs a measuring peer behind the words that lead to its device.
fn measure<T: DeserializeOwned>(mut enter: Vec<String>, what: &[&str]) -> Result<T> {
    enter.push(myself()?.display().to_string());
    enter.push("lab-measure".to_owned());
    enter.extend(what.iter().map(|word| (*word).to_owned()));
    let answer = process::capture(command(&enter)?, MEASURE_LIMIT)?;
    serde_json::from_slice(&answer).context("a measuring peer's answer is not as it should be")
}

fn asked(description: &Description, from: usize, to: usize) -> Asked {
    let own = description.links.iter().find(|(one, other, _)| (*one, *other) == (from, to));
    let wires: Vec<Wire> = match own {
        Some((_, _, wire)) => vec![*wire],
        None => [from, to].map(|device| description.devices[device].port).to_vec(),
    };
    Asked {
        rtt_ms: 2.0 * wires.iter().map(|wire| wire.delay_ms).sum::<f64>(),
        bandwidth_mbit: wires.iter().filter_map(|wire| wire.bandwidth_mbit).reduce(f64::min),
    }
}

#[cfg(test)]
mod tests {
    use super::super::description::parse;
    use super::*;

    #[test]
    fn a_pair_has_both_delays_and_the_slower_rate_or_its_own_cable() {
        let description = parse(
            "[[device]]\nname = \"a\"\nport = { bandwidth_mbit = 100, delay_ms = 1.0 }\n\
             [[device]]\nname = \"b\"\nport = { bandwidth_mbit = 50, delay_ms = 2.0 }\n\
             [[device]]\nname = \"c\"\n\
             [[link]]\nbetween = [\"c\", \"a\"]\ndelay_ms = 0.1\n",
        )
        .expect("the text is right");
        let check = |from, to, rtt_ms, bandwidth_mbit| {
            assert_eq!(asked(&description, from, to), Asked { rtt_ms, bandwidth_mbit });
        };
        check(0, 1, 6.0, Some(50.0));
        check(0, 2, 0.2, None);
        check(1, 2, 4.0, Some(50.0));
    }
}
