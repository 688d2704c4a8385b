//! What head and members of a ring share: computing a stop, and the connections between stops.
//!
//! `compute` is one stop on the engine, `member` the engine thread of a member that is not the
//! head, `edges` the data connections, `links` what comes and where it goes, `yielding` an engine
//! that gives memory away, `pace` into how many parts it cuts a step for that.

mod activations;
mod compute;
mod edges;
mod links;
mod member;
mod pace;
mod yielding;

use motley_cluster::KvType;
use motley_engine::CacheElement;

pub(crate) use compute::{HeadRows, Payload, Scratch};
pub(crate) use edges::{EdgeError, EdgePlace, OpenEdges, Way, read_edge, receive_soon};
pub(crate) use links::{Arrival, Links};
pub(crate) use member::{MemberPlan, MemberStage, Reports};
pub(crate) use yielding::{Yielder, YieldingEngine};

#[cfg(test)]
mod hop;

/// The plan's word for how keys and values are kept.
pub(crate) fn kv_type(element: CacheElement) -> KvType {
    match element {
        // Plans know one type; a cache of two is kept by a device alone, and is at most this.
        CacheElement::F16 | CacheElement::F16Q8_0 | CacheElement::Q8_0F16 => KvType::F16,
        CacheElement::Q8_0 => KvType::Q8_0,
    }
}
