//! The SMC option in the TCP handshake (eBPF): pinned by `enable` and removed by `disable` for the
//! host, shown by `check`. Connections between processes of one host do without it, so a kernel that
//! refuses the programs fails no command.

use smcr_bpf::{Enabled, State, Status};

use crate::out;

/// Pins the programs for all processes, or removes them; says what was done.
pub fn switch(on: bool) -> anyhow::Result<()> {
    let result = if on { enable() } else { disable() };
    match result {
        Ok(text) => out::print(&format!("{text}\n")),
        Err(error) => {
            out::note(&format!(
                "note: the SMC TCP option (eBPF) is as it was: {error}; connections between \
                 processes of this host do not need it"
            ));
            Ok(())
        }
    }
}

fn enable() -> Result<String, String> {
    let Some(cgroup) = smcr_bpf::cgroup_root() else {
        return Err("no cgroup2 hierarchy is mounted; see `mount -t cgroup2`".into());
    };
    let done = smcr_bpf::enable(&cgroup).map_err(|e| e.to_string())?;
    let place = cgroup.display();
    Ok(match done {
        Enabled::Now => format!("SMC TCP option: eBPF programs pinned for {place}"),
        Enabled::Already => {
            format!("SMC TCP option: eBPF programs were pinned already for {place}")
        }
        Enabled::Replaced => format!("SMC TCP option: eBPF programs replaced for {place}; listeners answer again after their next listen()"),
    })
}

fn disable() -> Result<String, String> {
    match smcr_bpf::disable() {
        Ok(true) => Ok("SMC TCP option: eBPF programs removed".into()),
        Ok(false) => Ok("SMC TCP option: no eBPF programs were pinned".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// One sentence about what is installed.
pub fn describe(status: &Status) -> String {
    let mut text = match status.state {
        State::Absent => "no eBPF programs mark connections by the SMC TCP option; those of one host do not need it",
        State::Partial => "some eBPF programs of the SMC TCP option are missing",
        State::Outdated => "eBPF programs of another version write the SMC TCP option",
        State::Enabled => "eBPF programs write the SMC TCP option",
        State::Unreadable => "eBPF programs are pinned for the SMC TCP option; root sees which",
    }
    .to_string();
    if let Some(cgroup) = &status.cgroup {
        text += &format!(", for {}", cgroup.display());
    }
    let is_there = matches!(status.state, State::Enabled | State::Outdated | State::Unreadable);
    match (is_there, status.here) {
        (true, None) => text += "; they do not reach this process",
        (false, Some(abi)) => text += &format!("; programs of somebody else (agreement {abi}) reach this process"),
        _ => {}
    }
    if let Some(c) = status.counters {
        text += &format!("; {} SYNs and {} SYN-ACKs marked, {} connections answered", c.syns, c.synacks, c.active + c.passive);
    }
    text
}
