//! The way to a peer: name, connection, settings, the peer's library, and what our own library
//! says of a connection to it. Used by `check`.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use smcr_proto::control::{self, Flow, Mode, Role};
use smcr_proto::reason::Reason;

use super::{Finding, Grade};
use crate::effective::Effective;
use crate::fail::usage;
use crate::paths::Places;
use crate::{bench, device, out, procfs};

const PATIENCE: Duration = Duration::from_secs(5);

pub fn check(places: &Places, peer: &str) -> anyhow::Result<Vec<Finding>> {
    let (host, port) = split(peer)?;
    let mut findings = Vec::new();
    let found: Vec<SocketAddr> = match (host.as_str(), port.unwrap_or(0)).to_socket_addrs() {
        Ok(found) => found.collect(),
        Err(error) => {
            let text = format!("{host} has no address: {error}");
            let finding = Finding::new(Grade::Bad, "name", text).mend("check the name, or write an address");
            return Ok(vec![finding]);
        }
    };
    let names: Vec<_> = found.iter().map(|a| a.ip().to_string()).collect();
    findings.push(Finding::new(Grade::Good, "name", format!("{host} is {}", names.join(", "))));
    if port.is_none() {
        for address in &found {
            findings.push(place(places, address.ip()));
        }
        findings.push(Finding::new(Grade::Info, "connection", format!("not tried; write {host}:PORT to try one")));
        return Ok(findings);
    }
    let mut error = None;
    for address in found {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                connected(places, &stream, address, &mut findings)?;
                return Ok(findings);
            }
            Err(e) => error = Some(format!("no connection to {address}: {e}")),
        }
    }
    let text = error.unwrap_or_else(|| "no address to try".into());
    findings.push(Finding::new(Grade::Bad, "connection", text).mend("start the service, or open the port"));
    Ok(findings)
}

fn connected(places: &Places, stream: &TcpStream, peer: SocketAddr, findings: &mut Vec<Finding>) -> anyhow::Result<()> {
    let local = stream.local_addr()?;
    let text = format!("{local} to {peer} works");
    findings.push(Finding::new(Grade::Good, "connection", text));
    findings.push(place(places, peer.ip()));
    findings.push(settings(places, local, peer));
    if is_own(peer.ip()) {
        findings.push(peer_library(peer));
    }
    findings.push(probe(peer));
    Ok(())
}

fn split(peer: &str) -> anyhow::Result<(String, Option<u16>)> {
    let port = |text: &str| {
        let port = text.parse::<u16>().ok().filter(|p| *p > 0);
        port.ok_or_else(|| usage(format!("`{peer}`: ports go from 1 to 65535")))
    };
    if let Some(rest) = peer.strip_prefix('[') {
        let Some((host, rest)) = rest.split_once(']') else {
            return Err(usage(format!("`{peer}`: write [ADDRESS]:PORT")));
        };
        let given = rest.strip_prefix(':');
        if host.is_empty() || given.is_none() && !rest.is_empty() {
            return Err(usage(format!("`{peer}`: write [ADDRESS]:PORT")));
        }
        return Ok((host.to_string(), given.map(port).transpose()?));
    }
    if peer.is_empty() || peer.starts_with(':') && !peer.starts_with("::") {
        return Err(usage(format!("`{peer}`: write HOST or HOST:PORT")));
    }
    match peer.split_once(':') {
        // More than one colon: an IPv6 address without a port.
        Some((_, rest)) if rest.contains(':') => Ok((peer.to_string(), None)),
        Some((host, text)) => Ok((host.to_string(), Some(port(text)?))),
        None => Ok((peer.to_string(), None)),
    }
}

/// True for an address of this host.
fn is_own(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let is = |entry: nix::ifaddrs::InterfaceAddress| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let v6 = address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
        v4.or(v6)
    };
    ip.is_loopback() || nix::ifaddrs::getifaddrs().is_ok_and(|mut all| all.any(|e| is(e) == Some(ip)))
}

fn place(places: &Places, ip: IpAddr) -> Finding {
    if is_own(ip) {
        return Finding::new(Grade::Good, "way", format!("{ip} is this host: shared memory"));
    }
    match device::of_machine(places).iter().any(|p| p.state == "ACTIVE") {
        true => Finding::new(
            Grade::Info,
            "way",
            format!("{ip} is another host; this machine has an RDMA device, whether the peer has one shows only once both speak SMC-R"),
        ),
        false => {
            let text = format!("{ip} is another host, and this machine has no active RDMA device");
            Finding::new(Grade::Bad, "way", text).mend(Reason::SmcNoRdma.mend())
        }
    }
}

fn settings(places: &Places, local: SocketAddr, peer: SocketAddr) -> Finding {
    let policy = Effective::read(places).policy;
    let flow = Flow { program: b"", role: Role::Client, uid: nix::unistd::geteuid().as_raw(), local: local.ip(), peer: peer.ip(), port: peer.port() };
    // The mode leaves out what there is towards this peer: the sentences are those of the reasons.
    let of_mode = match (policy.mode, is_own(peer.ip())) {
        (Mode::Rdma, true) => Err(Reason::Mode),
        (Mode::Shm, false) => Err(Reason::PeerRemote),
        _ => Ok(()),
    };
    match control::decide(&policy, &flow).and(of_mode) {
        Ok(()) => Finding::new(Grade::Good, "settings", "allow it (rules for programs apart)"),
        Err(reason) => Finding::new(Grade::Bad, "settings", reason.text()).mend(reason.mend()),
    }
}

/// Looks for the process that listens there, in this network namespace.
fn peer_library(peer: SocketAddr) -> Finding {
    let listens = |l: &procfs::TcpLine| {
        let ip = l.local.ip();
        l.listening && l.local.port() == peer.port() && (ip.is_unspecified() || ip.to_canonical() == peer.ip().to_canonical())
    };
    let lines = procfs::tcp("self");
    let inodes: Vec<u64> = lines.iter().filter(|l| listens(l)).map(|l| l.inode).collect();
    for pid in procfs::pids().unwrap_or_default() {
        let Ok(fds) = procfs::descriptors(pid) else {
            continue;
        };
        if !procfs::sockets(&fds).values().any(|inode| inodes.contains(inode)) {
            continue;
        }
        let name = out::clean(&procfs::name(pid).unwrap_or_default());
        return match procfs::has_library(pid) {
            Some(true) => Finding::new(Grade::Good, "peer", format!("{name} ({pid}) has the library")),
            Some(false) => {
                let text = format!("{name} ({pid}) does not have the library");
                Finding::new(Grade::Bad, "peer", text).mend(Reason::PeerPlain.mend())
            }
            None => Finding::new(Grade::Info, "peer", format!("{name} ({pid}) cannot be looked into")),
        };
    }
    Finding::new(Grade::Info, "peer", "the listening process is not to be seen from here")
}

/// What the library says of a connection that carries nothing.
fn probe(peer: SocketAddr) -> Finding {
    let said = match bench::probe(peer) {
        Ok(said) => said,
        Err(error) => return Finding::new(Grade::Bad, "library", format!("{error:#}")),
    };
    let Some(code) = said["reason"]["code"].as_u64() else {
        return Finding::new(Grade::Info, "library", "it shows no record of the connection");
    };
    if bench::is_in_handshake(&said) {
        return Finding::new(Grade::Info, "library", "the handshake with the peer does not end; the connection is on TCP until then");
    }
    judge(said["mode"].as_str().unwrap_or_default(), code as u32)
}

/// What it means that a connection that has carried nothing is like this.
fn judge(mode: &str, code: u32) -> Finding {
    if mode != "tcp" {
        return Finding::new(Grade::Good, "library", format!("success: the connection uses {mode}"));
    }
    let text = |reason: Reason| format!("the connection is on TCP: {}", reason.text());
    match Reason::from_code(code) {
        Some(Reason::None | Reason::NotWorthIt) => {
            let text = "the connection begins on TCP, as all do, and leaves it with the traffic; smcrctl sock shows it then";
            Finding::new(Grade::Info, "library", text)
        }
        Some(reason) => Finding::new(Grade::Bad, "library", text(reason)).mend(reason.mend()),
        None => Finding::new(Grade::Bad, "library", format!("the connection is on TCP for the reason {code:#x}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_connection_is_judged() {
        assert!(judge("rdma", 0).grade == Grade::Good);
        assert!(judge("tcp", 1).grade == Grade::Info);
        let refused = judge("tcp", 0x0303_0008);
        assert!(refused.grade == Grade::Bad && refused.mend.contains("ueid add"));
        assert!(judge("tcp", 4711).text.contains("0x1267"));
    }

    #[test]
    fn hosts_and_ports() {
        let of = |text| split(text).unwrap();
        assert_eq!(of("h"), ("h".into(), None));
        assert_eq!(of("h:80"), ("h".into(), Some(80)));
        assert_eq!(of("::1"), ("::1".into(), None));
        assert_eq!(of("[::1]:80"), ("::1".into(), Some(80)));
        for wrong in ["h:70000", "[::1", "[::1]80", "[]:80", ":80", "", "h:"] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(!is_own("192.0.2.1".parse().unwrap()));
    }
}
