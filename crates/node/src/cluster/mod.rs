//! Devices that serve one model together: joining, dealing layers out, deploying, and who is gone.
//!
//! The decisions are `motley_ring`'s; here are the connections and threads that carry them out.
//! `head` is the control thread of the device that serves, `member` that of a device that has
//! joined, `door` who knocks, `dial` whom we call, `edges` to whom activations go, `shelf` model
//! files given to others, `fetcher` what is taken from others, `loading` how far a load is,
//! `clearing` how one plan gives way to the next. `survey` and `probing` measure devices and ways,
//! `placing` collects that at the head, and `place` decides where layers go, or `alone` what they do
//! where no other device takes part.

mod alone;
mod clearing;
mod deal;
mod dial;
mod door;
mod edges;
mod epoch;
mod fetcher;
mod head;
mod loading;
mod member;
mod place;
mod placing;
mod probing;
mod remains;
mod room;
mod roster;
mod series;
mod session;
mod shelf;
mod split;
mod stages;
mod survey;
mod view;
mod wire;

use std::net::{IpAddr, SocketAddr};

use motley_ring::limits::{ADDRESSES_MAX, PROTOCOL_VERSION, PROTOCOL_VERSION_MIN};
use motley_ring::{Address, Addresses, Epoch, Hello, Name, NodeId, ProfileJson};

pub(crate) use alone::{ServedAlone, promise_alone};
pub(crate) use head::{ClusterHead, HeadPlan};
pub(crate) use member::{Member, MemberOptions, SessionEnd};
pub(crate) use place::{Allowance, Goal};
pub(crate) use room::Sizes;
pub(crate) use shelf::{Holding, Shelf};
pub(crate) use split::Split;
pub(crate) use survey::ProfileSource;

use crate::identity::Identity;

/// The build of ggml, which all members of a ring share: other builds may round differently.
pub(crate) fn engine_build() -> Name {
    Name::cut(&format!("llama-cpp-sys-2 {}", crate::version::LLAMA_CPP_SYS_VERSION))
}

/// This build of the program.
fn build() -> Name {
    Name::cut(env!("CARGO_PKG_VERSION"))
}

/// What a device says of itself when it knocks, or, of a head, when it begins.
fn hello(
    identity: &Identity,
    addresses: Addresses,
    memory_budget_bytes: u64,
    epoch_seen: Epoch,
) -> Hello {
    Hello {
        protocol_min: PROTOCOL_VERSION_MIN,
        protocol_max: PROTOCOL_VERSION,
        build: build(),
        engine_build: engine_build(),
        node: NodeId(*identity.node().as_bytes()),
        name: Name::cut(identity.name()),
        addresses,
        memory_budget_bytes,
        epoch_seen,
        profile: ProfileJson::default(),
    }
}

/// Where a device that listens on `bound` can be reached: at all its addresses if it listens on all,
/// the `likeliest` first.
fn own_addresses(bound: SocketAddr, likeliest: Option<IpAddr>) -> Addresses {
    if !bound.ip().is_unspecified() {
        return addresses_of([bound]);
    }
    let others = crate::transport::own_addresses().into_iter();
    let others = others.filter(|ip| Some(*ip) != likeliest && (ip.is_ipv4() || bound.is_ipv6()));
    addresses_of(likeliest.into_iter().chain(others).map(|ip| SocketAddr::new(ip, bound.port())))
}

/// Addresses as devices tell them, as many as a message can carry.
fn addresses_of(addresses: impl IntoIterator<Item = SocketAddr>) -> Addresses {
    let texts = addresses.into_iter().take(ADDRESSES_MAX).map(|address| address.to_string());
    let list = texts.filter_map(|text| Address::new(text).ok()).collect();
    Addresses::new(list).unwrap_or_default()
}

/// Layers, given as first and last plus one, in words: `layers 0-9, 20-24`.
fn layer_words(layers: &[(u32, u32)]) -> String {
    match layer_ranges(layers.iter().map(|(first, end)| (u64::from(*first), u64::from(*end)))) {
        ranges if ranges.is_empty() => "no layers".to_owned(),
        ranges => format!("layers {}", ranges.join(", ")),
    }
}

/// Each window, given as first and last plus one, as people write it: `0-9`, `20`.
pub(crate) fn layer_ranges(windows: impl IntoIterator<Item = (u64, u64)>) -> Vec<String> {
    let range = |(first, end): (u64, u64)| match end.saturating_sub(first) {
        1 => first.to_string(),
        _ => format!("{first}-{}", end.saturating_sub(1)),
    };
    windows.into_iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_device_tells_the_addresses_that_it_listens_on() {
        let only = SocketAddr::from((Ipv4Addr::LOCALHOST, 7070));
        assert_eq!(own_addresses(only, None), addresses_of([only]));

        let likeliest = IpAddr::from([192, 0, 2, 7]);
        let all = own_addresses(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7070)), Some(likeliest));
        let told: Vec<SocketAddr> = all.iter().map(|it| it.as_str().parse().unwrap()).collect();
        assert_eq!(told[0], SocketAddr::new(likeliest, 7070));
        assert!(told.iter().all(|address| address.is_ipv4() && address.port() == 7070));
        assert!(told[1..].iter().all(|address| address.ip() != likeliest));
    }
}
