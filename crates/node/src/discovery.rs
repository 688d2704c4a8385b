//! Heads that announce themselves on the local network, by mDNS.
//!
//! What is heard here is a hint where to knock and nothing more: anyone on the network can announce
//! anything. Who answers there proves by its certificate which cluster it is of.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use mdns_sd::{IfKind, ResolvedService, ServiceDaemon, ServiceEvent, ServiceInfo};

use crate::identity::{ClusterId, Identity, TokenAddress, check_name};

/// How long to listen for heads on a network where multicast works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

const SERVICE: &str = "_motley._tcp.local.";
const PORT: u16 = 5353;

/// Fields of an announcement. A version that is not ours is passed over.
const VERSION_FIELD: &str = "v";
const VERSION: &str = "1";
const CLUSTER_FIELD: &str = "cluster";
const NAME_FIELD: &str = "name";

/// Heads and addresses of each at most, for anyone can announce as many as it likes.
const HEADS_MAX: usize = 64;
const ADDRESSES_MAX: usize = 8;

/// How long an ending announcement may take to say so.
const FAREWELL: Duration = Duration::from_millis(500);

/// Announcing or listening is not possible here.
#[derive(Debug, thiserror::Error)]
#[error("cannot announce or look for devices on the local network")]
pub(crate) struct DiscoveryError(#[from] mdns_sd::Error);

/// Where announcements travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All networks of this device.
    Lan,
    /// This device alone, on a port of its own.
    #[cfg(test)]
    Loopback(u16),
}

impl Scope {
    fn start(self) -> Result<Daemon, DiscoveryError> {
        let port = match self {
            Self::Lan => PORT,
            #[cfg(test)]
            Self::Loopback(port) => port,
        };
        let daemon = Daemon(ServiceDaemon::new_with_port(port)?);
        match self {
            // Nobody else hears what is said there.
            Self::Lan => {
                daemon.0.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?
            }
            #[cfg(test)]
            Self::Loopback(_) => {
                daemon.0.disable_interface(IfKind::All)?;
                daemon.0.enable_interface(IfKind::LoopbackV4)?;
            }
        }
        Ok(daemon)
    }
}

/// The thread that speaks mDNS; it ends with this.
struct Daemon(ServiceDaemon);

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(ended) = self.0.shutdown() {
            // Without its farewell others forget it a little later.
            let _ = ended.recv_timeout(FAREWELL);
        }
    }
}

/// A head is announced as long as this lives.
pub(crate) struct Announcement {
    _daemon: Daemon,
}

/// Announces the head of `identity`'s cluster, which listens on all addresses at `port`.
///
/// # Errors
/// When this system has no sockets for it. A network that carries no multicast is not noticed.
pub(crate) fn announce(
    scope: Scope,
    identity: &Identity,
    port: u16,
) -> Result<Announcement, DiscoveryError> {
    let daemon = scope.start()?;
    let cluster = identity.cluster().to_string();
    let fields =
        [(VERSION_FIELD, VERSION), (CLUSTER_FIELD, &cluster), (NAME_FIELD, identity.name())];
    let instance = format!("motley-{}", identity.node().short());
    let host = format!("{instance}.local.");
    let service = ServiceInfo::new(SERVICE, &instance, &host, "", port, &fields[..])?;
    daemon.0.register(service.enable_addr_auto())?;
    Ok(Announcement { _daemon: daemon })
}

/// A head that says it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnnouncedHead {
    pub(crate) name: String,
    pub(crate) cluster: ClusterId,
    pub(crate) addresses: Vec<SocketAddr>,
}

/// Heads that announce themselves within `patience`, or until there is one of `wanted`'s cluster.
///
/// # Errors
/// When this system has no sockets for it.
pub(crate) fn search(
    scope: Scope,
    patience: Duration,
    wanted: Option<ClusterId>,
) -> Result<Vec<AnnouncedHead>, DiscoveryError> {
    let daemon = scope.start()?;
    let events = daemon.0.browse(SERVICE)?;
    let deadline = Instant::now() + patience;
    let mut heads = BTreeMap::new();
    while heads.len() < HEADS_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        match events.recv_timeout(left) {
            Ok(ServiceEvent::ServiceResolved(service)) => {
                let Some(head) = read(&service) else { continue };
                let is_it = wanted == Some(head.cluster);
                heads.insert(service.fullname.clone(), head);
                if is_it {
                    break;
                }
            }
            Ok(ServiceEvent::ServiceRemoved(_, name)) => drop(heads.remove(&name)),
            Ok(_) => {}
            // Time is over, or the thread has ended.
            Err(_) => break,
        }
    }
    Ok(heads.into_values().filter(|head| wanted.is_none_or(|id| id == head.cluster)).collect())
}

/// Where heads of a cluster say that they listen, if it makes sense to ask: whoever knows only
/// addresses of this device itself looks for nobody on the network. Failures find nobody.
pub(crate) fn addresses_of(cluster: ClusterId, known: &[TokenAddress]) -> Vec<TokenAddress> {
    let is_local = |address: &TokenAddress| matches!(address, TokenAddress::Socket(socket) if socket.ip().is_loopback());
    if !known.is_empty() && known.iter().all(is_local) {
        return Vec::new();
    }
    let heads = search(Scope::Lan, PATIENCE, Some(cluster)).unwrap_or_default();
    let addresses = heads.into_iter().flat_map(|head| head.addresses).map(TokenAddress::Socket);
    addresses.filter(|address| !known.contains(address)).collect()
}

/// What an announcement says; nothing if it does not make sense.
fn read(service: &ResolvedService) -> Option<AnnouncedHead> {
    let field = |name: &str| service.txt_properties.get_property_val_str(name);
    let name = field(NAME_FIELD).filter(|name| check_name(name))?;
    let cluster = field(CLUSTER_FIELD)?.parse().ok()?;
    if field(VERSION_FIELD) != Some(VERSION) || service.port == 0 {
        return None;
    }
    let mut addresses: Vec<SocketAddr> = service
        .addresses
        .iter()
        .map(|address| address.to_ip_addr())
        .filter(can_be_dialled)
        .map(|ip| SocketAddr::new(ip, service.port))
        .collect();
    // IPv4 first, which works on more networks, and always in the same order.
    addresses.sort();
    addresses.truncate(ADDRESSES_MAX);
    (!addresses.is_empty()).then(|| AnnouncedHead { name: name.to_owned(), cluster, addresses })
}

/// Addresses of a link alone are useless without the name of the link.
fn can_be_dialled(ip: &IpAddr) -> bool {
    let of_link = |ip: &Ipv6Addr| ip.segments()[0] & 0xffc0 == 0xfe80;
    match ip {
        IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast(),
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast() && !of_link(ip),
    }
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "tests say what they skip")]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;
    use crate::identity::{RELEASED_UNIX_S, StateFolder};

    /// Far longer than an answer on loopback takes.
    const LONG: Duration = Duration::from_secs(10);

    /// A port on which this device hears its own multicast; nothing, with a message, where the
    /// system does not carry it.
    fn loopback() -> Option<Scope> {
        let carried = || -> std::io::Result<u16> {
            let group = Ipv4Addr::new(224, 0, 0, 251);
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            let port = socket.local_addr()?.port();
            socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST)?;
            socket2::SockRef::from(&socket).set_multicast_if_v4(&Ipv4Addr::LOCALHOST)?;
            socket.set_read_timeout(Some(Duration::from_secs(2)))?;
            socket.send_to(b"motley", (group, port))?;
            socket.recv(&mut [0; 16])?;
            Ok(port)
        };
        match carried() {
            Ok(port) => Some(Scope::Loopback(port)),
            Err(error) => {
                println!("skipped: no multicast on loopback here: {error}");
                None
            }
        }
    }

    fn cluster(name: &str) -> (tempfile::TempDir, Identity) {
        let outer = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(&outer.path().join("state")).unwrap();
        let (identity, _) =
            Identity::load_or_create_cluster(&folder, name, RELEASED_UNIX_S).unwrap();
        (outer, identity)
    }

    #[test]
    fn a_head_is_found_by_its_cluster_and_clusters_do_not_mix() {
        let Some(scope) = loopback() else { return };
        let (_one, first) = cluster("desk");
        let (_two, second) = cluster("nas");
        let _first = announce(scope, &first, 11_556).unwrap();
        let _second = announce(scope, &second, 11_557).unwrap();
        for (identity, port) in [(&first, 11_556), (&second, 11_557)] {
            let found = search(scope, LONG, Some(identity.cluster())).unwrap();
            let expected = AnnouncedHead {
                name: identity.name().to_owned(),
                cluster: identity.cluster(),
                addresses: vec![(Ipv4Addr::LOCALHOST, port).into()],
            };
            assert_eq!(found, [expected]);
        }
        let other = ClusterId::from_bytes([7; 32]);
        assert_eq!(search(scope, Duration::from_secs(1), Some(other)).unwrap(), []);
    }

    #[test]
    fn announcements_that_make_no_sense_are_passed_over() {
        let id = "07".repeat(32);
        let said = |name: &str, cluster: &str, version: &str, port: u16, ip: &str| {
            let fields = [("v", version), ("cluster", cluster), ("name", name)];
            let service = ServiceInfo::new(SERVICE, "x", "x.local.", ip, port, &fields[..]);
            read(&service.unwrap().as_resolved_service())
        };
        let head = said("nas", &id, "1", 11_556, "10.0.0.9,10.0.0.1,fe80::1").unwrap();
        assert_eq!(head.cluster, ClusterId::from_bytes([7; 32]));
        let addresses: Vec<String> = head.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1:11556", "10.0.0.9:11556"]);
        assert_eq!(said("nas\u{1b}[2J", &id, "1", 11_556, "10.0.0.1"), None);
        assert_eq!(said("nas", "07", "1", 11_556, "10.0.0.1"), None);
        assert_eq!(said("nas", &id, "2", 11_556, "10.0.0.1"), None);
        assert_eq!(said("nas", &id, "1", 0, "10.0.0.1"), None);
        assert_eq!(said("nas", &id, "1", 11_556, "fe80::1"), None);
    }

    #[test]
    fn who_knows_only_this_device_asks_nobody_else() {
        let known = ["127.0.0.1:11556".parse().unwrap(), "[::1]:11556".parse().unwrap()];
        assert_eq!(addresses_of(ClusterId::from_bytes([7; 32]), &known), []);
    }
}
