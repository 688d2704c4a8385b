//! Devices that serve one model together: joining, dealing layers out, deploying, and who is gone.
//!
//! The decisions are `motley_ring`'s; here are the connections and threads that carry them out.
//! `head` is the control thread of the device that serves, `member` that of a device that has
//! joined, `door` who knocks, `dial` whom we call, `shelf` model files given to others.

mod dial;
mod door;
mod head;
mod member;
mod remains;
mod room;
mod roster;
mod series;
mod session;
mod shelf;
mod split;
mod stages;
mod view;
mod wire;

use motley_ring::Name;

pub(crate) use head::{ClusterHead, HeadPlan};
pub(crate) use member::{Member, MemberOptions, SessionEnd};
pub(crate) use room::Sizes;
pub(crate) use shelf::{Holding, Shelf};
pub(crate) use split::Split;

/// The build of ggml, which all members of a ring share: other builds may round differently.
pub(crate) fn engine_build() -> Name {
    Name::cut(&format!("llama-cpp-sys-2 {}", crate::version::LLAMA_CPP_SYS_VERSION))
}

/// Layers in words: `layers 0-9, 20-24`.
pub(crate) fn layer_words(layers: &[(u32, u32)]) -> String {
    let ranges: Vec<String> = layers
        .iter()
        .map(|(first, end)| match end - first {
            1 => first.to_string(),
            _ => format!("{first}-{}", end - 1),
        })
        .collect();
    match ranges.as_slice() {
        [] => "no layers".to_owned(),
        ranges => format!("layers {}", ranges.join(", ")),
    }
}
