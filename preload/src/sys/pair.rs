//! Pairs of Unix sockets: what a peer of another user gets to wake a waiter of ours by.
//!
//! A send says for itself that it neither waits nor raises a signal, whatever the peer does to the flags of its copy, and the end
//! that hears never leaves the process. An eventfd has neither, and a write to a pipe waits for whoever reads it into memory
//! that he can hold back. Used by `transport::wakes`.

use super::{Res, Sysno, call, net, rights};
use libc::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether descriptors may come along (Linux 6.16); not in libc yet.
const SO_PASSRIGHTS: c_int = 83;

/// The kernel does not know that option: an end that hears may be sent descriptors.
static MAY_CARRY: AtomicBool = AtomicBool::new(false);

/// The end that hears, then the one that rings.
pub fn make() -> Res<[c_int; 2]> {
    let ends = ends(libc::SOCK_STREAM)?;
    if net::set_opt(ends[0], libc::SOL_SOCKET, SO_PASSRIGHTS, &0).is_err() {
        MAY_CARRY.store(true, Relaxed);
    }
    Ok(ends)
}

/// The ends of one that carries messages, with descriptors, either way.
pub fn messages() -> Res<[c_int; 2]> {
    ends(libc::SOCK_SEQPACKET)
}

fn ends(kind: c_int) -> Res<[c_int; 2]> {
    let mut ends = [-1; 2];
    let kind = (kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as usize;
    // SAFETY: the kernel writes two ints.
    unsafe { call(Sysno::socketpair, [libc::AF_UNIX as usize, kind, 0, ends.as_mut_ptr() as usize, 0, 0]) }?;
    Ok(ends)
}

/// Whether an end that hears may hold descriptors, and its close drop them.
pub fn may_carry() -> bool {
    MAY_CARRY.load(Relaxed)
}

/// Whether what came from a peer is an end of a pair. Asks nothing that somebody else could hold back (of a TCP socket a name
/// waits for whoever has its lock). Not one of a connection to a service, which has a name: to that we would
/// seem to speak. No end of a stream is ever connected anew, so it stays what it is.
pub fn is_end(fd: c_int) -> bool {
    let is = |option, value: c_int| net::get_opt(fd, libc::SOL_SOCKET, option) == Ok(value);
    if !is(libc::SO_DOMAIN, libc::AF_UNIX) || !is(libc::SO_TYPE, libc::SOCK_STREAM) {
        return false;
    }
    let mut name = libc::sockaddr_un { sun_family: 0, sun_path: [0; 108] };
    let mut len = size_of_val(&name) as libc::socklen_t;
    let args = [fd as usize, &raw mut name as usize, &raw mut len as usize, 0, 0, 0];
    // SAFETY: the kernel writes at most `len` bytes, and the length.
    let named = unsafe { call(Sysno::getpeername, args) };
    named.is_ok() && len as usize == size_of::<libc::sa_family_t>() && name.sun_family == libc::AF_UNIX as libc::sa_family_t
}

/// Rings at an end. EAGAIN: it was rung often, and nobody listens.
pub fn ring(fd: c_int) -> Res {
    net::send_slice(fd, &[1], libc::MSG_DONTWAIT)
}

/// Takes what was rung; false if the other end is closed, or has sent descriptors.
pub fn hear(fd: c_int) -> bool {
    hear_from(fd, may_carry())
}

fn hear_from(fd: c_int, may_carry: bool) -> bool {
    let mut buf = [0; 64];
    let mut most = buf.len();
    if may_carry {
        // A descriptor that is dropped is closed here and now. A look ends behind the first that comes.
        match rights::peek_without_fds(fd, &mut buf) {
            Ok((_, true)) => return false,
            Ok((n, false)) => most = n.max(1),
            Err(_) => {}
        }
    }
    match net::recv_slice(fd, &mut buf[..most], libc::MSG_DONTWAIT) {
        Ok(n) => n > 0,
        Err(e) => e.0 == libc::EAGAIN || e.0 == libc::EINTR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fd;

    #[test]
    fn a_ring_is_heard_once() {
        let [hears, rings] = make().expect("a pair");
        assert!(is_end(hears) && is_end(rings));
        assert_eq!(fd::poll_now(hears, libc::POLLIN), 0);
        assert!(ring(rings).is_ok() && ring(rings).is_ok());
        assert_eq!(fd::poll_now(hears, libc::POLLIN), libc::POLLIN);
        assert!(hear(hears));
        assert_eq!(fd::poll_now(hears, libc::POLLIN), 0);
        assert!(hear(hears));
        [hears, rings].into_iter().for_each(fd::close);
    }

    #[test]
    fn a_full_one_does_not_hold_who_rings() {
        let [hears, rings] = make().expect("a pair");
        fd::fcntl(rings, libc::F_SETFL, 0).expect("its flags");
        let full = (0..1_000_000).find_map(|_| ring(rings).err());
        assert_eq!(full.map(|e| e.0), Some(libc::EAGAIN));
        [hears, rings].into_iter().for_each(fd::close);
    }

    #[test]
    fn an_end_is_told_without_a_signal() {
        let [hears, rings] = make().expect("a pair");
        fd::close(rings);
        assert!(!hear(hears));
        assert_eq!(ring(hears).map_err(|e| e.0), Err(libc::EPIPE));
        fd::close(hears);
    }

    #[test]
    fn no_descriptor_is_taken() {
        let [hears, rings] = make().expect("a pair");
        let _ = net::set_opt(hears, libc::SOL_SOCKET, SO_PASSRIGHTS, &1); // as on a kernel without it
        let event = fd::eventfd().expect("an eventfd");
        assert!(ring(rings).is_ok() && ring(rings).is_ok());
        assert!(hear_from(hears, true));
        assert_eq!(fd::poll_now(hears, libc::POLLIN), 0);
        assert!(ring(rings).is_ok() && rights::send_with_fds(rings, &[1], &[event]).is_ok());
        // It stays where it is: whoever takes it closes it.
        assert!(!hear_from(hears, true) && !hear_from(hears, true));
        [hears, rings, event].into_iter().for_each(fd::close);
    }

    #[test]
    fn nothing_else_is_an_end() {
        let event = fd::eventfd().expect("an eventfd");
        let pipe = fd::pipe().expect("a pipe");
        let lone = net::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).expect("a socket");
        for other in [event, pipe[0], pipe[1], lone, -1] {
            assert!(!is_end(other));
        }
        [event, pipe[0], pipe[1], lone].into_iter().for_each(fd::close);
    }
}
