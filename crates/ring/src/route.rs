//! The way of a token around the ring: stops in the order they are visited.

use std::collections::BTreeSet;
use std::ops::Range;

use motley_cluster::{DeviceId, ReplicaSpec};
use serde::{Deserialize, Serialize};

use crate::limits::{LAYERS_MAX, MEMBERS_MAX, STOPS_MAX};

/// Position of a member in its route's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemberIndex(pub u16);

impl MemberIndex {
    /// The position, for indexing.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One visit of a micro-batch at a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// The member.
    pub member: MemberIndex,
    /// The layers it computes now. Empty at a relay, and at a head that only embeds or projects;
    /// then both ends are the number of layers that are already computed.
    pub layers: Range<u32>,
    /// Tokens become hidden states here: the first stop alone.
    pub embeds: bool,
    /// Hidden states become logits here, and tokens are chosen: the last stop alone.
    pub projects: bool,
}

impl Stop {
    /// Whether it only passes on what it gets.
    #[must_use]
    pub fn forwards(&self) -> bool {
        self.layers.is_empty() && !self.embeds && !self.projects
    }
}

/// One member's part, as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StopSpec {
    member: MemberIndex,
    first_layer: u32,
    end_layer: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteSpec {
    members: u16,
    stops: Vec<StopSpec>,
}

/// Stops that compute every layer once, in order, from the head back to the head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RouteSpec", into = "RouteSpec")]
pub struct Route {
    members: u16,
    stops: Vec<Stop>,
}

/// Why stops make no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Too many or too few of something.
    #[error("{found} {what}, from 1 to {most} are possible")]
    Count {
        /// What was counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        most: usize,
    },
    /// A layer is left out, repeated or out of order.
    #[error("stop {stop} begins at layer {found}, expected {expected}")]
    LayerOrder {
        /// The stop.
        stop: usize,
        /// Its first layer.
        found: u32,
        /// The layer that comes next.
        expected: u32,
    },
    /// A stop at a member that does not exist, or twice in a row at the same one.
    #[error("stop {stop} is at member {member}, which does not exist or is the one before")]
    Member {
        /// The stop.
        stop: usize,
        /// The member.
        member: u16,
    },
    /// The last stop is not at the head.
    #[error("a route ends where it begins, at the head")]
    NotRound,
    /// A member never gets anything to do.
    #[error("member {member} has no stop")]
    Idle {
        /// The member.
        member: u16,
    },
}

impl Route {
    /// One member that does everything.
    ///
    /// # Panics
    /// No layers, or more than [`LAYERS_MAX`], are a bug of the caller.
    #[must_use]
    pub fn solo(layers: u32) -> Self {
        assert!((1..=LAYERS_MAX).contains(&layers), "a model has 1 to {LAYERS_MAX} layers");
        let member = MemberIndex(0);
        Self {
            members: 1,
            stops: vec![Stop { member, layers: 0..layers, embeds: true, projects: true }],
        }
    }

    /// The route of `head` through windows of layers, in the order they are computed. Members are
    /// numbered below `members`; windows that touch at one member merge, and so does the head's own
    /// embedding and projecting with a window of its own next to them.
    ///
    /// # Errors
    /// Windows that leave out or repeat a layer, or more of anything than the protocol has room for.
    pub fn of_windows(
        members: u16,
        head: MemberIndex,
        windows: &[(MemberIndex, Range<u32>)],
    ) -> Result<Self, RouteError> {
        let layers = windows.last().map_or(0, |(_, layers)| layers.end);
        let ends = [(head, 0..0), (head, layers..layers)];
        let mut stops: Vec<StopSpec> = Vec::with_capacity(windows.len() + 2);
        for (member, layers) in ends[..1].iter().chain(windows).chain(&ends[1..]) {
            match stops.last_mut() {
                Some(last) if last.member == *member && last.end_layer == layers.start => {
                    last.end_layer = layers.end;
                }
                _ => stops.push(StopSpec {
                    member: *member,
                    first_layer: layers.start,
                    end_layer: layers.end,
                }),
            }
        }
        Self::try_from(RouteSpec { members, stops })
    }

    /// The route of a planned replica, and the device of each of its members: those of the plan in
    /// ring order, then devices that are relays only.
    ///
    /// The head embeds first and projects last; both merge with its window where one is next to
    /// them. A member without layers in a round is left out of it, unless a relay is needed to get
    /// past it: then the ring is followed device by device.
    ///
    /// # Errors
    /// More devices, stops or layers than the protocol has room for.
    pub fn of_replica(replica: &ReplicaSpec) -> Result<(Self, Vec<DeviceId>), RouteError> {
        let mut walk = Walk::new(replica);
        let head = replica.position_of(replica.head).ok_or(RouteError::NotRound)?;
        walk.visit(replica.head, 0..0);
        let mut at = head;
        let mut layers_done = 0;
        for window in replica.windows() {
            walk.go(at, window.member, layers_done);
            let layers = window.layers.start()..window.layers.end();
            layers_done = layers.end;
            walk.visit(window.device, layers);
            at = window.member;
        }
        walk.go(at, head, layers_done);
        walk.visit(replica.head, layers_done..layers_done);
        let devices = walk.devices;
        let members = u16::try_from(devices.len()).unwrap_or(u16::MAX);
        let route = Self::try_from(RouteSpec { members, stops: walk.stops })?;
        Ok((route, devices))
    }

    /// Number of members; a [`MemberIndex`] is below it.
    #[must_use]
    pub const fn members(&self) -> u16 {
        self.members
    }

    /// The stops in order.
    #[must_use]
    pub fn stops(&self) -> &[Stop] {
        &self.stops
    }

    /// The member that embeds, projects and chooses tokens.
    #[must_use]
    pub fn head(&self) -> MemberIndex {
        self.stops[0].member
    }

    /// Number of layers.
    #[must_use]
    pub fn layers(&self) -> u32 {
        self.stops.last().map_or(0, |stop| stop.layers.end)
    }

    /// The data connections it needs: who sends to whom, each pair once, rising.
    #[must_use]
    pub fn edges(&self) -> Vec<(MemberIndex, MemberIndex)> {
        let pairs = self.stops.windows(2).map(|pair| (pair[0].member, pair[1].member));
        pairs.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Number of members that compute layers: so many micro-batches can be worked on at once.
    #[must_use]
    pub fn stages(&self) -> usize {
        let computing = self.stops.iter().filter(|stop| !stop.layers.is_empty());
        computing.map(|stop| stop.member).collect::<BTreeSet<_>>().len()
    }

    /// The layers of a member, in the order it computes them.
    pub fn windows_of(&self, member: MemberIndex) -> impl Iterator<Item = Range<u32>> + '_ {
        let own = self.stops.iter().filter(move |stop| stop.member == member);
        own.map(|stop| stop.layers.clone()).filter(|layers| !layers.is_empty())
    }

    /// Whether all layers are computed before this stop, so that only the rows the head wants
    /// travel to it.
    #[must_use]
    pub fn after_all_layers(&self, stop: usize) -> bool {
        self.stops[stop].layers.start == self.layers()
    }
}

/// Follows the ring and collects stops.
struct Walk<'a> {
    replica: &'a ReplicaSpec,
    devices: Vec<DeviceId>,
    stops: Vec<StopSpec>,
}

impl<'a> Walk<'a> {
    fn new(replica: &'a ReplicaSpec) -> Self {
        let devices = replica.members.iter().map(|member| member.device).collect();
        Self { replica, devices, stops: Vec::new() }
    }

    /// Passes what lies on the ring between two of its members.
    fn go(&mut self, from: usize, to: usize, layers_done: u32) {
        let members = &self.replica.members;
        if from == to {
            return;
        }
        let distance = (to + members.len() - from) % members.len();
        let way: Vec<_> = (0..distance).map(|step| (from + step) % members.len()).collect();
        if way.iter().all(|at| members[*at].relays_to_next.is_empty()) {
            return;
        }
        for (step, at) in way.into_iter().enumerate() {
            let member = &members[at];
            if step > 0 {
                self.visit(member.device, layers_done..layers_done);
            }
            for relay in &member.relays_to_next {
                self.visit(*relay, layers_done..layers_done);
            }
        }
    }

    /// Adds a stop, or lengthens the last one if it is at the same device.
    fn visit(&mut self, device: DeviceId, layers: Range<u32>) {
        let known = self.devices.iter().position(|known| *known == device);
        let index = known.unwrap_or_else(|| {
            self.devices.push(device);
            self.devices.len() - 1
        });
        let member = MemberIndex(u16::try_from(index).unwrap_or(u16::MAX));
        match self.stops.last_mut() {
            Some(last) if last.member == member => last.end_layer = layers.end,
            _ => self.stops.push(StopSpec {
                member,
                first_layer: layers.start,
                end_layer: layers.end,
            }),
        }
    }
}

impl TryFrom<RouteSpec> for Route {
    type Error = RouteError;
    fn try_from(spec: RouteSpec) -> Result<Self, RouteError> {
        let count = |what, found, most| {
            if (1..=most).contains(&found) {
                Ok(())
            } else {
                Err(RouteError::Count { what, found, most })
            }
        };
        count("members", usize::from(spec.members), MEMBERS_MAX)?;
        count("stops", spec.stops.len(), STOPS_MAX)?;
        let mut next_layer = 0;
        let mut stops: Vec<Stop> = Vec::with_capacity(spec.stops.len());
        let last = spec.stops.len() - 1;
        for (index, stop) in spec.stops.iter().enumerate() {
            let repeated = stops.last().is_some_and(|before| before.member == stop.member);
            if stop.member.0 >= spec.members || repeated {
                return Err(RouteError::Member { stop: index, member: stop.member.0 });
            }
            if stop.first_layer != next_layer || stop.end_layer < next_layer {
                let (found, expected) = (stop.first_layer, next_layer);
                return Err(RouteError::LayerOrder { stop: index, found, expected });
            }
            next_layer = stop.end_layer;
            stops.push(Stop {
                member: stop.member,
                layers: stop.first_layer..stop.end_layer,
                embeds: index == 0,
                projects: index == last,
            });
        }
        count("layers", next_layer as usize, LAYERS_MAX as usize)?;
        if stops[0].member != stops[last].member {
            return Err(RouteError::NotRound);
        }
        let visited: BTreeSet<_> = stops.iter().map(|stop| stop.member.0).collect();
        match (0..spec.members).find(|member| !visited.contains(member)) {
            Some(member) => Err(RouteError::Idle { member }),
            None => Ok(Self { members: spec.members, stops }),
        }
    }
}

impl From<Route> for RouteSpec {
    fn from(route: Route) -> Self {
        let stops = route.stops.iter().map(|stop| StopSpec {
            member: stop.member,
            first_layer: stop.layers.start,
            end_layer: stop.layers.end,
        });
        Self { members: route.members, stops: stops.collect() }
    }
}
