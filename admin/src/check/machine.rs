//! What of this machine matters to the library. Used by `check`.

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::{Finding, Grade, diag, limits};
use crate::effective::Effective;
use crate::paths::Places;
use crate::{bench, library, procfs};

pub fn check(places: &Places) -> Vec<Finding> {
    vec![the_library(), settings(places), memory_files(), sock_diag(), processors(), descriptors(), limits::check(), seccomp()]
}

fn the_library() -> Finding {
    let path = match library::find() {
        Ok(path) => path,
        Err(error) => return Finding::new(Grade::Bad, "library", format!("{error:#}")),
    };
    match bench::loads(&path) {
        Ok(true) => Finding::new(Grade::Good, "library", format!("{} loads", path.display())),
        Ok(false) => Finding::new(Grade::Bad, "library", format!("{} is not in a program started with it", path.display()))
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
    let text = format!("acceleration is off: {} = {} ({origin} {place})", attribute.name(), effective.policy.show(attribute));
    Finding::new(Grade::Bad, "settings", text.replace(" )", ")")).mend("smcrctl enable, or smcrctl set mode=auto")
}

fn memory_files() -> Finding {
    match memfd_create("smcrctl-check", MFdFlags::MFD_CLOEXEC) {
        Ok(_) => Finding::new(Grade::Good, "memory", "memfd_create works"),
        Err(error) => {
            Finding::new(Grade::Bad, "memory", format!("memfd_create fails: {error}")).mend("allow memfd_create in the container's seccomp profile")
        }
    }
}

fn sock_diag() -> Finding {
    match diag::answers() {
        Ok(()) => Finding::new(Grade::Good, "sock_diag", "answers for TCP"),
        Err(error) => {
            Finding::new(Grade::Bad, "sock_diag", format!("{error:#}")).mend("modprobe tcp_diag, or allow AF_NETLINK in the unit or container")
        }
    }
}

fn processors() -> Finding {
    let n = std::thread::available_parallelism().map_or(1, |n| n.get());
    let text = match n {
        1 => "1 processor: polling would only take time from the peer, waiters sleep at once".into(),
        n => format!("{n} processors"),
    };
    Finding::new(Grade::Info, "processors", text)
}

fn descriptors() -> Finding {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, _)) if soft < 256 => Finding::new(Grade::Bad, "descriptors", format!("a process may open {soft} descriptors only"))
            .mend("ulimit -n 1024, or LimitNOFILE= in the unit"),
        Ok((soft, _)) => Finding::new(Grade::Good, "descriptors", format!("{} allowed", limit(soft))),
        Err(error) => Finding::new(Grade::Info, "descriptors", format!("limit unknown: {error}")),
    }
}

fn seccomp() -> Finding {
    let filtered = procfs::status("self", "Seccomp").is_some_and(|mode| mode == "2");
    let text = match filtered {
        true => "system calls are filtered (as in most containers); what matters was tried above",
        false => "system calls are not filtered",
    };
    Finding::new(Grade::Info, "seccomp", text)
}

fn limit(n: u64) -> String {
    if n == RLIM_INFINITY { "any number".into() } else { n.to_string() }
}
