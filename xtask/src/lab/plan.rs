//! Names, addresses and every operation that builds a lab, chosen before anything is done.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use super::cgroups::{Cgroups, Freezer};
use super::description::{Description, Device};

/// What everything that a lab leaves in the system begins with.
pub(super) const PREFIX: &str = "motley-lab-";
/// The same for network interfaces, whose names are short.
const INTERFACE_PREFIX: &str = "mlab";
/// Where `ip` keeps the names of namespaces.
pub(super) const NAMESPACES: &str = "/run/netns";
/// What a device calls its network interface.
pub(super) const INTERFACE: &str = "lan0";
/// What discovery is sent to, which no other route leads to.
pub(super) const MULTICAST: &str = "224.0.0.0/4";
const MTU_BYTES: u32 = 1500;
/// How many frames wait between the kernel and the emulator; a burst of small ones must fit.
const INTERFACE_QUEUE: u32 = 4000;
/// How many frames TCP may hand over as one where links lose some. Each frame by itself would be
/// most faithful, and costs the emulator a whole core at 200 Mbit/s.
const LOSSY_BUNDLE: u32 = 8;

/// What a lab will be made of.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) places: Vec<Place>,
    /// What is done before the emulator runs, ...
    pub(super) before: Vec<Step>,
    /// ... and what once it has made the interfaces.
    pub(super) after: Vec<Step>,
}

/// Where a device is.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) address: String,
    /// Its namespace, if it has one.
    pub(super) namespace: Option<String>,
    /// What the emulator calls the interface before the namespace takes it.
    pub(super) interface: String,
    /// Files to which a process writes its number to be limited as the device is.
    pub(super) joins: Vec<PathBuf>,
    pub(super) freezer: Option<Freezer>,
    /// Words before a command that make it run there.
    pub(super) enter: Vec<String>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// A program that must end well.
    Command(Vec<String>),
    /// A folder of a control group.
    Folder(PathBuf),
    /// A text to write into a file; where that fails, the limit is reported as missing.
    Limit(PathBuf, String),
}

/// What the machine gives.
pub(super) struct Machine {
    pub(super) cgroups: Cgroups,
    /// The disk the lab reads from, as `major:minor`.
    pub(super) disk: Option<String>,
    /// The numbers of the processors that the lab may use.
    pub(super) processors: Vec<usize>,
}

impl Plan {
    /// A lab of namespaces. `run` tells this lab from others on the machine.
    pub(super) fn new(description: &Description, machine: &Machine, run: u32) -> Self {
        let group = format!("{PREFIX}{run}");
        let places: Vec<Place> = description
            .devices
            .iter()
            .enumerate()
            .map(|(index, device)| {
                place(index, device, machine, (run, &own_processors(description, index, machine)))
            })
            .collect();
        let mut before = machine.cgroups.prepare(&group);
        let mut after = Vec::new();
        for (index, (device, place)) in description.devices.iter().zip(&places).enumerate() {
            before.extend(machine.cgroups.limit(&group, device, machine.disk.as_deref()));
            let namespace = place.namespace.as_deref().unwrap_or_default();
            before.push(command("ip netns add", &[namespace]));
            after.extend(attach(description, &places, index));
        }
        Self { places, before, after }
    }

    /// Plain processes that share this machine's loopback interface.
    pub(super) fn loopback(description: &Description) -> Self {
        let place = |(index, device): (usize, &Device)| Place {
            name: device.name.clone(),
            // Only Linux answers on all of 127.0.0.0/8.
            address: format!("127.0.0.{}", if cfg!(target_os = "linux") { index + 1 } else { 1 }),
            namespace: None,
            interface: String::new(),
            joins: Vec::new(),
            freezer: None,
            enter: Vec::new(),
        };
        let places = description.devices.iter().enumerate().map(place).collect();
        Self { places, before: Vec::new(), after: Vec::new() }
    }
}

/// Processors of a device's own. A quota as large as whole processors would stop a program that uses
/// all of it in every other period, for some tenth of its time, and one that rests now and then
/// hardly ever.
fn own_processors(description: &Description, index: usize, machine: &Machine) -> Vec<usize> {
    let whole = |device: &Device| device.whole_processors().unwrap_or(0);
    let count = whole(&description.devices[index]);
    let first = description.devices[..index].iter().map(whole).sum::<usize>();
    let all = &machine.processors;
    let mut own: Vec<usize> = all.iter().copied().cycle().skip(first).take(count).collect();
    own.sort_unstable();
    own.dedup();
    own
}

fn place(index: usize, device: &Device, machine: &Machine, (run, own): (u32, &[usize])) -> Place {
    let group = format!("{PREFIX}{run}");
    let namespace = format!("{group}-{}", device.name);
    let folders = machine.cgroups.folders(&format!("{group}/{}", device.name));
    let joins: Vec<PathBuf> = folders.iter().map(|folder| folder.join("cgroup.procs")).collect();
    Place {
        name: device.name.clone(),
        address: address(index),
        interface: format!("{INTERFACE_PREFIX}{run}-{index}"),
        freezer: machine.cgroups.freezer(&group, &device.name),
        enter: enter(&joins, own, &Path::new(NAMESPACES).join(&namespace)),
        namespace: Some(namespace),
        joins,
    }
}

/// The shell joins the groups and then becomes the command, so that the command never runs without
/// its limits.
fn enter(joins: &[PathBuf], own: &[usize], namespace: &Path) -> Vec<String> {
    let mut script = String::new();
    for file in joins {
        script += &format!("echo $$ >{} && ", file.display());
    }
    script += "exec ";
    if !own.is_empty() {
        let own: Vec<String> = own.iter().map(usize::to_string).collect();
        script += &format!("taskset -c {} ", own.join(","));
    }
    script += &format!("nsenter --net={} -- \"$@\"", namespace.display());
    ["sh", "-c", &script, "lab"].map(str::to_owned).to_vec()
}

/// Gives a namespace its interface, address and neighbours.
fn attach(description: &Description, places: &[Place], index: usize) -> Vec<Step> {
    let place = &places[index];
    let namespace = place.namespace.as_deref().unwrap_or_default();
    let inside = format!("ip -n {namespace}");
    let mut lan = format!(
        "mtu {MTU_BYTES} txqueuelen {INTERFACE_QUEUE} addrgenmode none address {}",
        hardware_address(index)
    );
    // What is lost is lost as a bundle: let it be as large as radio bundles frames, not 64 KiB.
    let lossy = description.devices.iter().any(|device| device.port.loss_percent > 0.0)
        || description.links.iter().any(|(_, _, wire)| wire.loss_percent > 0.0);
    if lossy {
        lan += &format!(" gso_max_segs {LOSSY_BUNDLE}");
    }
    let mut steps = vec![
        command("ip link set dev", &[&place.interface, "name", INTERFACE, "netns", namespace]),
        command(&inside, &["link set dev lo up"]),
        command(&inside, &["link set dev", INTERFACE, &lan]),
        command(&inside, &["addr add", &format!("{}/24", place.address), "dev", INTERFACE]),
        command(&inside, &["link set dev", INTERFACE, "up"]),
        command(&inside, &["route add", MULTICAST, "dev", INTERFACE]),
    ];
    // Asking for neighbours takes a second to be repeated where the question is lost.
    for (other, neighbour) in places.iter().enumerate().filter(|(other, _)| *other != index) {
        let hardware = hardware_address(other);
        let words = ["neigh add", &neighbour.address, "lladdr", &hardware, "dev", INTERFACE];
        steps.push(command(&inside, &words));
    }
    steps
}

fn address(index: usize) -> String {
    format!("10.77.0.{}", index + 1)
}

/// Locally administered; the last byte is the device's number, which the emulator reads.
fn hardware_address(index: usize) -> String {
    format!("02:4d:4f:54:00:{index:02x}")
}

fn command(start: &str, rest: &[&str]) -> Step {
    let words = start.split(' ').chain(rest.iter().flat_map(|words| words.split(' ')));
    Step::Command(words.map(str::to_owned).collect())
}

impl Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(words) => formatter.write_str(&words.join(" ")),
            Self::Folder(path) => write!(formatter, "mkdir {}", path.display()),
            Self::Limit(path, text) => write!(formatter, "echo {text} >{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::description::parse;
    use super::super::words::Words;
    use super::*;

    use expect_test::{Expect, expect};

    fn description(name: &str) -> Description {
        let file = Path::new("../lab").join(name);
        let text = std::fs::read_to_string(file).expect("the example is there");
        parse(&text).expect("the example is right")
    }

    fn first() -> Cgroups {
        let mount = |name: &str| (name.to_owned(), Path::new("/cg").join(name));
        Cgroups::V1(["blkio", "cpu", "freezer", "memory"].map(mount).into())
    }

    fn plan(name: &str, cgroups: Cgroups) -> Plan {
        let machine = Machine { cgroups, disk: Some("8:0".to_owned()), processors: vec![0, 1] };
        Plan::new(&description(name), &machine, 7)
    }

    fn check(steps: &[Step], expected: Expect) {
        let lines: Vec<String> = steps.iter().map(|step| format!("{step}\n")).collect();
        expected.assert_eq(&lines.concat());
    }

    #[test]
    fn groups_and_namespaces_of_home4() {
        check(
            &plan("home4.toml", first()).before,
            expect![[r#"
            mkdir /cg/blkio/motley-lab-7
            mkdir /cg/cpu/motley-lab-7
            mkdir /cg/freezer/motley-lab-7
            mkdir /cg/memory/motley-lab-7
            mkdir /cg/blkio/motley-lab-7/desktop
            mkdir /cg/cpu/motley-lab-7/desktop
            mkdir /cg/freezer/motley-lab-7/desktop
            mkdir /cg/memory/motley-lab-7/desktop
            echo 10000 >/cg/cpu/motley-lab-7/desktop/cpu.cfs_period_us
            echo 9000 >/cg/cpu/motley-lab-7/desktop/cpu.cfs_quota_us
            echo 6442450944 >/cg/memory/motley-lab-7/desktop/memory.limit_in_bytes
            ip netns add motley-lab-7-desktop
            mkdir /cg/blkio/motley-lab-7/laptop
            mkdir /cg/cpu/motley-lab-7/laptop
            mkdir /cg/freezer/motley-lab-7/laptop
            mkdir /cg/memory/motley-lab-7/laptop
            echo 10000 >/cg/cpu/motley-lab-7/laptop/cpu.cfs_period_us
            echo 5000 >/cg/cpu/motley-lab-7/laptop/cpu.cfs_quota_us
            echo 3221225472 >/cg/memory/motley-lab-7/laptop/memory.limit_in_bytes
            ip netns add motley-lab-7-laptop
            mkdir /cg/blkio/motley-lab-7/tablet
            mkdir /cg/cpu/motley-lab-7/tablet
            mkdir /cg/freezer/motley-lab-7/tablet
            mkdir /cg/memory/motley-lab-7/tablet
            echo 10000 >/cg/cpu/motley-lab-7/tablet/cpu.cfs_period_us
            echo 2500 >/cg/cpu/motley-lab-7/tablet/cpu.cfs_quota_us
            echo 1610612736 >/cg/memory/motley-lab-7/tablet/memory.limit_in_bytes
            echo 8:0 209715200 >/cg/blkio/motley-lab-7/tablet/blkio.throttle.read_bps_device
            ip netns add motley-lab-7-tablet
            mkdir /cg/blkio/motley-lab-7/phone
            mkdir /cg/cpu/motley-lab-7/phone
            mkdir /cg/freezer/motley-lab-7/phone
            mkdir /cg/memory/motley-lab-7/phone
            echo 10000 >/cg/cpu/motley-lab-7/phone/cpu.cfs_period_us
            echo 2500 >/cg/cpu/motley-lab-7/phone/cpu.cfs_quota_us
            echo 1610612736 >/cg/memory/motley-lab-7/phone/memory.limit_in_bytes
            echo 8:0 104857600 >/cg/blkio/motley-lab-7/phone/blkio.throttle.read_bps_device
            ip netns add motley-lab-7-phone
        "#]],
        );
    }

    #[test]
    fn network_of_home4() {
        check(
            &plan("home4.toml", first()).after,
            expect![[r#"
            ip link set dev mlab7-0 name lan0 netns motley-lab-7-desktop
            ip -n motley-lab-7-desktop link set dev lo up
            ip -n motley-lab-7-desktop link set dev lan0 mtu 1500 txqueuelen 4000 addrgenmode none address 02:4d:4f:54:00:00 gso_max_segs 8
            ip -n motley-lab-7-desktop addr add 10.77.0.1/24 dev lan0
            ip -n motley-lab-7-desktop link set dev lan0 up
            ip -n motley-lab-7-desktop route add 224.0.0.0/4 dev lan0
            ip -n motley-lab-7-desktop neigh add 10.77.0.2 lladdr 02:4d:4f:54:00:01 dev lan0
            ip -n motley-lab-7-desktop neigh add 10.77.0.3 lladdr 02:4d:4f:54:00:02 dev lan0
            ip -n motley-lab-7-desktop neigh add 10.77.0.4 lladdr 02:4d:4f:54:00:03 dev lan0
            ip link set dev mlab7-1 name lan0 netns motley-lab-7-laptop
            ip -n motley-lab-7-laptop link set dev lo up
            ip -n motley-lab-7-laptop link set dev lan0 mtu 1500 txqueuelen 4000 addrgenmode none address 02:4d:4f:54:00:01 gso_max_segs 8
            ip -n motley-lab-7-laptop addr add 10.77.0.2/24 dev lan0
            ip -n motley-lab-7-laptop link set dev lan0 up
            ip -n motley-lab-7-laptop route add 224.0.0.0/4 dev lan0
            ip -n motley-lab-7-laptop neigh add 10.77.0.1 lladdr 02:4d:4f:54:00:00 dev lan0
            ip -n motley-lab-7-laptop neigh add 10.77.0.3 lladdr 02:4d:4f:54:00:02 dev lan0
            ip -n motley-lab-7-laptop neigh add 10.77.0.4 lladdr 02:4d:4f:54:00:03 dev lan0
            ip link set dev mlab7-2 name lan0 netns motley-lab-7-tablet
            ip -n motley-lab-7-tablet link set dev lo up
            ip -n motley-lab-7-tablet link set dev lan0 mtu 1500 txqueuelen 4000 addrgenmode none address 02:4d:4f:54:00:02 gso_max_segs 8
            ip -n motley-lab-7-tablet addr add 10.77.0.3/24 dev lan0
            ip -n motley-lab-7-tablet link set dev lan0 up
            ip -n motley-lab-7-tablet route add 224.0.0.0/4 dev lan0
            ip -n motley-lab-7-tablet neigh add 10.77.0.1 lladdr 02:4d:4f:54:00:00 dev lan0
            ip -n motley-lab-7-tablet neigh add 10.77.0.2 lladdr 02:4d:4f:54:00:01 dev lan0
            ip -n motley-lab-7-tablet neigh add 10.77.0.4 lladdr 02:4d:4f:54:00:03 dev lan0
            ip link set dev mlab7-3 name lan0 netns motley-lab-7-phone
            ip -n motley-lab-7-phone link set dev lo up
            ip -n motley-lab-7-phone link set dev lan0 mtu 1500 txqueuelen 4000 addrgenmode none address 02:4d:4f:54:00:03 gso_max_segs 8
            ip -n motley-lab-7-phone addr add 10.77.0.4/24 dev lan0
            ip -n motley-lab-7-phone link set dev lan0 up
            ip -n motley-lab-7-phone route add 224.0.0.0/4 dev lan0
            ip -n motley-lab-7-phone neigh add 10.77.0.1 lladdr 02:4d:4f:54:00:00 dev lan0
            ip -n motley-lab-7-phone neigh add 10.77.0.2 lladdr 02:4d:4f:54:00:01 dev lan0
            ip -n motley-lab-7-phone neigh add 10.77.0.3 lladdr 02:4d:4f:54:00:02 dev lan0
        "#]],
        );
    }

    #[test]
    fn groups_of_the_second_version() {
        check(
            &plan("home4.toml", Cgroups::V2("/cg".into())).before,
            expect![[r#"
            mkdir /cg/motley-lab-7
            echo +cpu >/cg/cgroup.subtree_control
            echo +memory >/cg/cgroup.subtree_control
            echo +io >/cg/cgroup.subtree_control
            echo +cpu >/cg/motley-lab-7/cgroup.subtree_control
            echo +memory >/cg/motley-lab-7/cgroup.subtree_control
            echo +io >/cg/motley-lab-7/cgroup.subtree_control
            mkdir /cg/motley-lab-7/desktop
            echo 9000 10000 >/cg/motley-lab-7/desktop/cpu.max
            echo 6442450944 >/cg/motley-lab-7/desktop/memory.max
            echo 0 >/cg/motley-lab-7/desktop/memory.swap.max
            ip netns add motley-lab-7-desktop
            mkdir /cg/motley-lab-7/laptop
            echo 5000 10000 >/cg/motley-lab-7/laptop/cpu.max
            echo 3221225472 >/cg/motley-lab-7/laptop/memory.max
            echo 0 >/cg/motley-lab-7/laptop/memory.swap.max
            ip netns add motley-lab-7-laptop
            mkdir /cg/motley-lab-7/tablet
            echo 2500 10000 >/cg/motley-lab-7/tablet/cpu.max
            echo 1610612736 >/cg/motley-lab-7/tablet/memory.max
            echo 0 >/cg/motley-lab-7/tablet/memory.swap.max
            echo 8:0 rbps=209715200 >/cg/motley-lab-7/tablet/io.max
            ip netns add motley-lab-7-tablet
            mkdir /cg/motley-lab-7/phone
            echo 2500 10000 >/cg/motley-lab-7/phone/cpu.max
            echo 1610612736 >/cg/motley-lab-7/phone/memory.max
            echo 0 >/cg/motley-lab-7/phone/memory.swap.max
            echo 8:0 rbps=104857600 >/cg/motley-lab-7/phone/io.max
            ip netns add motley-lab-7-phone
        "#]],
        );
    }

    #[test]
    fn network_without_loss_bundles_frames_as_the_kernel_likes() {
        check(
            &plan("two-equal.toml", Cgroups::Absent).after,
            expect![[r#"
            ip link set dev mlab7-0 name lan0 netns motley-lab-7-left
            ip -n motley-lab-7-left link set dev lo up
            ip -n motley-lab-7-left link set dev lan0 mtu 1500 txqueuelen 4000 addrgenmode none address 02:4d:4f:54:00:00
            ip -n motley-lab-7-left addr add 10.77.0.1/24 dev lan0
            ip -n motley-lab-7-left link set dev lan0 up
            ip -n motley-lab-7-left route add 224.0.0.0/4 dev lan0
            ip -n motley-lab-7-left neigh add 10.77.0.2 lladdr 02:4d:4f:54:00:01 dev lan0
            ip link set dev mlab7-1 name lan0 netns motley-lab-7-right
            ip -n motley-lab-7-right link set dev lo up
            ip -n motley-lab-7-right link set dev lan0 mtu 1500 txqueuelen 4000 addrgenmode none address 02:4d:4f:54:00:01
            ip -n motley-lab-7-right addr add 10.77.0.2/24 dev lan0
            ip -n motley-lab-7-right link set dev lan0 up
            ip -n motley-lab-7-right route add 224.0.0.0/4 dev lan0
            ip -n motley-lab-7-right neigh add 10.77.0.1 lladdr 02:4d:4f:54:00:00 dev lan0
        "#]],
        );
    }

    #[test]
    fn names_fit_where_they_must() {
        let machine = Machine { cgroups: Cgroups::Absent, disk: None, processors: vec![0, 1] };
        let plan = Plan::new(&description("lan8.toml"), &machine, 4_194_304);
        for place in plan.places {
            // The kernel's IFNAMSIZ, with its ending byte.
            assert!(place.interface.len() < 16, "{}", place.interface);
        }
    }

    #[test]
    fn whole_processors_are_a_devices_own() {
        let text = "[[device]]\nname = \"a\"\ncpu_share = 2.0\n\
                    [[device]]\nname = \"b\"\ncpu_share = 0.5\n\
                    [[device]]\nname = \"c\"\ncpu_share = 2.0\n\
                    [[device]]\nname = \"d\"\n";
        let description = parse(text).expect("it is right");
        let own = |processors: &[usize]| {
            let processors = processors.to_vec();
            let machine = Machine { cgroups: Cgroups::Absent, disk: None, processors };
            let of = |index| own_processors(&description, index, &machine);
            (0..4).map(of).collect::<Vec<_>>()
        };
        assert_eq!(own(&[0, 1, 4, 5]), [vec![0, 1], vec![], vec![4, 5], vec![]]);
        assert_eq!(own(&[0, 1, 4]), [vec![0, 1], vec![], vec![0, 4], vec![]]);
        assert_eq!(own(&[3]), [vec![3], vec![], vec![3], vec![]], "there are no more");
        assert!(own(&[]).iter().all(Vec::is_empty));
    }

    #[test]
    fn programs_are_told_where_they_are() {
        let description = description("two-equal.toml");
        let machine = Machine { cgroups: first(), disk: None, processors: vec![0, 1] };
        let plan = Plan::new(&description, &machine, 7);
        let (folder, motley) = (Path::new("/logs/7"), Path::new("/bin/motley"));
        let words = Words { description: &description, plan: &plan, folder, motley };
        let asked =
            ["{motley}", "{head}:{address.right}", "--state={state}", "{state.left}", "{\"a\":{}}"];
        let filled = words.fill(1, &asked.map(str::to_owned)).expect("all are known");
        expect![[r#"
            [
                "/bin/motley",
                "10.77.0.1:10.77.0.2",
                "--state=/logs/7/state/right",
                "/logs/7/state/left",
                "{\"a\":{}}",
            ]
        "#]]
        .assert_debug_eq(&filled);
        let error = words.fill(0, &["{address.centre}".to_owned()]).expect_err("it is unknown");
        assert_eq!(error.to_string(), "{address.centre}: no device is called `centre`");
        let lines: Vec<String> = words
            .environment(1)
            .into_iter()
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        expect![[r#"
            MOTLEY_LAB_NAME=right
            MOTLEY_LAB_ADDRESS=10.77.0.2
            MOTLEY_LAB_STATE=/logs/7/state/right
            MOTLEY_LAB_THREADS=1
            XDG_STATE_HOME=/logs/7/state/right
            XDG_DATA_HOME=/logs/7/state/right
            XDG_CACHE_HOME=/logs/7/state/right
            MOTLEY_LAB=/logs/7/lab
            MOTLEY_LAB_DEVICES=left right
            MOTLEY_LAB_HEAD=10.77.0.1
            MOTLEY_LAB_LOGS=/logs/7
            MOTLEY_LAB_MOTLEY=/bin/motley
            MOTLEY_LAB_ADDRESS_LEFT=10.77.0.1
            MOTLEY_LAB_STATE_LEFT=/logs/7/state/left
            MOTLEY_LAB_THREADS_LEFT=1
            MOTLEY_LAB_ADDRESS_RIGHT=10.77.0.2
            MOTLEY_LAB_STATE_RIGHT=/logs/7/state/right
            MOTLEY_LAB_THREADS_RIGHT=1
        "#]]
        .assert_eq(&lines.concat());
        expect![[r##"
            #!/bin/sh
            # on NAME COMMAND.. runs a command on a device; freeze, thaw, kill, down, up NAME act on it.
            verb=$1 name=$2
            shift 2
            case "$verb $name" in
            'on left') export MOTLEY_LAB_NAME=left; export MOTLEY_LAB_ADDRESS=10.77.0.1; export MOTLEY_LAB_STATE=/logs/7/state/left; export MOTLEY_LAB_THREADS=1; export XDG_STATE_HOME=/logs/7/state/left; export XDG_DATA_HOME=/logs/7/state/left; export XDG_CACHE_HOME=/logs/7/state/left; exec sh -c 'echo $$ >/cg/blkio/motley-lab-7/left/cgroup.procs && echo $$ >/cg/cpu/motley-lab-7/left/cgroup.procs && echo $$ >/cg/freezer/motley-lab-7/left/cgroup.procs && echo $$ >/cg/memory/motley-lab-7/left/cgroup.procs && exec taskset -c 0 nsenter --net=/run/netns/motley-lab-7-left -- "$@"' lab "$@" ;;
            'freeze left') echo FROZEN >/cg/freezer/motley-lab-7/left/freezer.state ;;
            'thaw left') echo THAWED >/cg/freezer/motley-lab-7/left/freezer.state ;;
            'kill left') kill -KILL $(cat /cg/blkio/motley-lab-7/left/cgroup.procs) ;;
            'down left') ip -n motley-lab-7-left link set dev lan0 down ;;
            'up left') ip -n motley-lab-7-left link set dev lan0 up && ip -n motley-lab-7-left route add 224.0.0.0/4 dev lan0 ;;
            'on right') export MOTLEY_LAB_NAME=right; export MOTLEY_LAB_ADDRESS=10.77.0.2; export MOTLEY_LAB_STATE=/logs/7/state/right; export MOTLEY_LAB_THREADS=1; export XDG_STATE_HOME=/logs/7/state/right; export XDG_DATA_HOME=/logs/7/state/right; export XDG_CACHE_HOME=/logs/7/state/right; exec sh -c 'echo $$ >/cg/blkio/motley-lab-7/right/cgroup.procs && echo $$ >/cg/cpu/motley-lab-7/right/cgroup.procs && echo $$ >/cg/freezer/motley-lab-7/right/cgroup.procs && echo $$ >/cg/memory/motley-lab-7/right/cgroup.procs && exec taskset -c 1 nsenter --net=/run/netns/motley-lab-7-right -- "$@"' lab "$@" ;;
            'freeze right') echo FROZEN >/cg/freezer/motley-lab-7/right/freezer.state ;;
            'thaw right') echo THAWED >/cg/freezer/motley-lab-7/right/freezer.state ;;
            'kill right') kill -KILL $(cat /cg/blkio/motley-lab-7/right/cgroup.procs) ;;
            'down right') ip -n motley-lab-7-right link set dev lan0 down ;;
            'up right') ip -n motley-lab-7-right link set dev lan0 up && ip -n motley-lab-7-right route add 224.0.0.0/4 dev lan0 ;;
            *) echo "$0: cannot $verb $name in this lab" >&2; exit 2 ;;
            esac
        "##]].assert_eq(&words.script());
    }
}
