//! Owns: what sock_diag tells everybody of a socket in the network namespace.

use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What sock_diag says of the server's socket.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    pub cookie: u64,
    pub pacing: u64,
}

/// Asks sock_diag for the socket with the address `own` whose peer is `peer`. The server may have
/// an IPv6 socket for an IPv4 client.
pub fn look_up(own: SocketAddr, peer: SocketAddr) -> Result<Facts> {
    ask(own, peer, false).or_else(|_| ask(own, peer, true))
}

fn ask(own: SocketAddr, peer: SocketAddr, mapped: bool) -> Result<Facts> {
    let bytes = |a: SocketAddr| match a.ip() {
        std::net::IpAddr::V4(ip) if mapped => ip.to_ipv6_mapped().octets(),
        std::net::IpAddr::V4(ip) => {
            let mut all = [0; 16];
            all[..4].copy_from_slice(&ip.octets());
            all
        }
        std::net::IpAddr::V6(ip) => ip.octets(),
    };
    let family = if own.is_ipv4() && !mapped { libc::AF_INET } else { libc::AF_INET6 };
    let mut req = [0u8; 72];
    req[..4].copy_from_slice(&72u32.to_ne_bytes());
    req[4..6].copy_from_slice(&20u16.to_ne_bytes());
    req[6..8].copy_from_slice(&1u16.to_ne_bytes());
    req[16] = family as u8;
    req[17] = libc::IPPROTO_TCP as u8;
    req[18] = 2;
    req[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    req[24..26].copy_from_slice(&own.port().to_be_bytes());
    req[26..28].copy_from_slice(&peer.port().to_be_bytes());
    req[28..44].copy_from_slice(&bytes(own));
    req[44..60].copy_from_slice(&bytes(peer));
    req[64..72].copy_from_slice(&u64::MAX.to_ne_bytes());
    let mut msg = [0u8; 2048];
    // SAFETY: plain system calls on buffers of ours.
    let n = unsafe {
        let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG);
        ensure!(fd >= 0, "netlink");
        let fd = OwnedFd::from_raw_fd(fd);
        ensure!(libc::send(fd.as_raw_fd(), req.as_ptr().cast(), 72, 0) == 72, "netlink");
        libc::recv(fd.as_raw_fd(), msg.as_mut_ptr().cast(), msg.len(), 0)
    };
    let msg = msg.get(..n.max(0) as usize).context("netlink")?;
    let u16_at = |o: usize| Some(u16::from_ne_bytes(msg.get(o..o + 2)?.try_into().ok()?));
    let u32_at = |o: usize| Some(u32::from_ne_bytes(msg.get(o..o + 4)?.try_into().ok()?));
    ensure!(u16_at(4) == Some(20), "no such socket");
    let half = |o| u32_at(o).map(u64::from).context("short answer");
    let cookie = half(60)? | half(64)? << 32;
    let (mut pacing, mut off) = (u64::MAX, 88);
    while let (Some(len @ 4..), Some(kind)) = (u16_at(off), u16_at(off + 2)) {
        if let (2, Some(raw)) = (kind, msg.get(off + 116..off + 124)) {
            pacing = u64::from_ne_bytes(raw.try_into()?);
        }
        off += usize::from(len).next_multiple_of(4);
    }
    Ok(Facts { cookie, pacing })
}
