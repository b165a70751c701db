//! The command explain: why is a connection on TCP, in a sentence, with what to change.

use std::path::Path;

use anyhow::bail;
use smcr_proto::control::Attribute;
use smcr_proto::page::State;
use smcr_proto::reason::Reason;

use crate::cli::{ExplainArgs, Who};
use crate::effective::Effective;
use crate::fail::usage;
use crate::out::Table;
use crate::paths::Places;
use crate::scan::{Connection, Host};
use crate::sock::reason_of_text;
use crate::{out, procfs, program};

pub fn run(places: &Places, args: &ExplainArgs) -> anyhow::Result<()> {
    let Some(text) = args.what.as_deref() else {
        return list();
    };
    if let Some(code) = text.strip_prefix("code:") {
        return explain_code(text, reason_of_text(code));
    }
    if let Some((pid, fd)) = text.split_once('/') {
        let wrong = || usage(format!("`{text}`: write PID/FD with two numbers"));
        let fd = fd.parse::<i32>().map_err(|_| wrong())?;
        return explain_process(places, pid.parse().map_err(|_| wrong())?, Some(fd));
    }
    if let Some(pid) = text.strip_prefix("pid:") {
        let pid = pid.parse().map_err(|_| usage(format!("`{text}`: write pid:NUMBER")))?;
        return explain_process(places, pid, None);
    }
    // A number may be a process or a reason: a process that has something to show goes first.
    let pid = text.parse::<u32>().ok();
    let code = reason_of_text(text);
    let shows = |pid| {
        let who = Who { pid: Some(pid), ..Who::default() };
        Host::scan(&who).is_ok_and(|h| !h.families.is_empty())
    };
    match (pid, code) {
        (Some(pid), None) => explain_process(places, pid, None),
        (Some(pid), Some(_)) if shows(pid) => explain_process(places, pid, None),
        _ => explain_code(text, code),
    }
}

fn explain_code(text: &str, code: Option<u32>) -> anyhow::Result<()> {
    let Some(reason) = code.and_then(Reason::from_code) else {
        return Err(usage(format!("`{text}` is neither a process (PID or PID/FD) nor a reason; smcrctl explain alone lists these")));
    };
    out::print(&sentence(reason.code()))
}

/// Every reason in a line.
fn list() -> anyhow::Result<()> {
    let mut table = Table::new(&["Reason", ">Code", "Meaning"]);
    for reason in &Reason::ALL[1..] {
        let (label, code) = (reason.label(), reason.code().to_string());
        match label.strip_prefix("SMC ") {
            Some(hex) => table.row(vec!["SMC".into(), hex.into(), reason.text().into()]),
            None => table.row(vec![label.into(), code, reason.text().into()]),
        }
    }
    out::print(&table.render())
}

/// Number, name, sentence and mend of a reason.
fn sentence(code: u32) -> String {
    let Some(reason) = Reason::from_code(code) else {
        return format!("{code:#x}: a reason of a newer library; upgrade smcrctl to name it\n");
    };
    let number = match code {
        0x0100_0000.. => String::new(),
        _ => format!(" ({code})"),
    };
    let mut text = format!("{}{number}: {}\n", reason.label(), reason.text());
    if !reason.mend().is_empty() {
        text += &format!("  what to change: {}\n", reason.mend());
    }
    text
}

fn explain_process(places: &Places, pid: u32, fd: Option<i32>) -> anyhow::Result<()> {
    if procfs::owner(pid).is_none() {
        bail!("no process {pid}; smcrctl sock lists those with the library");
    }
    let who = Who { pid: Some(pid), ..Who::default() };
    let host = Host::scan(&who)?;
    if host.families.is_empty() {
        return out::print(&why_no_page(pid, &host));
    }
    let mut found = host.connections(&who);
    found.retain(|c| c.user.pid == pid && fd.is_none_or(|fd| c.socket.fd == fd));
    if let Some(fd) = fd
        && found.is_empty()
    {
        return out::print(&why_no_record(pid, fd)?);
    }
    let mut text = String::new();
    if found.is_empty() {
        text += &format!("process {pid} has the library and no TCP connection\n");
    }
    for c in &found {
        text += &explain_connection(c, places);
    }
    out::print(&text)
}

fn explain_connection(c: &Connection, places: &Places) -> String {
    let s = &c.socket;
    let ends = match (c.local, c.peer) {
        (Some(local), Some(peer)) => format!("{local} to {peer}"),
        (Some(local), None) => format!("{local}"),
        _ => "address not known".into(),
    };
    let mut text = format!("fd {} ({ends}): {}, {}\n", s.fd, s.state_word(), s.mode_word());
    if s.is(State::Listening) {
        return text + "  a listening socket; its connections are decided one by one\n";
    }
    if s.is(State::Accelerated) {
        if s.tx_medium != s.rx_medium {
            text += "  the two directions move each for itself; one is on TCP now\n";
        }
        if s.reason == 0 {
            return text;
        }
    }
    if s.is(State::Negotiating) {
        return text + "  the two ends are proving each other; look again\n";
    }
    if s.reason == 0 {
        return text + "  on TCP for now; it moves to memory with the traffic\n";
    }
    for line in sentence(s.reason).lines() {
        text += &format!("  {line}\n");
    }
    if s.peer_diagnosis != 0 {
        text += &format!("  the peer's own reason: {}", in_the_peers_words(s.peer_diagnosis));
    }
    if let Some(more) = about_settings(s.reason, places) {
        text += &format!("  {more}\n");
    }
    text
}

/// What a peer says by its Decline; of a code that is not in the table, the number.
fn in_the_peers_words(code: u32) -> String {
    match Reason::from_code(code) {
        Some(_) => sentence(code).replace("  what to change: ", "    what to change: "),
        None => format!("{code:08x}, a code that this version does not know\n"),
    }
}

/// The value behind a reason that a setting gives, and where it comes from.
fn about_settings(code: u32, places: &Places) -> Option<String> {
    let attribute = match Reason::from_code(code)? {
        Reason::Disabled => Attribute::Enabled,
        Reason::Rule => Attribute::Rules,
        Reason::Mode => Attribute::Mode,
        Reason::PortExcluded => Attribute::PortRangeList,
        Reason::AddressExcluded => Attribute::IpAddrList,
        Reason::MaxMemory => Attribute::MaxMemory,
        Reason::NotWorthIt => Attribute::SwitchBytes,
        Reason::PeerUidRefused => Attribute::PeerUid,
        _ => return None,
    };
    let effective = Effective::read(places);
    let value = effective.policy.show(attribute);
    Some(format!("{} = {value} ({}) for programs started here", attribute.name(), effective.origin(attribute, places).0))
}

/// A process without a page: says the likeliest cause that can be seen from here.
fn why_no_page(pid: u32, host: &Host) -> String {
    if !host.unreadable.is_empty() || procfs::descriptors(pid).is_err() {
        return format!("process {pid} belongs to another user; ask root to look\n");
    }
    match procfs::has_library(pid) {
        Some(true) => {
            return format!("process {pid} has the library and has not made a TCP socket yet\n");
        }
        None => return format!("process {pid} cannot be looked into; ask root\n"),
        Some(false) => {}
    }
    let mut text = format!("process {pid} does not have the library\n");
    let exe = format!("/proc/{pid}/exe");
    let report = program::inspect(Path::new(&exe));
    match report.as_ref().map(|r| r.obstacles.first()) {
        Ok(Some(o)) => text += &format!("  it cannot: {}\n  what to change: {}\n", o.why, o.mend),
        _ => text += "  what to change: start it with smcrctl run, or its unit with smcrctl enable-unit\n",
    }
    text
}

/// A descriptor without a record.
fn why_no_record(pid: u32, fd: i32) -> anyhow::Result<String> {
    let Some(inode) = procfs::socket_inode(pid, fd) else {
        bail!("descriptor {fd} of process {pid} is not an open socket; see smcrctl sock -a -p {pid}");
    };
    let sockets = procfs::tcp_by_inode(pid);
    Ok(match sockets.get(&inode) {
        Some(line) if line.listening => format!("fd {fd} ({}): a listening socket; its connections are decided one by one\n", line.local),
        Some(line) => format!(
            "fd {fd} ({} to {}): on TCP; the library does not know the connection (made before it was loaded, by a call it does not see, or received from another process)\n",
            line.local, line.peer
        ),
        None => format!("fd {fd}: not a TCP connection\n"),
    })
}
