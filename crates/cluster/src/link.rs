//! How devices reach each other: bandwidth and round-trip time per ordered pair, and relay routes.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::field::{FieldError, FieldProblem, check_range};
use crate::limits::{BANDWIDTH_MAX, BANDWIDTH_MIN, RTT_SECONDS_MAX};
use crate::units::{Bytes, BytesPerSecond, DeviceId, Seconds};

/// Quality of one direction between two devices.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Payload rate.
    pub bytes_per_s: BytesPerSecond,
    /// Round-trip time; one way costs half of it.
    pub rtt_s: Seconds,
}

impl Link {
    /// Time of one message: half a round trip plus the payload (PLANNER 2).
    #[must_use]
    pub fn transfer(&self, payload: Bytes) -> Seconds {
        self.rtt_s.times(0.5) + payload / self.bytes_per_s
    }
}

/// A direction that differs from the default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkPair {
    /// Name of the sender.
    pub from: String,
    /// Name of the receiver.
    pub to: String,
    /// The other direction has the same quality.
    #[serde(default)]
    pub symmetric: bool,
    /// The quality; absent means the receiver cannot be reached directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
}

/// Devices at one site, which reach each other with one quality.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkGroup {
    /// Names of the members.
    pub members: Vec<String>,
    /// Quality between any two of them.
    pub link: Link,
}

/// All links as a file states them. A pair entry beats a group, a group beats the default.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// Quality where nothing else is said; absent means unreachable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Link>,
    /// Sites.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<LinkGroup>,
    /// Single directions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<LinkPair>,
}

/// The links of a cluster by device id.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkMatrix {
    devices_count: usize,
    default: Option<Link>,
    /// Group of each device, as an index into `groups`.
    group_of: Vec<Option<usize>>,
    groups: Vec<Link>,
    pairs: BTreeMap<(DeviceId, DeviceId), Option<Link>>,
}

/// A way from one device to another, direct or over relays.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Devices in between, in order; empty when direct.
    pub relays: Vec<DeviceId>,
    /// One link per hop.
    pub links: Vec<Link>,
}

impl Route {
    /// Time of one message; a relay forwards it once it has it whole.
    #[must_use]
    pub fn transfer(&self, payload: Bytes) -> Seconds {
        self.links.iter().map(|link| link.transfer(payload)).sum()
    }
}

impl LinkMatrix {
    /// Resolves names to ids.
    ///
    /// # Errors
    /// A name is unknown, a device is in two groups, a pair occurs twice, or a figure is absurd.
    pub fn new(spec: &LinkSpec, names: &[&str]) -> Result<Self, FieldError> {
        let ids: BTreeMap<&str, usize> =
            names.iter().enumerate().map(|(index, name)| (*name, index)).collect();
        let mut matrix = Self {
            devices_count: names.len(),
            default: spec.default,
            group_of: vec![None; names.len()],
            groups: spec.groups.iter().map(|group| group.link).collect(),
            pairs: BTreeMap::new(),
        };
        if let Some(link) = &spec.default {
            check_link("default", link)?;
        }
        for (index, group) in spec.groups.iter().enumerate() {
            check_link(&format!("groups[{index}].link"), &group.link)?;
            let field = format!("groups[{index}].members");
            for name in &group.members {
                let id = find(&ids, name, &field)?;
                if matrix.group_of[id].replace(index).is_some() {
                    return Err(FieldError::new(field, FieldProblem::Duplicate(name.clone())));
                }
            }
        }
        for (index, pair) in spec.pairs.iter().enumerate() {
            matrix.add_pair(&ids, &format!("pairs[{index}]"), pair)?;
        }
        Ok(matrix)
    }

    /// Every pair with the same quality.
    #[must_use]
    pub fn uniform(devices_count: usize, link: Link) -> Self {
        let group_of = vec![None; devices_count];
        let pairs = BTreeMap::new();
        Self { devices_count, default: Some(link), group_of, groups: Vec::new(), pairs }
    }

    /// The direct link, if there is one. A device needs no link to itself.
    #[must_use]
    pub fn direct(&self, from: DeviceId, to: DeviceId) -> Option<Link> {
        if from == to {
            return None;
        }
        if let Some(link) = self.pairs.get(&(from, to)) {
            return *link;
        }
        match (self.group_of[from.index()], self.group_of[to.index()]) {
            (Some(a), Some(b)) if a == b => Some(self.groups[a]),
            _ => self.default,
        }
    }

    /// The way with the fewest hops; among equals the lower relay ids. `None` if there is no way.
    #[must_use]
    pub fn route(&self, from: DeviceId, to: DeviceId) -> Option<Route> {
        if let Some(link) = self.direct(from, to) {
            return Some(Route { relays: Vec::new(), links: vec![link] });
        }
        if from == to {
            return Some(Route { relays: Vec::new(), links: Vec::new() });
        }
        let mut previous: Vec<Option<DeviceId>> = vec![None; self.devices_count];
        let mut queue = VecDeque::from([from]);
        while let Some(here) = queue.pop_front() {
            if here == to {
                break;
            }
            for (index, before) in previous.iter_mut().enumerate() {
                let next = DeviceId::new(index as u16);
                if next != from && before.is_none() && self.direct(here, next).is_some() {
                    *before = Some(here);
                    queue.push_back(next);
                }
            }
        }
        let mut stops = vec![to];
        let mut here = to;
        while here != from {
            here = previous[here.index()]?;
            stops.push(here);
        }
        stops.reverse();
        let links = stops.windows(2).filter_map(|hop| self.direct(hop[0], hop[1])).collect();
        Some(Route { relays: stops[1..stops.len() - 1].to_vec(), links })
    }

    fn add_pair(
        &mut self,
        ids: &BTreeMap<&str, usize>,
        field: &str,
        pair: &LinkPair,
    ) -> Result<(), FieldError> {
        let from = DeviceId::new(find(ids, &pair.from, &format!("{field}.from"))? as u16);
        let to = DeviceId::new(find(ids, &pair.to, &format!("{field}.to"))? as u16);
        if from == to {
            let problem = FieldProblem::Duplicate(pair.to.clone());
            return Err(FieldError::new(format!("{field}.to"), problem));
        }
        if let Some(link) = &pair.link {
            check_link(&format!("{field}.link"), link)?;
        }
        let mut directions = vec![(from, to)];
        if pair.symmetric {
            directions.push((to, from));
        }
        for direction in directions {
            if self.pairs.insert(direction, pair.link).is_some() {
                let name = format!("{} to {}", pair.from, pair.to);
                return Err(FieldError::new(field, FieldProblem::Duplicate(name)));
            }
        }
        Ok(())
    }
}

fn find(ids: &BTreeMap<&str, usize>, name: &str, field: &str) -> Result<usize, FieldError> {
    ids.get(name)
        .copied()
        .ok_or_else(|| FieldError::new(field, FieldProblem::UnknownDevice(name.to_owned())))
}

fn check_link(field: &str, link: &Link) -> Result<(), FieldError> {
    let rate = link.bytes_per_s.value();
    check_range(&format!("{field}.bytes_per_s"), rate, (BANDWIDTH_MIN, BANDWIDTH_MAX))?;
    check_range(&format!("{field}.rtt_s"), link.rtt_s.value(), (0.0, RTT_SECONDS_MAX))
}
