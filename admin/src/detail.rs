//! What `stats -d` adds to the totals: media, link groups, devices, sizes, the handshake, ends on TCP by
//! reason, users and processes. Used by `stats`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use smcr_proto::page::link::Record;
use smcr_proto::page::{COUNTERS, Counter, SIZES};
use smcr_proto::reason::Reason;

use crate::linkgroup;
use crate::out::{self, Table};
use crate::scan::Holder;
use crate::totals::{self, Counters, InUse, ProcessTotals};

/// A link group and its process.
pub type Group<'a> = (&'a Holder, &'a Record);

/// Counters of attempts that failed on the way to memory.
const HANDSHAKE: [Counter; 8] = [
    Counter::Announces,
    Counter::Offers,
    Counter::OffersTaken,
    Counter::OffersRefused,
    Counter::ProofFailures,
    Counter::DiagQueries,
    Counter::HostileResets,
    Counter::HandoverTimeouts,
];

pub fn text(processes: &[ProcessTotals], in_use: &InUse, groups: &[Group<'_>]) -> String {
    let sum = totals::sum(processes);
    let mut text = String::from("\nby transport\n");
    text += &transports(&sum, in_use);
    text += "\nlink groups that there are now\n";
    text += &link_groups(groups);
    text += "\nRDMA devices, by these link groups\n";
    text += &devices(groups);
    text += "\nsends and receives in memory, by size\n";
    text += &sizes(&sum);
    text += "\nhandshake\n";
    let mut table = Table::new(&["  Counter", ">Value", "Meaning"]);
    for counter in HANDSHAKE {
        add(&mut table, counter as usize, &sum);
    }
    text += &table.render();
    text += "\nconnections on TCP, by reason\n";
    text += &reasons(processes, in_use);
    text += "\nby user\n";
    text += &users(processes);
    for process in processes {
        text += &one(process);
    }
    text
}

/// True for a counter that has a table of its own in the details.
pub fn is_size(index: usize) -> bool {
    index >= Counter::Tx64 as usize && index <= Counter::RxMore as usize
}

fn value(sum: &Counters, counter: Counter) -> u64 {
    sum.get(counter as usize).copied().unwrap_or(0)
}

fn add(table: &mut Table, index: usize, counters: &Counters) {
    if let (Some((name, help)), Some(value)) = (COUNTERS.get(index), counters.get(index)) {
        table.row(vec![format!("  {name}"), value.to_string(), help.to_string()]);
    }
}

fn transports(sum: &Counters, in_use: &InUse) -> String {
    let mut table = Table::new(&["  Transport", ">Now", ">Connections", ">Sends", ">Receives", ">Requests", ">Bytes sent", ">Bytes received"]);
    let known = |n: Option<u64>| n.map_or("-".into(), |n| n.to_string());
    for t in totals::transports(sum, in_use) {
        table.row(vec![
            format!("  {}", t.name),
            t.now.to_string(),
            known(t.connections),
            known(t.sends),
            known(t.receives),
            t.requests.to_string(),
            t.bytes_sent.to_string(),
            t.bytes_received.to_string(),
        ]);
    }
    table.render()
}

fn link_groups(groups: &[Group<'_>]) -> String {
    if groups.is_empty() {
        return "  none\n".into();
    }
    let mut table = Table::new(&[
        "  LG-ID",
        "LG-Role",
        "IB-Dev",
        ">IB-P",
        "Peer-GID",
        ">#Conns",
        ">Bytes sent",
        ">Bytes received",
        ">Messages sent",
        ">Messages received",
        ">PID",
        "Program",
    ]);
    for (holder, r) in groups {
        table.row(vec![
            format!("  {}", linkgroup::lg_id(r)),
            r.role.label().into(),
            linkgroup::text(&r.device),
            r.port.to_string(),
            linkgroup::gid(r.peer_gid),
            r.connections.to_string(),
            r.bytes[0].to_string(),
            r.bytes[1].to_string(),
            r.messages[0].to_string(),
            r.messages[1].to_string(),
            holder.pid.to_string(),
            out::clean(&holder.name),
        ]);
    }
    table.render()
}

fn devices(groups: &[Group<'_>]) -> String {
    if groups.is_empty() {
        return "  none\n".into();
    }
    let mut table =
        Table::new(&["  IB-Dev", ">IB-P", ">Link groups", ">#Conns", ">Bytes sent", ">Bytes received", ">Messages sent", ">Messages received"]);
    for d in linkgroup::by_device(groups) {
        let numbers = [d.linkgroups, d.connections, d.bytes_sent, d.bytes_received, d.messages_sent, d.messages_received];
        let mut row = vec![format!("  {}", d.device), d.port.to_string()];
        row.extend(numbers.iter().map(u64::to_string));
        table.row(row);
    }
    table.render()
}

fn sizes(sum: &Counters) -> String {
    let mut table = Table::new(&[">  Up to", ">Sends", ">Receives"]);
    for (i, end) in SIZES.iter().enumerate() {
        let at = |from: Counter| sum.get(from as usize + i).copied().unwrap_or(0).to_string();
        let end = match end {
            &usize::MAX => "more".into(),
            n => out::bytes(*n as u64),
        };
        table.row(vec![format!("  {end}"), at(Counter::Tx64), at(Counter::Rx64)]);
    }
    table.render()
}

/// Connections that are on TCP now, and those that ended there.
fn reasons(processes: &[ProcessTotals], in_use: &InUse) -> String {
    let ended = totals::ended(processes);
    let mut names: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (word, n) in &in_use.reason {
        names.entry(word.clone()).or_default().0 += n;
    }
    for (code, n) in &ended {
        names.entry(totals::reason_word(*code)).or_default().1 += n;
    }
    let mut table = Table::new(&["  Reason", ">Now", ">Ended", "", "Meaning"]);
    for (word, (now, ended)) in names {
        let known = Reason::ALL.iter().find(|r| r.label() == word);
        let failure = known.is_some_and(|r| r.is_failure());
        table.row(vec![
            format!("  {word}"),
            now.to_string(),
            ended.to_string(),
            if failure { "!" } else { "" }.into(),
            known.map_or("", |r| r.text()).into(),
        ]);
    }
    table.render()
}

fn users(processes: &[ProcessTotals]) -> String {
    let mut table = Table::new(&[">  UID", "User", ">Processes", ">Sockets", ">Accelerated", ">Memory bytes", ">TCP bytes", ">Rings"]);
    for (uid, of_user) in by_user(processes) {
        let sum = totals::sum(&of_user);
        let name = uid.and_then(|u| nix::unistd::User::from_uid(u.into()).ok().flatten());
        let bytes = |a, b| out::bytes(value(&sum, a).wrapping_add(value(&sum, b)));
        table.row(vec![
            uid.map_or("  ended".into(), |u| format!("  {u}")),
            name.map_or("-".into(), |u| out::clean(&u.name)),
            of_user.len().to_string(),
            value(&sum, Counter::Sockets).to_string(),
            value(&sum, Counter::Accelerated).to_string(),
            bytes(Counter::MemTxBytes, Counter::MemRxBytes),
            bytes(Counter::TcpTxBytes, Counter::TcpRxBytes),
            out::bytes(value(&sum, Counter::Memory)),
        ]);
    }
    table.render()
}

/// The processes of each user; none for those that ended while relatives keep their page.
pub fn by_user(processes: &[ProcessTotals]) -> BTreeMap<Option<u32>, Vec<ProcessTotals>> {
    let mut users: BTreeMap<Option<u32>, Vec<ProcessTotals>> = BTreeMap::new();
    for process in processes {
        users.entry(process.uid).or_default().push(process.clone());
    }
    users
}

/// A process: what is not zero.
fn one(process: &ProcessTotals) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\n{} {}, library {}, {}",
        match process.pid {
            Some(pid) => format!("pid {pid}"),
            None if process.is_of_the_gone => "all that ended before, of".into(),
            None => format!("ended (was pid {})", process.own_pid),
        },
        out::clean(&process.name),
        process.version,
        match (process.pid, process.enabled) {
            (None, _) => "gone",
            (_, true) => "enabled",
            (_, false) => "disabled",
        }
    );
    let mut table = Table::new(&["  Counter", ">Value", "Meaning"]);
    for (i, n) in process.counters.iter().enumerate() {
        if *n != 0 {
            add(&mut table, i, &process.counters);
        }
    }
    for (code, n) in &process.ended {
        table.row(vec![
            format!("  ended on TCP: {}", totals::reason_word(*code)),
            n.to_string(),
            Reason::from_code(*code).map_or("", Reason::text).into(),
        ]);
    }
    text += &table.render();
    text
}
