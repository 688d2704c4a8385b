//! Where this device can be reached.

use std::net::IpAddr;

/// Addresses of this device that others may reach, the likeliest first: those of home networks, then
/// others. Loopback is left out, and so are addresses that mean nothing without an interface.
pub(crate) fn own_addresses() -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = interface_addresses().into_iter().filter(is_useful).collect();
    addresses.sort_by_key(|address| (rank(address), *address));
    addresses.dedup();
    addresses
}

#[cfg(unix)]
fn interface_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let address = |storage: nix::sys::socket::SockaddrStorage| {
        let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    interfaces.filter_map(|interface| interface.address.and_then(address)).collect()
}

/// Elsewhere the user names the address.
#[cfg(not(unix))]
fn interface_addresses() -> Vec<IpAddr> {
    Vec::new()
}

fn is_useful(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !address.is_loopback() && !address.is_unspecified() && !address.is_multicast() && !link_local
}

fn rank(address: &IpAddr) -> u8 {
    match address {
        // Container bridges are given 172.17 and up; homes mostly have the other private ranges.
        IpAddr::V4(address) if address.is_private() && address.octets()[0] != 172 => 0,
        IpAddr::V4(address) if address.is_private() => 1,
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_networks_come_first_and_local_addresses_not_at_all() {
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut addresses: Vec<IpAddr> =
            ["2001:db8::1", "203.0.113.9", "172.17.0.1", "192.168.1.5", "10.0.0.2"]
                .map(parse)
                .into();
        addresses.sort_by_key(|address| (rank(address), *address));
        let sorted: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        assert_eq!(sorted, ["10.0.0.2", "192.168.1.5", "172.17.0.1", "203.0.113.9", "2001:db8::1"]);
        for local in ["127.0.0.1", "::1", "0.0.0.0", "::", "169.254.3.4", "fe80::1", "224.0.0.1"] {
            assert!(!is_useful(&parse(local)), "{local}");
        }
        assert!(own_addresses().iter().all(is_useful));
    }
}
