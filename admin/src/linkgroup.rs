//! The command linkgroup: link groups of processes with the library, in the words of smc-tools; a group of two links has two lines.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use serde::Serialize;
use serde_json::json;
use smcr_proto::page::link::Record;

use crate::cli::{Json, Who};
use crate::out::{self, Table};
use crate::scan::{Holder, Host};

pub fn run(args: &Json) -> anyhow::Result<()> {
    let who = Who::default();
    let host = Host::scan(&who)?;
    let found = of_host(&host, &who);
    if args.json {
        return out::json(&json!({ "linkgroups": all_as_json(&found) }));
    }
    if found.is_empty() {
        return out::print("no link groups\n");
    }
    out::print(&table(&found))
}

/// The link groups of living processes, in order.
pub fn of_host<'a>(host: &'a Host, who: &Who) -> Vec<(&'a Holder, &'a Record)> {
    let mut found: Vec<(&Holder, &Record)> = Vec::new();
    for family in &host.families {
        for (process, record) in &family.page.links {
            let holder = family.holder(*process).filter(|h| h.own_pid == record.pid);
            found.extend(holder.filter(|h| h.matches(who)).map(|h| (h, record)));
        }
    }
    found.sort_by_key(|(holder, record)| (holder.pid, record.id, record.link));
    found
}

/// What the link groups of one port of a device carry.
#[derive(Serialize, Debug, PartialEq, Eq)]
pub struct OfDevice {
    pub device: String,
    pub port: u8,
    pub linkgroups: u64,
    pub connections: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub messages_sent: u64,
    pub messages_received: u64,
}

/// The ports of devices that link groups use.
pub fn by_device(found: &[(&Holder, &Record)]) -> Vec<OfDevice> {
    let mut ports: BTreeMap<(String, u8), Vec<&Record>> = BTreeMap::new();
    for (_, r) in found {
        ports.entry((text(&r.device), r.port)).or_default().push(r);
    }
    let one = |((device, port), records): ((String, u8), Vec<&Record>)| {
        let sum = |of: fn(&Record) -> u64| records.iter().fold(0u64, |sum, r| sum.wrapping_add(of(r)));
        OfDevice {
            device,
            port,
            linkgroups: records.len() as u64,
            connections: sum(|r| r.connections.into()),
            bytes_sent: sum(|r| r.bytes[0]),
            bytes_received: sum(|r| r.bytes[1]),
            messages_sent: sum(|r| r.messages[0]),
            messages_received: sum(|r| r.messages[1]),
        }
    };
    ports.into_iter().map(one).collect()
}

fn table(found: &[(&Holder, &Record)]) -> String {
    let mut table = Table::new(&[
        "LG-ID",
        "LG-Role",
        "LG-Type",
        ">Link",
        "Version",
        ">#Conns",
        "IB-Dev",
        ">IB-P",
        "GID",
        "Peer-GID",
        ">QPN",
        ">Peer-QPN",
        ">MTU",
        "EID",
        "Sent",
        "Received",
        ">PID",
        "Program",
    ]);
    for (holder, r) in found {
        table.row(vec![
            lg_id(r),
            r.role.label().into(),
            kind(found, holder, r).into(),
            r.link.to_string(),
            r.version.to_string(),
            r.connections.to_string(),
            text(&r.device),
            r.port.to_string(),
            gid(r.gid),
            gid(r.peer_gid),
            r.qpn.to_string(),
            r.peer_qpn.to_string(),
            r.mtu.to_string(),
            text(&r.eid),
            out::bytes(r.bytes[0]),
            out::bytes(r.bytes[1]),
            holder.pid.to_string(),
            out::clean(&holder.name),
        ]);
    }
    table.render()
}

/// Every link as an object.
pub fn all_as_json(found: &[(&Holder, &Record)]) -> Vec<serde_json::Value> {
    found.iter().map(|(h, r)| as_json(h, r, kind(found, h, r))).collect()
}

fn as_json(holder: &Holder, r: &Record, kind: &str) -> serde_json::Value {
    json!({
        "id": r.id,
        "role": r.role.label(),
        "type": kind,
        "version": r.version,
        "connections": r.connections,
        "device": text(&r.device),
        "port": r.port,
        "link": r.link,
        "gid": gid(r.gid),
        "peer_gid": gid(r.peer_gid),
        "qpn": r.qpn,
        "peer_qpn": r.peer_qpn,
        "peer_id": r.peer_id.map(|b| format!("{b:02x}")).concat(),
        "mtu": r.mtu,
        "rmb": r.rmb,
        "eid": text(&r.eid),
        "bytes_sent": r.bytes[0],
        "bytes_received": r.bytes[1],
        "messages_sent": r.messages[0],
        "messages_received": r.messages[1],
        "pid": holder.pid,
        "program": holder.name,
    })
}

pub fn lg_id(r: &Record) -> String {
    format!("{:08x}", r.id)
}

/// One link, two over different devices, or one that does not carry data yet.
fn kind(found: &[(&Holder, &Record)], holder: &Holder, r: &Record) -> &'static str {
    let of_it = |(h, other): &&(&Holder, &Record)| h.pid == holder.pid && other.id == r.id && other.is_active;
    match found.iter().filter(of_it).count() {
        _ if !r.is_active => "NONE",
        1 => "SINGLE",
        _ => "SYM",
    }
}

pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]);
    match text.trim_end() {
        "" => "n/a".into(),
        text => out::clean(text),
    }
}

/// As the kernel writes GIDs.
pub fn gid(gid: [u8; 16]) -> String {
    Ipv6Addr::from(gid).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line() {
        let holder = Holder::named(7, "redis");
        let mut record = Record { id: 0x101, version: 2, is_active: true, ..Record::default() };
        record.device[..4].copy_from_slice(b"rxe0");
        record.eid = *b"SMCR-LAB                        ";
        record.gid = Ipv6Addr::from([0, 0, 0, 0, 0, 0xffff, 0x0a4d, 1]).octets();
        let lines = table(&[(&holder, &record)]);
        let line = lines.lines().nth(1).unwrap_or_default();
        for word in ["00000101", "SINGLE", "rxe0", "::ffff:10.77.0.1", "SMCR-LAB", "redis"] {
            assert!(line.contains(word), "{word} is not in {line}");
        }
        // A second link of the same group, and one of another process's group.
        let second = Record { link: 2, ..record };
        let other = Holder::named(8, "other");
        let found = [(&holder, &record), (&holder, &second), (&other, &record)];
        assert_eq!(found.map(|(h, r)| kind(&found, h, r)), ["SYM", "SYM", "SINGLE"]);
        let coming = Record { is_active: false, ..second };
        let found = [(&holder, &record), (&holder, &coming)];
        assert_eq!(found.map(|(h, r)| kind(&found, h, r)), ["SINGLE", "NONE"]);
    }
}
