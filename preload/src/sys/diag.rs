//! sock_diag: what the kernel tells everybody in a network namespace about one TCP socket, and which two Unix sockets are a pair.
//!
//! Called by `rendezvous`: on the connecting side, and where a connection comes by a message. Accepting one never needs netlink.

use super::few::Brief;
use super::net::Addr;
use super::{Errno, Res, net};

/// What is known of the peer's socket.
#[derive(Clone, Copy, Debug)]
pub struct SocketFacts {
    /// Cookie, equal to SO_COOKIE in the process that holds it.
    pub cookie: u64,
    /// Uid of the process that made or accepted it, in this user namespace.
    pub uid: u32,
    /// Inode; 0 while nobody has accepted it.
    pub inode: u32,
    /// tcpi_max_pacing_rate: SO_MAX_PACING_RATE as its holder set it.
    pub pacing: u64,
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u16 = 2;
const NLMSG_ERROR: u16 = 2;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;
/// Offset of tcpi_max_pacing_rate in struct tcp_info (linux/tcp.h).
const TCPI_MAX_PACING_RATE: usize = 112;

/// Looks up the established socket whose own address is `own` and whose peer is `peer`.
pub fn lookup(own: &Addr, peer: &Addr) -> Res<SocketFacts> {
    let mut req = [0u8; 72];
    // inet_diag_req_v2: family, protocol, extensions, pad, states, id.
    req[16] = own.family as u8;
    req[17] = libc::IPPROTO_TCP as u8;
    req[18] = 1 << (INET_DIAG_INFO - 1);
    req[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    // inet_diag_sockid: ports, source, destination, interface, cookie (all ones: any).
    req[24..26].copy_from_slice(&own.port.to_be_bytes());
    req[26..28].copy_from_slice(&peer.port.to_be_bytes());
    req[28..44].copy_from_slice(&own.ip);
    req[44..60].copy_from_slice(&peer.ip);
    req[60..64].copy_from_slice(&own.scope.to_ne_bytes());
    req[64..72].copy_from_slice(&u64::MAX.to_ne_bytes());
    let mut buf = [0u8; 2048];
    parse(ask(&mut req, &mut buf)?)
}

/// The inode of the Unix socket that is the peer of the one with this inode. ENOTCONN: it has none that a process holds.
pub fn unix_peer(inode: u64) -> Res<u64> {
    let mut req = [0u8; 40];
    // unix_diag_req: family, protocol, pad, states, inode, what to show, cookie (all ones: any).
    req[16] = libc::AF_UNIX as u8;
    req[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    req[24..28].copy_from_slice(&(inode as u32).to_ne_bytes());
    req[28..32].copy_from_slice(&UDIAG_SHOW_PEER.to_ne_bytes());
    req[32..40].copy_from_slice(&u64::MAX.to_ne_bytes());
    let mut buf = [0u8; 512];
    parse_peer(ask(&mut req, &mut buf)?)
}

/// One request, whose header is written here, and its answer.
fn ask<'a>(req: &mut [u8], answer: &'a mut [u8]) -> Res<&'a [u8]> {
    // nlmsghdr: length, type, flags NLM_F_REQUEST, sequence, port id.
    let len = req.len() as u32;
    req[..4].copy_from_slice(&len.to_ne_bytes());
    req[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    req[6..8].copy_from_slice(&1u16.to_ne_bytes());
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let nl = Brief::open(|| net::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG))?;
    net::send_slice(nl.fd(), req, 0).and_then(|_| net::recv_slice(nl.fd(), answer, 0)).map(|n| &answer[..n])
}

const BAD: Errno = Errno(libc::EBADMSG);

fn u16_at(msg: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(msg.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(msg: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(msg.get(at..at + 4)?.try_into().ok()?))
}

/// Whether it is the answer, not an error.
fn check(msg: &[u8]) -> Res<()> {
    match u16_at(msg, 4).ok_or(BAD)? {
        SOCK_DIAG_BY_FAMILY => Ok(()),
        NLMSG_ERROR => Err(Errno(-(u32_at(msg, 16).ok_or(BAD)? as i32))),
        _ => Err(BAD),
    }
}

/// Where the value of the attribute of this kind lies, of those that begin at `at`.
fn attribute(msg: &[u8], mut at: usize, kind: u16) -> Option<&[u8]> {
    loop {
        let (len, found) = (usize::from(u16_at(msg, at)?), u16_at(msg, at + 2)?);
        if len < 4 || at + len > msg.len() {
            return None;
        }
        if found == kind {
            return Some(&msg[at + 4..at + len]);
        }
        at += len.next_multiple_of(4);
    }
}

fn parse_peer(msg: &[u8]) -> Res<u64> {
    check(msg)?;
    // unix_diag_msg starts at 16: family, type, state, pad, inode, cookie.
    let peer = attribute(msg, 16 + 16, UNIX_DIAG_PEER).and_then(|value| u32_at(value, 0));
    peer.filter(|inode| *inode != 0).map(u64::from).ok_or(Errno(libc::ENOTCONN))
}

fn parse(msg: &[u8]) -> Res<SocketFacts> {
    check(msg)?;
    // inet_diag_msg starts at 16: family, state, timer, retrans, id (48), expires, rqueue, wqueue,
    // uid, inode.
    let field = |at| u32_at(msg, at).ok_or(BAD);
    let (cookie_lo, cookie_hi) = (field(16 + 4 + 40)?, field(16 + 4 + 44)?);
    let (uid, inode) = (field(16 + 4 + 48 + 12)?, field(16 + 4 + 48 + 16)?);
    let info = attribute(msg, 16 + 72, INET_DIAG_INFO);
    let rate = info.and_then(|info| info.get(TCPI_MAX_PACING_RATE..)?.first_chunk());
    let pacing = rate.map_or(u64::MAX, |rate| u64::from_ne_bytes(*rate));
    Ok(SocketFacts { cookie: u64::from(cookie_hi) << 32 | u64::from(cookie_lo), uid, inode, pacing })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply as the kernel gives it: header, inet_diag_msg, tcp_info.
    fn reply() -> Vec<u8> {
        let mut msg = vec![0u8; 16 + 72 + 4 + 240];
        msg[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        msg[60..64].copy_from_slice(&7u32.to_ne_bytes());
        msg[64..68].copy_from_slice(&1u32.to_ne_bytes());
        msg[80..84].copy_from_slice(&1000u32.to_ne_bytes());
        msg[88..90].copy_from_slice(&244u16.to_ne_bytes());
        msg[90..92].copy_from_slice(&INET_DIAG_INFO.to_ne_bytes());
        let at = 92 + TCPI_MAX_PACING_RATE;
        msg[at..at + 8].copy_from_slice(&99u64.to_ne_bytes());
        msg
    }

    /// The same of a Unix socket: header, unix_diag_msg, its peer.
    fn reply_of_a_pair() -> Vec<u8> {
        let mut msg = vec![0u8; 16 + 16 + 8];
        msg[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        msg[32..34].copy_from_slice(&8u16.to_ne_bytes());
        msg[34..36].copy_from_slice(&UNIX_DIAG_PEER.to_ne_bytes());
        msg[36..40].copy_from_slice(&4242u32.to_ne_bytes());
        msg
    }

    /// Others each time; SMCR_FUZZ_SEED repeats a run.
    #[test]
    fn no_reply_makes_it_panic() {
        let good = [reply(), reply_of_a_pair()];
        let facts = parse(&good[0]).expect("a reply");
        assert_eq!((facts.cookie, facts.uid, facts.pacing), (1 << 32 | 7, 1000, 99));
        assert_eq!(parse_peer(&good[1]), Ok(4242));
        let given = std::env::var("SMCR_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
        let mut seed: u64 = given.unwrap_or_else(crate::sys::clock::now_ns);
        println!("SMCR_FUZZ_SEED={seed}");
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize
        };
        for good in &good {
            for len in 0..good.len() {
                let _ = (parse(&good[..len]), parse_peer(&good[..len]));
            }
            for _ in 0..30_000 {
                let mut msg = good.clone();
                for _ in 0..1 + next() % 4 {
                    let at = next() % msg.len();
                    msg[at] = next() as u8;
                }
                msg.truncate(next() % (2 * good.len()));
                let _ = (parse(&msg), parse_peer(&msg));
            }
        }
    }

    #[test]
    fn the_ends_of_a_pair_find_each_other() {
        use crate::sys::fd;
        use std::os::fd::AsRawFd;
        let inode = |end: &std::os::unix::net::UnixStream| fd::stat(end.as_raw_fd()).expect("fstat").st_ino;
        let (one, other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert_eq!(unix_peer(inode(&one)), Ok(inode(&other)));
        drop(other);
        assert_eq!(unix_peer(inode(&one)), Err(Errno(libc::ENOTCONN)));
    }
}
