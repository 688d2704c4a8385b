//! How devices reach each other, as far as it was measured.

use std::collections::BTreeMap;

use motley_cluster::{BytesPerSecond, FieldError, Link, LinkMatrix, LinkPair, LinkSpec, Seconds};
use motley_ring::{LinkQuality, NodeId};

/// A way from one device to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    /// As measured.
    Measured(Link),
    /// Nobody has measured it yet: as slow as over the head.
    Assumed(Link),
    /// There is none.
    None,
}

impl Way {
    /// Its quality, if there is one.
    pub(crate) fn link(&self) -> Option<Link> {
        match self {
            Self::Measured(link) | Self::Assumed(link) => Some(*link),
            Self::None => None,
        }
    }
}

/// Why the way that a node tells of is not believed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum LinkRefused {
    /// A rate of nothing.
    #[error(transparent)]
    Unit(#[from] motley_cluster::UnitError),
    /// A figure that no link has.
    #[error(transparent)]
    Field(#[from] FieldError),
}

/// Ways that were measured, each in its direction; nothing where there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KnownLinks(BTreeMap<(NodeId, NodeId), Option<Link>>);

impl KnownLinks {
    /// Takes what `from` has measured, both ways.
    ///
    /// # Errors
    /// When a figure is absurd; then nothing is known of the way.
    pub(crate) fn learn(
        &mut self,
        from: NodeId,
        to: NodeId,
        quality: Option<LinkQuality>,
    ) -> Result<(), LinkRefused> {
        let (out, back) = match quality {
            None => (None, None),
            Some(quality) => {
                let link = |bytes_per_s| believed(quality.round_trip_ns, bytes_per_s);
                (Some(link(quality.out_bytes_per_s)?), Some(link(quality.in_bytes_per_s)?))
            }
        };
        self.0.insert((from, to), out);
        self.0.insert((to, from), back);
        Ok(())
    }

    /// Whether the way was measured.
    pub(crate) fn knows(&self, from: NodeId, to: NodeId) -> bool {
        self.0.contains_key(&(from, to))
    }

    /// Ways that somebody has tried to measure in vain.
    pub(crate) fn missing(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        self.0.iter().filter(|(_, link)| link.is_none()).map(|(way, _)| *way)
    }

    /// Forgets a device that has gone: it may come back elsewhere.
    pub(crate) fn forget(&mut self, node: NodeId) {
        self.0.retain(|(from, to), _| *from != node && *to != node);
    }

    /// The way between two devices. What was not measured is taken to lead over the head: both
    /// round trips, and the slower of both rates.
    pub(crate) fn between(&self, from: NodeId, to: NodeId, head: NodeId) -> Way {
        if let Some(known) = self.0.get(&(from, to)) {
            return known.map_or(Way::None, Way::Measured);
        }
        let part = |from, to| self.0.get(&(from, to)).copied().flatten();
        match (part(from, head), part(head, to)) {
            (Some(there), Some(on)) if from != head && to != head => Way::Assumed(Link {
                bytes_per_s: there.bytes_per_s.min(on.bytes_per_s),
                rtt_s: there.rtt_s + on.rtt_s,
            }),
            _ => Way::None,
        }
    }
}

/// A link with these figures, if there can be such a one.
fn believed(round_trip_ns: u64, bytes_per_s: u64) -> Result<Link, LinkRefused> {
    let link = Link {
        bytes_per_s: BytesPerSecond::new(bytes_per_s as f64)?,
        rtt_s: Seconds::new(round_trip_ns as f64 / 1e9)?,
    };
    // The clusters' own check, so that a cluster made of believed links is a cluster.
    let pair = LinkPair {
        from: "from".to_owned(),
        to: "to".to_owned(),
        symmetric: false,
        link: Some(link),
    };
    LinkMatrix::new(&LinkSpec { pairs: vec![pair], ..LinkSpec::default() }, &["from", "to"])?;
    Ok(link)
}
