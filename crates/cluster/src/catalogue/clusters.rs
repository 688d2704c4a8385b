//! The clusters of both papers, by name.

use super::figures::{Catalogue, LinkRow, OneOrRange};
use crate::cluster::{Cluster, ClusterSpec};
use crate::device::DeviceProfile;
use crate::document::FormatVersion;
use crate::link::{Link, LinkSpec};
use crate::units::{Bytes, BytesPerSecond, Seconds};

const NAMES: [&str; 5] = ["prima-home", "prima-ten", "e2llm-4", "e2llm-6", "e2llm-8"];

/// No built-in cluster has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no built-in cluster is called `{name}`; there are {}", NAMES.join(", "))]
pub struct NamedClusterError {
    /// The name asked for.
    pub name: String,
}

/// Names of the built-in clusters.
#[must_use]
pub const fn builtin_cluster_names() -> &'static [&'static str] {
    &NAMES
}

/// A built-in cluster: `prima-home`, `prima-ten`, `e2llm-4`, `e2llm-6` or `e2llm-8`.
///
/// `prima-ten` is our reconstruction: the study names ten devices but not which, so it is the home
/// cluster, the tablet, the GTX 1080 Ti node and the four nodes of the speculative test-bed.
/// The head is left free in all of them.
///
/// # Errors
/// There is no such cluster.
///
/// # Panics
/// Never in a build whose tests passed: the data is part of the crate.
pub fn builtin_cluster(name: &str) -> Result<Cluster, NamedClusterError> {
    let catalogue = Catalogue::builtin();
    let e2llm = |members: &[&str]| {
        let rows = &catalogue.clusters.e2llm;
        let chosen = rows.nodes.iter().filter(|node| members.contains(&node.id.as_str()));
        let devices = chosen.map(|node| device(&node.device, &node.id)).collect();
        (devices, link(&rows.link))
    };
    let (devices, link) = match name {
        "e2llm-4" => e2llm(&["Dev.1", "Dev.2", "Dev.5", "Dev.6"]),
        "e2llm-6" => e2llm(&["Dev.1", "Dev.2", "Dev.4", "Dev.5", "Dev.6", "Dev.7"]),
        "e2llm-8" => {
            e2llm(&["Dev.1", "Dev.2", "Dev.3", "Dev.4", "Dev.5", "Dev.6", "Dev.7", "Dev.8"])
        }
        "prima-home" => (home(), link(&catalogue.clusters.prima_home.link)),
        "prima-ten" => (ten(), link(&catalogue.clusters.prima_home.link)),
        other => return Err(NamedClusterError { name: other.to_owned() }),
    };
    let spec = ClusterSpec {
        version: FormatVersion::default(),
        name: name.to_owned(),
        head: None,
        links: LinkSpec { default: Some(link), ..LinkSpec::default() },
        devices,
    };
    Ok(Cluster::new(spec).expect("built-in clusters are valid"))
}

fn home() -> Vec<DeviceProfile> {
    let nodes = &Catalogue::builtin().clusters.prima_home.nodes;
    nodes.iter().map(|node| device(&node.device, &node.id)).collect()
}

fn ten() -> Vec<DeviceProfile> {
    let mut devices = home();
    devices.push(device("honor-pad-d8100", "D5"));
    devices.push(device("gtx1080ti", "D6"));
    for name in ["D7", "D8"] {
        let mut spec = device("rtx4090", name).to_spec();
        let cap =
            Catalogue::builtin().device("rtx4090").and_then(|d| d.memory.vram_cap_gib.as_ref());
        let cap = cap.and_then(|figure| figure.value).expect("the study's cap is in the data");
        let cap = Bytes::from_gib(cap).expect("a cap is not negative");
        spec.gpus[0].usable_bytes = spec.gpus[0].usable_bytes.min(cap);
        spec.hardware = Some("rtx4090 capped".to_owned());
        devices.push(DeviceProfile::new(spec).expect("a smaller GPU is valid"));
    }
    for name in ["D9", "D10"] {
        let mut spec = device("rtx4090", name).to_spec();
        spec.gpus.clear();
        spec.hardware = Some("rtx4090 host".to_owned());
        devices.push(DeviceProfile::new(spec).expect("a host without GPU is valid"));
    }
    devices
}

fn device(id: &str, name: &str) -> DeviceProfile {
    Catalogue::builtin().device(id).expect("clusters name catalogue devices").profile(name)
}

/// Published ranges stand for their middle.
fn link(row: &LinkRow) -> Link {
    let middle = |value: Option<OneOrRange>| match value.expect("links have figures") {
        OneOrRange::One(value) => value,
        OneOrRange::Range(low, high) => f64::midpoint(low, high),
    };
    Link {
        bytes_per_s: BytesPerSecond::new(middle(row.bandwidth_mbps.value) * 1e6 / 8.0)
            .expect("bandwidths are positive"),
        rtt_s: Seconds::from_ms(middle(row.rtt_ms.value)).expect("delays are not negative"),
    }
}
