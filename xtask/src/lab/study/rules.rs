//! Rules of thumb that deal out layers: what the planner's choice is measured against.

/// A device as these rules see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Device {
    /// Its share of a processor.
    pub(super) speed: f64,
    /// Memory that it gives for layers.
    pub(super) room_bytes: u64,
}

/// A rule's name and each device's number of layers.
pub(super) type Dealt = (&'static str, Vec<u32>);

/// What the rules say of a model of `layers` layers that take `layer_bytes` each. Where two rules
/// agree the first is given; a rule that asks for more memory than there is, is left out.
pub(super) fn deal(devices: &[Device], layers: u32, layer_bytes: u64) -> Vec<Dealt> {
    let room: Vec<u32> = devices
        .iter()
        .map(|device| u32::try_from(device.room_bytes / layer_bytes.max(1)).unwrap_or(u32::MAX))
        .collect();
    let weights = |of: fn(&Device) -> f64| devices.iter().map(of).collect::<Vec<f64>>();
    let mut found: Vec<Dealt> = Vec::new();
    if let Some(single) = fastest_with(devices, &room, layers) {
        found.push(("best single device", single));
    }
    let rules = [
        ("memory-proportional", weights(|device| device.room_bytes as f64)),
        ("flops-proportional", weights(|device| device.speed)),
    ];
    for (name, weights) in rules {
        found.extend(proportional(&weights, &room, layers).map(|counts| (name, counts)));
    }
    found.extend(fill_fastest(devices, &room, layers).map(|counts| ("fill-fastest", counts)));
    let mut kept: Vec<Dealt> = Vec::new();
    for dealt in found {
        if kept.iter().all(|(_, counts)| *counts != dealt.1) {
            kept.push(dealt);
        }
    }
    kept
}

/// All layers on the fastest device that holds them.
fn fastest_with(devices: &[Device], room: &[u32], layers: u32) -> Option<Vec<u32>> {
    let able = (0..devices.len()).filter(|index| room[*index] >= layers);
    // Of equals the first, which is the head, as a token then goes nowhere.
    let best = able.rev().max_by(|a, b| devices[*a].speed.total_cmp(&devices[*b].speed))?;
    Some((0..devices.len()).map(|index| if index == best { layers } else { 0 }).collect())
}

/// By weight, one layer after the other to whoever has least for its weight and room for one more.
fn proportional(weights: &[f64], room: &[u32], layers: u32) -> Option<Vec<u32>> {
    let mut counts = vec![0_u32; weights.len()];
    for _ in 0..layers {
        let free = (0..weights.len()).filter(|at| counts[*at] < room[*at] && weights[*at] > 0.0);
        let load = |at: usize| f64::from(counts[at] + 1) / weights[at];
        let next = free.min_by(|a, b| load(*a).total_cmp(&load(*b)))?;
        counts[next] += 1;
    }
    Some(counts)
}

/// The fastest device takes what it can, then the next.
fn fill_fastest(devices: &[Device], room: &[u32], layers: u32) -> Option<Vec<u32>> {
    let mut order: Vec<usize> = (0..devices.len()).collect();
    order.sort_by(|a, b| devices[*b].speed.total_cmp(&devices[*a].speed));
    let (mut counts, mut left) = (vec![0; devices.len()], layers);
    for index in order {
        counts[index] = left.min(room[index]);
        left -= counts[index];
    }
    (left == 0).then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(devices: &[(f64, u64)], layers: u32, expected: &[(&str, &[u32])]) {
        let device =
            |(speed, room_bytes): &(f64, u64)| Device { speed: *speed, room_bytes: *room_bytes };
        let devices: Vec<Device> = devices.iter().map(device).collect();
        let dealt = deal(&devices, layers, 10);
        let dealt: Vec<(&str, &[u32])> =
            dealt.iter().map(|(name, counts)| (*name, counts.as_slice())).collect();
        assert_eq!(dealt, expected);
    }

    #[test]
    fn each_rule_deals_as_its_name_says() {
        check(
            &[(1.0, 400), (0.5, 100)],
            30,
            &[
                ("best single device", &[30, 0]),
                ("memory-proportional", &[24, 6]),
                ("flops-proportional", &[20, 10]),
            ],
        );
        check(
            &[(0.5, 200), (1.0, 200)],
            30,
            &[("memory-proportional", &[15, 15]), ("flops-proportional", &[10, 20])],
        );
        check(
            &[(1.0, 300), (1.0, 300)],
            30,
            &[("best single device", &[30, 0]), ("memory-proportional", &[15, 15])],
        );
    }

    #[test]
    fn what_does_not_fit_goes_on_to_the_next_or_nowhere() {
        check(
            &[(1.0, 120), (0.2, 1000)],
            20,
            &[
                ("best single device", &[0, 20]),
                ("memory-proportional", &[2, 18]),
                ("flops-proportional", &[12, 8]),
            ],
        );
        check(&[(1.0, 90), (1.0, 90)], 20, &[]);
        check(&[(1.0, 0), (1.0, 200)], 20, &[("best single device", &[0, 20])]);
    }
}
