//! What head and members of a ring share: computing a stop, and the connections between stops.

mod compute;
mod links;

use motley_cluster::KvType;
use motley_engine::CacheElement;

pub(crate) use compute::{Payload, Scratch};
pub(crate) use links::{Arrival, Links};

/// The plan's word for how keys and values are kept.
pub(crate) fn kv_type(element: CacheElement) -> KvType {
    match element {
        CacheElement::F16 => KvType::F16,
        CacheElement::Q8_0 => KvType::Q8_0,
    }
}
