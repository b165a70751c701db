//! What connections to other hosts need: device, address, verbs, locked memory, rights, the option in
//! the handshake. Used by `check`.

use std::path::PathBuf;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{AccessFlags, access};
use smcr_bpf::State;

use super::{Finding, Grade};
use crate::device::{self, Port};
use crate::paths::Places;
use crate::{bench, handshake, out, procfs};

/// Below this, RDMA has little memory to pin.
const LITTLE_MEMLOCK: u64 = 64 << 20;
const VERBS: &str = "libibverbs.so.1";
/// Name and number of what matters here.
const CAPABILITIES: [(&str, u32); 3] = [("CAP_BPF", 39), ("CAP_NET_ADMIN", 12), ("CAP_IPC_LOCK", 14)];

pub fn check(places: &Places) -> Vec<Finding> {
    let ports = device::of_machine(places);
    let mut findings = vec![devices(&ports)];
    if !ports.is_empty() {
        findings.extend([addresses(&ports), verbs(), device_files(places, &ports)]);
    }
    findings.extend([memlock(), capabilities(), smc_option()]);
    findings
}

fn devices(ports: &[Port]) -> Finding {
    let active = ports.iter().filter(|p| p.state == "ACTIVE").count();
    let gids: usize = ports.iter().map(|p| p.gids.len()).sum();
    match ports.len() {
        0 => Finding::new(Grade::Info, "rdma", "no RDMA devices: connections to other hosts stay on TCP"),
        n if active == 0 => {
            Finding::new(Grade::Bad, "rdma", format!("{n} ports, none active")).mend("ip link set the network device up; see smcrctl device")
        }
        n => Finding::new(Grade::Good, "rdma", format!("{n} ports, {active} active, {gids} GIDs; see smcrctl device")),
    }
}

fn addresses(ports: &[Port]) -> Finding {
    let usable: Vec<&str> = ports.iter().filter_map(Port::address).collect();
    match usable.first() {
        Some(gid) => Finding::new(Grade::Good, "gid", format!("{gid}, RoCE v2 with an IPv4 address")),
        None => Finding::new(Grade::Bad, "gid", "no active port has a RoCE v2 GID of an IPv4 address")
            .mend("give the network device of the RDMA device an IPv4 address"),
    }
}

fn verbs() -> Finding {
    match bench::loads(VERBS.as_ref()) {
        Ok(true) => Finding::new(Grade::Good, "verbs", format!("{VERBS} loads")),
        _ => Finding::new(Grade::Bad, "verbs", format!("{VERBS} does not load")).mend("install libibverbs1 and ibverbs-providers"),
    }
}

/// Whether this user may open the devices.
fn device_files(places: &Places, ports: &[Port]) -> Finding {
    let mut files: Vec<PathBuf> = ports.iter().filter_map(|p| device::uverbs(places, &p.device)).collect();
    files.dedup();
    let closed: Vec<_> =
        files.iter().filter(|f| access(f.as_path(), AccessFlags::R_OK | AccessFlags::W_OK).is_err()).map(|f| f.display().to_string()).collect();
    match (files.is_empty(), closed.is_empty()) {
        (true, _) => {
            Finding::new(Grade::Bad, "uverbs", "the kernel shows no uverbs device").mend("modprobe ib_uverbs; in a container give it /dev/infiniband")
        }
        (_, true) => Finding::new(Grade::Good, "uverbs", "this user may open the devices"),
        _ => Finding::new(Grade::Bad, "uverbs", format!("this user may not open {}", closed.join(", ")))
            .mend("let the user read and write it (group rdma, or a udev rule)"),
    }
}

fn memlock() -> Finding {
    let finding = |grade, text: String| Finding::new(grade, "memlock", text);
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((RLIM_INFINITY, _)) => finding(Grade::Good, "any amount of memory may be locked".into()),
        Ok((soft, _)) if soft < LITTLE_MEMLOCK => finding(Grade::Info, format!("{} may be locked, which is little for RDMA", out::bytes(soft)))
            .mend("ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit (for RDMA only)"),
        Ok((soft, _)) => finding(Grade::Good, format!("{} may be locked", out::bytes(soft))),
        Err(error) => finding(Grade::Info, format!("limit unknown: {error}")),
    }
}

/// Programs need none of them; `enable` needs the first two.
fn capabilities() -> Finding {
    let bits = procfs::status("self", "CapEff").and_then(|t| u64::from_str_radix(&t, 16).ok());
    let bits = bits.unwrap_or(0);
    let (have, lack): (Vec<_>, Vec<_>) = CAPABILITIES.into_iter().partition(|(_, n)| bits & (1 << n) != 0);
    let names = |list: Vec<(&str, u32)>| list.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let may_pin = !lack.iter().any(|(name, _)| *name != "CAP_IPC_LOCK");
    let text = match (have.is_empty(), lack.is_empty()) {
        (_, true) => names(have),
        (true, _) => format!("without {}; programs need none", names(lack)),
        _ => format!("{}; without {}; programs need none", names(have), names(lack)),
    };
    let finding = Finding::new(Grade::Info, "capabilities", text);
    if may_pin { finding } else { finding.mend("smcrctl enable by root, for connections to other hosts") }
}

/// The eBPF programs. Connections of one host do not need them, so their absence is no fault.
fn smc_option() -> Finding {
    let status = smcr_bpf::status();
    let finding = |grade, text: String| Finding::new(grade, "smc option", text);
    let text = handshake::describe(&status);
    match status.state {
        State::Enabled | State::Unreadable => finding(Grade::Good, text),
        State::Absent => finding(Grade::Info, text).mend("smcrctl enable, as root"),
        State::Partial | State::Outdated => finding(Grade::Bad, text).mend("smcrctl enable, as root"),
    }
}
