//! The command sock: connections, as ss and smcss show sockets.

use std::net::SocketAddr;

use serde_json::{Value, json};
use smcr_proto::page::State;
use smcr_proto::reason::Reason;

use crate::cli::{Medium, SockArgs};
use crate::fail::usage;
use crate::family::{Socket, reason_word};
use crate::out::{self, Colour, Table};
use crate::scan::{Connection, Host};

/// The reason behind which the peer's own one stands.
const DECLINED: u32 = Reason::SmcDeclined.code();

pub fn run(args: &SockArgs) -> anyhow::Result<()> {
    let filter = Filter::new(args)?;
    let host = Host::scan(&args.who)?;
    let mut found = host.connections(&args.who);
    found.retain(|c| filter.wants(c));
    found.sort_by_key(|c| (c.user.pid, c.socket.fd));
    if args.json {
        return out::json(&found.iter().map(as_json).collect::<Vec<_>>());
    }
    if host.families.is_empty() {
        out::note(&host.explain_empty());
    }
    out::print(&table(&found, args.detail))
}

/// The options, understood.
struct Filter<'a> {
    args: &'a SockArgs,
    state: Option<State>,
    reason: Option<u32>,
}

impl Filter<'_> {
    fn new(args: &SockArgs) -> anyhow::Result<Filter<'_>> {
        let state = args.state.as_deref().map(state_of_word).transpose()?;
        let reason = args.reason.as_deref();
        let known = |text| reason_of_text(text).ok_or_else(|| usage(format!("no reason `{text}`; smcrctl explain lists them")));
        Ok(Filter { args, state, reason: reason.map(known).transpose()? })
    }

    fn wants(&self, c: &Connection) -> bool {
        let (a, s) = (self.args, &c.socket);
        let listening = s.is(State::Listening);
        let of_kind = match (a.listening, a.all || self.state == Some(State::Listening)) {
            (true, _) => listening,
            (false, true) => true,
            (false, false) => !listening,
        };
        let medium = a.mode.map(|m| match m {
            Medium::Tcp => 0,
            Medium::Shm => 1,
            Medium::Rdma => 2,
        });
        let has_port = |addr: Option<SocketAddr>, port| addr.is_some_and(|x| x.port() == port);
        let has_ip = |ip: std::net::IpAddr| {
            let mut both = c.local.iter().chain(&c.peer);
            both.any(|x| x.ip().to_canonical() == ip.to_canonical())
        };
        of_kind
            && medium.is_none_or(|m| s.tx_medium == m || s.rx_medium == m)
            && self.state.is_none_or(|w| s.is(w))
            && self.reason.is_none_or(|r| s.reason == r)
            && a.port.is_none_or(|p| c.has_port(p))
            && a.sport.is_none_or(|p| has_port(c.local, p))
            && a.dport.is_none_or(|p| has_port(c.peer, p))
            && a.addr.is_none_or(has_ip)
    }
}

fn state_of_word(word: &str) -> anyhow::Result<State> {
    let states = (1..=6).filter_map(State::from_code);
    let known: Vec<_> = states.clone().map(State::label).collect();
    let mut hits = states.filter(|s| s.label().eq_ignore_ascii_case(word));
    hits.next().ok_or_else(|| usage(format!("no state `{word}`; there are {}", known.join(", "))))
}

/// The number of a reason, from its name or number (decimal, 0x, or 8 hex digits as SMC tools do).
pub fn reason_of_text(text: &str) -> Option<u32> {
    let named = Reason::ALL.iter().find(|r| r.label().eq_ignore_ascii_case(text));
    if let Some(reason) = named {
        return Some(reason.code());
    }
    let text = text.strip_prefix("SMC ").unwrap_or(text);
    let known = |number| Reason::from_code(number).map(Reason::code);
    let hex = |text| u32::from_str_radix(text, 16).ok().and_then(known);
    match text.strip_prefix("0x") {
        Some(text) => hex(text),
        None if text.len() == 8 => hex(text).or_else(|| known(text.parse().ok()?)),
        None => known(text.parse().ok()?),
    }
}

fn table(found: &[Connection], detail: bool) -> String {
    let mut heads = vec!["State", "Mode", "Reason", "Local Address", "Peer Address", ">PID", "Program", ">FD"];
    if detail {
        heads.extend([
            "Role",
            ">UID",
            ">Inode",
            ">Peer PID",
            ">Sndbuf",
            ">InFlight",
            ">Rcvbuf",
            ">Unread",
            ">txprod",
            ">txcons",
            ">rxprod",
            ">rxcons",
            ">TCP tx",
            ">TCP rx",
            ">Switches",
            ">Bells",
        ]);
    }
    let mut table = Table::new(&heads);
    for c in found {
        let s = &c.socket;
        let mut row = vec![
            s.state_word(),
            s.mode_word(),
            reason_cell(s),
            address(c.local),
            address(c.peer),
            c.user.pid.to_string(),
            out::clean(&c.user.name),
            s.fd.to_string(),
        ];
        if detail {
            row.extend([role(s.role).into(), c.user.uid.to_string(), c.inode.to_string()]);
            row.push(if s.peer_pid == 0 { "-".into() } else { s.peer_pid.to_string() });
            let numbers =
                [s.tx_ring.into(), s.in_flight(), s.rx_ring.into(), s.unread(), s.mem_tx, s.mem_tx_seen, s.mem_rx_seen, s.mem_rx, s.tcp_tx, s.tcp_rx];
            row.extend(numbers.iter().map(u64::to_string));
            row.push(format!("{}/{}", s.tx_switches, s.rx_switches));
            row.push(format!("{}/{}", s.bells_tx, s.bells_rx));
        }
        table.row(row);
    }
    colour_states(&table.render())
}

/// Colours the first word of each line, after the columns were measured.
fn colour_states(text: &str) -> String {
    let mut coloured = String::new();
    for line in text.lines() {
        let colour = match line.split(' ').next() {
            Some("ACCELERATED") => Some(Colour::Good),
            Some("PINNED") => Some(Colour::Warn),
            _ => None,
        };
        let word = line.split(' ').next().unwrap_or_default();
        match colour {
            Some(colour) => coloured += &out::paint(colour, word),
            None => coloured += word,
        }
        coloured += &line[word.len()..];
        coloured.push('\n');
    }
    coloured
}

fn reason_cell(s: &Socket) -> String {
    let word = s.reason_word();
    match s.reason {
        0 => "-".into(),
        // As smc-tools show both numbers.
        DECLINED if s.peer_diagnosis != 0 => format!("{word}/{:08x}", s.peer_diagnosis),
        // The label of an SMC reason has its number in it.
        _ if word.starts_with("SMC") => word,
        code => format!("{word} ({code})"),
    }
}

fn address(addr: Option<SocketAddr>) -> String {
    addr.map_or_else(|| "*".into(), |a| a.to_string())
}

fn role(role: u32) -> &'static str {
    match role {
        1 => "client",
        2 => "server",
        3 => "listener",
        _ => "-",
    }
}

/// A connection with every field, for programs.
pub fn as_json(c: &Connection) -> Value {
    let s = &c.socket;
    let why = |code| json!({ "code": code, "name": reason_word(code), "text": Reason::from_code(code).map(Reason::text) });
    json!({
        "state": s.state_word(),
        "mode": s.mode_word(),
        "reason": why(s.reason),
        "peer_diagnosis": (s.peer_diagnosis != 0).then(|| why(s.peer_diagnosis)),
        "local": c.local.map(|a| a.to_string()),
        "peer": c.peer.map(|a| a.to_string()),
        "pid": c.user.pid,
        "program": c.user.name,
        "uid": c.user.uid,
        "fd": s.fd,
        "inode": c.inode,
        "cookie": s.cookie,
        "role": role(s.role),
        "peer_pid": s.peer_pid,
        "peer_uid": s.peer_uid,
        "tx": {
            "ring": s.tx_ring, "in_flight": s.in_flight(), "producer": s.mem_tx,
            "consumer": s.mem_tx_seen, "tcp_bytes": s.tcp_tx, "switches": s.tx_switches,
            "bells": s.bells_tx,
        },
        "rx": {
            "ring": s.rx_ring, "unread": s.unread(), "producer": s.mem_rx_seen,
            "consumer": s.mem_rx, "tcp_bytes": s.tcp_rx, "switches": s.rx_switches,
            "bells": s.bells_rx,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_by_name_and_number() {
        for text in ["max-memory", "MAX-MEMORY", "13", "0xd"] {
            assert_eq!(reason_of_text(text), Some(13), "{text}");
        }
        for text in ["03010000", "0x03010000", "SMC 03010000", "smc 03010000"] {
            assert_eq!(reason_of_text(text), Some(0x0301_0000), "{text}");
        }
        assert_eq!(reason_of_text("50397184"), Some(0x0301_0000), "as --json has it");
        assert_eq!(reason_of_text("4711"), None);
        assert!(state_of_word("listen").is_ok());
        assert!(state_of_word("ESTAB").unwrap_err().to_string().contains("ACCELERATED"));
    }
}
