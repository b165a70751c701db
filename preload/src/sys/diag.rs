//! sock_diag: what the kernel tells everybody in a network namespace about one TCP socket.
//!
//! Called by `rendezvous` on the connecting side only; the accepting side never needs netlink.

use super::net::Addr;
use super::{Errno, Res, fd, net};
use libc::c_int;

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
/// Offset of tcpi_max_pacing_rate in struct tcp_info (linux/tcp.h).
const TCPI_MAX_PACING_RATE: usize = 112;

/// Looks up the established socket whose own address is `own` and whose peer is `peer`.
pub fn lookup(own: &Addr, peer: &Addr) -> Res<SocketFacts> {
    let nl = net::socket(
        libc::AF_NETLINK,
        libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
        libc::NETLINK_SOCK_DIAG,
    )?;
    let facts = ask(nl, own, peer);
    fd::close(nl);
    facts
}

fn ask(nl: c_int, own: &Addr, peer: &Addr) -> Res<SocketFacts> {
    let mut req = [0u8; 72];
    // nlmsghdr: length, type, flags NLM_F_REQUEST, sequence, port id.
    req[..4].copy_from_slice(&72u32.to_ne_bytes());
    req[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    req[6..8].copy_from_slice(&1u16.to_ne_bytes());
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
    net::send_slice(nl, &req, 0)?;
    let mut buf = [0u8; 2048];
    let n = net::recv_slice(nl, &mut buf, 0)?;
    parse(&buf[..n])
}

fn parse(msg: &[u8]) -> Res<SocketFacts> {
    let bad = Errno(libc::EBADMSG);
    let u16_at = |o: usize| -> Option<u16> {
        Some(u16::from_ne_bytes(msg.get(o..o + 2)?.try_into().ok()?))
    };
    let u32_at = |o: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(msg.get(o..o + 4)?.try_into().ok()?))
    };
    match u16_at(4).ok_or(bad)? {
        SOCK_DIAG_BY_FAMILY => {}
        NLMSG_ERROR => {
            let e = u32_at(16).ok_or(bad)? as i32;
            return Err(Errno(-e));
        }
        _ => return Err(bad),
    }
    // inet_diag_msg starts at 16: family, state, timer, retrans, id (48), expires, rqueue, wqueue,
    // uid, inode.
    let cookie_lo = u32_at(16 + 4 + 40).ok_or(bad)?;
    let cookie_hi = u32_at(16 + 4 + 44).ok_or(bad)?;
    let uid = u32_at(16 + 4 + 48 + 12).ok_or(bad)?;
    let inode = u32_at(16 + 4 + 48 + 16).ok_or(bad)?;
    let mut pacing = u64::MAX;
    let mut off = 16 + 72;
    while let (Some(len), Some(kind)) = (u16_at(off), u16_at(off + 2)) {
        let len = usize::from(len);
        if len < 4 || off + len > msg.len() {
            break;
        }
        let at = off + 4 + TCPI_MAX_PACING_RATE;
        if kind == INET_DIAG_INFO && at + 8 <= off + len {
            pacing = u64::from_ne_bytes(msg[at..at + 8].try_into().map_err(|_| bad)?);
        }
        off += len.next_multiple_of(4);
    }
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

    #[test]
    fn no_reply_makes_it_panic() {
        let good = reply();
        let facts = parse(&good).expect("a reply");
        assert_eq!((facts.cookie, facts.uid, facts.pacing), (1 << 32 | 7, 1000, 99));
        for len in 0..good.len() {
            let _ = parse(&good[..len]);
        }
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize
        };
        for _ in 0..30_000 {
            let mut msg = good.clone();
            for _ in 0..1 + next() % 4 {
                let at = next() % msg.len();
                msg[at] = next() as u8;
            }
            msg.truncate(next() % (2 * good.len()));
            let _ = parse(&msg);
        }
    }
}
