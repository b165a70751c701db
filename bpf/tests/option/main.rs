//! The option on the wire and the verdicts at both ends, case by case.
//!
//! Needs root, a cgroup2 mount and `ip`; says so and passes where they are missing. It makes its own
//! mount and network namespaces and its own cgroups, and removes what it made. One thread, one process:
//! the cases change user, cgroup and namespace under their feet.

mod edges;
mod ends;
mod net;

use std::fs;
use std::path::{Path, PathBuf};

use net::{enter, new_namespace};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use smcr_bpf::{Enabled, Error, Pins, Shape, cgroup_root};

/// Three cgroups: ours, one whose programs play a kernel with SMC, one that echoes our option.
struct World {
    ours: (PathBuf, Pins),
    kernel: (PathBuf, Pins),
    echo: (PathBuf, Pins),
    home: PathBuf,
    pins: PathBuf,
}

fn main() {
    let Some(root) = cgroup_root() else {
        return skip("no cgroup2 is mounted");
    };
    if !nix::unistd::geteuid().is_root() {
        return skip("only root can load the programs");
    }
    let world = match World::new(&root) {
        Ok(world) => world,
        Err(error @ Error::Privilege) => return skip(&error.to_string()),
        Err(error) => panic!("{error}"),
    };
    let before = fs::read_to_string("/proc/self/cgroup").expect("own cgroup");
    // A failing case must not leave programs and cgroups behind.
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&world)));
    let own = before.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
    enter(&root.join(own));
    world.remove();
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
    println!("all cases passed");
}

fn skip(why: &str) {
    println!("skipped: {why}");
}

type Case = (&'static str, fn(&World));

fn run(world: &World) {
    let cases: [Case; 22] = [
        ("enable again, and without privilege", edges::enabling),
        ("both marked", ends::both),
        ("plain server", ends::plain_server),
        ("plain client", ends::plain_client),
        ("neither marked", ends::neither),
        ("IPv6, and IPv4 to a dual-stack listener", ends::ipv6),
        ("non-blocking connect", ends::non_blocking),
        ("two hosts over veth", ends::veth),
        ("SYN cookies", edges::cookies),
        ("a group of a marked and a plain listener", ends::reuseport),
        ("server of another kind", ends::other_server),
        ("client of another kind", ends::other_client),
        ("a kernel with SMC", ends::kernel_smc),
        ("our own option echoed", ends::echo),
        ("a listener unmarked", edges::unmarked),
        ("marks that are refused", edges::refusals),
        ("a child is not marked", edges::child),
        ("a socket connected twice", edges::twice),
        ("TCP Fast Open", edges::fast_open),
        ("the third SYN", edges::third_syn),
        ("what is not ours passes", edges::not_ours),
        ("counters, disable", edges::disabling),
    ];
    for (name, case) in cases {
        enter(&world.ours.0);
        let _home = new_namespace();
        case(world);
        println!("ok   {name}");
    }
}

impl World {
    fn new(root: &Path) -> Result<World, Error> {
        let unique = format!("smcr-test-{}", std::process::id());
        let pins = std::env::temp_dir().join(&unique);
        fs::create_dir(&pins).expect("create a mount point");
        unshare(CloneFlags::CLONE_NEWNS).expect("unshare");
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private mounts");
        mount(Some("bpf"), &pins, Some("bpf"), MsFlags::empty(), Some("mode=0755")).expect("bpffs");
        let home = root.join(&unique);
        fs::create_dir(&home).expect("create a cgroup");
        let place = |name: &str| {
            let cgroup = home.join(name);
            fs::create_dir(&cgroup).expect("create a cgroup");
            (cgroup, Pins::at(pins.join(name)))
        };
        let world = World { ours: place("ours"), kernel: place("kernel"), echo: place("echo"), home: home.clone(), pins: pins.clone() };
        let enabled = world.enable();
        if enabled.is_err() {
            world.remove();
        }
        enabled.map(|()| world)
    }

    fn enable(&self) -> Result<(), Error> {
        assert_eq!(self.ours.1.enable(&self.ours.0)?, Enabled::Now);
        let short = Shape { option_length: 6, ..Shape::default() };
        self.kernel.1.enable_shaped(&self.kernel.0, short)?;
        let same = Shape { role_synack: Shape::default().role_syn, ..Shape::default() };
        self.echo.1.enable_shaped(&self.echo.0, same)?;
        Ok(())
    }

    fn remove(&self) {
        for (cgroup, pins) in [&self.ours, &self.kernel, &self.echo] {
            pins.disable().expect("disable");
            fs::remove_dir(cgroup).expect("remove a cgroup");
        }
        fs::remove_dir(&self.home).expect("remove the cgroup");
        nix::mount::umount(&self.pins).expect("umount");
        fs::remove_dir(&self.pins).expect("remove the mount point");
    }
}
