//! Sockets: options, names, single sends and receives, and messages with descriptors, all raw.

use super::{Errno, Res, Sysno, call};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use libc::c_int;
use std::mem::{MaybeUninit, size_of};

/// Each message received says how many bytes are left (not in libc).
pub const TCP_INQ: c_int = 36;
/// SO_MAX_PACING_RATE, the 64-bit register of a TCP socket that sock_diag shows to everybody.
pub const SO_MAX_PACING_RATE: c_int = 47;
/// SO_COOKIE.
pub const SO_COOKIE: c_int = 57;

/// socket(2).
pub fn socket(family: c_int, kind: c_int, protocol: c_int) -> Res<c_int> {
    // SAFETY: no pointers.
    unsafe { call(Sysno::socket, [family as usize, kind as usize, protocol as usize, 0, 0, 0]) }.map(|n| n as c_int)
}

/// getsockopt(2) of a plain value.
pub fn get_opt<T: Copy>(fd: c_int, level: c_int, name: c_int) -> Res<T> {
    let mut v = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes; all callers ask for integer structs, for which
    // zero bytes are valid.
    unsafe {
        call(Sysno::getsockopt, [fd as usize, level as usize, name as usize, v.as_mut_ptr() as usize, &mut len as *mut _ as usize, 0])?;
        Ok(v.assume_init())
    }
}

/// Whether what comes passes a filter of the program's first (SO_ATTACH_FILTER, SO_ATTACH_BPF), be it its listener's.
pub fn is_filtered(fd: c_int) -> bool {
    const SO_GET_FILTER: c_int = libc::SO_ATTACH_FILTER;
    let mut len: libc::socklen_t = 0;
    let args = [fd as usize, libc::SOL_SOCKET as usize, SO_GET_FILTER as usize, 0, &raw mut len as usize, 0];
    // SAFETY: without room the kernel only says how long it is.
    match unsafe { call(Sysno::getsockopt, args) } {
        Ok(_) => len != 0,
        Err(e) => e.0 == libc::EACCES, // of another kind than can be shown
    }
}

/// setsockopt(2) of a plain value.
pub fn set_opt<T: Copy>(fd: c_int, level: c_int, name: c_int, value: &T) -> Res {
    let ptr = std::ptr::from_ref(value) as usize;
    // SAFETY: the kernel reads size_of::<T>() bytes of the value.
    unsafe { call(Sysno::setsockopt, [fd as usize, level as usize, name as usize, ptr, size_of::<T>(), 0]) }
}

/// Whether the send buffer takes a few bytes for certain: SO_MEMINFO's queued bytes against its
/// limit, with a page to spare.
pub fn has_room(fd: c_int) -> bool {
    const SO_MEMINFO: c_int = 55;
    const SNDBUF: usize = 3;
    const WMEM_QUEUED: usize = 5;
    let info = get_opt::<[u32; 9]>(fd, libc::SOL_SOCKET, SO_MEMINFO);
    info.is_ok_and(|m| m[WMEM_QUEUED].saturating_add(8192) < m[SNDBUF])
}

/// The socket's cookie: unique in its network namespace while the system runs.
pub fn cookie(fd: c_int) -> Res<u64> {
    get_opt(fd, libc::SOL_SOCKET, SO_COOKIE)
}

/// An address of a TCP socket, IPv4-mapped IPv6 folded to IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Addr {
    /// AF_INET, AF_INET6 or 0.
    pub family: u16,
    /// Host order.
    pub port: u16,
    /// IPv4 in the first four bytes.
    pub ip: [u8; 16],
    /// Interface of a link-local address.
    pub scope: u32,
}

impl Addr {
    /// Reads a sockaddr; None if it is not an Internet address.
    pub fn parse(raw: &[u8]) -> Option<Addr> {
        let family = u16::from_ne_bytes([*raw.first()?, *raw.get(1)?]);
        let port = u16::from_be_bytes([*raw.get(2)?, *raw.get(3)?]);
        let mut ip = [0; 16];
        match i32::from(family) {
            libc::AF_INET => {
                ip[..4].copy_from_slice(raw.get(4..8)?);
                Some(Addr { family, port, ip, scope: 0 })
            }
            libc::AF_INET6 => {
                ip.copy_from_slice(raw.get(8..24)?);
                let scope = u32::from_ne_bytes(raw.get(24..28)?.try_into().ok()?);
                Some(Addr { family, port, ip, scope })
            }
            _ => None,
        }
    }

    /// The address with IPv4-mapped IPv6 folded to IPv4, for comparing and showing.
    pub fn folded(mut self) -> Addr {
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        if i32::from(self.family) == libc::AF_INET6 && self.ip[..12] == mapped {
            let mut ip = [0; 16];
            ip[..4].copy_from_slice(&self.ip[12..]);
            self = Addr { family: libc::AF_INET as u16, port: self.port, ip, scope: 0 };
        }
        self
    }

    /// An IPv4 address as IPv4-mapped IPv6, an IPv4-mapped one as IPv4; others as they are.
    pub fn other_form(self) -> Addr {
        if i32::from(self.family) != libc::AF_INET {
            return self.folded();
        }
        let mut ip = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
        ip[12..].copy_from_slice(&self.ip[..4]);
        Addr { family: libc::AF_INET6 as u16, port: self.port, ip, scope: 0 }
    }

    /// The address alone, IPv4 or IPv6 as `family` says.
    pub fn ip(&self) -> IpAddr {
        if i32::from(self.family) == libc::AF_INET {
            let [a, b, c, d, ..] = self.ip;
            return Ipv4Addr::new(a, b, c, d).into();
        }
        Ipv6Addr::from(self.ip).into()
    }

    /// As a sockaddr with port 0, and its length.
    fn raw(&self) -> ([u8; 28], usize) {
        let mut raw = [0u8; 28];
        raw[..2].copy_from_slice(&self.family.to_ne_bytes());
        if i32::from(self.family) == libc::AF_INET {
            raw[4..8].copy_from_slice(&self.ip[..4]);
            return (raw, 16);
        }
        raw[8..24].copy_from_slice(&self.ip);
        raw[24..28].copy_from_slice(&self.scope.to_ne_bytes());
        (raw, 28)
    }

    /// 127.0.0.0/8 or ::1.
    pub fn is_loopback(&self) -> bool {
        let f = self.folded();
        if i32::from(f.family) == libc::AF_INET {
            return f.ip[0] == 127;
        }
        f.ip == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    }
}

/// getsockname(2).
pub fn local_addr(fd: c_int) -> Res<Addr> {
    name(Sysno::getsockname, fd)
}

/// getpeername(2) into the program's memory.
///
/// # Safety
/// `len` must be valid, and `addr` for writes of as many bytes as it says.
pub unsafe fn peer_name(fd: c_int, addr: *mut u8, len: *mut libc::socklen_t) {
    // SAFETY: by the contract.
    let _ = unsafe { call(Sysno::getpeername, [fd as usize, addr as usize, len as usize, 0, 0, 0]) };
}

/// getpeername(2).
pub fn peer_addr(fd: c_int) -> Res<Addr> {
    name(Sysno::getpeername, fd)
}

fn name(nr: Sysno, fd: c_int) -> Res<Addr> {
    let mut raw = [0u8; 128];
    let mut len = raw.len() as libc::socklen_t;
    let args = [fd as usize, raw.as_mut_ptr() as usize, &mut len as *mut _ as usize, 0, 0, 0];
    // SAFETY: the kernel writes at most `len` bytes.
    unsafe { call(nr, args) }?;
    Addr::parse(&raw).ok_or(Errno(libc::EAFNOSUPPORT))
}

/// The address that the kernel would connect from; nothing is sent.
pub fn source_for(peer: &Addr) -> Option<Addr> {
    let fd = socket(i32::from(peer.family), libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).ok()?;
    let (mut raw, len) = peer.raw();
    raw[2..4].copy_from_slice(&peer.port.to_be_bytes());
    let source = with_addr(Sysno::connect, fd, &raw[..len]).and_then(|_| local_addr(fd));
    super::fd::close(fd);
    source.ok()
}

/// Whether `addr` is one of this network namespace's own addresses: bind(2) succeeds only then. Err: that can't be asked now.
pub fn is_own_address(addr: &Addr) -> Res<bool> {
    let fd = socket(i32::from(addr.family), libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)?;
    let (raw, len) = addr.raw();
    let own = with_addr(Sysno::bind, fd, &raw[..len]);
    super::fd::close(fd);
    match own {
        Ok(_) => Ok(true),
        Err(Errno(libc::EADDRNOTAVAIL)) => Ok(false),
        Err(e) => Err(e),
    }
}

/// recv(2) into memory.
///
/// # Safety
/// `buf` must be valid for writes of `len` bytes.
pub unsafe fn recv(fd: c_int, buf: *mut u8, len: usize, flags: c_int) -> Res {
    // SAFETY: by the contract.
    unsafe { call(Sysno::recvfrom, [fd as usize, buf as usize, len, flags as usize, 0, 0]) }
}

/// recv(2) into a slice.
pub fn recv_slice(fd: c_int, buf: &mut [u8], flags: c_int) -> Res {
    // SAFETY: the slice is valid for writes.
    unsafe { recv(fd, buf.as_mut_ptr(), buf.len(), flags) }
}

/// send(2) of a slice, never a signal.
pub fn send_slice(fd: c_int, buf: &[u8], flags: c_int) -> Res {
    let flags = (flags | libc::MSG_NOSIGNAL) as usize;
    // SAFETY: the slice is valid for reads.
    unsafe { call(Sysno::sendto, [fd as usize, buf.as_ptr() as usize, buf.len(), flags, 0, 0]) }
}

/// sendmsg(2).
///
/// # Safety
/// The header and all that it points to must be valid for the call.
pub unsafe fn sendmsg(fd: c_int, msg: *const libc::msghdr, flags: c_int) -> Res {
    // SAFETY: by the contract.
    unsafe { call(Sysno::sendmsg, [fd as usize, msg as usize, flags as usize, 0, 0, 0]) }
}

/// recvmsg(2).
///
/// # Safety
/// The header and all that it points to must be valid for the call.
pub unsafe fn recvmsg(fd: c_int, msg: *mut libc::msghdr, flags: c_int) -> Res {
    // SAFETY: by the contract.
    unsafe { call(Sysno::recvmsg, [fd as usize, msg as usize, flags as usize, 0, 0, 0]) }
}

/// What stands in the register of a TCP socket ([`SO_MAX_PACING_RATE`]); all ones: nothing.
pub fn rate(sock: c_int) -> Res<u64> {
    get_opt(sock, libc::SOL_SOCKET, SO_MAX_PACING_RATE)
}

/// Puts it there.
pub fn set_rate(sock: c_int, rate: u64) -> Res {
    set_opt(sock, libc::SOL_SOCKET, SO_MAX_PACING_RATE, &rate)
}

/// Credentials of the other end of a Unix connection (SO_PEERCRED).
pub fn peer_credentials(sock: c_int) -> Res<libc::ucred> {
    get_opt(sock, libc::SOL_SOCKET, libc::SO_PEERCRED)
}

/// A sockaddr_un with an abstract name, and its length.
pub fn abstract_name(name: &[u8]) -> ([u8; 110], usize) {
    let mut raw = [0u8; 110];
    raw[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    let n = name.len().min(107);
    raw[3..3 + n].copy_from_slice(&name[..n]);
    (raw, 3 + n)
}

/// bind(2) or connect(2) with raw address bytes.
pub fn with_addr(nr: Sysno, fd: c_int, raw: &[u8]) -> Res {
    // SAFETY: the kernel reads `raw.len()` bytes.
    unsafe { call(nr, [fd as usize, raw.as_ptr() as usize, raw.len(), 0, 0, 0]) }
}

/// connect(2) to nobody: the connection is reset, and the next call on the socket fails.
pub fn disconnect(fd: c_int) -> Res {
    let mut raw = [0u8; 16];
    raw[..2].copy_from_slice(&(libc::AF_UNSPEC as u16).to_ne_bytes());
    with_addr(Sysno::connect, fd, &raw)
}

/// listen(2).
pub fn listen(fd: c_int, backlog: c_int) -> Res {
    // SAFETY: no pointers.
    unsafe { call(Sysno::listen, [fd as usize, backlog as usize, 0, 0, 0, 0]) }
}

/// accept4(2), close-on-exec, without the address.
pub fn accept(fd: c_int) -> Res<c_int> {
    let flags = libc::SOCK_CLOEXEC as usize;
    // SAFETY: null address and length are allowed.
    unsafe { call(Sysno::accept4, [fd as usize, 0, 0, flags, 0, 0]) }.map(|n| n as c_int)
}

/// Linux: how much unsent there may be while the socket says that there is room.
const TCP_NOTSENT_LOWAT: c_int = 25;

/// Whoever waits for room is told once more that there is some, edge-triggered waits as well: setting this option to what it is does
/// nothing else (`do_tcp_setsockopt` calls `sk_write_space`).
pub fn tell_of_room(fd: c_int) {
    if let Ok(now) = get_opt::<u32>(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) {
        let _ = set_opt(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, &now);
    }
}

/// shutdown(2).
pub fn shutdown(fd: c_int, how: c_int) -> Res {
    // SAFETY: no pointers.
    unsafe { call(Sysno::shutdown, [fd as usize, how as usize, 0, 0, 0, 0]) }
}
