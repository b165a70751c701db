//! What of this machine matters to the library. Used by `check`.

use std::path::Path;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use smcr_bpf::State;

use super::{Finding, Grade, diag};
use crate::effective::Effective;
use crate::paths::Places;
use crate::{bench, device, handshake, library, out, procfs};

/// Below this, RDMA has little memory to pin.
const LITTLE_MEMLOCK: u64 = 64 << 20;

pub fn check(places: &Places) -> Vec<Finding> {
    vec![
        the_library(),
        settings(places),
        memory_files(),
        sock_diag(),
        processors(),
        descriptors(),
        container(),
        seccomp(),
        memlock(),
        devices(places),
        smc_option(),
    ]
}

/// The eBPF programs. Connections of one host do not need them, so their absence is no fault.
fn smc_option() -> Finding {
    let status = smcr_bpf::status();
    let finding = |grade, text: String| Finding::new(grade, "smc option", text);
    let text = handshake::describe(&status);
    match status.state {
        State::Enabled | State::Unreadable => finding(Grade::Good, text),
        State::Absent => finding(Grade::Info, text).mend("smcrctl enable, as root"),
        State::Partial | State::Outdated => {
            finding(Grade::Bad, text).mend("smcrctl enable, as root")
        }
    }
}

fn the_library() -> Finding {
    let path = match library::find() {
        Ok(path) => path,
        Err(error) => return Finding::new(Grade::Bad, "library", format!("{error:#}")),
    };
    match bench::loads(&path) {
        Ok(true) => Finding::new(Grade::Good, "library", format!("{} loads", path.display())),
        Ok(false) => Finding::new(
            Grade::Bad,
            "library",
            format!("{} is not in a program started with it", path.display()),
        )
        .mend("start a program with LD_DEBUG=libs to see what the loader says"),
        Err(error) => Finding::new(Grade::Bad, "library", format!("{error:#}")),
    }
}

fn settings(places: &Places) -> Finding {
    use smcr_proto::control::{Attribute, Mode};
    let effective = Effective::read(places);
    let attribute = match (effective.policy.enabled, effective.policy.mode) {
        (false, _) => Attribute::Enabled,
        (true, Mode::Off) => Attribute::Mode,
        _ => return Finding::new(Grade::Good, "settings", "acceleration is on"),
    };
    let (origin, place) = effective.origin(attribute, places);
    let text = format!(
        "acceleration is off: {} = {} ({origin} {place})",
        attribute.name(),
        effective.policy.show(attribute)
    );
    Finding::new(Grade::Bad, "settings", text.replace(" )", ")"))
        .mend("smcrctl enable, or smcrctl set mode=auto")
}

fn memory_files() -> Finding {
    match memfd_create("smcrctl-check", MFdFlags::MFD_CLOEXEC) {
        Ok(_) => Finding::new(Grade::Good, "memory", "memfd_create works"),
        Err(error) => Finding::new(Grade::Bad, "memory", format!("memfd_create fails: {error}"))
            .mend("allow memfd_create in the container's seccomp profile"),
    }
}

fn sock_diag() -> Finding {
    match diag::answers() {
        Ok(()) => Finding::new(Grade::Good, "sock_diag", "answers for TCP"),
        Err(error) => Finding::new(Grade::Bad, "sock_diag", format!("{error:#}"))
            .mend("modprobe tcp_diag, or allow AF_NETLINK in the unit or container"),
    }
}

fn processors() -> Finding {
    let n = std::thread::available_parallelism().map_or(1, |n| n.get());
    let text = match n {
        1 => {
            "1 processor: polling would only take time from the peer, waiters sleep at once".into()
        }
        n => format!("{n} processors"),
    };
    Finding::new(Grade::Info, "processors", text)
}

fn descriptors() -> Finding {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, _)) if soft < 256 => Finding::new(
            Grade::Bad,
            "descriptors",
            format!("a process may open {soft} descriptors only"),
        )
        .mend("ulimit -n 1024, or LimitNOFILE= in the unit"),
        Ok((soft, _)) => Finding::new(
            Grade::Good,
            "descriptors",
            format!("{} allowed", limit(soft)),
        ),
        Err(error) => Finding::new(
            Grade::Info,
            "descriptors",
            format!("limit unknown: {error}"),
        ),
    }
}

/// The memory and processor limits of the control group that we are in.
fn container() -> Finding {
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = group.lines().find_map(|l| l.strip_prefix("0::/"));
    let dir = Path::new("/sys/fs/cgroup").join(path.unwrap_or_default());
    let read = |file| {
        let text = std::fs::read_to_string(dir.join(file)).ok()?;
        Some(text.trim().to_string()).filter(|t| !t.starts_with("max"))
    };
    let mut limits = Vec::new();
    if let Some(bytes) = read("memory.max").and_then(|t| t.parse().ok()) {
        limits.push(format!(
            "memory {} (rings count against it)",
            out::bytes(bytes)
        ));
    }
    if let Some(quota) = read("cpu.max") {
        limits.push(format!("processor time {quota} us (quota, period)"));
    }
    let text = match limits.is_empty() {
        true => "no limit of memory or processor time in this control group".to_string(),
        false => limits.join(", "),
    };
    Finding::new(Grade::Info, "container", text)
}

fn seccomp() -> Finding {
    let filtered = procfs::status("self", "Seccomp").is_some_and(|mode| mode == "2");
    let text = match filtered {
        true => "system calls are filtered (as in most containers); what matters was tried above",
        false => "system calls are not filtered",
    };
    Finding::new(Grade::Info, "seccomp", text)
}

fn memlock() -> Finding {
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft < LITTLE_MEMLOCK => {
            let text = format!(
                "{} may be locked, which is little for RDMA",
                out::bytes(soft)
            );
            Finding::new(Grade::Info, "memlock", text)
                .mend("ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit (for RDMA only)")
        }
        Ok((soft, _)) => Finding::new(
            Grade::Good,
            "memlock",
            format!("{} may be locked", limit(soft)),
        ),
        Err(error) => Finding::new(Grade::Info, "memlock", format!("limit unknown: {error}")),
    }
}

fn devices(places: &Places) -> Finding {
    let ports = device::of_machine(places);
    let active = ports.iter().filter(|p| p.state == "ACTIVE").count();
    let gids: usize = ports.iter().map(|p| p.gids.len()).sum();
    let text = match ports.len() {
        0 => "no RDMA devices: connections to other hosts stay on TCP".to_string(),
        n => format!("{n} ports, {active} active, {gids} GIDs; see smcrctl device"),
    };
    Finding::new(Grade::Info, "rdma", text)
}

fn limit(n: u64) -> String {
    if n == RLIM_INFINITY {
        "any number".into()
    } else {
        n.to_string()
    }
}
